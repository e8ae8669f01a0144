"""Decode by split-K over packed GQA rows, prefill by query chunks. NumPy, accumulation in float32.

Few queries: the query heads of a group become rows of one product, the keys are cut into splits that could run on
different cores, each split returns its part and its log-sum-exp, and a second step merges them.
Many queries: one product per chunk of queries over the keys that the chunk can see.
"""

import ml_dtypes
import numpy as np

dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"

DECODE_ROWS = 16
SPLIT = 64
MAX_SPLITS = 8
CHUNK = 32
NEG = np.float32(-np.inf)


def _heads_first(x, n):
    return x.reshape((int(np.prod(x.shape[:-n], dtype=int)),) + x.shape[-n:])


def _partial(s, v, ok):
    """Softmax over one split: unnormalised by nothing outside it. Returns its output and its log-sum-exp."""
    s = np.where(ok, s, NEG)
    seen = ok.any(axis=-1)
    top = s.max(axis=-1, initial=NEG)
    safe = np.where(top == NEG, np.float32(0), top)
    p = np.exp(s - safe[:, None])
    total = p.sum(axis=-1)
    out = np.where((total > 0)[:, None] | np.isnan(total)[:, None], p @ v / total[:, None], 0)
    return out, np.where(total == 0, NEG, safe + np.log(total)), seen


def _merge(outs, lses, sinks):
    """outs (S, R, d), lses (S, R), sinks (R,) or None."""
    top = lses.max(axis=0, initial=NEG)
    if sinks is not None:
        top = np.maximum(top, sinks)
    safe = np.where(top == NEG, np.float32(0), top)
    w = np.exp(lses - safe)
    den = w.sum(axis=0)
    if sinks is not None:
        den = den + np.exp(sinks - safe)
    out = (w[:, :, None] * outs).sum(axis=0)
    return out / den[:, None], safe + np.log(den)


def _logits(q, k, scale, softcap):
    s = (q * np.float32(scale)) @ k.T
    if softcap is not None:
        s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
    return s


def _decode(q, k, v, bias, mask, band, length, scale, softcap, sinks):
    """q (group, q_len, d) of one key head."""
    group, q_len, d_k = q.shape
    rows = q.reshape(group * q_len, d_k)
    place = np.tile(np.arange(q_len), group)
    row_sinks = None if sinks is None else np.repeat(sinks, q_len)
    splits = min(max(-(-length // SPLIT), 1), MAX_SPLITS)
    size = -(-length // splits)
    outs, lses, any_seen = [], [], np.zeros(len(rows), bool)
    for c in range(splits):
        a, z = c * size, min((c + 1) * size, length)
        j = np.arange(a, z)
        s = _logits(rows, k[a:z], scale, softcap)
        ok = (j >= place[:, None] + band[0]) & (j <= place[:, None] + band[1])
        if mask is not None:
            ok &= mask[:, :, a:z].reshape(len(rows), z - a)
        if bias is not None:
            part = bias[:, :, a:z].reshape(len(rows), z - a).astype(np.float32)
            ok &= part != NEG
            s = s + part
        o, e, seen = _partial(s, v[a:z], ok)
        outs.append(o)
        lses.append(e)
        any_seen |= seen
    out, lse = _merge(np.stack(outs), np.stack(lses), row_sinks)
    out = np.where(any_seen[:, None], out, 0)
    if sinks is None:
        lse = np.where(any_seen, np.where(lse == NEG, np.float32(np.nan), lse), NEG)
    return out.reshape(group, q_len, v.shape[-1]), lse.reshape(group, q_len)


def _prefill(q, k, v, bias, mask, band, length, scale, softcap, sink):
    """q (q_len, d) of one head."""
    q_len = len(q)
    out = np.zeros((q_len, v.shape[-1]), np.float32)
    lse = np.zeros(q_len, np.float32)
    for m in range(0, q_len, CHUNK):
        i = np.arange(m, min(m + CHUNK, q_len))
        a = min(max(int(i[0]) + band[0], 0), length)
        z = max(min(int(i[-1]) + band[1] + 1, length), a)
        j = np.arange(a, z)
        s = _logits(q[i], k[a:z], scale, softcap)
        ok = (j >= i[:, None] + band[0]) & (j <= i[:, None] + band[1])
        if mask is not None:
            ok &= mask[i, a:z]
        if bias is not None:
            part = bias[i, a:z].astype(np.float32)
            ok &= part != NEG
            s = s + part
        s = np.where(ok, s, NEG)
        seen = ok.any(axis=-1)
        top = s.max(axis=-1, initial=NEG if sink is None else np.float32(sink))
        top = np.where(top == NEG, np.float32(0), top)
        p = np.exp(s - top[:, None])
        den = p.sum(axis=-1)
        if sink is not None:
            den = den + np.exp(np.float32(sink) - top)
        out[i] = np.where(seen[:, None], p @ v[a:z] / den[:, None], 0)
        lse[i] = np.where(seen & (den == 0), np.float32(np.nan), top + np.log(den))
    return out, lse


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_lse=False,
):
    batch, heads, q_len, d_k = query.shape[:-3], *query.shape[-3:]
    kv_heads, kv_len, d_v = value.shape[-3:]
    count, group = int(np.prod(batch, dtype=int)), heads // kv_heads
    full = batch + (heads, q_len, kv_len)
    q = _heads_first(query, 3).astype(np.float32)
    k = _heads_first(key, 3).astype(np.float32)
    v = _heads_first(value, 3).astype(np.float32)
    mask = None if mask is None else _heads_first(np.broadcast_to(mask, full), 3)
    bias = None if attn_bias is None else _heads_first(np.broadcast_to(attn_bias, full), 3)
    sinks = None if sinks is None else sinks.astype(np.float32)
    lengths = np.full(count, kv_len) if kv_lengths is None else np.asarray(kv_lengths).reshape(-1).clip(0, kv_len)
    offsets = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch).reshape(-1)
    scale = d_k ** -0.5 if scale is None else scale
    left, right = (None, None) if window is None else window

    out = np.zeros((count, heads, q_len, d_v), np.float32)
    lse = np.zeros((count, heads, q_len), np.float32)
    far = q_len + kv_len
    for b in range(count):
        p = int(offsets[b])
        low = -far if left is None else p - left
        high = far if right is None else p + right
        if is_causal:
            high = min(high, p)
        band = (min(max(low, -far), far), min(max(high, -far), far))
        n = int(lengths[b])
        for g in range(kv_heads):
            hs = slice(g * group, (g + 1) * group)
            if q_len * group <= DECODE_ROWS:
                out[b, hs], lse[b, hs] = _decode(
                    q[b, hs], k[b, g], v[b, g], None if bias is None else bias[b, hs],
                    None if mask is None else mask[b, hs], band, n, scale, softcap, None if sinks is None else sinks[hs],
                )
                continue
            for h in range(hs.start, hs.stop):
                out[b, h], lse[b, h] = _prefill(
                    q[b, h], k[b, g], v[b, g], None if bias is None else bias[b, h],
                    None if mask is None else mask[b, h], band, n, scale, softcap, None if sinks is None else sinks[h],
                )
    result = {"output": out.reshape(batch + out.shape[1:]).astype(query.dtype)}
    if return_lse:
        result["lse"] = lse.reshape(batch + lse.shape[1:])
    return result
