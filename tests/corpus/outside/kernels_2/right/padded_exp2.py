"""All heads at once over padded tiles of keys, with a softmax to base 2. NumPy, float32 (float64 for float64).

Keys and values are padded to whole tiles and the head width to a multiple of 16, as a kernel with fixed shapes needs
it. log2(e) goes into the logits, so that the exponential is exp2. A first pass gets maximum and sum where the weights are wanted.
"""

import ml_dtypes
import numpy as np

dtypes = ("float32", "float64", "float16", "bfloat16")
accuracy = "fused"

TILE = 64
LANES = 16
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453


def _pad(x, axis, multiple, fill=0):
    width = [(0, 0)] * x.ndim
    width[axis] = (0, -x.shape[axis] % multiple)
    return np.pad(x, width, constant_values=fill)


def _logit_tiles(q, k, scale, softcap, bias, seen):
    """Yields the start of each tile, its logits and what is visible in it. q (B, G, R, m, d), k (B, G, 1, n, d)."""
    for n0 in range(0, k.shape[-2], TILE):
        tile = slice(n0, n0 + TILE)
        ok = seen[..., tile]
        if not ok.any():
            continue
        x = np.matmul(q, np.swapaxes(k[..., tile, :], -1, -2)) * scale
        if softcap is not None:
            x = softcap * np.tanh(x / softcap)
        if bias is not None:
            x = x + bias[..., tile]
        yield tile, np.where(ok, x, -np.inf), ok


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_weights=False, return_lse=False,
):
    real = np.float64 if query.dtype == np.float64 else np.float32
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_heads, kv_len, d_v = value.shape[-3:]
    group = heads // kv_heads
    scale = real(1 / np.sqrt(d_k) if scale is None else scale)
    softcap = None if softcap is None else real(softcap)

    i = np.arange(q_len, dtype=np.int64)[:, None]
    j = np.arange(kv_len + -kv_len % TILE, dtype=np.int64)
    column = (1, 1, 1, 1)
    far = q_len + kv_len
    places = [int(x) for x in np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch).reshape(-1)]
    left, right = (None, None) if window is None else window

    def edge(distance, sign, default):
        ends = [default if distance is None else min(max(x + sign * distance, -far), far) for x in places]
        return np.array(ends, dtype=np.int64).reshape(batch + column)

    seen = np.broadcast_to(j < kv_len, batch + (kv_heads, group, q_len, len(j)))
    if window is not None:
        seen = seen & (j >= i + edge(left, -1, -far)) & (j <= i + edge(right, 1, far))
    if is_causal:
        seen = seen & (j <= i + edge(0, 1, far))
    grouped = batch + (kv_heads, group, q_len, kv_len)
    full = batch + (heads, q_len, kv_len)
    if mask is not None:
        seen = seen & _pad(np.broadcast_to(mask, full).reshape(grouped), -1, TILE, False)
    bias = None
    if attn_bias is not None:
        bias = _pad(np.broadcast_to(attn_bias, full).reshape(grouped).astype(real), -1, TILE)
        seen = seen & (bias != -np.inf)
    k, v = key, value
    if kv_lengths is not None:
        length = np.asarray(kv_lengths).reshape(batch + column)
        seen = seen & (j < length)
        there = (np.arange(kv_len)[:, None] < length)[..., 0, :, :]
        k, v = np.where(there, k, np.zeros((), k.dtype)), np.where(there, v, np.zeros((), v.dtype))

    q = _pad(query.astype(real).reshape(batch + (kv_heads, group, q_len, d_k)), -1, LANES)
    k = _pad(_pad(k.astype(real)[..., None, :, :], -1, LANES), -2, TILE)
    v = _pad(v.astype(real)[..., None, :, :], -2, TILE)

    rows = batch + (kv_heads, group, q_len)
    top, den = np.full(rows, -np.inf, real), np.zeros(rows, real)
    acc = np.zeros(rows + (d_v,), real)
    for tile, x, ok in _logit_tiles(q, k, scale, softcap, bias, seen):
        new = np.maximum(top, x.max(axis=-1))
        base = np.where(new == -np.inf, 0, new)
        p = np.exp2((x - base[..., None]) * real(LOG2E))
        fade = np.exp2((top - base) * real(LOG2E))
        den = den * fade + p.sum(axis=-1)
        acc = acc * fade[..., None] + np.matmul(p.astype(query.dtype).astype(real), v[..., tile, :])
        top = new
    if sinks is not None:
        sink = sinks.astype(real).reshape(kv_heads, group, 1)
        new = np.maximum(top, sink)
        base = np.where(new == -np.inf, 0, new)
        fade = np.exp2((top - base) * real(LOG2E))
        den = den * fade + np.exp2((sink - base) * real(LOG2E))
        acc = acc * fade[..., None]
        top = new
    some = seen.any(axis=-1)
    safe = np.where(some, den, 1)
    base = np.where(top == -np.inf, 0, top)
    out = np.where(some[..., None], acc / safe[..., None], 0)
    result = {"output": out.reshape(query.shape[:-1] + (d_v,)).astype(query.dtype)}
    if return_lse:
        lse = base + np.log2(den) * real(LN2)
        lse = np.where(some & (den == 0), real(np.nan), lse)
        result["lse"] = lse.reshape(query.shape[:-1]).astype(real)
    if return_weights:
        weights = np.zeros(rows + (len(j),), real)
        for tile, x, ok in _logit_tiles(q, k, scale, softcap, bias, seen):
            w = np.exp2((x - base[..., None]) * real(LOG2E)) / safe[..., None]
            weights[..., tile] = np.where(ok, w, 0)
        result["weights"] = weights[..., :kv_len].reshape(query.shape[:-1] + (kv_len,)).astype(query.dtype)
    return result
