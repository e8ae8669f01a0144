"""The gradients are the slopes of the definition, and those of torch.autograd and jax.grad; and where they are 0."""

import contextlib
import functools
import importlib
import itertools
import math
import tracemalloc

import definition
import gradient_reference
import numpy as np
import problems
import pytest
from array_libraries import TOLERANCES, dtypes_of, library
from hypothesis import HealthCheck, given, settings

import mha_core

pytestmark = pytest.mark.turns(3)

SDPA, SDPA_VJP = mha_core.scaled_dot_product_attention, mha_core.scaled_dot_product_attention_vjp
MHA, MHA_VJP = mha_core.multi_head_attention, mha_core.multi_head_attention_vjp
LIBRARIES = ("numpy", "array-api-strict", "torch", "jax")
CASES = [(name, dtype) for name in LIBRARIES for dtype in dtypes_of(name)]
QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
CONSTANT = ("mask", "q_offset", "kv_lengths", "past_key", "past_value", "q_segments", "kv_segments")
RNG = np.random.default_rng(19)
NAN, INF = math.nan, math.inf
parts_module = importlib.import_module("mha_core.parts")
vjp_module = importlib.import_module("mha_core.attend_vjp")
fused_module = importlib.import_module("mha_core.torch_fused")

# B = 2, H = 4, G = 2, q_len = 5, kv_len = 6, d_k = 3, d_v = 7; in the layer d_q = 4, d_kv = 5, d_vv = 6, d_out = 8
HEADS = {
    "query": RNG.standard_normal((2, 4, 5, 3)),
    "key": RNG.standard_normal((2, 2, 6, 3)),
    "value": RNG.standard_normal((2, 2, 6, 7)),
    "grad_output": RNG.standard_normal((2, 4, 5, 7)),
}
LAYER = {
    "query": RNG.standard_normal((2, 5, 4)),
    "key": RNG.standard_normal((2, 6, 5)),
    "value": RNG.standard_normal((2, 6, 6)),
    "w_q": RNG.standard_normal((4, 4, 3)),
    "w_k": RNG.standard_normal((2, 5, 3)),
    "w_v": RNG.standard_normal((2, 6, 7)),
    "w_o": RNG.standard_normal((4, 7, 8)),
    "b_q": RNG.standard_normal((4, 3)),
    "b_k": RNG.standard_normal((2, 3)),
    "b_v": RNG.standard_normal((2, 7)),
    "b_o": RNG.standard_normal(8),
    "grad_output": RNG.standard_normal((2, 5, 8)),
}
MASK = RNG.random((2, 4, 5, 6)) < 0.7
MASK[..., 1] = True  # each row sees a key
BIAS = RNG.standard_normal((2, 1, 5, 6))


def gradients(operation, lib, arrays, options=None, dtype=None):
    """The gradients in NumPy, floating operands cast; the bias keeps its dtype."""
    given = {
        name: lib.array(x, dtype if np.asarray(x).dtype.kind == "f" and name != "attn_bias" else None)
        for name, x in arrays.items()
    }
    operation = functools.partial(operation, **(options or {}))
    if lib.name == "jax":  # compiled once, rather than each step
        operation = importlib.import_module("jax").jit(operation)
    with np.errstate(all="ignore"):
        got = operation(**given)
    for name, x in got.items():
        assert (x.shape, x.dtype) == (given[name].shape, given[name].dtype), name
    return {name: lib.numpy(x).astype(np.float64) for name, x in got.items()}


def assert_close(got, wanted, **tolerance):
    assert set(got) == set(wanted)
    for name, x in wanted.items():
        np.testing.assert_allclose(got[name], x, err_msg=name, **tolerance)


