"""FlashAttention's backward: the weights come again from lse, tile by tile; key tiles outside, query tiles inside."""

import math

import numpy as np

BM, BN = 16, 8


class Problem:
    """One call, batch axes made one, with what its tiles need."""

    def __init__(self, query, key, value, mask, attn_bias, is_causal, q_offset, window, scale, softcap):
        self.lead = query.shape[:-3]
        self.H, self.N, self.D = query.shape[-3:]
        self.G, self.S, self.DV = key.shape[-3], key.shape[-2], value.shape[-1]
        self.Z = math.prod(self.lead)
        self.q = query.reshape(self.Z, self.H, self.N, self.D).astype(np.float64)
        self.k = key.reshape(self.Z, self.G, self.S, self.D).astype(np.float64)
        self.v = value.reshape(self.Z, self.G, self.S, self.DV).astype(np.float64)
        self.mask, self.bias = self.spread(mask), self.spread(attn_bias)
        self.off = np.broadcast_to(0 if q_offset is None else q_offset, self.lead).reshape(self.Z)
        left, right = window or (None, None)
        self.left, self.right = left, 0 if is_causal else right
        self.scale = self.D ** -0.5 if scale is None else scale
        self.cap = softcap

    def spread(self, x):
        if x is None:
            return None
        return np.broadcast_to(x, (*self.lead, self.H, self.N, self.S)).reshape(self.Z, self.H, self.N, self.S)

    def tile(self, z, h, m, n):
        """Logits with -inf where hidden, what is visible, and the tanh."""
        rows, cols = slice(m, min(m + BM, self.N)), slice(n, min(n + BN, self.S))
        s = self.q[z, h, rows] @ self.k[z, h // (self.H // self.G), cols].T * self.scale
        t = None
        if self.cap is not None:
            t = np.tanh(s / self.cap)
            s = self.cap * t
        i = np.arange(rows.start, rows.stop)[:, None] + self.off[z]
        j = np.arange(cols.start, cols.stop)[None, :]
        ok = np.ones(s.shape, dtype=bool)
        if self.right is not None:
            ok &= j <= i + self.right
        if self.left is not None:
            ok &= j >= i - self.left
        if self.mask is not None:
            ok &= self.mask[z, h, rows, cols]
        if self.bias is not None:
            b = self.bias[z, h, rows, cols]
            ok &= b != -np.inf
            s = s + b
        return rows, cols, np.where(ok, s, -np.inf), ok, t


def _fwd(c):
    out = np.zeros((c.Z, c.H, c.N, c.DV))
    lse = np.full((c.Z, c.H, c.N), -np.inf)
    for z in range(c.Z):
        for h in range(c.H):
            v = c.v[z, h // (c.H // c.G)]
            for m in range(0, c.N, BM):
                size = min(BM, c.N - m)
                top, tot, acc = np.full(size, -np.inf), np.zeros(size), np.zeros((size, c.DV))
                seen = np.zeros(size, dtype=bool)
                for n in range(0, c.S, BN):
                    rows, cols, s, ok, _ = c.tile(z, h, m, n)
                    new = np.maximum(top, s.max(axis=1))
                    use = np.where(new == -np.inf, 0, new)
                    p = np.where(ok, np.exp(s - use[:, None]), 0)
                    a = np.where(top == -np.inf, 0, np.exp(top - use))
                    tot = tot * a + p.sum(axis=1)
                    acc = acc * a[:, None] + p @ v[cols]
                    top = new
                    seen |= ok.any(axis=1)
                rows = slice(m, m + size)
                out[z, h, rows] = np.where(seen[:, None], acc / tot[:, None], 0)
                lse[z, h, rows] = np.where(seen, top + np.log(tot), -np.inf)
    return out, lse


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, scale=None, softcap=None):
    with np.errstate(all="ignore"):
        out, _ = _fwd(Problem(query, key, value, mask, attn_bias, is_causal, q_offset, window, scale, softcap))
        return out.reshape(*query.shape[:-1], value.shape[-1]).astype(query.dtype)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False,
                                     q_offset=None, window=None, scale=None, softcap=None):
    with np.errstate(all="ignore"):
        c = Problem(query, key, value, mask, attn_bias, is_causal, q_offset, window, scale, softcap)
        out, lse = _fwd(c)
        do = grad_output.reshape(out.shape).astype(np.float64)
        D = (do * out).sum(axis=-1)
        dq, dk, dv = np.zeros_like(c.q), np.zeros_like(c.k), np.zeros_like(c.v)
        dbias = None if attn_bias is None else np.zeros((c.Z, c.H, c.N, c.S))
        for z in range(c.Z):
            for h in range(c.H):
                g = h // (c.H // c.G)
                for n in range(0, c.S, BN):
                    size = min(BN, c.S - n)
                    dk_j, dv_j = np.zeros((size, c.D)), np.zeros((size, c.DV))
                    first = 0
                    if c.right is not None:  # query tiles before it do not see this key tile
                        first = max(0, n - c.right - int(c.off[z])) // BM * BM
                    for m in range(first, c.N, BM):
                        rows, cols, s, ok, t = c.tile(z, h, m, n)
                        p = np.where(ok, np.exp(s - lse[z, h, rows][:, None]), 0)
                        dv_j += p.T @ do[z, h, rows]
                        dp = do[z, h, rows] @ c.v[z, g, cols].T
                        ds = p * (dp - D[z, h, rows][:, None])
                        if dbias is not None:
                            dbias[z, h, rows, cols] = ds
                        if t is not None:
                            ds = ds * (1 - t**2)
                        ds = ds * c.scale
                        dk_j += ds.T @ c.q[z, h, rows]
                        dq[z, h, rows] += ds @ c.k[z, g, cols]
                    dk[z, g, n:n + size] += dk_j
                    dv[z, g, n:n + size] += dv_j
        grads = {"query": dq.reshape(query.shape), "key": dk.reshape(key.shape), "value": dv.reshape(value.shape)}
        grads = {name: x.astype(query.dtype) for name, x in grads.items()}
        if attn_bias is not None:
            full = dbias.reshape(*c.lead, c.H, c.N, c.S)
            extra = full.ndim - attn_bias.ndim
            full = full.sum(axis=tuple(range(extra)))
            ones = tuple(n for n, size in enumerate(attn_bias.shape) if size == 1)
            grads["attn_bias"] = full.sum(axis=ones, keepdims=True).astype(attn_bias.dtype)
    return grads
