"""Any split of a sequence into steps is one pass: growing and static caches, heads and layer, every library."""

import numpy as np
import pytest
from array_libraries import TOLERANCES, dtypes_of, library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mha_core
from mha_core.cache import GrowingCache, append, attend_step, empty_cache, layer_step, prefill

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
SDPA, MHA = mha_core.scaled_dot_product_attention, mha_core.multi_head_attention
RNG = np.random.default_rng(23)
# H = 4, G = 2, d_model = 5, d_k = 3, d_v = 2
WEIGHTS = {
    "w_q": RNG.standard_normal((4, 5, 3)),
    "w_k": RNG.standard_normal((2, 5, 3)),
    "w_v": RNG.standard_normal((2, 5, 2)),
    "w_o": RNG.standard_normal((4, 2, 5)),
    "b_q": RNG.standard_normal((4, 3)),
    "b_k": RNG.standard_normal((2, 3)),
    "b_v": RNG.standard_normal((2, 2)),
    "b_o": RNG.standard_normal(5),
}
OPTIONS = (
    {},
    {"window": (2, None)},
    {"softcap": 1.5, "scale": 0.9},
    {"sinks": RNG.standard_normal(4), "window": (3, 1)},
)


@st.composite
def splits(draw):
    """A length and a way to cut it: steps of zero tokens too."""
    length = draw(st.integers(1, 9))
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=5)))
    return length, [*zip([0, *cuts], [*cuts, length], strict=True)]


BATCHES = st.sampled_from([(), (2,), (2, 3), (0,)])


@QUICK
@given(splits(), BATCHES, st.sampled_from(OPTIONS), st.sampled_from([None, 9, 12]), st.integers(0, 2**32 - 1))
def test_any_split_of_heads_is_one_pass(split, batch, options, capacity, seed):
    length, steps = split
    rng = np.random.default_rng(seed)
    query, key, value = (rng.standard_normal((*batch, h, length, d)) for h, d in ((4, 3), (2, 3), (2, 2)))
    cache = empty_cache(query, (*batch, 2), 3, 2, capacity)
    outputs = []
    for start, stop in steps:
        output, cache = attend_step(
            cache, query[..., start:stop, :], key[..., start:stop, :], value[..., start:stop, :], **options
        )
        outputs.append(output)
    whole = SDPA(query, key, value, is_causal=True, **options)
    np.testing.assert_allclose(np.concatenate(outputs, -2), whole, **TOLERANCES["float64"])
    np.testing.assert_array_equal(cache.key[..., :length, :], key)  # bit for bit, and nothing else is in it
    np.testing.assert_array_equal(cache.value[..., :length, :], value)
    assert cache.key.shape[-2] == (capacity or length)
    if capacity is not None:
        assert (cache.lengths == length).all()
        assert (cache.key[..., length:, :] == 0).all()


@QUICK
@given(splits(), BATCHES, st.sampled_from(OPTIONS), st.sampled_from([None, 9, 12]), st.integers(0, 2**32 - 1))
def test_any_split_of_the_layer_is_one_pass(split, batch, options, capacity, seed):
    length, steps = split
    tokens = np.random.default_rng(seed).standard_normal((*batch, length, 5))
    whole = MHA(tokens, tokens, tokens, is_causal=True, **WEIGHTS, **options)
    empty = cache = empty_cache(tokens, (*batch, 2), 3, 2, capacity)
    outputs = []
    for start, stop in steps:
        output, cache = layer_step(cache, tokens[..., start:stop, :], WEIGHTS, **options)
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, -2), whole, **TOLERANCES["float64"])
    chunk = 1 + seed % 4
    output, filled = prefill(empty, tokens, WEIGHTS, chunk, **options)
    np.testing.assert_allclose(output, whole, **TOLERANCES["float64"])
    for one, other in zip(filled, cache, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCES["float64"])


@pytest.mark.parametrize("capacity", [None, 8])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in ("numpy", "array-api-strict", "torch") for dtype in dtypes_of(name)],
)
def test_every_library_and_dtype(name, dtype, capacity):
    lib = library(name)
    weights = {part: lib.array(x, dtype) for part, x in WEIGHTS.items()}
    tokens = lib.array(RNG.standard_normal((2, 7, 5)), dtype)
    whole = MHA(tokens, tokens, tokens, is_causal=True, **weights)
    output, cache = prefill(empty_cache(tokens, (2, 2), 3, 2, capacity), tokens[:, :6, :], weights, 4)
    last, cache = layer_step(cache, tokens[:, 6:, :], weights)
    got = np.concatenate([lib.numpy(output), lib.numpy(last)], 1)
    scale = TOLERANCES[dtype]
    if dtype in ("float16", "bfloat16"):  # keys and values are rounded when they enter the cache
        scale = {"rtol": 5 * scale["rtol"], "atol": 5 * scale["rtol"]}
    np.testing.assert_allclose(got, lib.numpy(whole), **scale)
    assert cache.key.dtype == tokens.dtype


