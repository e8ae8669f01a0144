"""flash_attn_varlen_func on NumPy: BSHD layout, sequences packed by cu_seqlens, K tiles of TILE
with an online softmax, sequences of the same kv length computed together as one launch."""
import numpy as np

TILE = 64


def _values(p, v, keep):
    bad = ~np.isfinite(v).all(-1)
    if not bad.any():
        return p @ v
    out = p @ np.where(bad[..., None], 0, v)
    for j in np.flatnonzero(bad.any((0, 1))):
        sees = np.broadcast_to(keep, p.shape)[..., j, None] & bad[..., j, None, None]
        out = out + np.where(sees, p[..., j, None] * v[..., j:j + 1, :], 0)
    return out


def _launch(q, k, v, bias, off, causal, window, scale, softcap):
    """q (N, L, H, d), k/v (N, S, G, ...) of one kv length -> out (N, L, H, dv), lse (N, H, L)."""
    n, q_len, h, d = q.shape
    s, g = k.shape[1:3]
    rep = h // max(g, 1)
    q = q.transpose(0, 2, 1, 3).reshape(n, g, rep * q_len, d) * np.float32(scale)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    pos = np.tile(np.arange(q_len), rep)[None, None, :, None] + off.reshape(-1, 1, 1, 1)
    acc = np.zeros((n, g, rep * q_len, v.shape[-1]), np.float32)
    top = np.full((n, g, rep * q_len, 1), -np.inf, np.float32)
    total = np.zeros_like(top)
    left, right = window
    if causal:
        right = 0 if right is None else min(right, 0)
    lo, hi = 0, s
    if pos.size and left is not None:
        lo = max(0, int(pos.min()) - left) // TILE * TILE
    if pos.size and right is not None:
        hi = min(s, int(pos.max()) + right + 1)
    for start in range(lo, hi, TILE):
        width = min(TILE, s - start)
        kt = np.zeros((n, g, TILE, d), np.float32)
        vt = np.zeros((n, g, TILE, v.shape[-1]), np.float32)
        kt[:, :, :width] = k[:, :, start:start + width]
        vt[:, :, :width] = v[:, :, start:start + width]
        x = q @ kt.swapaxes(-1, -2)
        if softcap is not None:
            x = np.float32(softcap) * np.tanh(x / np.float32(softcap))
        col = start + np.arange(TILE)
        keep = np.broadcast_to(col < s, x.shape)
        if bias is not None:
            bt = np.zeros(bias.shape[:-1] + (TILE,), np.float32)
            bt[..., :width] = bias[..., start:start + width]
            x = x + np.broadcast_to(bt, (n, h, q_len, TILE)).reshape(x.shape)
        if left is not None:
            keep = keep & (col >= pos - left)
        if right is not None:
            keep = keep & (col <= pos + right)
        x = np.where(keep, x, -np.inf)
        new = np.maximum(top, x.max(-1, keepdims=True))
        safe = np.where(new == -np.inf, 0, new)
        p = np.where(keep, np.exp(x - safe), 0)
        if (new > top).any():                      # otherwise the factor is one for all rows
            factor = np.exp(np.where(top == -np.inf, -np.inf, top - safe))
            acc *= factor
            total *= factor
        acc += _values(p, vt, keep)
        total += p.sum(-1, keepdims=True)
        top = new
    out = acc / np.where(total == 0, 1, total)
    lse = np.log(total) + np.where(top == -np.inf, 0, top)
    out = out.reshape(n, h, q_len, -1 if out.size else v.shape[-1]).transpose(0, 2, 1, 3)
    return out, lse.reshape(n, h, q_len)


def scaled_dot_product_attention(query, key, value, *, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, softcap=None, return_lse=False):
    dtype, lead = query.dtype, query.shape[:-3]
    h, q_len, d = query.shape[-3:]
    g, s, dv = value.shape[-3:]
    n = int(np.prod(lead))
    scale = 1.0 / np.sqrt(max(d, 1)) if scale is None else scale
    bshd = lambda x: np.moveaxis(x.reshape((n,) + x.shape[-3:]), 1, 2).astype(np.float32)
    q, k, v = bshd(query), bshd(key), bshd(value)
    spread = lambda x: np.broadcast_to(np.asarray(x).reshape((-1,) + (1,) * max(len(lead) - 1, 0)), lead or (1,)).reshape(-1)
    lens = spread(s if kv_lengths is None else kv_lengths)
    offs = spread(0 if q_offset is None else q_offset)
    if attn_bias is not None:
        attn_bias = np.asarray(attn_bias, np.float32)
        attn_bias = np.broadcast_to(attn_bias, lead + (h, q_len, s)).reshape(n, h, q_len, s)
    live = np.flatnonzero(lens > 0)                    # an empty sequence needs no launch
    q, k, v, lens, offs = q[live], k[live], v[live], lens[live], offs[live]
    attn_bias = None if attn_bias is None else attn_bias[live]
    cu = np.concatenate([[0], np.cumsum(lens)])
    packed_k = np.concatenate([k[b, :m] for b, m in enumerate(lens)] or [k.reshape(0, g, d)])
    packed_v = np.concatenate([v[b, :m] for b, m in enumerate(lens)] or [v.reshape(0, g, dv)])
    out = np.zeros((n, q_len, h, dv), np.float32)
    lse = np.full((n, h, q_len), -np.inf, np.float32)
    with np.errstate(all="ignore"):
        for m in np.unique(lens):
            rows = np.flatnonzero(lens == m)
            take = lambda packed: np.stack([packed[cu[b]:cu[b + 1]] for b in rows])
            bias = None if attn_bias is None else attn_bias[rows][..., :m]
            out[rows], lse[rows] = _launch(q[rows], take(packed_k), take(packed_v), bias, offs[rows],
                                           is_causal, window or (None, None), scale, softcap)
    out = np.moveaxis(out, 2, 1).reshape(lead + (h, q_len, dv)).astype(dtype)
    if return_lse:
        return {"output": out, "lse": lse.reshape(lead + (h, q_len)).astype(dtype)}
    return out


scaled_dot_product_attention.dtypes = ("float32", "float16", "bfloat16")