def check_by_differences(operation, vjp, arrays, options):
    """The gradients along one random direction of each argument: the slope there of the definition's results."""
    with_lse = options["return_lse"]
    options = {name: x for name, x in options.items() if not name.startswith("return_")}

    def results(**arrays):
        found = operation(**problems.as_mask(arrays), **options, return_lse=True)
        lse = found["lse"] if with_lse else np.zeros(0)
        return np.concatenate([found["output"].ravel(), np.where(np.isfinite(lse), lse, 0.0).ravel()])

    found = operation(**problems.as_mask(arrays), **options, return_lse=True)
    grads = {"grad_output": RNG.standard_normal(found["output"].shape)}
    if with_lse:  # of an empty row without a sink it reaches nothing
        lse = RNG.standard_normal(found["lse"].shape)
        grads["grad_lse"] = np.where(np.isfinite(found["lse"]), lse, math.nan)
    grad = np.concatenate([np.nan_to_num(x).ravel() for x in grads.values()])
    got = vjp(**arrays, **grads, **options)
    assert set(got) == set(arrays) - set(CONSTANT)
    for name, x in got.items():
        assert (x.shape, x.dtype) == (arrays[name].shape, arrays[name].dtype)
        direction = np.where(np.isfinite(arrays[name]), RNG.standard_normal(x.shape), 0.0)
        ahead, behind = (
            results(**arrays | {name: arrays[name] + step * direction}) for step in (1e-6, -1e-6)
        )
        slope = np.sum((ahead - behind) * grad) / 2e-6
        np.testing.assert_allclose(np.sum(x * direction), slope, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.covers("GRAD-1", "GRAD-2", "GRAD-13")
@given(problem=problems.heads())
@QUICK
def test_attention_by_finite_differences(problem):
    check_by_differences(definition.scaled_dot_product_attention, SDPA_VJP, *problem)


@pytest.mark.covers("GRAD-10", "GRAD-2", "GRAD-13")
@given(problem=problems.layers())
@settings(QUICK, max_examples=25)
def test_layer_by_finite_differences(problem):
    check_by_differences(definition.multi_head_attention, MHA_VJP, *problem)


OPTIONS = {
    "mask": {"mask": MASK},
    "attn_bias": {"attn_bias": BIAS},
    "causal": {"is_causal": True, "q_offset": 1},
    "window": {"window": (2, 1), "q_offset": np.asarray([0, 1])},
    "kv_lengths": {"kv_lengths": np.asarray([6, 4])},
    "scale": {"scale": -0.7},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": RNG.standard_normal(4)},
    "segments": {  # in which each row sees a key, whatever else hides
        "q_segments": np.full(5, 7),
        "kv_segments": np.asarray([[7, 7, -1, 7, 0, -1], [7, 7, 7, 7, 1, 7]]),
    },
}
CHOICES = [(), *itertools.combinations(OPTIONS, 1), *itertools.combinations(OPTIONS, 2)]


def plain_options(options):
    """What the plain expression takes: all that hides as one mask."""
    i, j = np.arange(5)[:, None], np.arange(6)
    offset = np.reshape(options.pop("q_offset", 0), (-1, 1, 1, 1))
    left, right = options.pop("window", (99, 99))
    right = 0 if options.pop("is_causal", False) else right
    visible = (j - i - offset >= -left) & (j - i - offset <= right)
    visible = visible & (j < np.reshape(options.pop("kv_lengths", 6), (-1, 1, 1, 1)))
    if "q_segments" in options:
        q, kv = options.pop("q_segments"), options.pop("kv_segments")
        visible = visible & (q[:, None] == kv[:, None, None, :])
    return options | {"visible": visible & options.pop("mask", True)}


def by_torch(function, arrays):
    torch = library("torch").module
    leaves = {name: torch.tensor(x, requires_grad=x.dtype == np.float64) for name, x in arrays.items()}
    grad = leaves.pop("grad_output").detach()
    scalars = {name: x.item() for name, x in leaves.items() if x.ndim == 0}
    function(torch, **leaves | scalars).backward(grad)
    return {name: x.grad.numpy() for name, x in leaves.items() if x.grad is not None}


def by_jax(function, arrays):
    library("jax")
    import jax

    with jax.enable_x64(True):
        leaves = {name: jax.numpy.asarray(x) for name, x in arrays.items()}
        grad = leaves.pop("grad_output")
        variables = {name: x for name, x in leaves.items() if x.ndim and x.dtype == np.float64}

        @jax.jit
        def pulled_back(variables):
            _, pull_back = jax.vjp(lambda variables: function(jax.numpy, **leaves | variables), variables)
            return pull_back(grad)[0]

        return {name: np.asarray(x) for name, x in pulled_back(variables).items()}


@pytest.mark.covers("GRAD-1", "GRAD-5", "GRAD-6", "GRAD-7", "GRAD-8", "GRAD-10")
@pytest.mark.parametrize(
    ("differentiated", "chosen"),
    [(by_torch, chosen) for chosen in CHOICES] + [(by_jax, (option,)) for option in OPTIONS],
)
def test_every_option_and_pair_to_1e_12(differentiated, chosen):
    options = {name: x for option in chosen for name, x in OPTIONS[option].items()}
    if {"causal", "window"} <= set(chosen):
        options["q_offset"] = np.asarray([0, 1])
    plain = {name: np.asarray(x) for name, x in plain_options(dict(options)).items()}
    for vjp, reference, arrays in (
        (SDPA_VJP, gradient_reference.attention, HEADS),
        (MHA_VJP, gradient_reference.layer, LAYER),
    ):
        wanted = differentiated(reference, arrays | plain)
        assert_close(vjp(**arrays, **options), wanted, rtol=1e-12, atol=1e-12)


EVERYTHING = {
    "mask": MASK,
    "attn_bias": BIAS.astype(np.float32),
    "sinks": RNG.standard_normal(4),
    "q_offset": np.asarray([1, 0], np.int32),
    "kv_lengths": np.asarray([6, 4], np.int32),
    "q_segments": np.asarray([[3, 3, 3, 1, 3], [3, 3, 2, 3, 3]], np.int32),
    "kv_segments": np.asarray([3, 3, 1, 3, 3, 2]),
    "grad_lse": RNG.standard_normal((2, 4, 5)),
}


@pytest.mark.covers("GRAD-2", "GRAD-12")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_every_library_and_dtype(name, dtype):
    options = {"is_causal": True, "window": (3, 1), "softcap": 2.0}
    for vjp, arrays in ((SDPA_VJP, HEADS | EVERYTHING), (MHA_VJP, LAYER | EVERYTHING)):
        plain = library("numpy")
        exact = {
            n: np.asarray(plain.array(x, dtype), np.float64) if x.dtype == np.float64 else x
            for n, x in arrays.items()
        }
        wanted = gradients(vjp, plain, exact, options, "float64")
        got = gradients(vjp, library(name), arrays, options, dtype)
        tolerance = {"rtol": 3e-5, "atol": 3e-5} if dtype == "float32" else TOLERANCES[dtype]
        assert_close(got, wanted, **tolerance | {"atol": max(tolerance["atol"], 1e-12)})


@pytest.mark.covers("GRAD-12")
def test_sums_over_tokens_do_not_stall_at_16_bits():
    ones = np.ones((1, 1, 4096, 1), np.float16)
    one = np.ones((1, 1, 1, 1), np.float16)
    got = SDPA_VJP(
        ones, one, one, ones, sinks=np.zeros(1, np.float16), attn_bias=np.zeros((1, 1), np.float16)
    )
    assert got["value"].item() == np.float16(4096 * math.e / (1 + math.e))
    np.testing.assert_allclose(got["attn_bias"].item(), 4096 * math.e / (1 + math.e) ** 2, rtol=1e-3)
    np.testing.assert_allclose(got["sinks"].item(), -4096 * math.e / (1 + math.e) ** 2, rtol=1e-3)


@pytest.mark.parametrize("kind", ["attention", "layer"])
def test_under_jit(kind):
    lib = library("jax")
    import jax

    vjp, arrays = {"attention": (SDPA_VJP, HEADS), "layer": (MHA_VJP, LAYER)}[kind]
    arrays = {
        n: lib.array(x, "float32" if x.dtype.kind == "f" else None) for n, x in (arrays | EVERYTHING).items()
    }
    got = jax.jit(vjp)(**arrays)
    assert_close(got, vjp(**arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_row_blocks_are_the_plain_path(monkeypatch, name, rows):
    lib = library(name)
    for vjp, arrays, options in itertools.product(
        (SDPA_VJP,),
        (HEADS | EVERYTHING, HEADS | EVERYTHING | {"attn_bias": BIAS[:, :, :1]}),
        ({"is_causal": True}, {"window": (1, 1)}),
    ):
        arrays.pop("q_offset", None)
        options |= {"q_offset": 0}
        wanted = gradients(vjp, lib, arrays, options)
        with monkeypatch.context() as patch:
            patch.setattr(parts_module, "BLOCK_ELEMENTS", 1)
            patch.setattr(parts_module, "BLOCK_ROWS", rows)
            assert_close(gradients(vjp, lib, arrays, options), wanted, rtol=1e-5, atol=1e-12)


def test_memory_grows_with_the_length_alone():
    x = RNG.standard_normal((1, 1, 8192, 8)).astype(np.float32)
    tracemalloc.start()
    SDPA_VJP(x, x, x, x, is_causal=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20  # all logits at once are 256 MiB


@pytest.mark.covers("GRAD-3", "GRAD-4", "GRAD-9", "GRAD-15")
@pytest.mark.parametrize("number", [1.0, NAN, INF, -INF])
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_what_is_hidden_gives_exactly_0(name, number, softcap):
    lib, dtype = library(name), "float32"
    mask = MASK.copy()
    mask[:, :, 3], mask[..., 4] = False, False
    bias = BIAS.copy()
    bias[..., 2] = -INF
    options = {"softcap": softcap}
    given = {"mask": mask, "attn_bias": bias.astype(np.float32), "sinks": np.full(4, 200.0)}

    def spoilt(arrays, rows, keys):
        arrays = {n: x.copy() for n, x in arrays.items()}
        for n in rows:
            arrays[n][..., 3, :] = number
        for n in keys:
            arrays[n][..., [2, 4], :] = number
        return arrays

    heads = gradients(SDPA_VJP, lib, HEADS | given, options, dtype)
    got = gradients(
        SDPA_VJP, lib, spoilt(HEADS, ("query", "grad_output"), ("key", "value")) | given, options, dtype
    )
    assert_close(got, heads, rtol=0, atol=1e-6)
    assert (got["query"][..., 3, :] == 0).all()
    assert (got["key"][..., [2, 4], :] == 0).all()
    assert (got["value"][..., [2, 4], :] == 0).all()
    assert (got["attn_bias"][..., 3, :] == 0).all()
    assert (got["attn_bias"][..., [2, 4]] == 0).all()
    layer = gradients(MHA_VJP, lib, LAYER | given, options, dtype)
    assert_close(
        gradients(MHA_VJP, lib, spoilt(LAYER, ("query",), ("key", "value")) | given, options, dtype),
        layer,
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.covers("GRAD-4", "GRAD-11")
def test_empty_rows_reach_b_o_alone():
    got = MHA_VJP(**LAYER, mask=np.zeros((5, 6), bool), sinks=np.ones(4), attn_bias=np.ones((5, 1)))
    np.testing.assert_allclose(got.pop("b_o"), LAYER["grad_output"].sum((0, 1)), rtol=1e-14)
    for name, x in got.items():
        assert (x == 0).all(), name


@pytest.mark.covers("GRAD-5")
@pytest.mark.parametrize(
    "shape", [*itertools.product((1, 2), (1, 4), (1, 5), (1, 6)), (1, 1), (5, 1), (1, 6), (5, 6)]
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_bias_is_summed_over_the_axes_that_it_broadcasts_over(shape, dtype):
    options = {"mask": MASK, "sinks": np.ones(4), "softcap": 2.0}
    bias = RNG.standard_normal(shape).astype(dtype)
    full = np.broadcast_to(bias, MASK.shape).astype(np.float64)
    wanted = SDPA_VJP(**HEADS, **options, attn_bias=full)["attn_bias"]
    axes = tuple(4 - len(shape) + axis for axis, n in enumerate(shape) if n == 1)
    wanted = wanted.sum((*range(4 - len(shape)), *axes), keepdims=True).reshape(shape)
    got = SDPA_VJP(**HEADS, **options, attn_bias=bias)["attn_bias"]
    assert got.dtype == bias.dtype
    np.testing.assert_allclose(
        got.astype(np.float64), wanted, rtol=2e-3 if dtype == "float16" else 1e-6, atol=1e-4
    )


@pytest.mark.covers("GRAD-15")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_huge_logits_give_finite_gradients(dtype):
    arrays = {n: (x * (50 if n != "grad_output" else 1)).astype(dtype) for n, x in HEADS.items()}
    for options in ({}, {"softcap": 1e-3}, {"scale": 1e3}, {"scale": 0}, {"sinks": np.full(4, 1e4, dtype)}):
        for name, x in SDPA_VJP(**arrays, **options).items():
            assert np.isfinite(x).all(), (name, options)


@pytest.mark.covers("GRAD-14")
@pytest.mark.parametrize(("vjp", "arrays"), [(SDPA_VJP, HEADS), (MHA_VJP, LAYER)])
def test_a_wrong_gradient_of_the_output_is_refused(vjp, arrays):
    grad = arrays["grad_output"]
    for wrong in (grad[:1], grad[..., :1], grad[..., None], grad.sum()):
        with pytest.raises((ValueError, TypeError), match=r"grad_output .*\(GRAD-14\)$"):
            vjp(**arrays | {"grad_output": wrong})
    for wrong in (grad.astype(np.float32), grad.astype(int), None, [1.0]):
        with pytest.raises(TypeError, match=r"grad_output .*\(GRAD-14\)$"):
            vjp(**arrays | {"grad_output": wrong})


@pytest.mark.covers("GRAD-14")
@pytest.mark.parametrize(("vjp", "arrays"), [(SDPA_VJP, HEADS), (MHA_VJP, LAYER)])
def test_a_wrong_gradient_of_the_lse_is_refused(vjp, arrays):
    grad = RNG.standard_normal((2, 4, 5))
    for wrong in (grad[:1], grad[..., :1], grad[..., None], grad[0, 0]):
        with pytest.raises(ValueError, match=r"grad_lse has shape=.* but lse has shape=\(2, 4, 5\) "):
            vjp(**arrays, grad_lse=wrong)
    for wrong in (grad.astype(np.float32), grad.astype(int), [1.0], 1.0):
        with pytest.raises(TypeError, match=r"grad_lse "):
            vjp(**arrays, grad_lse=wrong)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_of_the_lse_may_have_the_dtype_of_lse_or_operands(dtype):
    lib = library("numpy")
    arrays = {name: lib.array(x, dtype) for name, x in HEADS.items()}
    narrow = lib.array(RNG.standard_normal((2, 4, 5)), dtype)
    got, wanted = (SDPA_VJP(**arrays, grad_lse=x) for x in (narrow, narrow.astype(np.float32)))
    for name, x in wanted.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


GIVEN = {name: x for name, x in EVERYTHING.items() if name != "grad_lse"}
BOTH = [(SDPA, SDPA_VJP, HEADS), (MHA, MHA_VJP, LAYER)]


@pytest.mark.parametrize("way", ["auto", "portable"])
@pytest.mark.parametrize(("operation", "vjp", "arrays"), BOTH)
@pytest.mark.parametrize("options", [{}, GIVEN, {"mask": np.arange(5)[:, None] > np.zeros(6)}], ids=str)
def test_the_vjp_is_what_torch_autograd_gives_of_output_and_lse(way, operation, vjp, arrays, options):
    torch = library("torch").module
    arrays = {name: torch.tensor(x) for name, x in (arrays | options).items()}
    grads = {"grad_output": arrays.pop("grad_output"), "grad_lse": torch.tensor(EVERYTHING["grad_lse"])}
    names = [name for name, x in arrays.items() if x.is_floating_point()]
    leaves = {name: x.detach().requires_grad_() if name in names else x for name, x in arrays.items()}
    with fused_module.portable() if way == "portable" else contextlib.nullcontext():
        result = operation(**leaves, return_lse=True)
        wanted = torch.autograd.grad(
            [result.output, result.lse], [leaves[n] for n in names], [*grads.values()], materialize_grads=True
        )
        got = vjp(**arrays, **grads)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if "attn_bias" in names else {"rtol": 1e-12, "atol": 1e-13}
    assert_close(
        {n: x.numpy() for n, x in got.items()},
        {n: x.numpy() for n, x in zip(names, wanted, strict=True)},
        **tolerance,
    )


@pytest.mark.parametrize(("operation", "vjp", "arrays"), BOTH)
def test_the_vjp_is_what_jax_gives_of_output_and_lse(operation, vjp, arrays):
    lib = library("jax")
    import jax

    arrays = {
        n: lib.array(x, "float32" if x.dtype.kind == "f" else None) for n, x in (arrays | GIVEN).items()
    }
    grads = {
        "grad_output": arrays.pop("grad_output"),
        "grad_lse": lib.array(EVERYTHING["grad_lse"], "float32"),
    }
    floating = {n: x for n, x in arrays.items() if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)}

    @jax.jit
    def both(variables):
        def results(variables):
            found = operation(**arrays | variables, return_lse=True)
            return found.output, found.lse

        return jax.vjp(results, variables)[1](tuple(grads.values()))[0], vjp(**arrays, **grads)

    wanted, got = both(floating)
    assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LIBRARIES)
def test_inputs_are_never_written_to(name):
    lib = library(name)
    for vjp, arrays in ((SDPA_VJP, HEADS | EVERYTHING), (MHA_VJP, LAYER | EVERYTHING)):
        given = {n: lib.array(x, "float32" if x.dtype.kind == "f" else None) for n, x in arrays.items()}
        before = {n: lib.numpy(x).copy() for n, x in given.items()}
        with np.errstate(all="ignore"):
            vjp(**given)
        for n, x in given.items():
            np.testing.assert_array_equal(lib.numpy(x), before[n], err_msg=n)


SEGMENTED = {"q_segments": RNG.integers(3, size=600), "kv_segments": RNG.integers(3, size=(2, 600))}


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize(
    "change", [{}, {"is_causal": True}, {"window": (100, 20)}, {"kv_lengths": [300, 0]}, SEGMENTED]
)
@pytest.mark.parametrize("bias", [None, (1, 1, 600, 600), (2, 4, 1, 600), (600, 1)])
def test_long_sequences_have_the_gradients_of_all_at_once(monkeypatch, name, change, bias):
    """Entries and heads one after the other give what the derivative of all of them gives."""
    lib, rng = library(name), np.random.default_rng(4)
    shapes = {
        "query": (2, 4, 600, 8),
        "key": (2, 2, 600, 8),
        "value": (2, 2, 600, 8),
        "grad_output": (2, 4, 600, 8),
    }
    arrays = {n: lib.array(rng.standard_normal(shape)) for n, shape in shapes.items()}
    arrays["sinks"] = lib.array(rng.standard_normal(4))
    if bias is not None:
        arrays["attn_bias"] = lib.array(rng.standard_normal(bias))
    arrays["grad_lse"] = lib.array(rng.standard_normal((2, 4, 600)))
    options = {
        n: lib.array(x) if n == "kv_lengths" or n.endswith("segments") else x for n, x in change.items()
    }
    got = mha_core.scaled_dot_product_attention_vjp(**arrays, **options)
    monkeypatch.setattr(parts_module, "PART_ELEMENTS", 2**40)
    monkeypatch.setattr(vjp_module, "in_place_vjp", lambda *_: None)
    wanted = mha_core.scaled_dot_product_attention_vjp(**arrays, **options)
    assert got.keys() == wanted.keys()
    for key, x in wanted.items():
        np.testing.assert_allclose(lib.numpy(got[key]), lib.numpy(x), **TOLERANCES["float64"], err_msg=key)
