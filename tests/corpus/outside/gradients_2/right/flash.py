"""FlashAttention-2 in NumPy: tiles of queries and keys, an online softmax, and a backward pass that recomputes the weights."""

import math

import ml_dtypes  # noqa: F401 (registers bfloat16)
import numpy as np

name, version = "flash tiles", "2.0"
dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "gqa", "value_dim",
    "broadcast", "empty", "return_lse", "grad_lse",
}

BLOCK_Q, BLOCK_K = 32, 64
FAR = 1 << 40


def _near(n):
    return max(-FAR, min(FAR, n))


class Problem:
    """One call, with its batch axes made one and its operands in the type of the arithmetic."""

    def __init__(self, query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale, softcap, sinks):
        self.batch = query.shape[:-3]
        self.size = math.prod(self.batch)
        self.q, self.k, self.v = (x.reshape(self.size, *x.shape[-3:]).astype(np.float32) for x in (query, key, value))
        self.heads, self.q_len, self.d_k = self.q.shape[1:]
        self.kv_heads, self.kv_len, self.d_v = self.v.shape[1:]
        self.group = self.heads // self.kv_heads
        self.scale = 1 / math.sqrt(self.d_k) if scale is None else float(scale)
        self.softcap = softcap
        self.sinks = None if sinks is None else sinks.astype(np.float32)
        self.mask, self.bias = self.flat(mask), self.flat(attn_bias)
        if self.bias is not None:
            self.bias = self.bias.astype(np.float32)
        offsets = np.broadcast_to(0 if q_offset is None else q_offset, self.batch).reshape(self.size)
        lengths = np.broadcast_to(self.kv_len if kv_lengths is None else kv_lengths, self.batch).reshape(self.size)
        self.lengths = [max(0, min(int(n), self.kv_len)) for n in lengths]
        left, right = (None, None) if window is None else window
        self.low = [None if left is None else _near(int(p) - int(left)) for p in offsets]
        self.high = [None if right is None else _near(int(p) + int(right)) for p in offsets]
        if is_causal:
            self.high = [_near(int(p)) if h is None else min(_near(int(p)), h) for p, h in zip(offsets, self.high)]

    def flat(self, x):
        if x is None:
            return None
        if x.ndim == 2:
            return x[None, None]
        return np.broadcast_to(x, (*self.batch, *x.shape[-3:])).reshape(self.size, *x.shape[-3:])

    @staticmethod
    def part(x, b, h, rows, cols):
        """The piece of a mask or bias that belongs to a tile; axes of one stay one."""
        x = x[b if len(x) > 1 else 0, h if x.shape[1] > 1 else 0]
        return x[rows if len(x) > 1 else slice(0, 1), cols if x.shape[1] > 1 else slice(0, 1)]

    def key_range(self, b, rows):
        """First key and last key, exclusive, that these queries can see by their places."""
        first, last = 0, self.lengths[b]
        if self.low[b] is not None:
            first = max(first, rows.start + self.low[b])
        if self.high[b] is not None:
            last = min(last, rows.stop + self.high[b])
        return first // BLOCK_K * BLOCK_K, last

    def query_range(self, b, cols):
        """First query and last query, exclusive, that can see these keys by their places."""
        first, last = 0, self.q_len
        if self.high[b] is not None:
            first = max(first, cols.start - self.high[b])
        if self.low[b] is not None:
            last = min(last, cols.stop - self.low[b])
        return first // BLOCK_Q * BLOCK_Q, last

    def tile(self, b, h, rows, cols):
        """Logits of a tile, -inf where masked; which are visible; the derivative of the softcap."""
        x = self.q[b, h, rows] @ self.k[b, h // self.group, cols].T * np.float32(self.scale)
        slope = None
        if self.softcap is not None:
            t = np.tanh(x / np.float32(self.softcap))
            x, slope = np.float32(self.softcap) * t, 1 - t * t
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)[None]
        seen = np.ones(x.shape, bool)
        if self.low[b] is not None:
            seen &= i + self.low[b] <= j
        if self.high[b] is not None:
            seen &= j <= i + self.high[b]
        if self.mask is not None:
            seen &= self.part(self.mask, b, h, rows, cols)
        if self.bias is not None:
            bias = self.part(self.bias, b, h, rows, cols)
            seen &= bias != -np.inf
            x = x + bias
        return np.where(seen, x, -np.inf), seen, slope

    def blocks(self, first, last, step, end):
        return [slice(c, min(c + step, end)) for c in range(first, last, step)]

    def forward(self):
        """Output, the maximum and the sum of each row, and which rows see a key."""
        rows_of = (self.size, self.heads, self.q_len)
        out = np.zeros((*rows_of, self.d_v), np.float32)
        top, total, some = np.full(rows_of, -np.inf, np.float32), np.zeros(rows_of, np.float32), np.zeros(rows_of, bool)
        for b in range(self.size):
            for h in range(self.heads):
                for rows in self.blocks(0, self.q_len, BLOCK_Q, self.q_len):
                    out[b, h, rows], top[b, h, rows], total[b, h, rows], some[b, h, rows] = self.rows(b, h, rows)
        return out, top, total, some

    def rows(self, b, h, rows):
        n = rows.stop - rows.start
        m, s = np.full(n, -np.inf, np.float32), np.zeros(n, np.float32)
        acc, some = np.zeros((n, self.d_v), np.float32), np.zeros(n, bool)
        for cols in self.blocks(*self.key_range(b, rows), BLOCK_K, self.lengths[b]):
            x, seen, _ = self.tile(b, h, rows, cols)
            some |= seen.any(axis=1)
            new = np.maximum(m, x.max(axis=1))
            base = np.where(new == -np.inf, 0, new)
            p, keep = np.exp(x - base[:, None]), np.exp(m - base)
            s = s * keep + p.sum(axis=1)
            acc = acc * keep[:, None] + p @ self.v[b, h // self.group, cols]
            m = new
        if self.sinks is not None:
            new = np.maximum(m, self.sinks[h])
            base = np.where(new == -np.inf, 0, new)
            keep = np.exp(m - base)
            s, acc = s * keep + np.exp(self.sinks[h] - base), acc * keep[:, None]
            m = new
        return np.where(some[:, None], acc / s[:, None], 0), m, s, some

    def lse(self, top, total, some):
        lse = np.where(total == 0, -np.inf, top + np.log(total))
        return np.where(some & (total == 0), np.nan, lse)

    def backward(self, grad_output, grad_lse):
        go = grad_output.reshape(self.size, self.heads, self.q_len, self.d_v).astype(np.float32)
        out, top, total, some = self.forward()
        delta = (go * out).sum(axis=-1)
        if grad_lse is not None:
            delta = delta - grad_lse.reshape(delta.shape).astype(np.float32)
        dq, dk, dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        db = None if self.bias is None else np.zeros((self.size, *self.bias.shape[1:]), np.float32)
        for b in range(self.size):
            for g in range(self.kv_heads):
                for cols in self.blocks(0, self.lengths[b], BLOCK_K, self.lengths[b]):
                    k, v = self.k[b, g, cols], self.v[b, g, cols]
                    dk_tile, dv_tile = np.zeros_like(k), np.zeros_like(v)
                    for h in range(g * self.group, (g + 1) * self.group):
                        for rows in self.blocks(*self.query_range(b, cols), BLOCK_Q, self.q_len):
                            x, seen, slope = self.tile(b, h, rows, cols)
                            p = np.exp(x - top[b, h, rows, None]) / total[b, h, rows, None]
                            p = np.where(seen, p, 0)
                            dv_tile += p.T @ go[b, h, rows]
                            dp = go[b, h, rows] @ v.T
                            ds = p * (dp - delta[b, h, rows, None])
                            if db is not None:
                                self.add_bias(db, b, h, rows, cols, ds)
                            if slope is not None:
                                ds = np.where(seen, ds * slope, 0)
                            ds = ds * np.float32(self.scale)
                            dk_tile += ds.T @ self.q[b, h, rows]
                            dq[b, h, rows] += ds @ k
                    dk[b, g, cols], dv[b, g, cols] = dk_tile, dv_tile
        grads = {"query": dq, "key": dk, "value": dv}
        if db is not None:
            grads["attn_bias"] = db
        if self.sinks is not None:
            share = np.exp(self.sinks[:, None] - top) / total
            if grad_lse is None:
                share = np.where(some, share, 0)
            share = np.where(self.sinks[:, None] == -np.inf, 0, share)
            grads["sinks"] = -(share * delta).sum(axis=(0, 2))
        return grads

    def add_bias(self, db, b, h, rows, cols, ds):
        _, heads, q_len, kv_len = db.shape
        if q_len == 1:
            ds, rows = ds.sum(axis=0, keepdims=True), slice(0, 1)
        if kv_len == 1:
            ds, cols = ds.sum(axis=1, keepdims=True), slice(0, 1)
        db[b, h if heads > 1 else 0, rows, cols] += ds


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_lse=False,
):
    call = Problem(query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale, softcap, sinks)
    out, top, total, some = call.forward()
    results = {"output": out.reshape(*call.batch, *out.shape[1:]).astype(query.dtype)}
    if return_lse:
        lse = call.lse(top, total, some)
        results["lse"] = lse.reshape(*call.batch, *lse.shape[1:]).astype(np.float32)
    return results


@np.errstate(all="ignore")
def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, grad_lse=None,
):
    call = Problem(query, key, value, mask, attn_bias, is_causal, q_offset, window, kv_lengths, scale, softcap, sinks)
    grads = call.backward(grad_output, grad_lse)
    for word, x in (("query", query), ("key", key), ("value", value), ("sinks", sinks)):
        if x is not None:
            grads[word] = grads[word].reshape(x.shape).astype(x.dtype)
    if attn_bias is not None:
        db = grads["attn_bias"].reshape(*call.batch, *grads["attn_bias"].shape[1:])
        if attn_bias.ndim == 2:
            db = db.sum(axis=tuple(range(db.ndim - 2)))
        else:
            ones = tuple(a for a in range(len(call.batch)) if attn_bias.shape[a] == 1)
            db = db.sum(axis=ones, keepdims=True)
        grads["attn_bias"] = db.reshape(attn_bias.shape).astype(attn_bias.dtype)
    return grads
