"""Caches for generation: keys and values of earlier steps, growing or in a buffer of fixed length.

Each cache is a value: a step returns another one and writes to none. Any split of a sequence into steps gives
the rows of one causal pass over the whole, within the bounds of NUM-1.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import array_api_compat

from mha_core.arrays import beside, cast, compute_dtype, is_traced, quiet
from mha_core.attention import scaled_dot_product_attention
from mha_core.layer import multi_head_attention
from mha_core.projections import joined, projected, tokens_of
from mha_core.result import Array


class GrowingCache(NamedTuple):
    """Keys and values that grow by concatenation (CACHE-1, CACHE-2)."""

    key: Array
    """(..., G, length, d_k)."""
    value: Array
    """(..., G, length, d_v)."""

    @property
    def length(self) -> int:
        """How many tokens there are."""
        return int(self.key.shape[-2])


class StaticCache(NamedTuple):
    """Keys and values in buffers of fixed length, of which `lengths` slots exist (MASK-12).

    No shape depends on how far a sequence is, so that a compiled step serves all of them.
    """

    key: Array
    """(..., G, capacity, d_k)."""
    value: Array
    """(..., G, capacity, d_v)."""
    lengths: Array
    """int (...), the slots of each batch entry that exist."""

    @property
    def capacity(self) -> int:
        """How many tokens there can be."""
        return int(self.key.shape[-2])


Cache: TypeAlias = GrowingCache | StaticCache


def empty_cache(
    like: Array, heads: tuple[int, ...], d_k: int, d_v: int, capacity: int | None = None
) -> Cache:
    """A cache without a token, in the library, dtype and device of `like`.

    Args:
        like: an array whose library, floating dtype and device the cache has.
        heads: (..., G): the batch axes and the number of heads of key and value.
        d_k: the width of a key.
        d_v: the width of a value.
        capacity: the length of the buffers of a StaticCache; None is a GrowingCache.

    Raises:
        ValueError: there is no number of heads.
    """
    if not heads:
        raise ValueError("heads=() but the number of heads of key and value is needed, behind any batch axes")
    xp = array_api_compat.array_namespace(like)
    where = beside(like)
    length = 0 if capacity is None else capacity
    key, value = (xp.zeros((*heads, length, d), dtype=like.dtype, **where) for d in (d_k, d_v))
    if capacity is None:
        return GrowingCache(key, value)
    return StaticCache(key, value, xp.zeros(heads[:-1], dtype=xp.asarray(0).dtype, **where))


def append(cache: Cache, key: Array, value: Array, counts: Array | None = None) -> Cache:
    """The cache with new keys and values behind those that it has, bit for bit (CACHE-2).

    Args:
        cache: what there is.
        key: (..., G, n, d_k), heads, in the cache's dtype.
        value: (..., G, n, d_v).
        counts: int (...), how many of the n exist in each batch entry, the rest being padding;
            None is all of them. Only for a StaticCache.

    Raises:
        ValueError: shapes do not fit, or the buffers are too short (where the lengths are at hand).
    """
    xp = array_api_compat.array_namespace(cache.key)
    for name, new, old in (("key", key, cache.key), ("value", value, cache.value)):
        given, wanted = tuple(new.shape), (*old.shape[:-2], key.shape[-2], old.shape[-1])
        if given != wanted:
            raise ValueError(f"{name} has shape {given} but the cache needs {wanted} (CACHE-1)")
    if isinstance(cache, GrowingCache):
        if counts is not None:
            raise ValueError("counts are given but a GrowingCache has no padding: use a StaticCache")
        return GrowingCache(xp.concat([cache.key, key], axis=-2), xp.concat([cache.value, value], axis=-2))
    n = key.shape[-2]
    added = xp.full_like(cache.lengths, n) if counts is None else xp.astype(counts, cache.lengths.dtype)
    lengths = cache.lengths + added
    if not is_traced(xp, lengths) and lengths.size and int(xp.max(lengths)) > cache.capacity:
        raise ValueError(
            f"the cache has capacity={cache.capacity} but {int(xp.max(lengths))} tokens are to be kept (CACHE-1)"
        )
    if n == 0:
        return cache
    slots = xp.arange(cache.capacity, dtype=lengths.dtype, **beside(cache.key))
    # (..., capacity): the new token that each slot would hold, and whether it does
    source = slots - xp.expand_dims(cache.lengths, axis=-1)
    is_new = (source >= 0) & (source < xp.expand_dims(added, axis=-1))
    source = xp.clip(source, 0, n - 1)
    key, value = (_placed(xp, *pair, source, is_new) for pair in ((cache.key, key), (cache.value, value)))
    return StaticCache(key, value, lengths)


def attend_step(
    cache: Cache, query: Array, key: Array, value: Array, counts: Array | None = None, **options: Any
) -> tuple[Array, Cache]:
    """Causal attention of the newest tokens to all so far, and the cache with them (CACHE-1, CACHE-3).

    Args:
        cache: the tokens before.
        query: (..., H, n, d_k).
        key: (..., G, n, d_k).
        value: (..., G, n, d_v).
        counts: see `append`; rows beyond them are padding and mean nothing.
        options: those of `scaled_dot_product_attention` but is_causal, q_offset, kv_lengths and the past, which
            are the cache's business; masks and biases have a column for each slot.

    Returns:
        The output (..., H, n, d_v), and the cache for the next step.

    Raises:
        TypeError: what `scaled_dot_product_attention` raises.
        ValueError: what it and `append` raise.

    >>> import numpy as np
    >>> x = np.asarray([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])  # one head, three tokens
    >>> whole = scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> cache = empty_cache(x, heads=(1,), d_k=2, d_v=2, capacity=4)
    >>> first, cache = attend_step(cache, *[x[:, :2]] * 3)
    >>> last, cache = attend_step(cache, *[x[:, 2:]] * 3)
    >>> bool(np.allclose(whole, np.concatenate([first, last], axis=1), rtol=1e-15))
    True
    >>> int(cache.lengths), cache.capacity
    (3, 4)
    """
    grown = append(cache, key, value, counts)
    return scaled_dot_product_attention(
        query, grown.key, grown.value, **_place(cache, grown), **options
    ), grown


def layer_step(
    cache: Cache, tokens: Array, weights: Mapping[str, Array], counts: Array | None = None, **options: Any
) -> tuple[Array, Cache]:
    """The causal layer on the newest tokens, which attend to all so far, and the cache with them (PROJ-7).

    A cache of 16 bits rounds keys and values once, when they enter it.

    Args:
        cache: the projected heads of the tokens before.
        tokens: (..., n, d_model), query, key and value alike.
        weights: w_q, w_k, w_v, w_o and those of b_q, b_k, b_v, b_o that there are.
        counts: see `append`.
        options: see `attend_step`.

    Returns:
        The output (..., n, d_out), and the cache for the next step.

    Raises:
        TypeError: what `multi_head_attention` raises.
        ValueError: what it and `append` raise.
    """
    if isinstance(cache, GrowingCache) and counts is None:
        result = multi_head_attention(
            tokens,
            tokens,
            tokens,
            is_causal=True,
            q_offset=cache.length,
            past_key=cache.key,
            past_value=cache.value,
            **weights,
            **options,
        )
        return result.output, GrowingCache(result.present_key, result.present_value)
    xp = array_api_compat.array_namespace(tokens)
    dtype = compute_dtype(xp, tokens.dtype)
    with quiet(xp):  # padding may hold NaN and Inf, which reach nothing but its own rows
        x = tokens_of(xp, tokens, None, dtype)
        query, key, value = (
            projected(xp, x, weights[f"w_{name}"], weights.get(f"b_{name}")) for name in "qkv"
        )
        grown = append(cache, cast(xp, key, cache.key.dtype), cast(xp, value, cache.value.dtype), counts)
        keys, values = cast(xp, grown.key, dtype), cast(xp, grown.value, dtype)
        heads = scaled_dot_product_attention(query, keys, values, **_place(cache, grown), **options)
        return cast(xp, joined(xp, heads, weights["w_o"], weights.get("b_o")), tokens.dtype), grown


def prefill(
    cache: Cache, tokens: Array, weights: Mapping[str, Array], chunk: int, **options: Any
) -> tuple[Array, Cache]:
    """A prompt in chunks: the output for all of its tokens, and the cache for the first step behind it.

    At no time are there more than `chunk` times all logits a head; the output is that of one call.

    Args:
        cache: the projected heads of the tokens before.
        tokens: (..., n, d_model).
        weights: see `layer_step`.
        chunk: how many tokens to take at a time, at least 1.
        options: see `attend_step`; without masks and biases, whose rows would have to be cut.

    Returns:
        The output (..., n, d_out), and the cache.

    Raises:
        TypeError: what `layer_step` raises.
        ValueError: what it raises, or there is a mask or bias, or chunk is less than 1.

    A layer that says again what stood three places before, and the generation of a text with it:

    >>> import numpy as np
    >>> letters, places = np.eye(15)[:, :3], np.eye(15)[:, 3:]  # a token: its letter, then its place
    >>> def token(letter, place):
    ...     return np.concatenate([np.eye(3)[letter], np.eye(12)[place]])
    >>> back_two = np.zeros((1, 15, 12))
    >>> back_two[0, 3:, :] = 99 * np.eye(12, k=-2)  # what stood two before is what follows next
    >>> weights = {"w_q": back_two, "w_k": places[None], "w_v": letters[None], "w_o": np.eye(3)[None]}
    >>> text = [0, 1, 2]
    >>> prompt = np.stack([token(letter, place) for place, letter in enumerate(text)])
    >>> cache = empty_cache(prompt, heads=(1,), d_k=12, d_v=3, capacity=12)
    >>> output, cache = prefill(cache, prompt, weights, chunk=2)
    >>> while len(text) < 12:
    ...     text.append(int(np.argmax(output[-1])))
    ...     output, cache = layer_step(cache, token(text[-1], len(text) - 1)[None], weights)
    >>> "".join("abc"[letter] for letter in text)
    'abcabcabcabc'
    """
    if chunk < 1:
        raise ValueError(f"chunk={chunk} but at least 1 token has to be taken at a time")
    for name in ("mask", "attn_bias"):
        if options.get(name) is not None:
            raise ValueError(
                f"{name} is given but a prompt in chunks has none: call layer_step for each chunk"
            )
    xp = array_api_compat.array_namespace(tokens)
    outputs = []
    n = tokens.shape[-2]
    for start in range(0, max(n, 1), chunk):
        rows = slice(start, min(start + chunk, n))
        output, cache = layer_step(cache, tokens[..., rows, :], weights, **options)
        outputs.append(output)
    return xp.concat(outputs, axis=-2), cache


def _place(before: Cache, grown: Cache) -> dict[str, Any]:
    """The options that say where in the sequence the newest tokens stand, and which slots exist."""
    if isinstance(before, StaticCache) and isinstance(grown, StaticCache):
        return {"is_causal": True, "q_offset": before.lengths, "kv_lengths": grown.lengths}
    return {"is_causal": True, "q_offset": before.key.shape[-2]}


def _placed(xp: Any, old: Array, new: Array, source: Array, is_new: Array) -> Array:
    """The buffer (..., G, capacity, d) with the tokens of (..., G, n, d) where they belong."""
    where = xp.expand_dims(xp.expand_dims(source, axis=-2), axis=-1)  # (..., 1, capacity, 1)
    index = xp.broadcast_to(where, old.shape)
    chosen = xp.expand_dims(xp.expand_dims(is_new, axis=-2), axis=-1)
    return xp.where(chosen, xp.take_along_axis(new, index, axis=-2), old)
