"""Every case of what kernels treat apart is one of few that show some defect: without it that would pass."""

import pytest

from conformance.defects.bank import BANK
from conformance.defects.kill import ENOUGH, shown
from conformance.defects.record import read_record
from conformance.vectors.generate.cases import kernel_interactions
from conformance.vectors.load import load_vectors

DEFECTS = {defect.id: defect for kind in ("kernel_paths", "kernel_layers") for defect in BANK[kind]}
CASES = [draft.id for draft in kernel_interactions.drafts()]


def of_few() -> dict[str, set[str]]:
    """Case -> the defects that it shows at a dtype at which too few others do for a search to end early."""
    found: dict[str, set[str]] = {}
    for name, by_dtype in read_record().kills.items():
        for cases in by_dtype.values():
            if name in DEFECTS and len(cases) < ENOUGH:
                for case in cases:
                    found.setdefault(case, set()).add(name)
    return found


def test_every_case_is_needed_by_a_defect() -> None:
    assert [case for case in CASES if case not in of_few()] == []


def test_every_defect_is_shown_by_few() -> None:
    needed = set().union(*of_few().values())
    assert sorted(DEFECTS.keys() - needed) == []


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("path-lengths-replaced-by-mask-of-keys", "mask/kv-lengths-mask"),
        ("path-past-not-causal", "cache/layer-offsets"),
        ("path-layer-rest-of-width-lost", "example/layer-256-as-4-of-64"),
        ("path-grad-layer-tokens-cleared-to-end-of-block", "gradient/layer-nan-behind-lengths"),
    ],
)
def test_what_was_there_before_shows_none_of_it(name: str, case: str) -> None:
    found = next(each for each in load_vectors().cases if each.id == case)
    assert found.judged("float32", "fused")
    assert not shown(DEFECTS[name], (found,), "float32", "fused")
