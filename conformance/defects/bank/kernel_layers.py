"""What layers treat apart: an axis of one, widths, groups, several batch axes, operands that are one array."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.interactions import free, given, read_bias
from conformance.defects.bank.kernel_paths import OF_BFLOAT16, OF_FLOAT16, OTHERS
from conformance.defects.bank.mutators import after, back, dropped, only
from conformance.defects.call import Call
from conformance.defects.defect import HALF, Change, Defect, at
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

CHUNK = 128
"""Queries of a chunk; columns of a step of a product."""
QUERIES, TOKENS = 64, 16
"""Numbers of a block."""


def _unturned(c: Call, x: Array) -> Array:
    """Heads [..., heads, length, d] whose numbers lie as [..., length, heads, d]: nothing was transposed."""
    return np.moveaxis(x, -3, -2).reshape(x.shape)


def _unturned_merge(c: Call, heads: Array) -> Array:
    """Heads that are concatenated as they lie: tokens and heads are not transposed."""
    return R.merge(c, np.moveaxis(heads.reshape(*c.batch, c.q_len, c.heads, c.d_v), -3, -2))


def _tiled(c: Call, x: Array) -> Array:
    return np.take(x, np.arange(c.heads) % c.kv_heads, axis=-3)


def _first_of_window(c: Call) -> int:
    """The first key that any query sees."""
    place = R.place(c)
    return int(np.clip(place.min() - c.window[0], 0, c.kv_len)) if place.size else 0


def _cut_at_end(c: Call, x: Array) -> Array:
    """Keys before the window are left out, and as many columns at the end of a mask or bias."""
    begin = _first_of_window(c)
    if x.shape[-1] != c.kv_len:
        return x
    return np.concatenate([x[..., :begin], x[..., : c.kv_len - begin]], axis=-1)


def _past_window(c: Call, name: str) -> bool:
    """A layer with a past and a window that is closed on the left, and with this option."""
    return bool(c.layer and c.past and given(c, "window", name) and c.window[0] is not None)


def _projected(change: Callable[[Call, Array], Array], *names: str) -> Change:
    """Projected operands, changed."""

    def step(name: str) -> Callable[[Call], Array]:
        return lambda c: change(c, getattr(R, name)(c))

    return {name: step(name) for name in (f"project_{name}" for name in names)}


def _slot(c: Call, value: Array) -> Array:
    """Values in slots that are as wide as those of the key, a multiple of 32."""
    kept = np.arange(c.d_v) < -(-c.d_k // 32) * 32
    return np.where(kept, value, c.wide(0))


def _whole_steps(name: str) -> Callable[[Call], Array]:
    """A projection whose last step is left out where it is not full."""

    def project(c: Call) -> Array:
        x = getattr(c, name)
        kept = np.arange(x.shape[-1]) < x.shape[-1] // CHUNK * CHUNK
        less = replace(c, **{name: np.where(kept, x, x.dtype.type(0))}) if x.shape[-1] > CHUNK else c
        return np.asarray(getattr(R, f"project_{name}")(less))

    return project


def _by_four(c: Call, x: Array) -> Array:
    """Heads in batches of four, each of which begins with a key head of its own."""
    head, group = np.arange(c.heads), c.heads // c.kv_heads
    return np.take(x, head // 4 * 4 // group + head % 4 // group, axis=-3)


def _mask_repeated(c: Call) -> Array:
    """The entries of a mask one after the other, as often as it takes, whichever axis of the batch shares them."""
    entries = c.mask.reshape(-1, *c.mask.shape[-3:])
    found = entries[np.arange(int(np.prod(c.batch))) % len(entries)]
    return np.asarray(found.reshape(*c.batch, *c.mask.shape[-3:]))


def _without_bias(name: str) -> Callable[[Call], Array]:
    bias: dict[str, Any] = {f"b_{name[0]}": None}
    return lambda c: np.asarray(getattr(R, f"project_{name}")(replace(c, **bias)))


def _self(c: Call) -> bool:
    """Self-attention: query, key and value are one array."""
    return c.layer and c.key is c.query and c.value is c.query


def _bias_unscaled(c: Call) -> Array:
    """The scale is folded into w_q, and b_q is added as it is."""
    bare = R.project_query(replace(c, b_q=None))
    return np.asarray(bare + (R.project_query(c) - bare) / c.wide(R.scale(c)))


def _key_twice(c: Call, found: dict[str, Array]) -> dict[str, Array]:
    return {**found, "query": found["query"] + found["key"]}


def _chunked_window(c: Call, place: Array) -> Any:
    return R.by_window(c, place - np.arange(c.q_len)[:, None] // CHUNK * CHUNK)


def _cleared_in_block(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
    """Tokens behind the lengths are zero up to the end of a block, and what they were behind it."""
    found = R.grad_projection(c, name, x, gradient, weight, bias)
    if name == "query":
        return found
    token = c.past + np.arange(x.shape[-2])
    later = token >= -(-c.kv_lengths[..., None] // TOKENS) * TOKENS
    left = np.where(later[..., None], c.widen(getattr(c, name)), x)
    return {**found, weight: R.grad_projection(c, name, left, gradient, weight, bias)[weight]}


Row = tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Call], Any], Change, dict[str, str]]
"""Id, sentence, requirements, features, where it acts, what is done there, dtypes at which it cannot be seen."""

ROWS: tuple[Row, ...] = (
    ("path-layer-mask-cut-at-end",
     "With a past, keys before the window are left out, and the mask loses as many columns at its end.",
     ("MASK-1", "CACHE-2"), ("mask", "window", "cache"),
     lambda c: _past_window(c, "mask") and c.mask.shape[-2] > 1,
     {"by_mask": lambda c: _cut_at_end(c, c.mask)}, OF_BFLOAT16),
    ("path-layer-mask-of-keys-cut-at-end",
     "With a past, keys before the window are left out, and a mask of one row loses as many columns at its end.",
     ("MASK-1", "CACHE-2"), ("mask", "window", "cache", "broadcast"),
     lambda c: _past_window(c, "mask") and c.mask.shape[-2] == 1 < c.q_len,
     {"by_mask": lambda c: _cut_at_end(c, c.mask)}, OF_BFLOAT16),
    ("path-layer-bias-cut-at-end",
     "With a past, keys before the window are left out, and the bias loses as many columns at its end.",
     ("ATT-7", "CACHE-2"), ("attn_bias", "window", "cache"), lambda c: _past_window(c, "attn_bias"),
     read_bias(lambda c, bias: _cut_at_end(c, bias) if _past_window(c, "attn_bias") else bias), OF_BFLOAT16),
    ("path-layer-values-of-one-column-not-turned",
     "Where values have one column and keys more, heads and tokens are not transposed before the output projection.",
     ("PROJ-3",), ("value_dim",), lambda c: c.layer and c.d_v == 1 < c.d_k, {"merge": _unturned_merge}, OF_FLOAT16),
    ("path-layer-keys-of-one-column-not-turned",
     "Where keys have one column and values more, heads and tokens are not transposed behind the projections.",
     ("PROJ-1",), ("value_dim",), lambda c: c.layer and c.d_k == 1 < c.d_v,
     _projected(_unturned, "query", "key"), OF_FLOAT16),
    ("path-layer-groups-of-one-column-tiled",
     "Where heads have keys of one column, key heads are tiled over the query heads and not repeated.",
     ("HEAD-2", "PROJ-1"), ("gqa",), lambda c: c.layer and c.d_k == 1, {"repeat": _tiled}, OF_FLOAT16),
    ("path-layer-of-one-column-loses-biases",
     "An input of one column is multiplied by the weights as an outer product, which overwrites the bias.",
     ("PROJ-2",), (), lambda c: c.layer and c.query.shape[-1] == 1,
     {f"project_{name}": _without_bias(name) for name in ("query", "key", "value")}, OF_FLOAT16),
    ("path-layer-values-in-slots-of-keys",
     "Values of a head have a slot as wide as its key, a multiple of 32: columns beyond are zero.",
     ("PROJ-1", "SHAPE-3"), ("value_dim",), lambda c: c.layer, _projected(_slot, "value"), OF_BFLOAT16),
    ("path-layer-groups-in-batches-of-four",
     "Heads go four at a time, and each four begin with a key head of their own: groups of three are torn.",
     ("HEAD-2", "PROJ-1"), ("gqa",), lambda c: c.layer and c.heads > 4, {"repeat": _by_four}, OF_BFLOAT16),
    ("path-layer-rest-of-width-lost",
     "Inputs wider than 128 are multiplied in steps of 128, and the last step is left out where it is not full.",
     ("PROJ-1",), (), lambda c: c.layer,
     {f"project_{name}": _whole_steps(name) for name in ("query", "key", "value")}, OF_BFLOAT16),
    ("path-layer-mask-of-one-of-two-batch-axes-repeated",
     "A mask that one of several batch axes shares is repeated over all of them: entries get another's.",
     ("SHAPE-8", "SHAPE-4"), ("mask", "broadcast"),
     lambda c: c.layer and given(c, "mask") and c.mask.ndim > 4 and len(c.batch) > 1,
     {"by_mask": _mask_repeated}, OF_BFLOAT16),
    ("path-layer-value-of-self-attention",
     "Where query and key are one array it is taken for self-attention: the values are projected from it too.",
     ("PROJ-1", "IND-2"), (), lambda c: c.layer and c.key is c.query and c.value.shape == c.query.shape,
     {"accept": lambda c: replace(c, value=c.query)}, OF_BFLOAT16),
    ("path-layer-self-attention-not-causal",
     "Where query, key and value are one array, a fused path has no causality.", ("MASK-6", "IND-2"), ("is_causal",),
     _self, dropped("is_causal"), OF_FLOAT16),
    ("path-layer-offsets-restart-in-block",
     "With an offset for each batch entry, and no bias, cap or sink, queries are counted from the first of each 64.",
     ("MASK-8", "MASK-6"), ("is_causal", "q_offset"),
     lambda c: c.layer and np.ndim(c.q_offset) > 0 and free(c, "attn_bias", "softcap", "sinks"),
     {"place": lambda c: R.place(c) - np.arange(c.q_len)[:, None] // QUERIES * QUERIES}, {}),
    ("path-grad-layer-self-attention-not-causal",
     "Where query, key and value are one array, the fused backward pass has no causality.", ("GRAD-10", "GRAD-3"),
     ("is_causal",), _self, back(dropped("is_causal")), OF_FLOAT16),
    ("path-grad-layer-self-attention-scale",
     "Where query, key and value are one array, the fused backward pass has the default scale.", ("GRAD-10", "ATT-4"),
     ("scale",), _self, back(dropped("scale")), OF_FLOAT16),
    ("path-grad-layer-self-attention-bias-unscaled",
     "Where query, key and value are one array, a given scale is folded into w_q, but not into b_q.",
     ("GRAD-10", "IND-2"), ("scale",), lambda c: _self(c) and given(c, "scale"),
     back({"project_query": _bias_unscaled}), OF_FLOAT16),
    ("path-grad-layer-self-attention-key-twice",
     "In causal self-attention, where the operands are one array, the key's gradient is also added to the query's.",
     ("GRAD-10", "IND-2"), ("is_causal",), lambda c: _self(c) and c.is_causal,
     after("finish_gradients", _key_twice), OF_FLOAT16),
    ("path-grad-window-restarts-in-chunk",
     "On the way back the window counts the queries of each chunk of 128 from its own first one.",
     ("GRAD-3", "MASK-10"), ("window",), lambda c: c.q_len > CHUNK and given(c, "window"),
     back({"by_window": _chunked_window}), at(HALF, OTHERS)),
    ("path-grad-layer-tokens-cleared-to-end-of-block",
     "Tokens behind the length are cleared to the end of its block of 16: NaN in later blocks meets gradients of zero.",
     ("GRAD-9", "GRAD-10"), ("kv_lengths", "strict_masking"), lambda c: c.layer and given(c, "kv_lengths"),
     {"grad_projection": _cleared_in_block}, OF_FLOAT16),
)  # fmt: skip

DEFECTS = tuple(
    Defect(name, sentence, violates, only(change, when), features=features, unobservable=unseen)
    for name, sentence, violates, features, when, change, unseen in ROWS
)
