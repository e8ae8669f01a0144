"""Backward by tiles: weights are computed again from the lse, delta from the output, key tiles outside."""
import math

import numpy as np

TILE_Q, TILE_K = 8, 8


def _tiles(n, size):
    return [slice(a, min(a + size, n)) for a in range(0, n, size)]


class Band:
    def __init__(self, offset, is_causal, window, length):
        self.offset, self.length = offset, length
        self.left, self.right = (None, None) if window is None else window
        if is_causal:
            self.right = 0

    def skips(self, rows, cols):
        """Whether nothing of the tile is visible."""
        if cols.start >= self.length:
            return True
        if self.right is not None and cols.start > rows.stop - 1 + self.offset + self.right:
            return True
        return self.left is not None and cols.stop - 1 < rows.start + self.offset - self.left

    def of(self, rows, cols):
        place = np.arange(rows.start, rows.stop)[:, None] + self.offset
        j = np.arange(cols.start, cols.stop)[None, :]
        ok = np.broadcast_to(j < self.length, (place.shape[0], j.shape[1])).copy()
        if self.right is not None:
            ok &= j <= place + self.right
        if self.left is not None:
            ok &= j >= place - self.left
        return ok


def _logits(q, k, scale, softcap, bias):
    """The logits of a tile and the tanh in them."""
    s = (q @ k.T) * scale
    t = None
    if softcap is not None:
        t = np.tanh(s / softcap)
        s = softcap * t
    if bias is not None:
        s = s + bias
    return s, t


def _forward_head(q, k, v, bias, band, scale, softcap, sink):
    out = np.zeros((len(q), v.shape[1]))
    lse = np.full(len(q), -np.inf)
    for rows in _tiles(len(q), TILE_Q):
        size = rows.stop - rows.start
        seen = np.zeros(size, bool)
        top, total, acc = np.full(size, -np.inf), np.zeros(size), np.zeros((size, v.shape[1]))
        for cols in _tiles(len(k), TILE_K):
            if band.skips(rows, cols):
                continue
            part = None if bias is None else bias[rows, cols]
            s, _ = _logits(q[rows], k[cols], scale, softcap, part)
            ok = band.of(rows, cols)
            if part is not None:
                ok &= part != -np.inf
            s = np.where(ok, s, -np.inf)
            seen |= ok.any(1)
            new = np.maximum(top, s.max(1))
            base = np.where(new == -np.inf, 0, new)
            p = np.exp(s - base[:, None])
            fade = np.exp(top - base)
            total = total * fade + p.sum(1)
            acc = acc * fade[:, None] + p @ v[cols]
            top = new
        if sink is not None:
            new = np.where(seen, np.maximum(top, sink), 0)
            base = np.where(new == -np.inf, 0, new)
            fade = np.exp(top - base)
            total, acc, top = total * fade + np.exp(sink - base), acc * fade[:, None], new
        safe = np.where(total == 0, np.nan, total)
        out[rows] = np.where(seen[:, None], acc / safe[:, None], 0)
        lse[rows] = np.where(seen, top + np.log(safe), -np.inf)
    return out, lse


def _backward_head(q, k, v, bias, g, out, lse, band, scale, softcap, sink, dq, dk, dv, dbias):
    """Adds to the gradients of one query head; dk and dv are those of its key head. Returns that of the sink."""
    delta = (g * out).sum(1)
    for cols in _tiles(len(k), TILE_K):
        k_tile, v_tile = k[cols], v[cols]
        dk_tile, dv_tile = np.zeros_like(k_tile), np.zeros_like(v_tile)
        for rows in _tiles(len(q), TILE_Q):
            if band.skips(rows, cols):
                continue
            part = None if bias is None else bias[rows, cols]
            s, t = _logits(q[rows], k_tile, scale, softcap, part)
            ok = band.of(rows, cols) & (lse[rows, None] > -np.inf)
            if part is not None:
                ok &= part != -np.inf
            p = np.exp(np.where(ok, s - np.where(ok, lse[rows, None], 0), -np.inf))
            dv_tile += p.T @ g[rows]
            dp = g[rows] @ v_tile.T
            ds = p * (dp - delta[rows, None])
            if dbias is not None:
                dbias[rows, cols] += ds
            if t is not None:
                ds = ds * (1 - t ** 2)
            dq[rows] += scale * (ds @ k_tile)
            dk_tile += scale * (ds.T @ q[rows])
        dk[cols] += dk_tile
        dv[cols] += dv_tile
    if sink is None:
        return 0.0
    live = lse > -np.inf
    return -(np.exp(sink - np.where(live, lse, np.inf)) * delta).sum()


