"""The result depends neither on memory layout, nor on how or in which company it is computed."""

import functools
import importlib
import math

import numpy as np
import pytest
from array_libraries import TOLERANCES, library

from mha_core import merge_attention, multi_head_attention, scaled_dot_product_attention
from mha_core.torch_fused import portable

pytestmark = pytest.mark.turns(3)

exact_module = importlib.import_module("mha_core.exact")
in_place_module = importlib.import_module("mha_core.in_place")
online_module = importlib.import_module("mha_core.online_softmax")
parts_module = importlib.import_module("mha_core.parts")
softmax_module = importlib.import_module("mha_core.softmax")
visibility_module = importlib.import_module("mha_core.visibility")

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


def in_small_parts(monkeypatch, rows):
    """Everything is cut as finely as it can be, with so many query rows at a time."""
    monkeypatch.setattr(parts_module, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(parts_module, "BLOCK_ROWS", rows)
    monkeypatch.setattr(parts_module, "PART_ELEMENTS", 1)
    monkeypatch.setattr(parts_module, "PART_ROWS", 2 * rows)  # two heads share a key
    monkeypatch.setattr(parts_module, "BAND_ROWS", 2 * rows)
    for module in (in_place_module, online_module):
        monkeypatch.setattr(module, "TILE_ELEMENTS", 1)
        monkeypatch.setattr(module, "TILE_COLUMNS", 2)
    monkeypatch.setattr(visibility_module, "FREE_COLUMNS", 1)


@pytest.mark.covers("IND-6")
@pytest.mark.parametrize("name", ["numpy", "array-api-strict", "torch"])
@pytest.mark.parametrize("elements", [1, 30, 100, 500, 2000, 10**6])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 40), (9, 9), (20, 2)])
def test_any_size_of_parts(monkeypatch, name, elements, q_len, kv_len):
    """Few queries and many keys, or many and few: the batch is cut into entries, one or several at once."""
    lib, rng = library(name), np.random.default_rng(q_len)
    shapes = {"query": (3, 5, 4, q_len, 3), "key": (3, 5, 2, kv_len, 3), "value": (3, 5, 2, kv_len, 6)}
    arrays = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    arrays["mask"] = rng.random((3, 1, 4, 1, kv_len)) < 0.7
    arrays["kv_lengths"] = rng.integers(0, kv_len + 1, (3, 5))
    arrays = {n: lib.array(x) for n, x in arrays.items()}
    options = {"is_causal": True, "q_offset": kv_len - q_len, "return_lse": True}
    with np.errstate(all="ignore"):
        wanted = scaled_dot_product_attention(**arrays, **options, return_weights=True)
        monkeypatch.setattr(parts_module, "PART_ELEMENTS", elements)
        assert_same(scaled_dot_product_attention(**arrays, **options), wanted._replace(weights=None))


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
        in_small_parts(monkeypatch, rows)
        assert_same(scaled_dot_product_attention(**arrays, **options), wanted)
        blocked = scaled_dot_product_attention(**arrays, **options | {"return_lse": False})
    np.testing.assert_allclose(lib.numpy(blocked), lib.numpy(bare), **TOLERANCES["float64"])


def test_row_blocks_see_nan_and_inf_as_the_plain_path_does(monkeypatch):
    value = ARRAYS["value"].copy()
    value[0, 0, 1, 2], value[1, 1, 3, 0], value[0, 1, 5, 5] = math.nan, math.inf, -math.inf
    wanted = scaled_dot_product_attention(**ARRAYS | {"value": value}, **plain_options())
    assert not np.isfinite(wanted.output).all()
    in_small_parts(monkeypatch, 2)
    assert_same(scaled_dot_product_attention(**ARRAYS | {"value": value}, **plain_options()), wanted)


WATCHED = {
    "exact": (exact_module, "logits_of", "numpy", math.inf),
    "online softmax": (online_module, "products", "torch", 1.0),
    "in place": (in_place_module, "weights_of", "numpy", 1.0),
}


