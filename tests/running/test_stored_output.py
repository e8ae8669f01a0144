"""What a failing row keeps of its answer: all of it, or none with the reason."""

from typing import Any

import numpy as np

from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.running.messages import Question
from conformance.running.protocol import decode_array
from conformance.running.runner import InProcess, answered
from conformance.running.stored_output import MOST_OF_A_ROW, keep
from conformance.running.target import adopt


def scaled_dot_product_attention(query: Any, key: Any, value: Any) -> Any:
    return value[..., : query.shape[-2], :]


def asked(case: Any, function: Any) -> Row:
    return answered(Question(case, "float32"), "eager", InProcess(adopt(function, "x")))


def test_a_wrong_answer_is_kept_bit_by_bit(make_case: Any) -> None:
    case = make_case()
    row = asked(case, scaled_dot_product_attention)
    (got,) = row.got
    assert (row.verdict, got.output, got.dtype, got.shape, row.got_left_out) == (
        "fail", "output", "float32", (2, 3, 4), "",
    )  # fmt: skip
    array = decode_array(got.output, {"dtype": got.dtype, "shape": got.shape, "data": got.data})
    np.testing.assert_array_equal(array, case.inputs["value"])


def test_nothing_is_kept_of_what_passes_or_raises(make_case: Any) -> None:
    def raises(query: Any, key: Any, value: Any) -> Any:
        raise RuntimeError

    right = make_case(expected={}, raises=True)
    for case, function in ((make_case(), raises), (right, raises)):
        row = asked(case, function)
        assert (row.got, row.got_left_out) == ((), "")
        assert row.operation == SDPA


def test_more_than_a_row_holds_is_left_out_and_said() -> None:
    fits = np.zeros(MOST_OF_A_ROW // 4 * 3, np.bool_)
    assert len(keep({"output": fits})[0][0].data) == MOST_OF_A_ROW
    got, why = keep({"output": fits, "lse": np.zeros(1, np.float32)})
    assert got == ()
    assert why == f"{MOST_OF_A_ROW + 8} characters in base64, at most {MOST_OF_A_ROW} are kept of a row"


def test_a_dtype_that_no_report_can_name_is_left_out_and_said() -> None:
    got, why = keep({"output": np.zeros(2, np.complex64)})
    assert got == ()
    assert "complex64" in why
