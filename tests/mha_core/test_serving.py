"""The operations of serving against the definition, part by part and page by page, on every library, traced too."""

import functools
import importlib
import itertools
import math
import re
import tracemalloc

import numpy as np
import pytest
import serving_draws as draws
from array_libraries import TOLERANCES, call, library

import mha_core
from mha_core import jax_at_once

OPERATIONS = {
    "packed": (mha_core.packed_attention, draws.packed, draws.packed_by_definition),
    "paged": (mha_core.paged_attention, draws.paged, draws.paged_by_definition),
    "writing": (
        mha_core.paged_attention,
        functools.partial(draws.paged, writes=True),
        draws.paged_by_definition,
    ),
    "latent": (mha_core.latent_attention, draws.latent, draws.latent_by_definition),
}
TIMES = {"numpy": 60, "torch": 30, "array-api-strict": 20}


def check(operation, lib, problem, wanted, dtype="float64"):
    """The results on the arrays of a library are what the definition says, and the operands stay as they are."""
    arrays, options = problem
    kept = {name: x.copy() for name, x in arrays.items()}
    with np.errstate(all="ignore"):  # array-api-strict has no way to silence the NumPy below it
        got = call(operation, lib, arrays, options, dtype)
    for name, x in kept.items():
        np.testing.assert_array_equal(arrays[name], x, err_msg=name)
    assert set(got) == set(wanted)
    for name, x in got.items():
        assert x.shape == wanted[name].shape, name
        np.testing.assert_allclose(x.astype(np.float64), wanted[name], err_msg=name, **TOLERANCES[dtype])


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_operation(kind, name):
    operation, draw, define = OPERATIONS[kind]
    lib = library(name)
    for seed in range(TIMES[name]):
        problem = draw(np.random.default_rng(seed))
        check(operation, lib, problem, define(*problem))


def compiled(operation, jax):
    """The operation under jax.jit with every array traced."""

    @functools.wraps(operation)
    def call_compiled(**given):
        traced = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
        static = {name: x for name, x in given.items() if name not in traced}
        return jax.jit(functools.partial(operation, **static))(**traced)

    return call_compiled


@pytest.mark.parametrize(("kind", "traced"), [("writing", False), *((kind, True) for kind in OPERATIONS)])
def test_operation_on_jax(kind, traced):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    operation, draw, define = OPERATIONS[kind]
    done = 0
    for seed in itertools.count(200):
        arrays, options = draw(np.random.default_rng(seed))
        has_offset = "q_offset" in {**arrays, **options} or not draws.is_banded(options)
        if not has_offset or not all(x.size for x in arrays.values()):
            continue
        rounded = {
            name: x.astype("float32").astype("float64") if x.dtype.kind == "f" else x
            for name, x in arrays.items()
        }
        check(
            compiled(operation, jax) if traced else operation,
            library("jax"),
            (arrays, options),
            define(rounded, options),
            "float32",
        )
        done += 1
        if done == (2 if traced else 1):
            return


@pytest.mark.parametrize("kind", OPERATIONS)
@pytest.mark.parametrize(
    ("name", "dtype"), [("numpy", "float16"), ("torch", "bfloat16"), ("torch", "float16")]
)
def test_16_bits_are_computed_in_float32_and_rounded_once(kind, name, dtype):
    operation, draw, _ = OPERATIONS[kind]
    lib = library(name)
    for seed in range(300, 306):
        arrays, options = draw(np.random.default_rng(seed))
        narrow = {n: lib.numpy(lib.array(x, dtype)) if x.dtype.kind == "f" else x for n, x in arrays.items()}
        wanted = call(operation, lib, narrow, options, "float32")
        got = call(operation, lib, narrow, options, dtype)
        for n, x in wanted.items():
            rounded = lib.numpy(lib.array(x, dtype if n != "lse" else "float32"))
            np.testing.assert_allclose(
                got[n], rounded, rtol=2e-2 if dtype == "bfloat16" else 2e-3, atol=1e-6, err_msg=n
            )
            assert got[n].dtype == rounded.dtype


