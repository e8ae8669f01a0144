"""Torch attention with a dispatcher: one query, few queries, many queries; wide heads in slices of the width.

`_decode` is a matrix-vector form, `_math` the plain softmax, `_tiled` an online softmax over tiles. All of them
compute in float32 (float64 for float64).
"""

import torch

array_type = "torch"
dtypes = ("float32", "float16", "bfloat16", "float64")
accuracy = "fused"

FEW = 32
TILE_Q, TILE_K = 64, 128
WIDE, SLICE = 128, 64


def _scores(q, k):
    """q (..., m, d) times k (..., n, d) transposed; a wide head is summed in slices of its width."""
    d = q.shape[-1]
    if d <= WIDE:
        return q @ k.transpose(-1, -2)
    s = 0
    for c in range(0, d, SLICE):
        s = s + q[..., c:c + SLICE] @ k[..., c:c + SLICE].transpose(-1, -2)
    return s


def _cap(s, softcap):
    return s if softcap is None else softcap * torch.tanh(s / softcap)


def _visible(i, j, low, high, lengths):
    """(B, 1, m, n) from places: band of each batch entry and its length."""
    i, j = i[:, None], j[None, :]
    low, high, lengths = (x[:, None, None, None] for x in (low, high, lengths))
    return (j >= i + low) & (j <= i + high) & (j < lengths)


def _finish(acc, total, seen, top):
    out = torch.where(seen[..., None], acc / torch.where(seen, total, 1)[..., None], 0)
    lse = torch.where(seen & (total == 0), torch.nan, top + torch.log(total))
    return out, lse


def _decode(q, k, v, mask, bias, low, high, lengths, softcap, sinks):
    """One query: q (B, H, 1, d). Products are sums over an axis, without a matrix of one row."""
    n = k.shape[-2]
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, 1)
    v = v.repeat_interleave(group, 1)
    s = _cap(torch.einsum("bhd,bhnd->bhn", q[:, :, 0], k), softcap)
    j = torch.arange(n)
    ok = (j >= low[:, None]) & (j <= high[:, None]) & (j < lengths[:, None])
    ok = ok[:, None].expand(s.shape)
    if mask is not None:
        ok = ok & mask[:, :, 0]
    if bias is not None:
        ok = ok & (bias[:, :, 0] != -torch.inf)
        s = s + bias[:, :, 0]
    s = torch.where(ok, s, -torch.inf)
    top = s.amax(-1) if n else s.new_full(s.shape[:-1], -torch.inf)
    if sinks is not None:
        top = torch.maximum(top, sinks)
    top = torch.where(top == -torch.inf, 0, top)
    p = torch.exp(s - top[..., None])
    total = p.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks - top)
    out, lse = _finish(torch.einsum("bhn,bhnd->bhd", p, v), total, ok.any(-1), top)
    return out[:, :, None], lse[:, :, None]


