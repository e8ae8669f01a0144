"""Attention over sequences of their own lengths: each sequence is cut out of the padded batch, a block of queries reads only the
band of keys that its places allow, and three paths serve one query, few and many. Wide heads go in pieces of 64 columns."""

import ml_dtypes  # noqa: F401 (registers bfloat16)
import numpy as np

name, version = "varlen paths", "1.1"
dtypes = ("float32", "bfloat16", "float16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "gqa", "value_dim",
    "broadcast", "empty", "segments", "return_lse", "grad_lse",
}

BLOCK = 64
FEW = 8
PIECE = 64
FAR = 1 << 40
F = np.float32


def pieces(width):
    return [slice(c, min(c + PIECE, width)) for c in range(0, width, PIECE)]


def dots(a, b):
    """a @ b^T, the columns in pieces."""
    total = np.zeros((*a.shape[:-1], b.shape[-2]), F)
    for c in pieces(a.shape[-1]):
        total += a[..., c] @ np.swapaxes(b[..., c], -1, -2)
    return total


class Sequence:
    """One sequence without its padding. Queries (H, q_len, d_k), keys (G, n, d_k), values (G, n, d_v)."""

    def __init__(self, q, k, v, offset, o, b):
        self.q, self.k, self.v = q, k, v
        self.H, self.q_len = q.shape[:2]
        self.G, self.n = k.shape[:2]
        self.group = self.H // self.G
        self.scale = F(q.shape[-1] ** -0.5 if o["scale"] is None else o["scale"])
        self.cap = None if o["softcap"] is None else F(o["softcap"])
        self.sink = None if o["sinks"] is None else o["sinks"].astype(F)
        self.mask, self.bias = own(o["mask"], b), own(o["attn_bias"], b)
        self.q_seg, self.kv_seg = tokens(o["q_segments"], b), tokens(o["kv_segments"], b)
        left, right = o["window"] or (None, None)
        self.low = -FAR if left is None else max(-FAR, min(FAR, offset - int(left)))
        self.high = FAR if right is None else max(-FAR, min(FAR, offset + int(right)))
        if o["is_causal"]:
            self.high = max(-FAR, min(self.high, offset))

    def band(self, i0, i1):
        """The keys that queries i0 to i1 - 1 may see by their places."""
        first, last = max(0, i0 + self.low), min(self.n, i1 + self.high)
        return (first, last) if first < last else (0, 0)

    def blocks(self):
        """(queries, keys) of each block; a single query and few queries are one block."""
        if self.q_len <= FEW:
            return [(slice(0, self.q_len), slice(*self.band(0, self.q_len)))] if self.q_len else []
        cuts = range(0, self.q_len, BLOCK)
        return [(slice(i, min(i + BLOCK, self.q_len)), slice(*self.band(i, min(i + BLOCK, self.q_len)))) for i in cuts]

    def grouped(self, x):
        """(H, i, d) as (G, group * i, d): the rows of a group under one another."""
        return x.reshape(self.G, self.group * x.shape[1], x.shape[2])

    def seen(self, rows, cols):
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        seen = ((i + self.low <= j) & (j <= i + self.high))[None]
        if self.q_seg is not None:
            seen = seen & (self.q_seg[rows, None] == self.kv_seg[cols])
        for x in (self.mask, None if self.bias is None else self.bias != -np.inf):
            if x is not None:
                seen = seen & cut(x, rows, cols)
        return np.broadcast_to(seen, (self.H, rows.stop - rows.start, cols.stop - cols.start))

    def scores(self, rows, cols):
        """Logits (H, i, j) with -inf where masked, what is seen, and the slope of the softcap."""
        if self.q_len == 1:
            x = np.einsum("ghd,gjd->ghj", self.q.reshape(self.G, self.group, -1), self.k[:, cols])
        else:
            x = dots(self.grouped(self.q[:, rows]), self.k[:, cols])
        x = x.reshape(self.H, rows.stop - rows.start, cols.stop - cols.start) * self.scale
        slope = None
        if self.cap is not None:
            t = np.tanh(x / self.cap)
            x, slope = self.cap * t, 1 - t * t
        if self.bias is not None:
            x = x + cut(self.bias, rows, cols).astype(F)
        seen = self.seen(rows, cols)
        return np.where(seen, x, F(-np.inf)), seen, slope

    def softmax(self, x, seen):
        """Weights, and the maximum and the sum that belong to them."""
        top = x.max(axis=-1, initial=-np.inf)
        if self.sink is not None:
            top = np.maximum(top, self.sink[:, None])
        ref = np.where(top == -np.inf, F(0), top)
        e = np.exp(x - ref[..., None])
        total = e.sum(axis=-1)
        if self.sink is not None:
            total = total + np.exp(self.sink[:, None] - ref)
        some = seen.any(axis=-1)
        return np.where(some[..., None], e / total[..., None], F(0)), ref, total, some

    def forward(self):
        """Output and log-sum-exp, and for the backward pass the maximum and the sum of each row."""
        out = np.zeros((self.H, self.q_len, self.v.shape[-1]), F)
        lse, ref, total = (np.full((self.H, self.q_len), fill, F) for fill in (-np.inf, 0, 0))
        for rows, cols in self.blocks():
            x, seen, _ = self.scores(rows, cols)
            p, ref[:, rows], total[:, rows], some = self.softmax(x, seen)
            z = self.grouped(p) @ self.v[:, cols]
            out[:, rows] = z.reshape(self.H, rows.stop - rows.start, self.v.shape[-1])
            lse[:, rows] = np.where(some & (total[:, rows] == 0), np.nan, ref[:, rows] + np.log(total[:, rows]))
        return out, lse, ref, total

    def backward(self, go, grad_lse, db):
        """Gradients of query, key, value and sinks; that of the bias is added to db, the part of this sequence."""
        out, _, ref, total = self.forward()
        delta = np.zeros((self.H, self.q_len), F)
        for c in pieces(self.v.shape[-1]):
            delta += (out[..., c] * go[..., c]).sum(axis=-1)
        if grad_lse is not None:
            delta -= grad_lse
        dq, dk, dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        for rows, cols in self.blocks():
            x, seen, slope = self.scores(rows, cols)
            p = np.where(seen, np.exp(x - ref[:, rows, None]) / total[:, rows, None], F(0))
            dv[:, cols] += np.swapaxes(self.grouped(p), -1, -2) @ self.grouped(go[:, rows])
            dp = dots(self.grouped(go[:, rows]), self.v[:, cols]).reshape(p.shape)
            ds = p * (dp - delta[:, rows, None])
            if db is not None:
                spread(db, ds, rows, cols)
            if slope is not None:
                ds = np.where(seen, ds * slope, F(0))
            ds = self.grouped(ds * self.scale)
            for c in pieces(self.q.shape[-1]):
                dq[:, rows, c] = (ds @ self.k[:, cols, c]).reshape(dq[:, rows, c].shape)
                dk[:, cols, c] += np.swapaxes(ds, -1, -2) @ self.grouped(self.q[:, rows, c])
        dsink = None
        if self.sink is not None:
            share = np.where(self.sink[:, None] == -np.inf, F(0), np.exp(self.sink[:, None] - ref) / total)
            dsink = -(share * delta).sum(axis=-1)
        return dq, dk, dv, dsink