@pytest.mark.parametrize("way", WATCHED)
def test_long_sequences_are_computed_in_blocks(monkeypatch, way):
    seen = []
    module, name, library_name, special = WATCHED[way]
    function = getattr(module, name)

    def watched(*arguments):
        logits = function(*arguments)
        seen.append(math.prod(logits.shape))
        return logits

    monkeypatch.setattr(module, name, watched)
    x = np.ones((1, 2, 1024, 2), np.float32)
    value = x.copy()
    value[..., 0, 0] = special
    x, value = (library(library_name).array(y) for y in (x, value))
    with portable():
        scaled_dot_product_attention(x, x, value)
        assert len(seen) > 1
        assert max(seen) <= parts_module.BLOCK_ELEMENTS
        assert sum(seen) == x.shape[1] * 1024**2
        seen.clear()
        scaled_dot_product_attention(x, x, value, is_causal=True)
        assert sum(seen) < 0.8 * x.shape[1] * 1024**2


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("batch", [(), (1,), (1, 1)])
@pytest.mark.parametrize("q_len", [1, 40])
def test_a_batch_of_one_keeps_its_axes(name, batch, q_len):
    lib, rng = library(name), np.random.default_rng(3)
    arrays = [lib.array(rng.standard_normal((*batch, 2, n, 80))) for n in (q_len, 900, 900)]
    wanted = scaled_dot_product_attention(*arrays, return_weights=True).output
    with portable():
        got = scaled_dot_product_attention(*arrays)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(lib.numpy(got), lib.numpy(wanted), **TOLERANCES["float64"])


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("option", ["mask", "attn_bias"])
@pytest.mark.parametrize("heads", [1, 4])
def test_each_head_of_a_long_sequence_has_its_own_mask(name, option, heads):
    lib, rng = library(name), np.random.default_rng(3)
    arrays = {n: lib.array(rng.standard_normal((2, 4, 600, 8))) for n in ("query", "key", "value")}
    drawn = rng.standard_normal((1, heads, 600, 600))
    arrays[option] = lib.array(drawn > 0 if option == "mask" else drawn)
    wanted = scaled_dot_product_attention(**arrays, return_weights=True).output
    with portable():
        got = scaled_dot_product_attention(**arrays)
    np.testing.assert_allclose(lib.numpy(got), lib.numpy(wanted), **TOLERANCES["float64"])


def with_changes(change):
    """Heads that `change` has written something special into, and their mask: some rows see no key."""
    rng = np.random.default_rng(5)
    arrays = {
        n: rng.standard_normal((2, h, n_, 4))
        for n, h, n_ in (("query", 4, 9), ("key", 2, 7), ("value", 2, 7))
    }
    arrays["mask"] = rng.random((2, 4, 9, 7)) < 0.6
    arrays["mask"][:, :, 3] = False
    change(arrays)
    return arrays


SPECIAL = {
    "ordinary": lambda x: None,
    "no mask": lambda x: x.pop("mask"),
    "NaN in a key": lambda x: x["key"].__setitem__((0, 0, 2), math.nan),
    "NaN in a value": lambda x: x["value"].__setitem__((1, 1, 4, 2), math.nan),
    "Inf in a query": lambda x: x["query"].__setitem__((0, 3, 5), math.inf),
    "NaN in a query": lambda x: x["query"].__setitem__((0, 3, 5), math.nan),
    "-Inf in a bias": lambda x: x.update(attn_bias=np.where(np.eye(9, 7) > 0, -math.inf, 0.5)),
    "a bias of -Inf": lambda x: x.update(attn_bias=np.full((9, 7), -math.inf)),
    "the lowest bias": lambda x: x.update(attn_bias=np.full((9, 7), np.finfo(np.float64).min)),
    "large logits": lambda x: x["query"].__imul__(1e4),
    "low logits": lambda x: x.update(query=np.full((2, 4, 9, 4), -300.0), key=np.ones((2, 2, 7, 4))),
    "logits that grow": lambda x: x["query"].__imul__(np.arange(9)[:, None] ** 4.0),
    "large values": lambda x: x.update(value=np.full((2, 2, 7, 4), 1.7e308)),
    "sinks": lambda x: x.update(sinks=np.asarray([0.0, 50.0, -800.0, 800.0])),
    "an infinite sink": lambda x: x.update(sinks=np.asarray([0.0, math.inf, -math.inf, math.nan])),
    "no mask, sinks": lambda x: (x.pop("mask"), x.update(sinks=np.asarray([0.0, 5.0, -8.0, 8.0]))),
}


@pytest.mark.covers("IND-6", "MASK-3", "MASK-4", "ATT-11")
@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("special", SPECIAL)
def test_parts_and_tiles_give_what_weights_give(monkeypatch, name, rows, special):
    """Asking for weights takes the exact way through everything at once."""
    lib = library(name)
    arrays = {n: lib.array(x) for n, x in with_changes(SPECIAL[special]).items()}
    with np.errstate(all="ignore"):
        wanted = scaled_dot_product_attention(**arrays, return_weights=True, return_lse=True)
        whole = scaled_dot_product_attention(**arrays, return_lse=True)
        in_small_parts(monkeypatch, rows)
        cut = scaled_dot_product_attention(**arrays, return_lse=True)
    for got in (whole, cut):
        assert_same(got, wanted._replace(weights=None))


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
        in_small_parts(monkeypatch, 2)
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
    in_small_parts(monkeypatch, 1)
    monkeypatch.setattr(
        softmax_module, "softmax", lambda xp, x, *rest: seen.append(x.shape) or softmax(xp, x, *rest)
    )
    jax.jit(functools.partial(scaled_dot_product_attention, **plain_options()))(**arrays)
    assert len(seen) == 1
