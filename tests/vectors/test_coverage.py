"""What the set has to hold: no cell of the table of coverage is empty, but those that are for a reason."""

from collections import Counter

import numpy as np
import pytest

from conformance.names import FEATURES, OPERATION_FEATURES
from conformance.vectors.case_view import View
from conformance.vectors.coverage import HOLES, OTHER, PAIRED, SIZES, coverage
from conformance.vectors.generate.cases import kernels
from conformance.vectors.generate.covering import meetings
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
    if not ALONE.get(feature) and feature not in (
        "gqa",
        "value_dim",
        "validation",
        "cache",
        *OPERATION_FEATURES.values(),
    ):
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


def test_every_meeting_is_met():
    # options x size x path x dtype, pairs on each path, triples: of attention, of the layer, of their gradients
    counted = Counter(part for part, _ in CELLS)
    assert (counted["paths"], counted["pairs on paths"], counted["triples"]) == (1632, 964, 1848)
    parts = ("paths", "pairs on paths", "triples")
    assert [name for (part, name), cases in CELLS.items() if part in parts and not cases] == []


def test_cases_meet_as_they_are_designed():
    named = {
        "bias": "attn_bias",
        "causal": "is_causal",
        "offset": "q_offset",
        "lengths": "kv_lengths",
        "weights": "return_weights",
        "lse": "return_lse",
        "past": "cache",
        "grouped": "gqa",
    }
    declared = {case.id: case for case in CASES}
    for kind in kernels.KINDS:
        for meeting in meetings(kind.wish):
            case = declared[kernels.name_of(kind, meeting)]
            features = {named.get(option, option.replace("-", "_")) for option in meeting.options}
            assert features <= set(case.features) <= features | {"q_offset"}, case.id
            assert set(case.dtypes) == set(meeting.dtypes), case.id
