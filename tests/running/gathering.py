"""A program that gathers and calls an ordinary attention: packed, paged, latent and merged attention of float32."""

from typing import Any

import numpy as np

Array = Any
dtypes = ("float32",)


def _visible(query: Array, kv_len: int, o: dict[str, Any]) -> Array:
    seen = np.ones((*query.shape[:-1], kv_len), dtype=bool)
    j = np.arange(kv_len)
    offset = np.asarray(0 if o.get("q_offset") is None else o["q_offset"])
    p = np.arange(query.shape[-2])[:, None] + (offset[..., None, None, None] if offset.ndim else offset)
    if o.get("mask") is not None:
        seen &= o["mask"]
    if o.get("attn_bias") is not None:
        seen &= o["attn_bias"] != -np.inf
    if o.get("is_causal"):
        seen &= j <= p
    left, right = o.get("window") or (None, None)
    if left is not None:
        seen &= j >= p - left
    if right is not None:
        seen &= j <= p + right
    if o.get("kv_lengths") is not None:
        seen &= j < np.asarray(o["kv_lengths"])[..., None, None, None]
    return seen


def _attend(query: Array, key: Array, value: Array, **o: Any) -> dict[str, Array]:
    """Output and lse; key and value may have fewer heads."""
    k, v = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if o.get("scale") is None else o["scale"]
    logits = (query @ np.swapaxes(k, -1, -2)) * np.float32(scale)
    if o.get("softcap") is not None:
        logits = np.float32(o["softcap"]) * np.tanh(logits / np.float32(o["softcap"]))
    seen = _visible(query, k.shape[-2], o)
    if o.get("attn_bias") is not None:
        logits = logits + np.where(o["attn_bias"] == -np.inf, 0, o["attn_bias"])
    logits = np.where(seen, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    sinks = None if o.get("sinks") is None else o["sinks"][:, None, None]
    top = top if sinks is None else np.maximum(top, sinks)
    top = np.where(np.isneginf(top), np.float32(0), top)
    raised = np.where(seen, np.exp(logits - top), np.float32(0))
    total = raised.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - top))
    some = seen.any(axis=-1, keepdims=True)
    weights = np.where(seen, raised / np.where(some, total, 1), np.float32(0))
    wild = seen[..., None] & ~np.isfinite(v)[..., None, :, :]
    output = weights @ np.where(np.isfinite(v), v, np.float32(0))
    output = output + np.where(wild, v[..., None, :, :], np.float32(0)).sum(axis=-2)
    # of an empty row -inf, and the sink where there is one
    empty = np.broadcast_to(np.float32(-np.inf) if sinks is None else sinks, top.shape)
    lse = np.where(some, top + np.log(np.where(some, total, 1)), empty)[..., 0]
    return {"output": output.astype(query.dtype), "lse": lse.astype(np.float32)}


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, *, mask: Any = None, attn_bias: Any = None, is_causal: Any = False,
    q_offset: Any = None, window: Any = None, kv_lengths: Any = None, scale: Any = None, softcap: Any = None,
    sinks: Any = None, past_key: Any = None, past_value: Any = None, return_lse: Any = False,
) -> dict[str, Array]:  # fmt: skip
    present = {}
    if past_key is not None:
        key, value = np.concatenate([past_key, key], axis=-2), np.concatenate([past_value, value], axis=-2)
        present = {"present_key": key, "present_value": value}
    found = _attend(
        query, key, value, mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window,
        kv_lengths=kv_lengths, scale=scale, softcap=softcap, sinks=sinks,
    )  # fmt: skip
    return {**(found if return_lse else {"output": found["output"]}), **present}


