"""JAX computes what is large in blocks, in one of two ways: results and all derivatives are those of the whole."""

import functools
import math

import numpy as np
import pytest
from array_libraries import library

import mha_core
from mha_core import jax_blocks

pytestmark = pytest.mark.turns(3, whole=True)

jax = pytest.importorskip("jax", reason="jax is not installed")
RNG = np.random.default_rng(21)
HEADS = {
    "query": RNG.standard_normal((2, 4, 11, 3)),
    "key": RNG.standard_normal((2, 2, 9, 3)),
    "value": RNG.standard_normal((2, 2, 9, 5)),
}
MASK = RNG.random((2, 4, 11, 9)) < 0.6
MASK[:, :, 3] = False
OPTIONS = {
    "nothing": {},
    "mask": {"mask": MASK},
    "one mask for all rows": {"mask": MASK[:, :, :1]},
    "causal, window and lengths": {
        "is_causal": True,
        "q_offset": -2,
        "window": (3, None),
        "kv_lengths": np.asarray([9, 4]),
    },
    "window": {"window": (2, 3), "q_offset": np.asarray([1, -1])},
    "all": {
        "mask": MASK,
        "attn_bias": np.where(RNG.random((4, 11, 9)) < 0.2, -math.inf, 1.0)[None],
        "softcap": 4.0,
        "sinks": RNG.standard_normal(4),
        "q_segments": np.arange(11) // 4,
        "kv_segments": np.broadcast_to(np.arange(9) // 4, (2, 9)).copy(),
        "scale": 0.7,
    },
}
SPOILED = {
    "nothing": lambda x: None,
    "NaN in a key": lambda x: x["key"].__setitem__((0, 0, 2), math.nan),
    "NaN in a value": lambda x: x["value"].__setitem__((1, 1, 4, 2), math.nan),
    "Inf in a query": lambda x: x["query"].__setitem__((0, 3, 5), math.inf),
    "overflow": lambda x: (x["query"].__imul__(1e25), x["key"].__imul__(1e25)),
}
SMALL_NUMBERS = {
    "LARGE": 1,
    "LONG": 1,
    "BLOCK_ELEMENTS": {"cpu": 1},
    "BLOCK_ELEMENTS_ELSEWHERE": 1,
    "BLOCK_ROWS": 2,
    "SEGMENTS": 2,
}
FLOATING = ("query", "key", "value", "attn_bias", "sinks")


@pytest.fixture
def in_blocks(monkeypatch):
    """Everything is large, and blocks have two rows."""
    for name, number in SMALL_NUMBERS.items():
        monkeypatch.setattr(jax_blocks, name, number)
    for program in (jax_blocks._program, jax_blocks._program_vjp):
        program.cache_clear()
    yield
    for program in (jax_blocks._program, jax_blocks._program_vjp):
        program.cache_clear()


def call(options, spoil="nothing"):
    """The operation of the floating arrays, and these."""
    given = arrays_of(options, spoil)
    variables = {name: given[name] for name in FLOATING if name in given}

    def attend(variables):
        result = mha_core.scaled_dot_product_attention(**given | variables, return_lse=True)
        return {"output": result.output, "lse": result.lse}

    return attend, variables


def arrays_of(options, spoil="nothing"):
    """Operands and options."""
    arrays = {name: x.copy() for name, x in HEADS.items()}
    SPOILED[spoil](arrays)
    lib = library("jax")
    return {
        name: lib.array(x, "float32" if np.asarray(x).dtype.kind == "f" else None)
        if isinstance(x, np.ndarray)
        else x
        for name, x in {**arrays, **OPTIONS[options]}.items()
    }


def both(monkeypatch, function):
    """A function as it is, and where nothing is large: each compiled once."""
    in_blocks, whole = jax.jit(function), jax.jit(lambda *given: function(*given))

    def plainly(*given):
        with monkeypatch.context() as patch:
            patch.setattr(jax_blocks, "LARGE", math.inf)
            return whole(*given)

    return in_blocks, plainly


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, x in wanted.items():
        scale = np.abs(np.nan_to_num(np.asarray(x), posinf=0, neginf=0)).max()
        np.testing.assert_allclose(
            np.asarray(got[name]), np.asarray(x), 3e-5, 3e-6 * (1 + scale), err_msg=name
        )


@pytest.mark.covers("MASK-3", "MASK-16", "IND-6")
@pytest.mark.parametrize("options", OPTIONS)
def test_forward(monkeypatch, in_blocks, options):
    attend, variables = call(options)
    blocks, whole = both(monkeypatch, attend)
    assert_same(blocks(variables), whole(variables))


@pytest.mark.covers("ATT-11", "MASK-4", "GRAD-9")
def test_what_is_not_finite(monkeypatch, in_blocks):
    attend, _ = call("mask")
    blocks, whole = both(monkeypatch, attend)
    slopes = both(monkeypatch, lambda x: jax.grad(lambda y: (attend(y)["output"] ** 2).sum())(x))
    for spoil in SPOILED:
        _, variables = call("mask", spoil)
        wanted = whole(variables)
        assert_same(blocks(variables), wanted)
        assert np.isfinite(wanted["output"]).all() == (spoil == "nothing")
        assert_same(*(gradients(variables) for gradients in slopes))


@pytest.mark.covers("GRAD-4", "GRAD-9")
def test_a_cotangent_of_an_empty_row_that_is_nan(monkeypatch, in_blocks):
    attend, variables = call("mask")

    def slopes(variables, cotangent):
        return jax.vjp(lambda x: attend(x)["output"], variables)[1](cotangent)[0]

    blocks, whole = both(monkeypatch, slopes)
    cotangent = np.ones((2, 4, 11, 5), np.float32)
    wanted = whole(variables, jax.numpy.asarray(cotangent))
    cotangent[:, :, 3] = math.nan
    assert_same(blocks(variables, jax.numpy.asarray(cotangent)), wanted)


@pytest.mark.covers("GRAD-1", "GRAD-3", "GRAD-4", "GRAD-5", "GRAD-8")
@pytest.mark.parametrize("options", ["causal, window and lengths", "all"])
def test_gradients_and_forward_mode(monkeypatch, in_blocks, options):
    attend, variables = call(options)
    tangents = {name: jax.numpy.where(jax.numpy.isfinite(x), x * 0.5 + 1, 0) for name, x in variables.items()}

    def slopes(variables):
        def output(x):
            return attend(x)["output"]

        pushed = jax.jvp(output, (variables,), (tangents,))[1]
        return jax.grad(lambda x: (output(x) ** 2).sum())(variables) | {"pushed": pushed}

    assert_same(*(function(variables) for function in both(monkeypatch, slopes)))


@pytest.mark.covers("GRAD-1", "GRAD-3", "GRAD-4", "GRAD-5", "GRAD-8", "GRAD-9", "GRAD-16")
@pytest.mark.parametrize("options", ["causal, window and lengths", "all"])
def test_the_cores_own_gradients(monkeypatch, in_blocks, options):
    given = arrays_of(options)
    scalars = {name: x for name, x in given.items() if not isinstance(x, jax.Array)}
    arrays = {name: x for name, x in given.items() if name not in scalars}

    def slopes(arrays, grad_output, grad_lse):
        vjp = mha_core.scaled_dot_product_attention_vjp
        return vjp(**arrays, **scalars, grad_output=grad_output, grad_lse=grad_lse)

    blocks, whole = both(monkeypatch, slopes)
    grad, grad_lse = (np.asarray(RNG.standard_normal((2, 4, 11, *d)), np.float32) for d in ((5,), ()))
    for spoil in (None, math.nan, -math.inf):
        if spoil is not None:
            grad[1, 2, 6, 1] = spoil
        cotangents = jax.numpy.asarray(grad), jax.numpy.asarray(grad_lse)
        got, wanted = (
            {name: np.where(np.isfinite(x), x, math.nan) for name, x in function(arrays, *cotangents).items()}
            for function in (blocks, whole)  # whether Inf less Inf comes first is open
        )
        assert_same(got, wanted)
        assert np.isfinite(wanted["value"]).all() == (spoil is None)
    assert np.isfinite(wanted["value"][0]).all()  # another entry sees nothing of it


def test_derivatives_of_the_cores_own_gradients(monkeypatch, in_blocks):
    given = arrays_of("window")
    arrays = {name: given.pop(name) for name in HEADS}
    tangents = {name: x * 0.5 + 1 for name, x in arrays.items()}
    several = {name: jax.numpy.stack([x, -x]) for name, x in arrays.items()}
    grad = jax.numpy.ones((2, 4, 11, 5), jax.numpy.float32)

    def slopes(arrays):
        return mha_core.scaled_dot_product_attention_vjp(**arrays, **given, grad_output=grad)

    def pushed(arrays):
        return jax.jvp(slopes, (arrays,), (tangents,))[1]

    assert_same(*(function(arrays) for function in both(monkeypatch, pushed)))
    assert_same(*(function(several) for function in both(monkeypatch, jax.vmap(slopes))))


def test_gradients_of_a_layer(monkeypatch, in_blocks):
    tokens = jax.numpy.asarray(RNG.standard_normal((2, 11, 6)), jax.numpy.float32)
    weights = {
        name: jax.numpy.asarray(RNG.standard_normal(shape), jax.numpy.float32)
        for name, shape in (("w_q", (4, 6, 3)), ("w_k", (2, 6, 3)), ("w_v", (2, 6, 5)), ("w_o", (4, 5, 6)))
    }

    def slopes(weights):
        return mha_core.multi_head_attention_vjp(tokens, tokens, tokens, tokens, **weights, is_causal=True)

    assert_same(*(function(weights) for function in both(monkeypatch, slopes)))


def test_vmap_and_second_derivatives(monkeypatch, in_blocks):
    attend, variables = call("window", "NaN in a value")
    several = {name: jax.numpy.stack([x, 2 * x, -x]) for name, x in variables.items()}

    def slopes(variables):
        return jax.vmap(jax.grad(lambda x: attend(x)["output"][0].sum()))(variables)

    def curved(variables):
        return jax.jvp(slopes, (variables,), (variables,))[1]

    assert_same(*(function(several) for function in both(monkeypatch, curved)))


def temporary(function, length):
    """The bytes that the compiled function of one long head needs beside its arguments and results."""
    x = jax.ShapeDtypeStruct((1, 1, length, 16), jax.numpy.float32)
    return jax.jit(function).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_the_length():
    attend = mha_core.scaled_dot_product_attention

    def slopes(*heads):
        return jax.grad(lambda *x: attend(*x).sum(), (0, 1, 2))(*heads)

    def own_slopes(query, key, value):
        return mha_core.scaled_dot_product_attention_vjp(query, key, value, value, is_causal=True)

    for function in (functools.partial(attend, is_causal=True), slopes, own_slopes):
        short, long = (temporary(function, length) for length in (4096, 16384))
        assert long < 6 * short
        assert long < 0.1 * 4 * 16384**2


def test_the_program_chooses_by_the_values():
    x = jax.ShapeDtypeStruct((1, 2, 256, 16), jax.numpy.float32)
    compiled = jax.jit(mha_core.scaled_dot_product_attention).lower(x, x, x)
    assert "case" in compiled.as_text()


@pytest.mark.parametrize("spoiled", ["value", "key", "attn_bias"])
def test_nan_behind_a_length_of_many_keys_is_never_read(spoiled):
    # a maximum of so many numbers leaves NaN out where XLA computes it
    kv_len = 8192
    arrays = {
        "query": RNG.standard_normal((2, 1, 4, 2)),
        "key": RNG.standard_normal((2, 1, kv_len, 2)),
        "value": RNG.standard_normal((2, 1, kv_len, 2)),
        "attn_bias": np.zeros((2, 1, 4, kv_len)),
    }
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    lengths = np.asarray([5, kv_len])
    clean = mha_core.scaled_dot_product_attention(**arrays, kv_lengths=lengths)
    hidden = (0, ..., slice(5, None)) if spoiled == "attn_bias" else (0, slice(None), slice(5, None))
    arrays[spoiled][hidden] = math.nan
    given = {name: jax.numpy.asarray(x) for name, x in arrays.items()}
    found = np.asarray(mha_core.scaled_dot_product_attention(**given, kv_lengths=jax.numpy.asarray(lengths)))
    np.testing.assert_allclose(found, clean, rtol=2e-5, atol=2e-6)
