"""The operands of a case in the dtype under test."""

from collections.abc import Callable

import numpy as np

from conformance.vectors.case import Case


def test_operands_have_the_dtype_under_test_or_their_own(make_case: Callable[..., Case]) -> None:
    inputs = {name: np.ones((2, 3, 4), np.float32) for name in ("query", "key", "value")}
    inputs["mask"] = np.ones((3, 3), bool)
    case = make_case(inputs=inputs, dtype_of={"key": "float64"})
    found = {name: str(array.dtype) for name, array in case.operands("float16").items()}
    assert found == {"query": "float16", "key": "float64", "value": "float16", "mask": "bool"}
    case.operands("float32")["mask"][...] = False
    assert inputs["mask"].all()
