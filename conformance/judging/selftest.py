"""Answers with the verdict that each must get: what a judge in another language is tested against."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from conformance.dtypes import cast, dtype_name
from conformance.judging.judge import judge
from conformance.vectors.case import Array, Case

CASES = (
    ("attention/hand-sized", "float32"),
    ("attention/plain", "float32"),
    ("attention/lse", "bfloat16"),
    ("mask/empty-row-is-zero", "float64"),
    ("nonfinite/query-nan", "float16"),
    ("gradient/plain", "float32"),
)
POLICY = "eager"
NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def selftest(cases: Mapping[str, Case]) -> dict[str, Any]:
    """The answers, right and wrong, as they are written to a file.

    Args:
        cases: every stored case, by ID.
    """
    return {"selftest_version": "1", "policy": POLICY, "answers": [*_answers(cases)]}


def _answers(cases: Mapping[str, Case]) -> Iterator[dict[str, Any]]:
    for name, dtype in CASES:
        case = cases[name]
        for about, outputs in _given(case, dtype):
            found = judge(case, dtype, POLICY, outputs)
            yield {
                "case": name,
                "dtype": dtype,
                "about": about,
                "outputs": {key: _written(array) for key, array in outputs.items()},
                "verdict": found.verdict,
                "message": found.message,
            }


def _given(case: Case, dtype: str) -> Iterator[tuple[str, dict[str, Array]]]:
    """The exact answer rounded, and what is wrong with it in one way each."""
    right = {name: cast(golden.hi, case.dtype_of.get(name, dtype)) for name, golden in case.expected.items()}
    name, golden = next(iter(case.expected.items()))
    bounds = golden.bounds[dtype][case.policy(dtype, POLICY)]
    limit = np.where(bounds.rms > 0, np.minimum(bounds.worst, 6 * bounds.rms), bounds.worst)
    place = np.unravel_index(int(np.argmax(np.where(np.isfinite(golden.hi), limit, -1))), golden.hi.shape)
    yield "the exact result, rounded", right
    for factor, about in (
        (0.5, "one element off by half of what is allowed"),
        (2.0, "by twice what is allowed"),
    ):
        off = golden.hi.copy()
        off[place] += factor * limit[place]
        yield about, {**right, name: cast(off, right[name].dtype.name)}
    signs = np.where(np.arange(golden.hi.size).reshape(golden.hi.shape) % 2, 1, -1)
    yield "all elements off by four fifths of what is allowed", {
        **right, name: cast(golden.hi + 0.8 * signs * limit, right[name].dtype.name)
    }  # fmt: skip
    for value in ("nan", "inf"):
        off = right[name].copy()
        off[place] = NUMBERS[value]
        yield f"one element is {value}", {**right, name: off}
    yield "finite where the result is not", {**right, name: np.nan_to_num(right[name], nan=0.0)}
    yield "of a wider dtype", {**right, name: golden.hi if dtype != "float64" else cast(golden.hi, "float32")}
    yield "an axis too many", {**right, name: right[name][None]}
    yield "a result that was not asked for", {**right, "extra": right[name]}
    yield "no result", {key: array for key, array in right.items() if key != name}


def _written(array: Array) -> dict[str, Any]:
    numbers = array.astype(np.float64).ravel().tolist()
    return {
        "dtype": dtype_name(array.dtype),
        "shape": list(array.shape),
        "data": [number if np.isfinite(number) else str(number) for number in numbers],
    }
