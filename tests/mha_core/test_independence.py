"""The result depends neither on memory layout, nor on how or in which company it is computed."""

import functools
import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from array_libraries import TOLERANCES, library

import mha_core
from mha_core import merge_attention, multi_head_attention, scaled_dot_product_attention

attend_module = importlib.import_module("mha_core.attend")
softmax_module = importlib.import_module("mha_core.softmax")

RNG = np.random.default_rng(13)
ARRAYS = {
    "query": RNG.standard_normal((2, 4, 5, 3)),
    "key": RNG.standard_normal((2, 2, 6, 3)),
    "value": RNG.standard_normal((2, 2, 6, 7)),
    "mask": RNG.random((2, 4, 5, 6)) < 0.7,
    "attn_bias": RNG.standard_normal((5, 6)),
    "sinks": RNG.standard_normal(4),
    "q_offset": np.asarray([1, -1]),
    "kv_lengths": np.asarray([6, 4]),
}
ARRAYS["mask"][0, 1, 2] = False
OPTIONS = {"is_causal": True, "window": (3, 1), "softcap": 5.0, "return_weights": True, "return_lse": True}
LAYER = {
    "query": RNG.standard_normal((2, 5, 4)),
    "key": RNG.standard_normal((2, 6, 4)),
    "value": RNG.standard_normal((2, 6, 4)),
    "w_q": RNG.standard_normal((4, 4, 3)),
    "w_k": RNG.standard_normal((2, 4, 3)),
    "w_v": RNG.standard_normal((2, 4, 7)),
    "w_o": RNG.standard_normal((4, 7, 2)),
    "b_o": RNG.standard_normal(2),
}


def assert_same(got, wanted, dtype="float64"):
    for name, x, want in zip(wanted._fields, got, wanted, strict=True):
        assert (x is None) == (want is None), name
        if want is not None:
            np.testing.assert_allclose(np.asarray(x), np.asarray(want), err_msg=name, **TOLERANCES[dtype])


def unaligned(x):
    memory = np.empty(x.nbytes + 1, np.uint8)[1:]
    view = memory.view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "readonly": read_only,
    "unaligned": unaligned,
    "fortran": np.asfortranarray,
}


CHANGES = [(operand, layout) for layout in LAYOUTS for operand in ARRAYS] + [
    ("all", layout) for layout in LAYOUTS
]
CHANGES.remove(("mask", "unaligned"))  # a bool of one byte is always aligned


@pytest.mark.parametrize(("operand", "layout"), CHANGES)
def test_memory_layout(operand, layout):
    wanted = scaled_dot_product_attention(**ARRAYS, **OPTIONS)
    names = [name for name, how in CHANGES if how == layout and operand in ("all", name) and name != "all"]
    changed = {name: LAYOUTS[layout](ARRAYS[name]) for name in names}
    assert changed
    assert_same(scaled_dot_product_attention(**ARRAYS | changed, **OPTIONS), wanted)


@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch", "jax"])
def test_inputs_are_never_written_to(name):
    lib = library(name)
    for operation, arrays, options in (
        (scaled_dot_product_attention, ARRAYS, OPTIONS),
        (multi_head_attention, LAYER, {}),
    ):
        given = {n: lib.array(x, "float32" if x.dtype.kind == "f" else None) for n, x in arrays.items()}
        before = {n: lib.numpy(x).copy() for n, x in given.items()}
        with np.errstate(all="ignore"):
            operation(**given, **options)
        for n, x in given.items():
            np.testing.assert_array_equal(lib.numpy(x), before[n], err_msg=n)


def test_the_output_shares_no_memory_with_an_input():
    one = np.ones((1, 1, 1))
    result = scaled_dot_product_attention(one, one, one, past_key=one[:, :0], past_value=one[:, :0])
    for x in result:
        assert x is None or not np.shares_memory(x, one)


def test_a_second_call_gives_the_same():
    first, second = (scaled_dot_product_attention(**ARRAYS, **OPTIONS) for _ in range(2))
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, y)


def test_batch_neighbours():
    wanted = scaled_dot_product_attention(**ARRAYS, **OPTIONS)
    poisoned = {n: x.copy() for n, x in ARRAYS.items()}
    for name in ("query", "key", "value"):
        poisoned[name][1] = math.nan
    got = scaled_dot_product_attention(**poisoned, **OPTIONS)
    np.testing.assert_allclose(got.output[0], wanted.output[0], **TOLERANCES["float64"])
    alone = {n: x[:1] if n not in ("attn_bias", "sinks") else x for n, x in ARRAYS.items()}
    assert_same(
        scaled_dot_product_attention(**alone, **OPTIONS),
        wanted._replace(**{n: getattr(wanted, n)[:1] for n in ("output", "weights", "lse")}),
    )


def plain_options(**change):
    return {**OPTIONS, "return_weights": False, **change}


