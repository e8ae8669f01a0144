"""Every option, alone and combined, on every library, against spec/definition.py."""

import functools

import definition
import numpy as np
import problems
import pytest
from array_libraries import TOLERANCES, call, dtypes_of, library
from hypothesis import HealthCheck, given, settings

import mha_core

pytestmark = pytest.mark.turns(3)

CASES = [(name, dtype) for name in ("numpy", "array-api-strict", "torch") for dtype in dtypes_of(name)]
QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
SLOW = settings(QUICK, max_examples=12)  # JAX compiles each operation for each new shape


def rounded(arrays, dtype):
    """The operands as the dtype holds them, in float64: what the definition is to compute from."""
    lib = library("numpy")
    return {
        name: np.asarray(lib.array(x, dtype), np.float64)
        if x.dtype.kind == "f" and name != "attn_bias"
        else x
        for name, x in arrays.items()
    }


def check(operation, problem, lib, dtype):
    """The operation on the arrays of a library gives what the definition of that name gives, NaN and Inf included."""
    arrays, options = problem
    wanted = getattr(definition, operation.__name__)(**rounded(problems.as_mask(arrays), dtype), **options)
    with np.errstate(all="ignore"):  # array-api-strict has no way to silence the NumPy below it
        got = call(operation, lib, arrays, options, dtype)
    assert set(got) == set(wanted)
    for name, x in got.items():
        assert x.shape == wanted[name].shape, name
        if name == "weights":  # at the masked keys of a NaN row nothing is required (ATT-10)
            nan = np.isnan(wanted[name])
            x = np.where(nan.any(-1, keepdims=True) & ~nan, wanted[name], x)
        tolerance = TOLERANCES["float32" if name == "lse" and dtype != "float64" else dtype]
        np.testing.assert_allclose(x.astype(np.float64), wanted[name], err_msg=name, **tolerance)


@pytest.mark.parametrize(("name", "dtype"), CASES)
@given(problem=problems.heads())
@QUICK
def test_attention(name, dtype, problem):
    check(mha_core.scaled_dot_product_attention, problem, library(name), dtype)


@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch"])
@given(problem=problems.heads(special=True))
@QUICK
def test_attention_with_nan_and_inf(name, problem):
    check(mha_core.scaled_dot_product_attention, problem, library(name), "float64")


@pytest.mark.parametrize(("name", "dtype"), CASES)
@given(problem=problems.layers())
@settings(QUICK, max_examples=25)
def test_layer(name, dtype, problem):
    check(mha_core.multi_head_attention, problem, library(name), dtype)


def jitted(operation):
    """The operation under jax.jit, arrays traced: compiled once a call, not once for each step and shape."""
    jax = pytest.importorskip("jax", reason="jax is not installed")

    @functools.wraps(operation)
    def call_jitted(**given):
        traced = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
        static = {name: x for name, x in given.items() if name not in traced}
        return jax.jit(functools.partial(operation, **static))(**traced)

    return call_jitted


@pytest.mark.parametrize("special", [False, True])
def test_attention_on_jax(special):
    operation = jitted(mha_core.scaled_dot_product_attention)

    @given(problem=problems.heads(special=special))
    @SLOW
    def agrees(problem):
        check(operation, problem, library("jax"), "float32")

    agrees()


@given(problem=problems.layers())
@SLOW
def test_layer_on_jax(problem):
    check(jitted(mha_core.multi_head_attention), problem, library("jax"), "float32")


@pytest.mark.parametrize("dtype", dtypes_of("jax"))
def test_eager_jax(dtype):
    rng = np.random.default_rng(5)
    arrays = {
        "query": rng.standard_normal((2, 4, 3, 2)),
        "key": rng.standard_normal((2, 2, 3, 2)),
        "value": rng.standard_normal((2, 2, 3, 5)),
        "past_key": rng.standard_normal((2, 2, 2, 2)),
        "past_value": rng.standard_normal((2, 2, 2, 5)),
        "attn_bias": rng.standard_normal((3, 5)),
        "mask": rng.random((2, 1, 3, 5)) < 0.8,
        "q_offset": np.asarray([2, 1]),
        "kv_lengths": np.asarray([5, 4]),
        "sinks": rng.standard_normal(4),
        "q_segments": np.asarray([1, 2, 1]),
        "kv_segments": np.asarray([[1, 2, 1, 2, 1], [2, 1, 2, 2, 3]]),
    }
    options = {
        "is_causal": True,
        "softcap": 2.0,
        "window": (3, None),
        "return_weights": True,
        "return_lse": True,
    }
    lib = library("jax")
    check(mha_core.scaled_dot_product_attention, (arrays, options), lib, dtype)