def counted(monkeypatch):
    """The sizes of each attention of laid out operands from now on."""
    asked = []
    module = importlib.import_module("mha_core.jax_at_once")
    attend = module.attend

    def noted(xp, query, key, value, options, sizes):
        asked.append((*query.shape[:-1], key.shape[-2]))
        return attend(xp, query, key, value, options, sizes)

    monkeypatch.setattr(module, "attend", noted)
    return asked


def test_parts_of_equal_sizes_are_one_attention(monkeypatch):
    asked = counted(monkeypatch)
    query, key = np.zeros((2, 20, 3)), np.zeros((1, 30, 3))

    def attended(q_starts, kv_starts):
        asked.clear()
        mha_core.packed_attention(
            query, key, key, q_starts=np.asarray(q_starts), kv_starts=np.asarray(kv_starts)
        )
        return asked

    assert attended([0, 4, 8, 12], [0, 5, 10, 15]) == [(3, 2, 4, 5)]
    assert attended([0, 4, 5, 9], [0, 5, 7, 12]) == [(2, 2, 4, 5), (1, 2, 1, 2)]


def test_pages_are_read_where_a_window_and_causality_leave_keys(monkeypatch):
    asked = counted(monkeypatch)
    rng = np.random.default_rng(3)
    pages = rng.standard_normal((50, 4, 1, 8))
    pages[20:] = math.nan  # no table that is read has those
    table = np.full((2, 40), 49)
    table[:, 5:8] = [[3, 4, 5], [6, 4, 7]]  # keys 20 to 31
    options = {"is_causal": True, "window": (5, None), "q_offset": 30}
    mha_core.paged_attention(
        rng.standard_normal((2, 1, 1, 8)),
        pages,
        pages,
        page_table=table,
        kv_lengths=np.asarray([160, 140]),
        **options,
    )
    assert asked == [(2, 1, 1, 7)]  # keys 25 to 30, and of their first page the one before
    asked.clear()


def test_memory_is_that_of_one_entry_at_a_time():
    pages = np.zeros((4, 1024, 1, 64), np.float32)
    table = np.zeros((64, 32), np.int32)  # dense, 64 entries of 32,768 keys are 1 GiB
    query = np.zeros((64, 1, 1, 64), np.float32)
    tracemalloc.start()
    mha_core.paged_attention(query, pages, pages, page_table=table, kv_lengths=np.full(64, 16384))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20
    rows = np.zeros((1, 2**15, 64), np.float32)
    starts = np.arange(0, 2**15 + 1, 64)
    tracemalloc.start()
    mha_core.packed_attention(rows, rows, rows, q_starts=starts, kv_starts=starts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20  # the logits of all rows by all keys are 4 GiB


def test_other_cells_keep_their_bits():
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, (5, 3, 2, 4), dtype=np.uint32)  # NaN of every kind, -0, subnormal numbers
    pages, slots = bits.view(np.float32), np.asarray([7, -1, 0])
    new = rng.standard_normal((3, 2, 4)).astype(np.float32)
    for name in ("numpy", "torch", "jax", "array-api-strict"):
        lib = library(name)
        given = [lib.array(x) for x in (pages, pages, new, new)]
        got = mha_core.append_to_pages(*given, slots=lib.array(slots))
        for x in got:
            changed = np.array(lib.numpy(x)).view(np.uint32)
            np.testing.assert_array_equal(changed[2, 1], new[0].view(np.uint32))
            np.testing.assert_array_equal(changed[0, 0], new[2].view(np.uint32))
            changed[2, 1], changed[0, 0] = bits[2, 1], bits[0, 0]
            np.testing.assert_array_equal(changed, bits)
        np.testing.assert_array_equal(lib.numpy(given[0]).view(np.uint32), bits)