def _prepare(query, key, value, attn_bias, is_causal, q_offset, window, kv_lengths, scale, sinks):
    *batch, H, n, d = query.shape
    m = key.shape[-2]
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, tuple(batch))
    lengths = np.broadcast_to(m if kv_lengths is None else kv_lengths, tuple(batch))
    bias = None if attn_bias is None else np.broadcast_to(attn_bias, (*batch, H, n, m)).astype(np.float64)
    f = lambda x: x.astype(np.float64)
    q, k, v = f(query), f(key).copy(), f(value).copy()
    bands = {}
    for b in np.ndindex(*batch):
        length = min(max(int(lengths[b]), 0), m)
        k[b][:, length:] = 0
        v[b][:, length:] = 0
        bands[b] = Band(int(offsets[b]), is_causal, window, length)
    scale = 1 / math.sqrt(d) if scale is None else scale
    return batch, H, H // key.shape[-3], q, k, v, bias, bands, scale, (lambda h: None if sinks is None else float(sinks[h]))


def scaled_dot_product_attention(query, key, value, *, attn_bias=None, is_causal=False, q_offset=None, window=None,
                                 kv_lengths=None, scale=None, softcap=None, sinks=None):
    batch, H, group, q, k, v, bias, bands, scale, sink = _prepare(
        query, key, value, attn_bias, is_causal, q_offset, window, kv_lengths, scale, sinks)
    output = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    for b in np.ndindex(*batch):
        for h in range(H):
            at, kv = (*b, h), (*b, h // group)
            output[at], _ = _forward_head(q[at], k[kv], v[kv], None if bias is None else bias[at], bands[b],
                                          scale, softcap, sink(h))
    return output


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, attn_bias=None, is_causal=False,
                                     q_offset=None, window=None, kv_lengths=None, scale=None, softcap=None,
                                     sinks=None):
    batch, H, group, q, k, v, bias, bands, scale, sink = _prepare(
        query, key, value, attn_bias, is_causal, q_offset, window, kv_lengths, scale, sinks)
    g = grad_output.astype(np.float64)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    dbias = None if bias is None else np.zeros(bias.shape)
    dsinks = np.zeros(H)
    for b in np.ndindex(*batch):
        for h in range(H):
            at, kv = (*b, h), (*b, h // group)
            bias_h = None if bias is None else bias[at]
            out, lse = _forward_head(q[at], k[kv], v[kv], bias_h, bands[b], scale, softcap, sink(h))
            dsinks[h] += _backward_head(q[at], k[kv], v[kv], bias_h, g[at], out, lse, bands[b], scale, softcap,
                                        sink(h), dq[at], dk[kv], dv[kv], None if dbias is None else dbias[at])
    grads = {"query": dq, "key": dk, "value": dv}
    grads = {name: x.astype(query.dtype) for name, x in grads.items()}
    if attn_bias is not None:
        lead = dbias.ndim - attn_bias.ndim
        dbias = dbias.sum(axis=tuple(range(lead)))
        kept = tuple(a for a in range(attn_bias.ndim) if attn_bias.shape[a] == 1)
        grads["attn_bias"] = dbias.sum(axis=kept, keepdims=True).astype(attn_bias.dtype)
    if sinks is not None:
        grads["sinks"] = dsinks.astype(sinks.dtype)
    return grads
