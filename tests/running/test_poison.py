import numpy as np

from conformance.running.invoke import call
from conformance.running.target import adopt


def test_an_output_that_is_not_written_is_no_number() -> None:
    def attention(query: object, key: object, value: object) -> object:
        return np.empty((5, 3), np.float32)

    inputs = {
        "query": np.ones((1, 5, 4), np.float32),
        "key": np.ones((1, 2, 4), np.float32),
        "value": np.ones((1, 2, 3), np.float32),
    }
    for _ in range(3):
        answer = call(adopt(attention, "unwritten"), "scaled_dot_product_attention", inputs, {}, {})
        assert np.isnan(answer.outputs["output"]).all()


def test_operands_are_left_alone() -> None:
    def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return query + 0

    inputs = {name: np.full((1, 2, 3), 7.0, np.float32) for name in ("query", "key", "value")}
    answer = call(adopt(attention, "right"), "scaled_dot_product_attention", inputs, {}, {})
    assert (answer.outputs["output"] == 7).all()
    assert all((array == 7).all() for array in inputs.values())