@pytest.mark.parametrize("kind", OPERATIONS)
def test_torch_differentiates_what_the_dense_call_would(kind):
    """A slope along one direction of each operand, by differences of the definition."""
    torch = library("torch").module
    operation, draw, define = OPERATIONS[kind]
    for seed in range(400, 412):
        arrays, options = draw(np.random.default_rng(seed))
        options["return_lse"] = True
        rng = np.random.default_rng(seed)
        leaves = {
            n: torch.tensor(x, requires_grad=True) if x.dtype.kind == "f" else torch.tensor(x)
            for n, x in arrays.items()
        }
        result = operation(**leaves, **options)
        grads = {n: rng.standard_normal(tuple(getattr(result, n).shape)) for n in ("output", "lse")}
        grads["lse"] = np.where(np.isfinite(result.lse.detach().numpy()), grads["lse"], 0.0)
        floating = [n for n, x in leaves.items() if x.requires_grad]
        results = [x for x in (result.output, result.lse) if x.requires_grad]
        if not results:
            continue
        got = torch.autograd.grad(
            results,
            [leaves[n] for n in floating],
            [torch.tensor(grads[n]) for n in ("output", "lse") if getattr(result, n).requires_grad],
            materialize_grads=True,
        )
        for n, x in zip(floating, got, strict=True):
            direction = rng.standard_normal(arrays[n].shape)

            def along(step, n=n, direction=direction, arrays=arrays, options=options, grads=grads):
                moved = define({**arrays, n: arrays[n] + step * direction}, options)
                return sum(np.sum(np.where(np.isfinite(moved[m]), moved[m], 0.0) * grads[m]) for m in grads)

            slope = (along(1e-6) - along(-1e-6)) / 2e-6
            np.testing.assert_allclose(
                np.sum(x.numpy() * direction), slope, rtol=1e-5, atol=1e-6, err_msg=f"{seed} {n}"
            )


def test_what_is_traced_is_refused_where_it_would_have_to_be_read():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    x, starts = jax.numpy.zeros((1, 4, 2)), jax.numpy.asarray([0, 2, 4])
    packed = functools.partial(mha_core.packed_attention, x, x, x, is_causal=True)
    with pytest.raises(ValueError, match=r"starts that cannot be read needs it \(MASK-7\)"):
        jax.jit(lambda a, b: packed(q_starts=a, kv_starts=b))(starts, starts)
    same = jax.jit(lambda a: packed(q_starts=a, kv_starts=a))(starts)
    np.testing.assert_array_equal(same, packed(q_starts=starts, kv_starts=starts))


