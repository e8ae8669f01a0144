"""Every golden against a second reference that was written from the text of the specification."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from mpmath import mpf

from conformance.vectors.case import Golden
from conformance.vectors.load import load_vectors
from conformance.vectors.verify import second_reference
from conformance.vectors.verify.agreement import compared, difference

ANSWERED = {case.id: case for case in load_vectors().cases if not case.raises}
FORWARD = {name: case for name, case in ANSWERED.items() if not case.gradients}
SAMPLED = {"example/layer-512-as-8-of-64": 100, "example/layer-256-as-4-of-64": 200}
"""Layers too wide for scalar loops, and how many elements of their output are compared at least."""
NOTHING = {  # results without an element
    *(f"{chapter}/no-{what}" for chapter in ("mask", "projection") for what in ("queries", "batch-entries")),
    *("segments/no-queries", "serving/merge-no-rows", "serving/paged-no-entries"),
    *(f"serving/packed-{what}" for what in ("all-parts-empty", "no-parts", "no-queries")),
}
COMPARED = 140_000  # elements in all
SEEDED = [name for name, case in FORWARD.items() if case.seeded and case.elements < 100_000][::12]
"""Of the seeded cases, which are long, some; `mha-conformance vectors verify` looks at all."""


@pytest.mark.turns(8)
@pytest.mark.session("verify")
@pytest.mark.parametrize("name", [*(name for name, case in ANSWERED.items() if not case.seeded), *SEEDED])
def test_the_second_reference_agrees(name):
    case = ANSWERED[name]
    elements, differences = compared(case)
    assert not differences
    every = sum(golden.hi.size for golden in case.expected.values())
    if name in SAMPLED:
        assert set(case.expected) == {"output"}
        assert SAMPLED[name] <= elements < every
    else:
        assert elements == every


def test_enough_is_compared():
    sizes = {
        name: sum(golden.hi.size for golden in case.expected.values()) for name, case in ANSWERED.items()
    }
    assert sum(SAMPLED.get(name, size) for name, size in sizes.items()) > COMPARED
    assert all(size > 0 for name, size in sizes.items() if name not in NOTHING)


def test_every_golden_is_a_normalised_pair():
    for case in FORWARD.values():
        for golden in case.expected.values():
            finite = np.isfinite(golden.hi)
            assert golden.hi.dtype == golden.lo.dtype == np.float64
            assert (golden.lo[~finite] == 0).all()
            assert (golden.hi + golden.lo == golden.hi)[finite].all()  # hi is the value's own rounding
            reduced = list(golden.shape)
            if golden.rows is not None:
                reduced[len(reduced) - (1 if golden is case.expected.get("lse") else 2)] = len(golden.rows)
            assert golden.hi.shape == tuple(reduced)


def damaged(golden, **arrays):
    return dataclasses.replace(golden, **arrays)


def test_a_golden_that_is_wrong_in_its_last_digits_is_seen():
    case = FORWARD["attention/plain"]
    golden = case.expected["output"]
    for output, place, value, slack in itertools.islice(second_reference.references(case), 20):
        assert output == "output"
        assert difference(golden, place, value, slack) == ""
        for wrong in (
            damaged(golden, hi=np.nextafter(golden.hi, np.inf)),
            damaged(golden, hi=golden.hi.astype(np.float32).astype(np.float64)),
            damaged(golden, lo=golden.lo * (1 + 2.0**-45)),
            damaged(golden, lo=np.zeros_like(golden.lo)),
            damaged(golden, lo=-golden.lo),
            damaged(golden, hi=np.full_like(golden.hi, np.nan)),
        ):
            assert difference(wrong, place, value, slack) != ""


@pytest.mark.parametrize("kind", [math.nan, math.inf, -math.inf])
def test_a_golden_of_another_kind_is_seen(kind):
    for shown in (math.nan, math.inf, -math.inf, 0.0):
        golden = Golden((1,), None, np.array([shown]), np.zeros(1), False, {})
        agrees = difference(golden, (0,), kind, mpf(0)) == ""
        assert agrees == (math.isnan(shown) if math.isnan(kind) else shown == kind)
    golden = Golden((1,), None, np.array([kind]), np.zeros(1), False, {})
    assert difference(golden, (0,), mpf(1), mpf(0)) != ""
    assert difference(golden, (0,), None, mpf(0)) != ""
