"""What a case says of itself, and its operands in the dtype under test."""

from collections.abc import Callable

import numpy as np

from conformance.telling.showing import case_json
from conformance.vectors.case import Case
from conformance.vectors.generate.write import encoded


def test_operands_have_the_dtype_under_test_or_their_own(make_case: Callable[..., Case]) -> None:
    inputs = {name: np.ones((2, 3, 4), np.float32) for name in ("query", "key", "value")}
    inputs["mask"] = np.ones((3, 3), bool)
    case = make_case(inputs=inputs, dtype_of={"key": "float64"})
    found = {name: str(array.dtype) for name, array in case.operands("float16").items()}
    assert found == {"query": "float16", "key": "float64", "value": "float16", "mask": "bool"}
    case.operands("float32")["mask"][...] = False
    assert inputs["mask"].all()


def test_the_index_and_what_is_shown_describe_a_case_alike(make_case: Callable[..., Case]) -> None:
    case = make_case(excluded={"float64": "later", "bfloat16": "sooner"}, options={"scale": 2.0})
    described = case.described
    assert list(described["excluded"]) == ["bfloat16", "float64"]
    for told in (encoded(case)[1], case_json(case)):
        assert list(told.items())[: len(described)] == list(described.items())