ROWS = {"query": np.zeros((2, 5, 3)), "key": np.zeros((1, 7, 3)), "value": np.zeros((1, 7, 4))}
STARTS = {"q_starts": np.asarray([0, 2, 5]), "kv_starts": np.asarray([0, 3, 7])}
PAGED = {
    "query": np.zeros((2, 2, 1, 3)),
    "key_pages": np.zeros((6, 4, 1, 3)),
    "value_pages": np.zeros((6, 4, 1, 5)),
    "page_table": np.asarray([[0, 1, 2], [3, -1, 99]]),
    "kv_lengths": np.asarray([12, 4]),
}
NEW = {"new_key": np.zeros((2, 1, 3)), "new_value": np.zeros((2, 1, 5)), "slots": np.asarray([-1, 23])}
LATENT = {"query": np.zeros((2, 3, 1, 6)), "latent": np.zeros((2, 4, 6)), "value_dim": 4, "scale": 0.5}
REFUSED = [
    (
        "packed",
        {"q_starts": np.asarray([1, 2, 5])},
        ValueError,
        "q_starts[0]=1 but the first start is 0 (PACK-6)",
    ),
    ("packed", {"q_starts": np.asarray([0, 3, 2])}, ValueError, "q_starts[2]=2 lies before q_starts[1]=3"),
    (
        "packed",
        {"kv_starts": np.asarray([0, 3, 8])},
        ValueError,
        "kv_starts[2]=8 but there are 7 rows (PACK-6)",
    ),
    (
        "packed",
        {"kv_starts": np.asarray([0, 3])},
        ValueError,
        "kv_starts has length=2 but q_starts has length=3 (PACK-6)",
    ),
    (
        "packed",
        {"q_starts": np.asarray([[0, 2, 5]])},
        ValueError,
        "q_starts has shape (1, 3) but needs 1 axis (PACK-6)",
    ),
    (
        "packed",
        {"q_starts": np.zeros(0, int), "kv_starts": np.zeros(0, int)},
        ValueError,
        "needs a first start",
    ),
    (
        "packed",
        {"q_starts": np.asarray([0.0, 2, 5])},
        TypeError,
        "q_starts has dtype float64 but needs int32 or int64 (DTYPE-7)",
    ),
    ("packed", {"q_starts": [0, 2, 5]}, TypeError, "q_starts is a list but needs an array"),
    (
        "packed",
        {"query": np.zeros((1, 2, 5, 3))},
        ValueError,
        "query has shape (1, 2, 5, 3) but needs heads, rows and width",
    ),
    ("packed", {"key": np.zeros((1, 7, 2))}, ValueError, "(SHAPE-5)"),
    (
        "packed",
        {"query": np.zeros((3, 5, 3)), "key": np.zeros((2, 7, 3)), "value": np.zeros((2, 7, 4))},
        ValueError,
        "(HEAD-3)",
    ),
    (
        "packed",
        {"is_causal": True},
        ValueError,
        "window with part 0 of q_len=2 and kv_len=3 needs it (MASK-7)",
    ),
    (
        "packed",
        {"is_causal": True, "q_offset": np.asarray([1, 2, 3])},
        ValueError,
        "q_offset has shape (3,) but needs () or (2,)",
    ),
    ("packed", {"is_causal": 1}, ValueError, "(SHAPE-10)"),
    ("packed", {"sinks": np.zeros(3)}, ValueError, "sinks has shape (3,) but needs (2,) (SHAPE-11)"),
    ("packed", {"mask": np.ones((5, 7), bool)}, TypeError, "unexpected keyword argument 'mask'"),
    (
        "paged",
        {"kv_lengths": np.asarray([13, 4])},
        ValueError,
        "kv_lengths[0]=13 but page_table has room for 12 keys (PAGE-6)",
    ),
    (
        "paged",
        {"kv_lengths": np.asarray([12, 5])},
        ValueError,
        "page_table[1, 1]=-1 is read, kv_lengths[1] being 5, but",
    ),
    ("paged", {"page_table": np.asarray([[0, 1, 6], [3, 0, 0]])}, ValueError, "page_table[0, 2]=6 is read"),
    (
        "paged",
        {"page_table": np.zeros((3, 3), int)},
        ValueError,
        "page_table has batch=3 but query has batch=2 (PAGE-6)",
    ),
    ("paged", {"page_table": np.zeros((2, 3))}, TypeError, "page_table has dtype float64"),
    (
        "paged",
        {"kv_lengths": np.zeros((2, 1), int)},
        ValueError,
        "kv_lengths has shape (2, 1) but needs 1 axis (PAGE-6)",
    ),
    ("paged", {"value_pages": np.zeros((6, 3, 1, 5))}, ValueError, "value_pages has places of a page=3"),
    (
        "paged",
        {"key_pages": np.zeros((6, 4, 1, 2))},
        ValueError,
        "key_pages has d_k=2 but query has d_k=3 (SHAPE-5)",
    ),
    (
        "paged",
        {"query": np.zeros((2, 1, 3))},
        ValueError,
        "query has shape (2, 1, 3) but needs batch, heads, length and width",
    ),
    ("paged", {"is_causal": True}, ValueError, "window with keys in pages needs it (PAGE-5)"),
    ("paged", {"window": (1, 1), "query": np.zeros((2, 2, 12, 3))}, ValueError, "(PAGE-5)"),
    (
        "paged",
        {"mask": np.ones((1, 11), bool)},
        ValueError,
        "needs one that broadcasts to (2, 2, 1, 12) (SHAPE-11)",
    ),
    (
        "paged",
        {"new_key": NEW["new_key"]},
        ValueError,
        "new_value is None but new rows are given: all three or none (PAGE-11)",
    ),
    (
        "paged",
        {**NEW, "slots": np.asarray([3, 3])},
        ValueError,
        "slots has 3 2 times but a slot is written once (PAGE-11)",
    ),
    (
        "append",
        {"slots": np.asarray([0, 24])},
        ValueError,
        "slots[1]=24 but needs -1 or a slot below 24 (PAGE-11)",
    ),
    (
        "append",
        {"slots": np.asarray([-2, 0])},
        ValueError,
        "slots[0]=-2 but needs -1 or a slot below 24 (PAGE-11)",
    ),
    ("append", {"slots": np.asarray([0])}, ValueError, "slots has rows=1 but new_key has rows=2 (PAGE-11)"),
    (
        "append",
        {"new_key": np.zeros((2, 1, 5))},
        ValueError,
        "new_key has shape (2, 1, 5) but pages need rows of (1, 3) (PAGE-11)",
    ),
    ("append", {"new_value": np.zeros((2, 1, 5), np.float32)}, TypeError, "(DTYPE-2)"),
    ("latent", {"value_dim": 7}, ValueError, "value_dim=7 but rows of latent have 1 to 6 (LAT-"),
    ("latent", {"value_dim": 4.0}, ValueError, "value_dim=4.0 but needs an int (LAT-"),
    ("latent", {"scale": None}, ValueError, "scale is None but needs a number"),
    ("latent", {"latent": np.zeros((2, 4, 5))}, ValueError, "latent has width=5 but query has width=6 (LAT-"),
    (
        "latent",
        {"latent": np.zeros((3, 4, 6))},
        ValueError,
        "latent has batch=(3,) but query has batch=(2,) (SHAPE-5)",
    ),
]
WHOLE = {
    "packed": (mha_core.packed_attention, ROWS | STARTS),
    "paged": (mha_core.paged_attention, PAGED),
    "append": (mha_core.append_to_pages, {n: PAGED[n] for n in ("key_pages", "value_pages")} | NEW),
    "latent": (mha_core.latent_attention, LATENT),
}


@pytest.mark.parametrize(("kind", "change", "error", "message"), REFUSED)
def test_what_is_refused(kind, change, error, message):
    operation, arrays = WHOLE[kind]
    operation(**arrays)
    with pytest.raises(error, match=re.escape(message)):
        operation(**arrays | change)


@pytest.mark.covers("PACK-7")
@pytest.mark.parametrize("option", ["mask", "attn_bias", "kv_lengths", "past_key", "return_weights"])
def test_a_packed_call_takes_no_option_of_one_length(option):
    rows, starts = np.ones((2, 3, 4)), np.array([0, 3])
    with pytest.raises(TypeError, match=option):
        mha_core.packed_attention(rows, rows, rows, q_starts=starts, kv_starts=starts, **{option: rows})


def test_on_jax_parts_of_one_size_are_one_program():
    jnp = pytest.importorskip("jax.numpy")
    query, starts = jnp.ones((1, 23, 3), jnp.float32), jnp.asarray([0, 9, 18, 23])
    compiled = jax_at_once._program.cache_info().misses
    for _ in range(2):
        mha_core.packed_attention(query, query, query, q_starts=starts, kv_starts=starts)
    assert jax_at_once._program.cache_info().misses == compiled + 2  # of nine rows and of five