def _math(q, k, v, mask, bias, low, high, lengths, softcap, sinks):
    """Few queries: all logits at once, heads of a group side by side."""
    b, h, m, d = q.shape
    g, n = k.shape[1:3]
    s = _scores(q.reshape(b, g, h // g, m, d), k[:, :, None]).reshape(b, h, m, n)
    s = _cap(s, softcap)
    ok = _visible(torch.arange(m), torch.arange(n), low, high, lengths).expand(s.shape)
    if mask is not None:
        ok = ok & mask
    if bias is not None:
        ok = ok & (bias != -torch.inf)
        s = s + bias
    s = torch.where(ok, s, -torch.inf)
    top = s.amax(-1) if n else s.new_full(s.shape[:-1], -torch.inf)
    if sinks is not None:
        top = torch.maximum(top, sinks[:, None])
    top = torch.where(top == -torch.inf, 0, top)
    p = torch.exp(s - top[..., None])
    total = p.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks[:, None] - top)
    acc = (p.reshape(b, g, h // g, m, n) @ v[:, :, None]).reshape(b, h, m, -1)
    return _finish(acc, total, ok.any(-1), top)


def _tiled(q, k, v, mask, bias, low, high, lengths, softcap, sinks):
    """Many queries: tiles with a running maximum and sum. The sink is where the running sum begins."""
    b, h, m, d = q.shape
    n, d_v = k.shape[-2], v.shape[-1]
    group = h // k.shape[1]
    outs, lses = [], []
    for m0 in range(0, m, TILE_Q):
        i = torch.arange(m0, min(m0 + TILE_Q, m))
        q_tile = q[:, :, m0:m0 + TILE_Q]
        shape = (b, h, len(i))
        top = q.new_full(shape, -torch.inf) if sinks is None else sinks[:, None].expand(shape)
        total = q.new_zeros(shape) if sinks is None else torch.where(top == -torch.inf, 0, 1).to(q.dtype)
        acc = q.new_zeros(shape + (d_v,))
        seen = torch.zeros(shape, dtype=torch.bool)
        for n0 in range(0, n, TILE_K):
            j = torch.arange(n0, min(n0 + TILE_K, n))
            ok = _visible(i, j, low, high, lengths)
            if not ok.any():
                continue
            k_tile = k[:, :, n0:n0 + TILE_K].repeat_interleave(group, 1)
            v_tile = v[:, :, n0:n0 + TILE_K].repeat_interleave(group, 1)
            s = _cap(_scores(q_tile, k_tile), softcap)
            ok = ok.expand(s.shape)
            if mask is not None:
                ok = ok & mask[:, :, m0:m0 + TILE_Q, n0:n0 + TILE_K]
            if bias is not None:
                part = bias[:, :, m0:m0 + TILE_Q, n0:n0 + TILE_K]
                ok = ok & (part != -torch.inf)
                s = s + part
            s = torch.where(ok, s, -torch.inf)
            seen = seen | ok.any(-1)
            new = torch.maximum(top, s.amax(-1))
            safe = torch.where(new == -torch.inf, 0, new)
            p = torch.exp(s - safe[..., None])
            fade = torch.exp(top - safe)
            total = total * fade + p.sum(-1)
            acc = acc * fade[..., None] + p @ v_tile
            top = new
        out, lse = _finish(acc, total, seen, torch.where(top == -torch.inf, 0, top))
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_lse=False,
):
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_len = key.shape[-2]
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    count = 1
    for size in batch:
        count *= size
    q, k, v = (x.reshape((count,) + x.shape[len(batch):]).to(wide) for x in (query, key, value))
    q = q * (d_k ** -0.5 if scale is None else scale)
    full = batch + (heads, q_len, kv_len)
    flat = (count, heads, q_len, kv_len)
    mask = None if mask is None else mask.expand(full).reshape(flat)
    bias = None if attn_bias is None else attn_bias.expand(full).reshape(flat).to(wide)
    sinks = None if sinks is None else sinks.to(wide)

    left, right = (None, None) if window is None else window
    far = q_len + kv_len
    offsets = torch.as_tensor(0 if q_offset is None else q_offset).expand(batch).reshape(-1).tolist()
    low, high = [], []
    for p in offsets:
        a = -far if left is None else p - left
        z = far if right is None else p + right
        z = min(z, p) if is_causal else z
        low.append(min(max(a, -far), far))
        high.append(min(max(z, -far), far))
    low, high = torch.tensor(low, dtype=torch.int64), torch.tensor(high, dtype=torch.int64)
    if kv_lengths is None:
        lengths = torch.full((count,), kv_len)
    else:
        lengths = torch.as_tensor(kv_lengths).reshape(-1).to(torch.int64)
        there = torch.arange(kv_len) < lengths[:, None]
        k = torch.where(there[:, None, :, None], k, 0)
        v = torch.where(there[:, None, :, None], v, 0)

    if count == 0 or q_len == 0:
        out, lse = q.new_zeros(flat[:3] + v.shape[-1:]), q.new_zeros(flat[:3])
    else:
        path = _decode if q_len == 1 else _math if q_len <= FEW else _tiled
        out, lse = path(q, k, v, mask, bias, low, high, lengths, softcap, sinks)
    result = {"output": out.reshape(batch + out.shape[1:]).to(query.dtype)}
    if return_lse:
        result["lse"] = lse.reshape(batch + lse.shape[1:])
    return result
