"""Packed GQA tiles with two key streams and a lazy rescale. NumPy, accumulation in float32.

The rows of a tile are the queries of one key head, (query, head in group) one after the other, so that a tile reads
its keys once. Even and odd key tiles go to two streams that are merged at the end. A stream moves its reference
maximum only if the logits grow by more than a threshold. Values wider than 128 are done in panels.
"""

import ml_dtypes
import numpy as np

dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"

ROWS = 64
KEYS = 32
PANEL = 128
GROWTH = 6.0
NEG = np.float32(-np.inf)


class Stream:
    """Running reference, sum and output of some rows."""

    def __init__(self, rows, width):
        self.ref = np.full(rows, NEG)
        self.den = np.zeros(rows, np.float32)
        self.acc = np.zeros((rows, width), np.float32)

    def add(self, s, v):
        new = np.maximum(self.ref, s.max(axis=-1))
        moved = ~(new - self.ref <= GROWTH)
        new = np.where(moved, new, self.ref)
        base = np.where(new == NEG, np.float32(0), new)
        if moved.any():
            fade = np.where(moved, np.exp(self.ref - base), np.float32(1))
            self.den *= fade
            self.acc *= fade[:, None]
        p = np.exp(s - base[:, None])
        self.den += p.sum(axis=-1)
        for c in range(0, v.shape[-1], PANEL):
            self.acc[:, c:c + PANEL] += p @ v[:, c:c + PANEL]
        self.ref = new


def _join(a, b, sinks):
    ref = np.maximum(a.ref, b.ref)
    if sinks is not None:
        ref = np.maximum(ref, sinks)
    base = np.where(ref == NEG, np.float32(0), ref)
    fa, fb = np.exp(a.ref - base), np.exp(b.ref - base)
    den = fa * a.den + fb * b.den
    if sinks is not None:
        den = den + np.exp(sinks - base)
    return fa[:, None] * a.acc + fb[:, None] * b.acc, den, base


def _tile(q, k, v, place, low, high, length, mask, bias, scale, softcap, sinks):
    """q (rows, d) with their places; mask and bias (rows, n) or None, sinks (rows,) or None."""
    begin = min(max(int(place[0]) + low, 0), length) // KEYS
    end = -(-max(min(int(place[-1]) + high + 1, length), 0) // KEYS)
    streams = Stream(len(q), v.shape[-1]), Stream(len(q), v.shape[-1])
    seen = np.zeros(len(q), bool)
    for t in range(begin, end):
        j = np.arange(t * KEYS, min((t + 1) * KEYS, length))
        x = (q @ k[j].T) * np.float32(scale)
        if softcap is not None:
            x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
        ok = (j >= place[:, None] + low) & (j <= place[:, None] + high)
        if mask is not None:
            ok &= mask[:, j]
        if bias is not None:
            ok &= bias[:, j] != NEG
            x = x + bias[:, j]
        seen |= ok.any(axis=-1)
        streams[t % 2].add(np.where(ok, x, NEG), v[j])
    acc, den, base = _join(*streams, sinks)
    out = np.where(seen[:, None], acc / np.where(seen, den, 1)[:, None], 0)
    return out, np.where(seen & (den == 0), np.float32(np.nan), base + np.log(den))


def _unpack(x, count, kv_heads, group):
    """(B, H, m, ...) to (B, G, m * group, ...): queries outside, heads of the group inside."""
    x = x.reshape((count, kv_heads, group) + x.shape[2:])
    x = np.moveaxis(x, 2, 3)
    return x.reshape((count, kv_heads, x.shape[2] * group) + x.shape[4:])


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_lse=False,
):
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_heads, kv_len, d_v = value.shape[-3:]
    group, count = heads // kv_heads, int(np.prod(batch, dtype=int))
    q, k, v = (x.astype(np.float32).reshape((count,) + x.shape[-3:]) for x in (query, key, value))
    q = _unpack(q, count, kv_heads, group)
    full = batch + (heads, q_len, kv_len)
    if mask is not None:
        mask = _unpack(np.broadcast_to(mask, full).reshape(count, heads, q_len, kv_len), count, kv_heads, group)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias.astype(np.float32), full).reshape(count, heads, q_len, kv_len)
        attn_bias = _unpack(attn_bias, count, kv_heads, group)
    if sinks is not None:
        sinks = np.broadcast_to(sinks.astype(np.float32)[:, None], (1, heads, q_len))
        sinks = _unpack(sinks, 1, kv_heads, group)[0]
    lengths = [kv_len] * count if kv_lengths is None else [min(max(int(n), 0), kv_len) for n in kv_lengths.reshape(-1)]
    offsets = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch).reshape(-1)
    scale = d_k ** -0.5 if scale is None else scale
    left, right = (None, None) if window is None else window

    rows, far = q_len * group, q_len + kv_len
    out = np.zeros((count, kv_heads, rows, d_v), np.float32)
    lse = np.zeros((count, kv_heads, rows), np.float32)
    for b in range(count):
        p = int(offsets[b])
        low = -far if left is None else min(max(p - left, -far), far)
        high = far if right is None else min(max(p + right, -far), far)
        if is_causal:
            high = min(high, max(p, -far))
        for g in range(kv_heads):
            for r in range(0, rows, ROWS):
                tile = slice(r, min(r + ROWS, rows))
                place = np.arange(tile.start, tile.stop) // group
                out[b, g, tile], lse[b, g, tile] = _tile(
                    q[b, g, tile], k[b, g], v[b, g], place, low, high, lengths[b],
                    None if mask is None else mask[b, g, tile], None if attn_bias is None else attn_bias[b, g, tile],
                    scale, softcap, None if sinks is None else sinks[g, tile],
                )
    out = np.moveaxis(out.reshape(count, kv_heads, q_len, group, d_v), 3, 2)
    lse = np.moveaxis(lse.reshape(count, kv_heads, q_len, group), 3, 2)
    result = {"output": out.reshape(query.shape[:-1] + (d_v,)).astype(query.dtype)}
    if return_lse:
        result["lse"] = lse.reshape(query.shape[:-1])
    return result
