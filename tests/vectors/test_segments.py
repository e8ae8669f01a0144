"""Laws of segments, on the golden values themselves: each segment is a call of its own, and its number a name."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.vectors.case import Case
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.generate.oracle import golden
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases if not case.raises}
FREE = (
    "sorted",
    "unsorted",
    "extremes-of-int32",
    "beyond-int32",
    "query-without-a-key-sinks",
    "grouped",
    "value-dim",
)


def held(case: Case, name: str) -> np.ndarray:
    """The numbers of a batch entry, [entries, length]."""
    numbers = case.inputs[name]
    return np.broadcast_to(numbers, (case.inputs["query"].shape[0], numbers.shape[-1]))


@pytest.mark.covers("MASK-17", "MASK-20")
@pytest.mark.parametrize("name", FREE)
def test_each_segment_is_a_call_of_its_own(name: str) -> None:
    case = CASES[f"segments/{name}"]
    of_query, of_key = held(case, "q_segments"), held(case, "kv_segments")
    seen = 0
    for entry in range(len(of_query)):
        for number in np.unique(of_query[entry]):
            rows, keys = np.flatnonzero(of_query[entry] == number), np.flatnonzero(of_key[entry] == number)
            part = {
                "query": case.inputs["query"][[entry]][:, :, rows].astype(np.float64),
                "key": case.inputs["key"][[entry]][:, :, keys].astype(np.float64),
                "value": case.inputs["value"][[entry]][:, :, keys].astype(np.float64),
            }
            if "sinks" in case.inputs:
                part["sinks"] = case.inputs["sinks"].astype(np.float64)
            problem = pose(case.operation, part, case.options, None)
            wanted = [n for n in ("output", "lse") if n in case.expected]
            found, _ = golden(problem, approximate(problem), wanted)
            for output in wanted:
                for place, array in zip(("hi", "lo"), found[output], strict=True):
                    whole = getattr(case.expected[output], place)[[entry]][:, :, rows]
                    assert np.array_equal(array, whole), (output, place, int(number))
            seen += len(rows)
    assert seen == of_query.size


@pytest.mark.covers("MASK-18")
@pytest.mark.parametrize("name", ["relabelled", "in-reverse", "from-five"])
def test_other_numbers_for_the_same_segments_change_nothing(name: str) -> None:
    one, other = CASES["segments/sorted"], CASES[f"segments/{name}"]
    assert not np.array_equal(one.inputs["q_segments"], other.inputs["q_segments"])
    for place in ("hi", "lo"):
        assert np.array_equal(
            getattr(one.expected["output"], place), getattr(other.expected["output"], place)
        )


@pytest.mark.covers("MASK-17", "MASK-19")
@pytest.mark.parametrize(
    "name", ["causal", "window", "past-causal-grouped", "mask-bias-lengths", "one-query-past-lengths"]
)
def test_segments_are_a_mask_that_intersects(name: str) -> None:
    case = CASES[f"segments/{name}"]
    inputs = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in case.inputs.items()}
    problem = pose(case.operation, inputs, case.options, None)
    same = held(case, "q_segments")[:, None, :, None] == held(case, "kv_segments")[:, None, None, :]
    free = {n: x for n, x in inputs.items() if not n.endswith("_segments")}
    shown = pose(case.operation, free, case.options, None).visible & same
    assert np.array_equal(problem.visible, shown)
    assert not np.array_equal(shown, replace(problem, visible=np.ones_like(shown)).visible)
