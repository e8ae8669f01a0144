"""The oracle at run time on stored cases: their bounds, and their values within its own error."""

import numpy as np
import pytest

from conformance.dtypes import cast
from conformance.names import DENSE
from conformance.oracle import UnjudgedError, certify
from conformance.oracle.backward import gradients
from conformance.oracle.forward import outputs
from conformance.oracle.near import Near
from conformance.oracle.twofold import Twofold
from conformance.vectors.generate.cases import drafts
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.load import load_vectors

CASES = [case for case in load_vectors().cases if not case.raises and case.operation in DENSE]
WHOLE = [case for case in CASES if not case.seeded]
"""Cases whose results have no rows of their own."""
SMALL = [case for case in CASES if case.elements < 2_000]
SAMPLE = SMALL[::9]


def wide(case):
    return {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in case.inputs.items()}


NEEDS = {draft.id: set(draft.needs) for draft in drafts()}
"""Features that neither options nor shapes tell, as `strict_masking`, which is the numbers' matter."""


@pytest.mark.parametrize("kind", [Near, Twofold])
def test_every_stored_value_is_within_the_error_of_the_first_tier(kind):
    seen = 0
    for case in WHOLE:
        inputs, rows = wide(case), next(iter(case.expected.values())).rows
        problem = pose(case.operation, inputs, case.options, rows)
        a, wanted = approximate(problem), tuple(case.expected)
        with np.errstate(all="ignore"):
            if case.gradients:
                bias = inputs["attn_bias"].shape if "attn_bias" in inputs else (1, 1)
                found = gradients(problem, a, bias, wanted, kind)
            else:
                found = outputs(problem, a, wanted, kind)
        for name, golden in case.expected.items():
            high, low, error = (
                np.broadcast_to(x, found[name][0].shape).reshape(golden.hi.shape) for x in found[name]
            )
            there = np.isfinite(golden.hi)
            assert np.array_equal(high[~there], golden.hi[~there], equal_nan=True), case.id
            with np.errstate(invalid="ignore"):
                off = np.abs((high - golden.hi) + (low - golden.lo))
            assert (off[there] <= error[there] + 2.0**-52 * np.abs(golden.lo[there])).all(), (case.id, name)
            seen += there.sum()
    assert seen > 100_000


def certified(case, dtype):
    golden = next(iter(case.expected.values()))
    rows = golden.rows
    return certify(
        case.operation,
        {
            name: cast(x, case.dtype_of.get(name, dtype)) if x.dtype.kind == "f" else x
            for name, x in case.inputs.items()
        },
        case.options,
        dtype,
        rows=rows,
        dtype_of=case.dtype_of,
        name=case.id,
    )


@pytest.mark.turns(4)
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.id)
def test_a_stored_case_has_the_stored_bounds_and_values(case):
    for dtype in case.dtypes:
        found = certified(case, dtype).case
        assert set(found.features) == set(case.features) - {"strict_masking"} - NEEDS[case.id]
        for name, golden in case.expected.items():
            mine = found.expected[name]
            assert (mine.shape, mine.rows, mine.rms_applies) == (
                golden.shape,
                golden.rows,
                golden.rms_applies,
            )
            assert set(mine.bounds[dtype]) == set(golden.bounds[dtype])
            for policy, bound in golden.bounds[dtype].items():
                assert np.array_equal(mine.bounds[dtype][policy].worst, bound.worst), (dtype, policy)
                assert np.array_equal(mine.bounds[dtype][policy].rms, bound.rms), (dtype, policy)
                tolerance = np.where(bound.rms > 0, np.minimum(bound.worst, 6.0 * bound.rms), bound.worst)
                there = np.isfinite(golden.hi)
                off = np.abs((mine.hi[there] - golden.hi[there]) + (mine.lo[there] - golden.lo[there]))
                assert (off <= tolerance[there] / 64).all()


def test_the_sample_has_every_operation():
    assert {case.operation for case in SAMPLE} == {case.operation for case in CASES}
    assert len(SAMPLE) > 40


def test_what_overflows_is_not_judged_and_says_why():
    case = next(case for case in CASES if "float16/eager" in case.excluded and not case.gradients)
    found = certified(case, "float16")
    with pytest.raises(UnjudgedError, match=r"nothing is judged in float16 under eager: .* may overflow"):
        found.judge({}, "eager")
