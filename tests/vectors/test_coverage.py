"""What the set has to hold: no cell of the table of coverage is empty, but those that are for a reason."""

import numpy as np
import pytest

from conformance.names import FEATURES
from conformance.vectors.coverage import HOLES, OTHER, PAIRED, SIZES, coverage
from conformance.vectors.coverage_of import View
from conformance.vectors.load import load_vectors

CASES = load_vectors().cases
FORWARD = [case for case in CASES if not case.raises and not case.gradients]
CELLS = {(cell.part, cell.name): cell.cases for cell in coverage(CASES)}

ALONE = {
    "q_offset": {"window"},  # it moves causality or a window
    "broadcast": {"attn_bias"},  # it is the shape of a mask or bias
    "strict_masking": {"mask"},  # it needs something that hides a value
}
"""What else a case of the feature alone must claim; nothing for the rest."""


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_has_a_case_of_its_own(feature):
    wanted = {feature} | ALONE.get(feature, set())
    alone = [case for case in CASES if set(case.features) == wanted]
    assert alone
    if not ALONE.get(feature) and feature not in ("gqa", "value_dim", "validation", "cache"):
        sizes = [View(case).sizes for case in alone]
        assert any(s["d_k"] == s["d_v"] and s["heads"] == s["kv_heads"] for s in sizes)


@pytest.mark.parametrize("part", sorted({part for part, _ in CELLS}))
def test_no_cell_is_empty(part):
    empty = {(p, name) for (p, name), cases in CELLS.items() if p == part and not cases}
    assert empty == {hole for hole in HOLES if hole[0] == part}


def test_the_table_is_as_large_as_it_says():
    assert sum(part == "pairs" for part, _ in CELLS) == len(PAIRED) * (len(PAIRED) - 1) // 2
    assert sum(part == "sizes" for part, _ in CELLS) == sum(map(len, SIZES.values()))
    assert all(reason for reason in HOLES.values())
    assert set(HOLES) <= set(CELLS)


def test_no_cell_is_held_by_most_cases():
    # a test that is always true would hold its cell full whatever is missing
    for (part, name), cases in CELLS.items():
        if part in OTHER and part != "batch axes":
            assert len(cases) < len(FORWARD) / 2, name


@pytest.mark.parametrize("part", [part for part in OTHER if part not in ("batch axes", "shapes")])
def test_plain_attention_holds_hardly_a_cell(part):
    plain = View(next(case for case in CASES if case.id == "attention/plain"))
    assert [name for name, test in OTHER[part].items() if test(plain)] == []


def test_what_is_seen_is_what_the_golden_weights_say():
    for case in FORWARD:
        if "weights" not in case.expected or case.expected["weights"].rows is not None:
            continue
        view, weights = View(case), case.expected["weights"].hi
        assert not weights[~view.visible].any(), case.id
        rows = np.isfinite(weights).all(axis=-1) & view.visible.any(axis=-1) & ("sinks" not in case.inputs)
        assert np.allclose(weights[rows].sum(axis=-1), 1), case.id
