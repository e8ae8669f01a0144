"""`assert_conforms` and `expected` of packed, paged, latent and merged attention."""

from typing import Any

import numpy as np
import pytest

import conformance
from conformance.names import SERVING
from conformance.oracle import certify
from conformance.vectors.load import load_vectors
from tests.running import gathering

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


STARTS = {"q_starts": np.array([0, 2, 5]), "kv_starts": np.array([0, 4, 9])}
PAGES = {"page_table": np.array([[2, 0], [1, 3]]), "kv_lengths": np.array([3, 2])}
PACKED = (drawn(4, 6, 8), drawn(2, 9, 8), drawn(2, 9, 8))
PAGED = (drawn(2, 4, 1, 8), drawn(4, 2, 2, 8), drawn(4, 2, 2, 8))
WRITE = {"new_key": drawn(1, 2, 8), "new_value": drawn(1, 2, 8), "slots": np.array([0])}
PARTS = [drawn(2, 3, 4, 8) for _ in range(3)], [drawn(2, 3, 4) for _ in range(3)]
ROWS = drawn(2, 3, 2, 12), drawn(2, 5, 12)


@pytest.mark.parametrize(
    ("operation", "arrays", "options", "results"),
    [
        ("packed_attention", PACKED, STARTS, ("output",)),
        ("packed_attention", PACKED, {**STARTS, "return_lse": True}, ("output", "lse")),
        ("paged_attention", PAGED, PAGES, ("output",)),
        ("paged_attention", PAGED, {**PAGES, **WRITE}, ("output", "key_pages", "value_pages")),
        ("latent_attention", ROWS, {"value_dim": 8, "scale": 0.3}, ("output",)),
        ("merge_attention", PARTS, {}, ("output", "lse")),
        ("merge_attention", PARTS, {"sinks": drawn(3)}, ("output", "lse")),
    ],
)
def test_a_right_answer_conforms_and_a_wrong_one_does_not(
    operation: str, arrays: Any, options: Any, results: Any
) -> None:
    got = getattr(gathering, operation)(*arrays, **options)
    found = conformance.assert_conforms(got, *arrays, operation=operation, **options)
    assert found.results == results
    value = conformance.expected(*arrays, operation=operation, **options).value
    assert tuple(value) == results
    wrong = {name: (x * 1.01).astype(np.float32) for name, x in value.items()}
    if operation != "packed_attention":  # of which not all rows belong to a part
        with pytest.raises(AssertionError, match=r"\(NUM-1\)"):
            conformance.assert_conforms(wrong, *arrays, operation=operation, **options)


def test_arrays_go_by_their_own_names_too() -> None:
    _, key_pages, value_pages = PAGED
    got = gathering.append_to_pages(key_pages, value_pages, **WRITE)
    found = conformance.assert_conforms(
        got, key_pages=key_pages, value_pages=value_pages, operation="append_to_pages", **WRITE
    )
    assert found.results == ("key_pages", "value_pages")


@pytest.mark.parametrize(
    ("operation", "arrays", "options", "message"),
    [
        ("packed_attention", PACKED, {"q_starts": STARTS["q_starts"]}, "packed_attention needs kv_starts"),
        ("packed_attention", PACKED, {**STARTS, "mask": 1}, "packed_attention has no option 'mask'"),
        ("packed_attention", PACKED, {**STARTS, "q_starts": np.array([0, 2, 9])}, r"last start \(PACK-6\)"),
        ("merge_attention", (PARTS[0], PARTS[1][:2]), {}, r"as many lses \(MERGE-6\)"),
        ("merge_attention", ([], []), {}, r"outputs holds nothing .* \(MERGE-6\)"),
        ("latent_attention", ROWS, {"value_dim": 13, "scale": 1.0}, r"value_dim \(LAT-3\)"),
        ("paged_attention", PAGED, {**PAGES, "kv_lengths": np.array([5, 2])}, r"beyond the table \(PAGE-6\)"),
        ("scaled_dot_product_attention", PACKED[:1], {}, "needs key and value"),
    ],
)
def test_a_wrong_call_is_told(operation: str, arrays: Any, options: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        conformance.expected(*arrays, operation=operation, **options)


def test_a_stored_case_has_the_stored_bounds_and_values() -> None:
    cases = [c for c in load_vectors().cases if c.operation in SERVING and not c.raises]
    seen = set()
    for case in cases[::5]:
        dtype, rows = case.dtypes[-1], next(iter(case.expected.values())).rows
        found = certify(
            case.operation, case.inputs, case.options, dtype, rows=rows, dtype_of=case.dtype_of, name=case.id
        )
        for name, golden in case.expected.items():
            mine, there = found.case.expected[name], np.isfinite(golden.hi)
            assert (mine.shape, mine.rows, mine.rms_applies) == (
                golden.shape,
                golden.rows,
                golden.rms_applies,
            )
            off = np.abs((mine.hi[there] - golden.hi[there]) + (mine.lo[there] - golden.lo[there]))
            assert (off <= found.own_error[name][there] + 2.0**-100 * np.abs(golden.hi[there])).all(), case.id
            for policy, bound in golden.bounds[dtype].items():
                assert np.array_equal(mine.bounds[dtype][policy].worst, bound.worst), (case.id, policy)
                assert np.array_equal(mine.bounds[dtype][policy].rms, bound.rms), (case.id, policy)
        seen.add(case.operation)
    assert seen == set(SERVING)
