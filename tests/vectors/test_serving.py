"""The reductions of packed, paged, latent and merged attention: the oracle's against the second reference's."""

from typing import Any

import numpy as np
import pytest

from conformance.names import SERVING
from conformance.vectors.generate.build import build
from conformance.vectors.generate.cases.serving_packed import whole
from conformance.vectors.generate.serving import judged_rows, shares, written
from conformance.vectors.generate.serving_drafts import append, latent, merge, pack, page
from conformance.vectors.load import load_vectors
from conformance.vectors.verify.agreement import compared

CASES = [case for case in load_vectors().cases if case.operation in SERVING and not case.raises]
SMALL = [case for case in CASES if case.elements < 400]


@pytest.mark.parametrize("case", SMALL[::3], ids=lambda case: case.id)
def test_the_second_reference_agrees(case: Any) -> None:
    elements, wrong = compared(case)
    assert wrong == []
    assert elements == sum(golden.hi.size for golden in case.expected.values())


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_on_fresh_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q_lens, kv_lens = (rng.integers(0, 4, 4).tolist() for _ in range(2))
    lengths = rng.integers(0, 8, 3).tolist()
    drafts = [
        pack(f"fresh/packed-{seed}", "Drawn.", q_lens=q_lens, kv_lens=kv_lens, return_lse=True, spare=(1, 1)),
        page(f"fresh/paged-{seed}", "Drawn.", lengths=lengths, size=int(rng.integers(1, 4)), return_lse=True),
        page(f"fresh/write-{seed}", "Drawn.", lengths=(3,), table=((1, 2),), write=(4, -1), q_len=1),
        latent(f"fresh/latent-{seed}", "Drawn.", value_dim=int(rng.integers(1, 5))),
        merge(f"fresh/merge-{seed}", "Drawn.", parts=int(rng.integers(1, 5)), sigma=4.0),
        append(f"fresh/append-{seed}", "Drawn.", slots=rng.permutation(8)[:3].tolist()),
    ]
    for draft in drafts:
        assert compared(build(draft))[1] == []


def test_a_part_is_a_call_of_its_own() -> None:
    draft = pack(
        "x/parts", "Drawn.", q_lens=(2, 0, 1), kv_lens=(1, 2, 3), is_causal=True, q_offset=whole(0, 1, 2)
    )
    calls = list(shares(draft))
    assert [share.first for share in calls] == [0, 2, 2]
    assert [share.draft.options["q_offset"] for share in calls] == [0, 1, 2]
    assert [share.draft.inputs["key"].shape[1] for share in calls] == [1, 2, 3]


def test_rows_of_no_part_are_not_judged() -> None:
    assert judged_rows(pack("x/spare", "Drawn.", spare=(2, 0))) == (0, 1, 2, 3, 4)
    assert judged_rows(pack("x/all", "Drawn.")) is None


def test_nothing_behind_a_length_is_looked_up() -> None:
    draft = page("x/behind", "Drawn.", lengths=(3,), table=((1, 2),), behind=(2**31 - 1,), columns=4)
    (share,) = shares(draft)
    key = share.draft.inputs["key"]
    assert key.shape == (1, 3, 8, 4)
    assert np.isfinite(key[:, :, :3]).all()
    assert (key[:, :, 4:] == 0).all()  # pages behind the length; slot 3 is the NaN of the last page


def test_a_slot_of_minus_one_writes_nothing() -> None:
    draft = append("x/minus", "Drawn.", slots=(-1, 2))
    pages = written(draft.inputs)["key_pages"].reshape(8, -1)
    before = draft.inputs["key_pages"].reshape(8, -1)
    changed = [i for i in range(8) if not np.array_equal(pages[i], before[i], equal_nan=True)]
    assert changed == [2]


def test_a_copied_result_allows_nothing() -> None:
    case = next(case for case in CASES if case.id == "serving/append-slots")
    for golden in case.expected.values():
        for of in golden.bounds.values():
            assert all(not bound.worst.any() and not bound.rms.any() for bound in of.values())