def own(x, b):
    """The mask or bias of one sequence, (1 or H, 1 or q_len, 1 or kv_len)."""
    if x is None:
        return None
    return x[None] if x.ndim == 2 else x[index(x, b)]


def index(x, b):
    return tuple(0 if n == 1 else i for i, n in zip(b, x.shape))


def tokens(x, b):
    return None if x is None else x if x.ndim == 1 else x[b]


def cut(x, rows, cols):
    """A tile of a mask or bias; axes of one stay."""
    return x[:, rows if x.shape[1] > 1 else slice(0, 1), cols if x.shape[2] > 1 else slice(0, 1)]


def spread(db, ds, rows, cols):
    """Adds a tile to the gradient of a bias, summed over the axes that are one there."""
    axes = tuple(a for a in range(3) if db.shape[a] == 1)
    if axes:
        ds = ds.sum(axis=axes, keepdims=True)
    view = cut(db, rows, cols)
    view += ds


def sequences(query, key, value, o):
    batch, kv_len = query.shape[:-3], key.shape[-2]
    lengths = np.broadcast_to(kv_len if o["kv_lengths"] is None else o["kv_lengths"], batch)
    offsets = np.broadcast_to(0 if o["q_offset"] is None else o["q_offset"], batch)
    for b in np.ndindex(batch):
        n = max(0, min(int(lengths[b]), kv_len))
        yield b, n, Sequence(query[b].astype(F), key[b][:, :n].astype(F), value[b][:, :n].astype(F), int(offsets[b]), {
            **o, "mask": trim(o["mask"], n), "attn_bias": trim(o["attn_bias"], n),
            "kv_segments": None if o["kv_segments"] is None else o["kv_segments"][..., :n]}, b)


def trim(x, n):
    return x if x is None or x.shape[-1] == 1 else x[..., :n]


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, return_lse=False,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
             q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks)
    out = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    lse = np.zeros(query.shape[:-1], F)
    for b, _, sequence in sequences(query, key, value, o):
        z, lse[b], _, _ = sequence.forward()
        out[b] = z.astype(query.dtype)
    return {"output": out, "lse": lse} if return_lse else {"output": out}


@np.errstate(all="ignore")
def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, grad_lse=None,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
             q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks)
    dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (query, key, value))
    db = None if attn_bias is None else np.zeros(attn_bias.shape, F)
    dsinks = None if sinks is None else np.zeros(sinks.shape, F)
    for b, n, sequence in sequences(query, key, value, o):
        bias = None
        if db is not None:
            bias = trim(db[None] if db.ndim == 2 else db[index(db, b)], n)
        gl = None if grad_lse is None else grad_lse[b].astype(F)
        q, k, v, s = sequence.backward(grad_output[b].astype(F), gl, bias)
        dq[b], dk[b][:, :n], dv[b][:, :n] = q, k, v
        if s is not None:
            dsinks += s
    grads = {"query": dq, "key": dk, "value": dv}
    if db is not None:
        grads["attn_bias"] = db.astype(attn_bias.dtype)
    if sinks is not None:
        grads["sinks"] = dsinks.astype(sinks.dtype)
    return grads
