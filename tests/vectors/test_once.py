"""Entries that repeat are derived once, and nothing about the result tells."""

import pytest

from conformance.vectors.generate import normal_form
from conformance.vectors.generate.build import build
from conformance.vectors.generate.seeding import Sizes, seed, seeded, shapes, whole


@pytest.mark.parametrize(
    "given", [{}, {"arrays": {"kv_lengths": whole(*([0, 1] * 300))}, "return_lse": True}]
)
def test_a_batch_that_repeats_itself_is_derived_as_any_other(
    given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: values, bounds and shapes."""
    sizes = Sizes((600,), 1, 1, 1, 1, 1, 1)
    seeds = {name: seed(name, shape, bits=1, power=0) for name, shape in shapes(sizes, False).items()}
    draft = seeded(
        "kernels/repeats", "As of a case.", "ATT-1", sizes=sizes, only=("float32",), seeds=seeds, **given
    )
    every = build(draft)
    monkeypatch.setattr(normal_form, "MANY", 2)
    found, which = normal_form.once(normal_form.pose(draft.operation, draft.inputs, draft.options, None))
    assert which is not None
    assert found.size <= 128 < 600 == len(which)
    for name, golden in build(draft).expected.items():
        assert golden.shape == every.expected[name].shape
        assert golden.hi.tobytes() == every.expected[name].hi.tobytes()
        assert golden.lo.tobytes() == every.expected[name].lo.tobytes()
        for policy, bound in golden.bounds["float32"].items():
            wanted = every.expected[name].bounds["float32"][policy]
            assert (bound.worst == wanted.worst).all()
            assert (bound.rms == wanted.rms).all()
