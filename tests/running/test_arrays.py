"""Conversions: the same values, dtypes and, where the library can, strides; inputs that are written to are found."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from conformance.dtypes import NUMPY_DTYPES, cast
from conformance.names import SDPA
from conformance.running.arrays import UnreadableError, giver, lay_out, take
from conformance.running.invoke import call
from conformance.running.target import adopt
from conformance.vectors.case import Array

VALUES = np.arange(24.0).reshape(2, 3, 4) - 7
MEMORY = (None, "transposed", "reversed", "readonly", "unaligned", "shared", "heads", "packed", "stepped")


def stored(dtype: str) -> Array:
    return cast(VALUES > 0 if dtype == "bool" else VALUES, dtype)


@pytest.mark.parametrize("how", MEMORY)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.covers("IND-2")
def test_memory_keeps_values(how: str | None, dtype: str) -> None:
    array = stored(dtype)
    laid = lay_out(array, how)
    assert laid.dtype == array.dtype
    np.testing.assert_array_equal(laid, array)
    assert not np.shares_memory(laid, array)


@pytest.mark.covers("IND-2")
def test_memory_is_as_named() -> None:
    array = stored("float32")
    assert lay_out(array, None).flags.c_contiguous
    assert lay_out(array, "transposed").flags.f_contiguous
    assert all(stride < 0 for stride in lay_out(array, "reversed").strides)
    assert not lay_out(array, "readonly").flags.writeable
    assert not lay_out(array, "unaligned").flags.aligned
    assert lay_out(array, "stepped").strides[-1] == 2 * array.itemsize
    for how in ("packed", "stepped"):
        wider = lay_out(array, how).base
        assert wider is not None
        assert np.isnan(wider[..., 0]).all(), "what lies beside it is no number"
    with pytest.raises(ValueError, match="upside-down"):
        lay_out(array, "upside-down")


CANNOT = {
    "array-api-strict": ("float16", "bfloat16"),  # the standard has no 16-bit floats
    "jax": ("float64", "int64"),  # 64 bits would change JAX for the tests that follow; see test_jax_x64
}
PAIRS = [
    (array_type, dtype)
    for array_type in ("numpy", "torch", "jax", "array-api-strict", "array_api_compat.numpy")
    for dtype in NUMPY_DTYPES
    if dtype not in CANNOT.get(array_type, ())
]


@pytest.mark.parametrize("how", MEMORY)
@pytest.mark.parametrize(("array_type", "dtype"), PAIRS)
@pytest.mark.covers("IND-2")
def test_there_and_back(array_type: str, dtype: str, how: str | None) -> None:
    module = {"array-api-strict": "array_api_strict"}.get(array_type, array_type.partition(".")[0])
    pytest.importorskip(module)
    array = lay_out(stored(dtype), how)
    back = take(giver(array_type, None)(array))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_torch_keeps_strides_and_memory() -> None:
    pytest.importorskip("torch")
    give = giver("torch", None)
    array = lay_out(stored("bfloat16"), "transposed")
    tensor = give(array)
    assert tensor.stride() == tuple(stride // 2 for stride in array.strides)
    assert str(tensor.dtype) == "torch.bfloat16"


def test_torch_tensor_with_a_gradient_is_read() -> None:
    torch: Any = pytest.importorskip("torch")
    assert take(torch.ones(2, requires_grad=True) * 2).tolist() == [2, 2]


def test_jax_x64() -> None:
    """In a process of its own: x64 is for good."""
    pytest.importorskip("jax")
    code = (
        "import numpy as np\nfrom conformance.running.arrays import giver\ngive = giver('jax', None)\n"
        "wide = give(np.array([2**32 + 1, -1]))\nassert wide.tolist() == [2**32 + 1, -1]\n"
        "print(give(np.ones(1, np.float32)).dtype, give(np.ones(1, np.int64)).dtype, "
        "give(np.ones(1)).dtype, give(np.ones(1, np.int64)).dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float32", "int32", "float64", "int64"]


@pytest.mark.parametrize("thing", [None, "text", object(), [object()], (x for x in ()), {1, 2}])
def test_what_is_no_array(thing: Any) -> None:
    with pytest.raises((UnreadableError, TypeError, ValueError)):
        take(thing)


@pytest.mark.parametrize("array_type", ["numpy", "torch"])
@pytest.mark.parametrize("how", [None, "transposed", "reversed", "unaligned"])
@pytest.mark.covers("IND-5")
def test_written_inputs_are_found(array_type: str, how: str | None) -> None:
    """Also where the library could not share memory with NumPy."""
    pytest.importorskip(array_type)

    class Writing:
        def scaled_dot_product_attention(self, query: Any, key: Any, value: Any) -> Any:
            value[..., 0] = 1
            return query

    Writing.array_type = array_type  # type: ignore[attr-defined]
    inputs = {name: stored("float32") for name in ("query", "key", "value")}
    answer = call(adopt(Writing, "x"), SDPA, inputs, {}, {"value": how} if how else {})
    assert (answer.kind, answer.message) == ("wrong", "value was written to during the call (IND-5)")


@pytest.mark.parametrize("array_type", ["numpy", "torch"])
@pytest.mark.covers("IND-2")
def test_a_shared_operand_is_the_query_itself(array_type: str) -> None:
    pytest.importorskip(array_type)
    seen = []

    class Watching:
        def scaled_dot_product_attention(self, query: Any, key: Any, value: Any) -> Any:
            seen.append((key is query, value is query))
            return query

    Watching.array_type = array_type  # type: ignore[attr-defined]
    inputs = {name: stored("float32") for name in ("query", "key", "value")}
    for memory in ({}, {"key": "shared"}, {"key": "shared", "value": "shared"}):
        assert call(adopt(Watching, "x"), SDPA, inputs, {}, memory).kind == "outputs"
    assert seen == [(False, False), (True, False), (True, True)]


@pytest.mark.covers("IND-5")
def test_nan_inputs_are_not_written_inputs() -> None:
    inputs = {name: np.full((2, 3, 4), np.nan, np.float32) for name in ("query", "key", "value")}

    def attention(query: Any, key: Any, value: Any) -> Any:
        return query

    assert call(adopt(attention, "x"), SDPA, inputs, {}, {}).kind == "outputs"


@pytest.mark.covers("IND-5")
def test_jax_inputs_of_64_bits_are_not_written_inputs() -> None:
    pytest.importorskip("jax")

    class Lengths:
        array_type = "jax"

        def scaled_dot_product_attention(
            self, query: Any, key: Any, value: Any, *, kv_lengths: Any = None
        ) -> Any:
            return query

    inputs = {name: stored("float32") for name in ("query", "key", "value")}
    inputs["kv_lengths"] = np.array([1, 2])
    assert call(adopt(Lengths, "x"), SDPA, inputs, {}, {}).kind == "outputs"


def test_jax_compiles_nothing_to_make_an_array() -> None:
    jax = pytest.importorskip("jax")
    compiled: list[str] = []

    def listen(event: str, seconds: float, **more: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    give = giver("jax", None)
    jax.monitoring.register_event_duration_secs_listener(listen)
    made = [give(np.ones((2, length, 3), np.float32)) for length in (17, 19)]  # shapes that no other test has
    assert not compiled
    assert [x.shape for x in made] == [(2, 17, 3), (2, 19, 3)]
