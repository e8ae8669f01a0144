"""A stored case that is saved is read back as the same call: the same results, features, dtypes and bounds."""

from pathlib import Path

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.exploring.saved import read_cases
from conformance.exploring.stored import save_stored
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}


@pytest.mark.parametrize(
    "name",
    [
        "attention/scale-two",
        "gradient/layer-readonly",  # asked twice
        "gradient/lse-of-24-bits",  # an lse of float32 next to operands of 16 bits
        "nonfinite/masked-value-inf",  # needs strict_masking, which no operand tells
        "serving/merge-low-lses",
        "serving/packed-no-parts",  # no row is judged
        "serving/packed-parts",  # rows that belong to no part
        "kernels/gradient-entries-of-five",  # of some results a part of the rows is stored
    ],
)
def test_it_is_read_back(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "case.json"
    assert save_stored(case, path) == "float32"
    found = read_cases(path)[-1]
    assert (found.features, found.covers, found.repeat) == (case.features, case.covers, case.repeat)
    assert set(case.dtypes) <= set(found.dtypes)
    assert list(found.expected) == list(case.expected)
    for result, golden in case.expected.items():
        again = found.expected[result]
        assert golden.shape == again.shape
        assert {(d, p) for d, of in golden.bounds.items() for p in of} <= {
            (d, p) for d, of in again.bounds.items() for p in of
        }
        if golden.rows == again.rows:
            np.testing.assert_array_equal(golden.hi, again.hi)


def test_it_is_saved_in_a_dtype_that_it_is_asked_in(tmp_path: Path) -> None:
    case = next(case for case in CASES.values() if case.dtypes == ("float16",) and case.chapter == "digits")
    assert save_stored(case, tmp_path / "case.json") == "float16"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("validation/batch", "validation/batch cannot be saved: it must be refused"),
        ("attention/bias-float16", "attn_bias has another dtype than the rest"),
        ("gradient/repeated", "its call is made 3 times, and that of a file at most 2 times"),
    ],
)
def test_what_a_file_cannot_hold_is_said(name: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    with pytest.raises(UsageError, match=said):
        save_stored(CASES[name], path)
    assert not path.exists()
