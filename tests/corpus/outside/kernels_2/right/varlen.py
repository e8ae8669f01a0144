"""Variable-length attention: sequences laid end to end, cumulative lengths, a list of tiles. NumPy, float32 inside.

The batch is packed: keys beyond a sequence's length are dropped. Work is a list of (sequence, head, query tile); each
item walks the key tiles of its own sequence. A tile of segments is skipped where no number can match, and taken whole
where all of them are one number.
"""

import ml_dtypes
import numpy as np

dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"

TILE_M = 32
TILE_N = 48
NEG = np.float32(-np.inf)


def _cumulative(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _pack(x, lengths):
    """(B, heads, n, d) to (heads, total, d), sequence by sequence."""
    if len(x) == 0:
        return np.zeros((x.shape[1], 0, x.shape[3]), np.float32)
    return np.concatenate([x[b, :, :n] for b, n in enumerate(lengths)], axis=1).astype(np.float32)


def _meet(a, b):
    """How two tiles of segment numbers meet: "none", "all", or "some"."""
    if max(a.min(), b.min()) > min(a.max(), b.max()):
        return "none"
    if a.min() == a.max() == b.min() == b.max():
        return "all"
    return "some"


def _item(q, k, v, i, n, low, high, mask, bias, q_seg, k_seg, scale, softcap, sink):
    """q (m, d): the rows i of a sequence with n keys k, v."""
    top = np.full(len(i), NEG if sink is None else np.float32(sink))
    den = np.where(top == NEG, np.float32(0), np.float32(1))
    acc = np.zeros((len(i), v.shape[-1]), np.float32)
    seen = np.zeros(len(i), bool)
    begin = max(int(i[0]) + low, 0)
    end = min(int(i[-1]) + high + 1, n)
    for a in range(begin - begin % TILE_N, end, TILE_N):
        z = min(a + TILE_N, end)
        j = np.arange(a, z)
        ok = (j >= i[:, None] + low) & (j <= i[:, None] + high)
        if q_seg is not None:
            how = _meet(q_seg[i], k_seg[a:z])
            if how == "none":
                continue
            if how == "some":
                ok &= q_seg[i][:, None] == k_seg[a:z]
        if mask is not None:
            ok &= mask[i[0]:i[-1] + 1, a:z]
        s = (q @ k[a:z].T) * np.float32(scale)
        if softcap is not None:
            s = np.tanh(s / np.float32(softcap)) * np.float32(softcap)
        if bias is not None:
            part = bias[i[0]:i[-1] + 1, a:z].astype(np.float32)
            ok &= part != NEG
            s = s + part
        s = np.where(ok, s, NEG)
        seen |= ok.any(axis=-1)
        new = np.maximum(top, s.max(axis=-1))
        safe = np.where(new == NEG, np.float32(0), new)
        p = np.exp(s - safe[:, None])
        fade = np.exp(top - safe)
        den = fade * den + p.sum(axis=-1)
        acc = fade[:, None] * acc + p @ v[a:z]
        top = new
    out = np.where(seen[:, None], acc / np.where(seen, den, 1)[:, None], 0)
    lse = np.where(top == NEG, np.float32(0), top) + np.log(den)
    return out, np.where(seen & (den == 0), np.float32(np.nan), lse)


def _entry(x, batch, b, h):
    """The (q_len, kv_len) matrix of a mask or bias for flat batch entry b and head h."""
    if x is None or x.ndim == 2:
        return x
    where = np.unravel_index(b, batch) + (h,)
    return x[tuple(w if size > 1 else 0 for w, size in zip(where, x.shape))]


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, return_lse=False,
):
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_heads, kv_len, d_v = value.shape[-3:]
    count = int(np.prod(batch, dtype=int))
    q, k, v = (x.reshape((count,) + x.shape[-3:]) for x in (query, key, value))
    if kv_lengths is None:
        k_lengths = np.full(count, kv_len)
    else:
        k_lengths = np.clip(np.asarray(kv_lengths).reshape(-1), 0, kv_len)
    cu_q, cu_k = _cumulative(np.full(count, q_len)), _cumulative(k_lengths)
    q, k, v = _pack(q, np.full(count, q_len)), _pack(k, k_lengths), _pack(v, k_lengths)
    if q_segments is not None:
        q_segments = np.broadcast_to(q_segments, batch + (q_len,)).reshape(count, q_len)
        kv_segments = np.broadcast_to(kv_segments, batch + (kv_len,)).reshape(count, kv_len)
    offsets = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch).reshape(-1)
    scale = float(d_k) ** -0.5 if scale is None else scale
    left, right = (None, None) if window is None else window
    square = (q_len, kv_len)

    work = [(b, h, m) for b in range(count) for h in range(heads) for m in range(0, q_len, TILE_M)]
    out = np.zeros((heads, count * q_len, d_v), np.float32)
    lse = np.zeros((heads, count * q_len), np.float32)
    for b, h, m in work:
        i = np.arange(m, min(m + TILE_M, q_len))
        rows = slice(cu_q[b] + i[0], cu_q[b] + i[-1] + 1)
        keys = slice(cu_k[b], cu_k[b + 1])
        g = h * kv_heads // heads
        p, far = int(offsets[b]), q_len + kv_len
        low = -far if left is None else min(max(p - left, -far), far)
        high = far if right is None else min(max(p + right, -far), far)
        if is_causal:
            high = min(high, max(p, -far))
        sheets = [_entry(x, batch, b, h) for x in (mask, attn_bias)]
        sheets = [x if x is None else np.broadcast_to(x, square) for x in sheets]
        out[h, rows], lse[h, rows] = _item(
            q[h, rows], k[g, keys], v[g, keys], i, int(k_lengths[b]), low, high, *sheets,
            None if q_segments is None else q_segments[b], None if q_segments is None else kv_segments[b],
            scale, softcap, None if sinks is None else sinks[h],
        )
    out = out.reshape(heads, count, q_len, d_v).swapaxes(0, 1).reshape(query.shape[:-1] + (d_v,))
    result = {"output": out.astype(query.dtype)}
    if return_lse:
        result["lse"] = lse.reshape(heads, count, q_len).swapaxes(0, 1).reshape(query.shape[:-1])
    return result