def packed_attention(
    query: Array, key: Array, value: Array, *, q_starts: Array, kv_starts: Array, is_causal: Any = False,
    q_offset: Any = None, window: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None,
    return_lse: Any = False,
) -> Any:  # fmt: skip
    output = np.full((*query.shape[:2], value.shape[-1]), 7, query.dtype)  # rows of no part hold anything
    lse = np.full(query.shape[:2], np.nan, np.float32)
    for i in range(len(q_starts) - 1):
        rows, keys = slice(*q_starts[i : i + 2]), slice(*kv_starts[i : i + 2])
        found = _attend(
            query[:, rows], key[:, keys], value[:, keys], is_causal=is_causal, window=window, scale=scale,
            softcap=softcap, sinks=sinks, q_offset=q_offset[i] if np.ndim(q_offset) else q_offset,
        )  # fmt: skip
        output[:, rows], lse[:, rows] = found["output"], found["lse"]
    return (output, lse) if return_lse else output


def append_to_pages(
    key_pages: Array, value_pages: Array, new_key: Array, new_value: Array, *, slots: Array
) -> Any:
    pages = [key_pages.copy(), value_pages.copy()]
    for x, new in zip(pages, (new_key, new_value), strict=True):
        x.reshape(-1, *x.shape[2:])[slots[slots >= 0]] = new[slots >= 0]
    return tuple(pages)


def paged_attention(
    query: Array, key_pages: Array, value_pages: Array, *, page_table: Array, kv_lengths: Array, mask: Any = None,
    attn_bias: Any = None, is_causal: Any = False, q_offset: Any = None, window: Any = None, scale: Any = None,
    softcap: Any = None, sinks: Any = None, return_lse: Any = False, new_key: Any = None, new_value: Any = None,
    slots: Any = None,
) -> dict[str, Array]:  # fmt: skip
    if slots is not None:
        key_pages, value_pages = append_to_pages(key_pages, value_pages, new_key, new_value, slots=slots)
    entries, columns = page_table.shape
    size = key_pages.shape[1]
    used = np.arange(columns) < -(-kv_lengths[:, None] // size)
    there = np.arange(columns * size) < kv_lengths[:, None]

    def dense(pages: Array) -> Array:
        found = pages[np.where(used, page_table, 0)].reshape(entries, columns * size, *pages.shape[2:])
        return np.moveaxis(np.where(there[..., None, None], found, np.float32(0)), 2, 1)

    found = _attend(
        query, dense(key_pages), dense(value_pages), kv_lengths=kv_lengths, mask=mask, attn_bias=attn_bias,
        is_causal=is_causal, q_offset=q_offset, window=window, scale=scale, softcap=softcap, sinks=sinks,
    )  # fmt: skip
    results = found if return_lse else {"output": found["output"]}
    return results if slots is None else {**results, "key_pages": key_pages, "value_pages": value_pages}


def latent_attention(
    query: Array, latent: Array, *, value_dim: int, scale: float, mask: Any = None, attn_bias: Any = None,
    is_causal: Any = False, q_offset: Any = None, window: Any = None, kv_lengths: Any = None, softcap: Any = None,
    sinks: Any = None, return_lse: Any = False,
) -> dict[str, Array]:  # fmt: skip
    key = latent[..., None, :, :]
    found = _attend(
        query, key, key[..., :value_dim], scale=scale, mask=mask, attn_bias=attn_bias, is_causal=is_causal,
        q_offset=q_offset, window=window, kv_lengths=kv_lengths, softcap=softcap, sinks=sinks,
    )  # fmt: skip
    return found if return_lse else {"output": found["output"]}


def merge_attention(outputs: list[Array], lses: list[Array], *, sinks: Any = None) -> Any:
    lse = np.stack(lses)
    top = lse.max(axis=0) if sinks is None else np.maximum(lse.max(axis=0), sinks[:, None])
    top = np.where(np.isneginf(top), np.float32(0), top)
    shares = np.exp(lse - top)
    total = shares.sum(axis=0) + (0 if sinks is None else np.exp(sinks[:, None] - top))
    output = sum(
        np.where(np.isneginf(part)[..., None], np.float32(0), share[..., None] * x)
        for share, part, x in zip(shares, lses, outputs, strict=True)
    )
    with np.errstate(divide="ignore"):
        return output / np.where(total == 0, 1, total)[..., None], top + np.log(total)
