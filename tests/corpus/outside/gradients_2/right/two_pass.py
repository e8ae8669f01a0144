"""Attention as Triton kernels do it, in NumPy: grouped heads packed into rows, logits to base 2, split keys for short queries,
and a backward pass of three kernels: one for delta, one for keys and values, one for queries."""

import numpy as np

name, version = "two passes", "1.3"
dtypes = ("float32", "float64")
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "gqa", "value_dim",
    "broadcast", "empty", "return_lse", "grad_lse",
}

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
FAR = 1 << 40


def blocks_of(d_k):
    """Rows and keys of a tile, by the width of a head."""
    if d_k <= 32:
        return 64, 64
    return (32, 64) if d_k <= 96 else (16, 32)


def splits_of(q_len, kv_len, block):
    """In how many parts the keys are cut: only short queries have too few rows to fill the machine."""
    if q_len > 16 or kv_len <= 2 * block:
        return 1
    return min(8, -(-kv_len // (2 * block)))


def cdiv(a, b):
    return -(-a // b)


class Launch:
    def __init__(self, query, key, value, options):
        *self.batch, H, self.Lq, self.D = query.shape
        self.G, self.Lk, self.Dv = value.shape[-3:]
        self.B = int(np.prod(self.batch, dtype=np.int64))
        self.R = H // self.G
        self.H = H
        self.dtype = np.float64 if query.dtype == np.float64 else np.float32
        self.rows = self.R * self.Lq
        self.q = self.pack(query)
        self.k = key.reshape(self.B, self.G, self.Lk, self.D).astype(self.dtype)
        self.v = value.reshape(self.B, self.G, self.Lk, self.Dv).astype(self.dtype)
        scale = options["scale"]
        self.scale = self.dtype(1 / np.sqrt(self.D) if scale is None else scale)
        self.softcap = None if options["softcap"] is None else self.dtype(options["softcap"])
        self.BM, self.BN = blocks_of(self.D)
        # place of each packed row: the heads of a group lie one below the other
        self.row_query = np.tile(np.arange(self.Lq), self.R)
        self.row_head = np.repeat(np.arange(self.R), self.Lq)
        per_batch = lambda x: [int(n) for n in np.broadcast_to(x, self.batch).reshape(-1)]  # noqa: E731
        offset = per_batch(0 if options["q_offset"] is None else options["q_offset"])
        window = options["window"] or (None, None)
        limit = lambda n: min(max(n, -FAR), FAR)  # noqa: E731
        self.lo = None if window[0] is None else np.array([limit(o - int(window[0])) for o in offset])
        highs = []
        if options["is_causal"]:
            highs.append(np.array([limit(o) for o in offset]))
        if window[1] is not None:
            highs.append(np.array([limit(o + int(window[1])) for o in offset]))
        self.hi = np.minimum.reduce(highs) if highs else None
        lengths = options["kv_lengths"]
        self.lengths = None
        if lengths is not None:
            self.lengths = np.array([min(max(n, 0), self.Lk) for n in per_batch(lengths)], dtype=np.int64)
            gone = np.arange(self.Lk) >= self.lengths[:, None]
            self.k = np.where(gone[:, None, :, None], 0, self.k)
            self.v = np.where(gone[:, None, :, None], 0, self.v)
        self.mask, self.bias = self.four(options["mask"]), self.four(options["attn_bias"])
        sinks = options["sinks"]
        self.sinks = None if sinks is None else np.repeat(sinks.astype(self.dtype).reshape(self.G, self.R), self.Lq, axis=1)

    def pack(self, x):
        """(..., H, q_len, d) as (B, G, R * q_len, d)."""
        return x.reshape(self.B, self.G, self.rows, x.shape[-1]).astype(self.dtype)

    def four(self, x):
        if x is None:
            return None
        if x.ndim == 2:
            return x[None, None]
        return np.broadcast_to(x, (*self.batch, *x.shape[-3:])).reshape(self.B, *x.shape[-3:])

    def load(self, x, rows, cols):
        """A tile (B, G, rows, cols) of a mask or bias, through strides of zero."""
        view = np.broadcast_to(x, (self.B, self.H, self.Lq, self.Lk))[..., cols]
        view = view.reshape(self.B, self.G, self.R, self.Lq, view.shape[-1])
        return view[:, :, self.row_head[rows], self.row_query[rows]]

    def logits(self, rows, cols):
        """Logits to base 2 of a tile (-inf where masked), what is visible, and the capped product over the cap."""
        x = self.q[:, :, rows] @ np.swapaxes(self.k[:, :, cols], -1, -2)
        x *= self.scale
        t = None
        if self.softcap is not None:
            t = np.tanh(x / self.softcap)
            x = self.softcap * t
        i = self.row_query[rows][:, None]
        j = np.arange(self.Lk)[cols]
        seen = np.ones((self.B, 1, *x.shape[-2:]), bool)
        if self.lo is not None:
            seen = seen & (j >= (i + self.lo[:, None, None])[:, None])
        if self.hi is not None:
            seen = seen & (j <= (i + self.hi[:, None, None])[:, None])
        if self.lengths is not None:
            seen = seen & (j < self.lengths[:, None, None, None])
        if self.mask is not None:
            seen = seen & self.load(self.mask, rows, cols)
        if self.bias is not None:
            bias = self.load(self.bias, rows, cols).astype(self.dtype)
            seen = seen & (bias != -np.inf)
            x = x + bias
        return np.where(seen, x, -np.inf), np.broadcast_to(seen, x.shape), t

    def key_blocks(self, rows, first=0, last=None):
        """The tiles of keys between first and last that any of these rows can see."""
        last = self.Lk if last is None else last
        places = self.row_query[rows]
        if self.hi is not None and self.B and len(places):
            last = min(last, int(places.max() + self.hi.max()) + 1)
        if self.lo is not None and self.B and len(places):
            first = max(first, int(places.min() + self.lo.min()) // self.BN * self.BN)
        return [slice(n, min(n + self.BN, last)) for n in range(first, last, self.BN)]

    def sweep(self, rows, first=0, last=None):
        """Online softmax over some of the keys: unnormalised sums, the maximum, the denominator, and whether a key is seen."""
        n = self.row_query[rows].shape[0]
        acc = np.zeros((self.B, self.G, n, self.Dv), self.dtype)
        m = np.full((self.B, self.G, n), -np.inf, self.dtype)
        l = np.zeros_like(m)  # noqa: E741
        some = np.zeros(m.shape, bool)
        for cols in self.key_blocks(rows, first, last):
            x, seen, _ = self.logits(rows, cols)
            new = np.maximum(m, x.max(axis=-1))
            ref = np.where(new == -np.inf, 0, new)
            p = np.exp2((x - ref[..., None]) * self.dtype(LOG2E))
            alpha = np.exp2((m - ref) * self.dtype(LOG2E))
            l = l * alpha + p.sum(axis=-1)  # noqa: E741
            acc = acc * alpha[..., None] + p @ self.v[:, :, cols]
            m, some = new, some | seen.any(axis=-1)
        return acc, m, l, some

    def forward(self):
        out = np.zeros((self.B, self.G, self.rows, self.Dv), self.dtype)
        lse = np.full((self.B, self.G, self.rows), -np.inf, self.dtype)
        high = np.zeros_like(lse)
        some = np.zeros(lse.shape, bool)
        for r in range(0, self.rows, self.BM):
            rows = slice(r, min(r + self.BM, self.rows))
            count = splits_of(self.Lq, self.Lk, self.BN)
            width = cdiv(cdiv(self.Lk, count), self.BN) * self.BN
            parts = [self.sweep(rows, s * width, min((s + 1) * width, self.Lk)) for s in range(count)]
            m = np.maximum.reduce([part[1] for part in parts])
            if self.sinks is not None:
                m = np.maximum(m, self.sinks[:, rows])
            ref = np.where(m == -np.inf, 0, m)
            ls, acc = np.zeros_like(m), np.zeros_like(out[:, :, rows])
            for part_acc, part_m, part_l, part_some in parts:
                factor = np.exp2((part_m - ref) * self.dtype(LOG2E))
                ls = ls + part_l * factor
                acc = acc + part_acc * factor[..., None]
                some[:, :, rows] |= part_some
            if self.sinks is not None:
                ls = ls + np.exp2((self.sinks[:, rows] - ref) * self.dtype(LOG2E))
            out[:, :, rows] = np.where(some[:, :, rows, None], acc / ls[..., None], 0)
            # the natural log-sum-exp is high + lse: two numbers, since a large maximum would swallow the logarithm
            high[:, :, rows] = ref
            lse[:, :, rows] = np.where(some[:, :, rows] & (ls == 0), np.nan, np.log2(ls) * self.dtype(LN2))
        return out, high, lse, some

    # ---- backward ----

    def kernel_delta(self, out, go, grad_lse):
        delta = (out * go).sum(axis=-1)
        return delta if grad_lse is None else delta - grad_lse

    def probabilities(self, rows, cols, high, lse):
        x, seen, t = self.logits(rows, cols)
        p = np.exp2(((x - high[:, :, rows, None]) - lse[:, :, rows, None]) * self.dtype(LOG2E))
        return np.where(seen, p, 0), seen, t

    def kernel_dkdv(self, go, high, lse, delta):
        dk, dv = np.zeros_like(self.k), np.zeros_like(self.v)
        for n in range(0, self.Lk, self.BN):
            cols = slice(n, min(n + self.BN, self.Lk))
            for r in range(0, self.rows, self.BM):
                rows = slice(r, min(r + self.BM, self.rows))
                if self.hi is not None and self.B and self.row_query[rows].max() + self.hi.max() < n:
                    continue
                if self.lo is not None and self.B and self.row_query[rows].min() + self.lo.min() >= cols.stop:
                    continue
                p, seen, t = self.probabilities(rows, cols, high, lse)
                dv[:, :, cols] += np.swapaxes(p, -1, -2) @ go[:, :, rows]
                dp = go[:, :, rows] @ np.swapaxes(self.v[:, :, cols], -1, -2)
                ds = p * (dp - delta[:, :, rows, None])
                if t is not None:
                    ds = np.where(seen, ds * (1 - t * t), 0)
                dk[:, :, cols] += np.swapaxes(ds, -1, -2) @ self.q[:, :, rows]
        return dk * self.scale, dv

    def kernel_dq(self, go, high, lse, delta):
        dq = np.zeros_like(self.q)
        dbias = None
        if self.bias is not None:
            dbias = np.zeros((self.B, *self.bias.shape[1:]), self.dtype)
        for r in range(0, self.rows, self.BM):
            rows = slice(r, min(r + self.BM, self.rows))
            for cols in self.key_blocks(rows):
                p, seen, t = self.probabilities(rows, cols, high, lse)
                dp = go[:, :, rows] @ np.swapaxes(self.v[:, :, cols], -1, -2)
                ds = p * (dp - delta[:, :, rows, None])
                if dbias is not None:
                    self.store_bias(dbias, ds, rows, cols)
                if t is not None:
                    ds = np.where(seen, ds * (1 - t * t), 0)
                dq[:, :, rows] += ds @ self.k[:, :, cols]
        return dq * self.scale, dbias

    def store_bias(self, dbias, ds, rows, cols):
        """Adds a tile to the gradient of the bias; where an axis is one, all tiles add to it."""
        heads = np.arange(self.G)[:, None] * self.R + self.row_head[rows]
        queries = np.broadcast_to(self.row_query[rows], heads.shape)
        if dbias.shape[1] == 1:
            heads = np.zeros_like(heads)
        if dbias.shape[2] == 1:
            queries = np.zeros_like(queries)
        if dbias.shape[3] == 1:
            ds, cols = ds.sum(axis=-1, keepdims=True), slice(0, 1)
        for b in range(self.B):
            np.add.at(dbias[b, :, :, cols], (heads, queries), ds[b])

    def kernel_dsinks(self, high, lse, delta, some, grad_lse):
        share = np.exp2(((self.sinks - high) - lse) * self.dtype(LOG2E))
        share = np.where(self.sinks == -np.inf, 0, share)
        if grad_lse is None:
            share = np.where(some, share, 0)
        return -(share * delta).sum(axis=0).reshape(self.H, self.Lq).sum(axis=1)


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, return_lse=False,
):
    launch = Launch(query, key, value, dict(
        mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        scale=scale, softcap=softcap, sinks=sinks))
    out, high, lse, _ = launch.forward()
    results = {"output": out.reshape(*query.shape[:-1], launch.Dv).astype(query.dtype)}
    if return_lse:
        results["lse"] = (high + lse).reshape(query.shape[:-1])
    return results


@np.errstate(all="ignore")
def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, grad_lse=None,
):
    launch = Launch(query, key, value, dict(
        mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        scale=scale, softcap=softcap, sinks=sinks))
    out, high, lse, some = launch.forward()
    go = launch.pack(grad_output)
    if grad_lse is not None:
        grad_lse = grad_lse.reshape(lse.shape).astype(launch.dtype)
    delta = launch.kernel_delta(out, go, grad_lse)
    dk, dv = launch.kernel_dkdv(go, high, lse, delta)
    dq, dbias = launch.kernel_dq(go, high, lse, delta)
    grads = {"query": dq.reshape(query.shape).astype(query.dtype), "key": dk.reshape(key.shape).astype(key.dtype),
             "value": dv.reshape(value.shape).astype(value.dtype)}
    if dbias is not None:
        dbias = dbias.reshape(*launch.batch, *dbias.shape[1:])
        if attn_bias.ndim == 2:
            dbias = dbias.sum(axis=tuple(range(dbias.ndim - 2)))
        else:
            for axis, n in enumerate(attn_bias.shape[:-3]):
                if n == 1:
                    dbias = dbias.sum(axis=axis, keepdims=True)
        grads["attn_bias"] = dbias.astype(attn_bias.dtype)
    if sinks is not None:
        grads["sinks"] = launch.kernel_dsinks(high, lse, delta, some, grad_lse).astype(sinks.dtype)
    return grads