def test_batch_entries_of_other_lengths():
    lengths = np.array([3, 5, 0])
    prompt, follow = RNG.standard_normal((3, 5, 5)), RNG.standard_normal((3, 2, 5))
    prompt[0, 3:] = np.nan  # padding: whatever stands there
    prompt[2] = np.inf
    cache = empty_cache(prompt, (3, 2), 3, 2, 7)
    output, cache = layer_step(cache, prompt, WEIGHTS, counts=lengths)
    np.testing.assert_array_equal(cache.lengths, lengths)
    after, cache = layer_step(cache, follow, WEIGHTS)
    np.testing.assert_array_equal(cache.lengths, lengths + 2)
    assert np.isfinite(cache.key).all()
    for entry, n in enumerate(lengths):
        alone = np.concatenate([prompt[entry, :n], follow[entry]])
        whole = MHA(alone, alone, alone, is_causal=True, **WEIGHTS)
        np.testing.assert_allclose(output[entry, :n], whole[:n], **TOLERANCES["float64"])
        np.testing.assert_allclose(after[entry], whole[n:], **TOLERANCES["float64"])


def test_a_static_step_compiles_once():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    traced = []

    @jax.jit
    def step(cache, token):
        traced.append(token.shape)
        return layer_step(cache, token, weights)

    weights = {name: jax.numpy.asarray(x, jax.numpy.float32) for name, x in WEIGHTS.items()}
    tokens = jax.numpy.asarray(RNG.standard_normal((4, 5)), jax.numpy.float32)
    cache = empty_cache(tokens, (2,), 3, 2, 4)
    outputs = []
    for i in range(4):
        output, cache = step(cache, tokens[i : i + 1])
        outputs.append(output)
    whole = MHA(tokens, tokens, tokens, is_causal=True, **weights)
    np.testing.assert_allclose(np.concatenate(outputs), np.asarray(whole), **TOLERANCES["float32"])
    assert traced == [(1, 5)]


def test_no_step_writes_to_its_cache():
    key = RNG.standard_normal((2, 3, 3))
    for capacity in (None, 8):
        cache = empty_cache(key, (2,), 3, 3, capacity)
        for x in cache:
            x.setflags(write=False)
        assert append(cache, key, key).key[:, :3].tobytes() == key.tobytes()
        assert not cache.key.any()


def test_a_mask_has_a_column_for_each_slot():
    x, mask = RNG.standard_normal((1, 2, 3)), np.ones((2, 4), bool)
    mask[1, 0] = False
    output, _ = attend_step(empty_cache(x, (1,), 3, 3, 4), x, x, x, mask=mask)
    np.testing.assert_allclose(output[0, 1], x[0, 1])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c, g: append(c, np.ones((2, 5, 3)), np.ones((2, 5, 2))), "capacity=4 but 5 tokens"),
        (lambda c, g: append(c, np.ones((1, 2, 3)), np.ones((2, 2, 2))), r"key has shape \(1, 2, 3\) but .*2, 3\)"),
        (lambda c, g: append(c, np.ones((2, 2, 3)), np.ones((2, 1, 2))), r"value has shape \(2, 1, 2\) but"),
        (lambda c, g: append(g, np.ones((2, 1, 3)), np.ones((2, 1, 2)), counts=np.asarray(1)), "no padding"),
        (lambda c, g: prefill(c, np.ones((3, 5)), WEIGHTS, 0), "chunk=0"),
        (lambda c, g: prefill(c, np.ones((3, 5)), WEIGHTS, 2, mask=np.ones((3, 4), bool)), "mask is given"),
        (lambda c, g: empty_cache(np.ones(1), (), 3, 2), "heads="),
        (lambda c, g: layer_step(g, np.ones((1, 5)), WEIGHTS, counts=np.asarray(1)), "no padding"),
    ],
)  # fmt: skip
def test_what_is_refused(call, told):
    like = np.ones(1)
    with pytest.raises(ValueError, match=told):
        call(empty_cache(like, (2,), 3, 2, 4), empty_cache(like, (2,), 3, 2))


def test_a_growing_cache_grows():
    x = RNG.standard_normal((2, 3, 3))
    cache = append(empty_cache(x, (2,), 3, 3), x, x)
    assert isinstance(cache, GrowingCache)
    assert cache.length == 3