@pytest.mark.covers("IND-6")
@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch"])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("offset", [0, 2, -3, "each"])
@pytest.mark.parametrize("window", [None, (1, 1), (0, None), (None, 0)])
def test_row_blocks_are_the_plain_path(monkeypatch, name, rows, offset, window):
    lib = library(name)
    arrays = {n: lib.array(x) for n, x in ARRAYS.items() if n != "q_offset" or offset == "each"}
    options = plain_options(is_causal=rows == 2, window=window)
    options |= {} if offset == "each" else {"q_offset": offset}
    with np.errstate(all="ignore"):
        wanted = scaled_dot_product_attention(**arrays, **options)
        bare = scaled_dot_product_attention(**arrays, **options | {"return_lse": False})
        monkeypatch.setattr(attend_module, "BLOCK_ELEMENTS", 1)
        monkeypatch.setattr(attend_module, "BLOCK_ROWS", rows)
        assert_same(scaled_dot_product_attention(**arrays, **options), wanted)
        blocked = scaled_dot_product_attention(**arrays, **options | {"return_lse": False})
    np.testing.assert_allclose(lib.numpy(blocked), lib.numpy(bare), **TOLERANCES["float64"])


def test_row_blocks_see_nan_and_inf_as_the_plain_path_does(monkeypatch):
    value = ARRAYS["value"].copy()
    value[0, 0, 1, 2], value[1, 1, 3, 0], value[0, 1, 5, 5] = math.nan, math.inf, -math.inf
    wanted = scaled_dot_product_attention(**ARRAYS | {"value": value}, **plain_options())
    assert not np.isfinite(wanted.output).all()
    monkeypatch.setattr(attend_module, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(attend_module, "BLOCK_ROWS", 2)
    assert_same(scaled_dot_product_attention(**ARRAYS | {"value": value}, **plain_options()), wanted)


def test_long_sequences_are_computed_in_blocks(monkeypatch):
    seen = []
    softmax = softmax_module.softmax
    monkeypatch.setattr(
        softmax_module, "softmax", lambda xp, x, *rest: seen.append(x.shape) or softmax(xp, x, *rest)
    )
    x = np.ones((1, 2, 1024, 2), np.float32)
    scaled_dot_product_attention(x, x, x)
    assert len(seen) > 1
    assert max(math.prod(shape) for shape in seen) <= attend_module.BLOCK_ELEMENTS
    seen.clear()
    scaled_dot_product_attention(x, x, x, is_causal=True)
    assert sum(math.prod(shape) for shape in seen) < 0.8 * x.shape[1] * 1024**2


def jax_arrays(arrays):
    lib = library("jax")
    return {n: lib.array(x, "float32" if x.dtype.kind == "f" else None) for n, x in arrays.items()}


@pytest.mark.covers("IND-6")
def test_jit_and_traced_offsets_and_lengths():
    arrays = jax_arrays(ARRAYS)
    import jax

    wanted = scaled_dot_product_attention(**arrays, **OPTIONS)
    attend = jax.jit(functools.partial(scaled_dot_product_attention, **OPTIONS))
    assert_same(attend(**arrays), wanted, "float32")
    layer = jax_arrays(LAYER)
    np.testing.assert_allclose(
        jax.jit(multi_head_attention)(**layer), multi_head_attention(**layer), **TOLERANCES["float32"]
    )


def test_a_traced_scalar_offset():
    arrays = jax_arrays(ARRAYS)
    import jax

    attend = functools.partial(scaled_dot_product_attention, is_causal=True, return_lse=True)
    for offset in (-2, 0, 3):
        wanted = attend(**arrays | {"q_offset": offset})
        assert_same(jax.jit(attend)(**arrays | {"q_offset": offset}), wanted, "float32")


@pytest.mark.covers("IND-6")
def test_vmap():
    arrays = jax_arrays(ARRAYS)
    import jax

    wanted = scaled_dot_product_attention(**arrays, **OPTIONS)
    shared = {"attn_bias", "sinks"}
    axes = [None if n in shared else 0 for n in arrays]

    def attend(*xs):
        return scaled_dot_product_attention(**dict(zip(arrays, xs, strict=True)), **OPTIONS)

    assert_same(jax.vmap(attend, in_axes=axes)(*arrays.values()), wanted, "float32")
    assert_same(jax.jit(jax.vmap(attend, in_axes=axes))(*arrays.values()), wanted, "float32")


SHARDED = """
import re
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mha_core import multi_head_attention, scaled_dot_product_attention

rng = np.random.default_rng(0)
mesh = Mesh(np.asarray(jax.devices()), ("heads",))
assert mesh.size == 4

def put(x, *axes):
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

def draw(*shape):
    return jax.numpy.asarray(rng.standard_normal(shape), "float32")

x, weights = draw(2, 6, 8), {n: draw(4, *s) for n, s in dict(w_q=(8, 3), w_k=(8, 3), w_v=(8, 3), w_o=(3, 8)).items()}
layer = jax.jit(lambda x, weights: multi_head_attention(x, x, x, **weights, is_causal=True))
spread = put(x), {n: put(w, "heads") for n, w in weights.items()}
np.testing.assert_allclose(layer(*spread), layer(x, weights), rtol=1e-4, atol=1e-5)
program = layer.lower(*spread).compile().as_text()
print(*(len(re.findall(name + r"(-start)?\\(", program)) for name in ("all-reduce", "all-gather", "all-to-all")))

heads, options = [draw(2, 4, 6, 3) for _ in range(3)], {"is_causal": True, "window": (3, None)}
got = scaled_dot_product_attention(*(put(h, None, "heads") for h in heads), **options)
np.testing.assert_allclose(got, scaled_dot_product_attention(*heads, **options), rtol=1e-4, atol=1e-5)
"""


def test_heads_spread_over_devices():
    library("jax")
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": str(Path(mha_core.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "0", "0"]  # one sum over the heads, and nothing else is sent


def torch_arrays(arrays):
    lib = library("torch")
    return {n: lib.array(x, "float32" if x.dtype.kind == "f" else None) for n, x in arrays.items()}


@pytest.mark.covers("IND-6")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.parametrize("operation", ["attention", "layer"])
def test_torch_compile_in_one_graph(operation):
    torch = library("torch").module
    function, arrays, options = {
        "attention": (scaled_dot_product_attention, torch_arrays(ARRAYS), OPTIONS),
        "layer": (multi_head_attention, torch_arrays(LAYER), {"return_lse": True}),
    }[operation]
    compiled = torch.compile(functools.partial(function, **options), backend="eager", fullgraph=True)
    assert_same(compiled(**arrays), function(**arrays, **options), "float32")


@pytest.mark.covers("IND-6")
def test_torch_vmap():
    torch = library("torch").module
    arrays = torch_arrays(ARRAYS)
    axes = tuple(None if n in ("attn_bias", "sinks") else 0 for n in arrays)

    def attend(*xs):
        return tuple(scaled_dot_product_attention(**dict(zip(arrays, xs, strict=True)), **OPTIONS)[:3])

    wanted = scaled_dot_product_attention(**arrays, **OPTIONS)
    got = torch.func.vmap(attend, in_dims=axes)(*arrays.values())
    assert_same(wanted._replace(output=got[0], weights=got[1], lse=got[2]), wanted, "float32")


@pytest.mark.covers("IND-6")
@pytest.mark.parametrize("blocks", [False, True])
def test_gradient_mode(monkeypatch, blocks):
    torch = library("torch").module
    arrays, options = torch_arrays(ARRAYS), plain_options()
    with torch.no_grad():
        wanted = scaled_dot_product_attention(**arrays, **options)
    if blocks:
        monkeypatch.setattr(attend_module, "BLOCK_ELEMENTS", 1)
        monkeypatch.setattr(attend_module, "BLOCK_ROWS", 2)
    leaves = {n: x.requires_grad_(x.is_floating_point()) for n, x in arrays.items()}
    got = scaled_dot_product_attention(**leaves, **options)
    assert_same(got._replace(output=got.output.detach(), lse=got.lse.detach()), wanted, "float32")
    got.output.sum().backward()
    assert leaves["value"].grad.shape == leaves["value"].shape


@pytest.mark.parametrize("strides", ["transposed", "expanded", "sliced"])
def test_torch_strides(strides):
    torch = library("torch").module
    arrays = torch_arrays(ARRAYS)
    view = {
        "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        "expanded": lambda x: x[:, :1].expand(x.shape),
        "sliced": lambda x: torch.repeat_interleave(x, 2, dim=-1)[..., ::2],
    }[strides]
    views = {n: view(arrays[n]) for n in ("query", "key", "value")}
    copies = {n: x.contiguous() for n, x in views.items()}
    assert_same(
        scaled_dot_product_attention(**arrays | views, **OPTIONS),
        scaled_dot_product_attention(**arrays | copies, **OPTIONS),
        "float32",
    )


def test_merge_under_jit():
    lib = library("jax")
    import jax

    outputs = [lib.array(RNG.standard_normal((2, 3, 4)), "float32") for _ in range(2)]
    lses = [lib.array(RNG.standard_normal((2, 3)), "float32") for _ in range(2)]
    assert_same(jax.jit(merge_attention)(outputs, lses), merge_attention(outputs, lses), "float32")


def test_finite_values_cost_nothing_more():
    values = importlib.import_module("mha_core.values")
    namespace = importlib.import_module("array_api_compat.numpy")
    assert values.split_values(namespace, ARRAYS["value"]).raising is None
    assert values.split_values(namespace, np.full((1, 1, 1), math.nan)).raising is not None


def test_traced_arrays_take_the_plain_path(monkeypatch):
    arrays = jax_arrays(ARRAYS)
    import jax

    seen = []
    softmax = softmax_module.softmax
    monkeypatch.setattr(attend_module, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(attend_module, "BLOCK_ROWS", 1)
    monkeypatch.setattr(
        softmax_module, "softmax", lambda xp, x, *rest: seen.append(x.shape) or softmax(xp, x, *rest)
    )
    jax.jit(functools.partial(scaled_dot_product_attention, **plain_options()))(**arrays)
    assert len(seen) == 1
