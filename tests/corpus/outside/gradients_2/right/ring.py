"""Ring attention in one process: the keys lie in shards, each shard gives an output and a log-sum-exp that are merged, and the
gradients make a second round with the merged log-sum-exp. Around it a layer that works through its tokens in chunks."""

import numpy as np

name, version = "ring", "0.4"
dtypes = ("float32", "float16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "gqa", "value_dim",
    "broadcast", "empty", "cache", "segments", "return_lse", "grad_lse",
}

SHARD = 48      # keys that one member of the ring holds
TOKENS = 64     # tokens that the layer projects at once
FAR = 1 << 40
F = np.float32


def plan(kv_len):
    """Where the shards begin and end; a short rest goes to the last one."""
    count = max(1, kv_len // SHARD)
    cuts = [n * SHARD for n in range(count)] + [kv_len]
    return list(zip(cuts[:-1], cuts[1:]))


class Entry:
    """One batch entry: query (H, q_len, d_k), key (G, kv_len, d_k), value (G, kv_len, d_v), and its own options."""

    def __init__(self, query, key, value, *, mask, bias, low, high, length, q_seg, kv_seg, scale, softcap, sinks):
        self.q, self.k, self.v = query, key, value
        self.mask, self.bias, self.low, self.high, self.length = mask, bias, low, high, length
        self.q_seg, self.kv_seg = q_seg, kv_seg
        self.scale, self.softcap, self.sinks = F(scale), softcap, sinks
        self.group = query.shape[0] // key.shape[0]

    def heads_of(self, x):
        """(H, n, d) as (G, group * n, d)."""
        return x.reshape(x.shape[0] // self.group, self.group * x.shape[1], *x.shape[2:])

    def visible(self, start, stop):
        H, q_len, _ = self.q.shape
        i, j = np.arange(q_len)[:, None], np.arange(start, stop)
        seen = np.broadcast_to(j < self.length, (1, q_len, stop - start))
        if self.low is not None:
            seen = seen & (i + self.low <= j)
        if self.high is not None:
            seen = seen & (j <= i + self.high)
        if self.q_seg is not None:
            seen = seen & (self.q_seg[:, None] == self.kv_seg[start:stop])
        for x in (self.mask, None if self.bias is None else self.bias != -np.inf):
            if x is not None:
                seen = seen & (x[..., start:stop] if x.shape[-1] > 1 else x)
        return np.broadcast_to(seen, (H, q_len, stop - start))

    def logits(self, start, stop):
        H, q_len, _ = self.q.shape
        x = self.heads_of(self.q) @ np.swapaxes(self.k[:, start:stop], -1, -2)
        x = x.reshape(H, q_len, stop - start) * self.scale
        slope = None
        if self.softcap is not None:
            t = np.tanh(x / F(self.softcap))
            x, slope = F(self.softcap) * t, F(1) - t * t
        if self.bias is not None:
            x = x + (self.bias[..., start:stop] if self.bias.shape[-1] > 1 else self.bias)
        seen = self.visible(start, stop)
        return np.where(seen, x, F(-np.inf)), seen, slope

    def shard_forward(self, start, stop):
        """Unnormalised output of one shard, its maximum and its sum, and which rows see a key of it."""
        x, seen, _ = self.logits(start, stop)
        top = x.max(axis=-1, initial=-np.inf)
        p = np.exp(x - np.where(top == -np.inf, F(0), top)[..., None])
        o = self.heads_of(p) @ self.v[:, start:stop]
        return o.reshape(*x.shape[:2], self.v.shape[-1]), top, p.sum(axis=-1), seen.any(axis=-1)

    def forward(self):
        H, q_len, _ = self.q.shape
        out = np.zeros((H, q_len, self.v.shape[-1]), F)
        top, total = np.full((H, q_len), -np.inf, F), np.zeros((H, q_len), F)
        some = np.zeros((H, q_len), bool)
        for start, stop in plan(self.k.shape[1]):
            o, m, s, seen = self.shard_forward(start, stop)
            new = np.maximum(top, m)
            ref = np.where(new == -np.inf, F(0), new)
            a, b = np.exp(top - ref), np.exp(m - ref)
            out, total = out * a[..., None] + o * b[..., None], total * a + s * b
            top, some = new, some | seen
        if self.sinks is not None:
            new = np.maximum(top, self.sinks[:, None])
            ref = np.where(new == -np.inf, F(0), new)
            a = np.exp(top - ref)
            out, total, top = out * a[..., None], total * a + np.exp(self.sinks[:, None] - ref), new
        out = np.where(some[..., None], out / total[..., None], F(0))
        log = np.where(some & (total == 0), F(np.nan), np.log(total))
        # the log-sum-exp in two parts, so that a large maximum does not swallow the logarithm
        return out, np.where(top == -np.inf, F(0), top), log, some

    def shard_backward(self, start, stop, go, top, log, delta, grads):
        H, q_len, _ = self.q.shape
        x, seen, slope = self.logits(start, stop)
        p = np.where(seen, np.exp((x - top[..., None]) - log[..., None]), F(0))
        k, v = self.k[:, start:stop], self.v[:, start:stop]
        grads["value"][:, start:stop] += np.swapaxes(self.heads_of(p), -1, -2) @ self.heads_of(go)
        dp = (self.heads_of(go) @ np.swapaxes(v, -1, -2)).reshape(p.shape)
        ds = p * (dp - delta[..., None])
        if self.bias is not None:
            target = grads["attn_bias"]
            axes = tuple(a for a in range(3) if target.shape[a] == 1)
            part = ds.sum(axis=axes, keepdims=True)
            if target.shape[-1] == 1:
                target += part
            else:
                target[..., start:stop] += part
        if slope is not None:
            ds = np.where(seen, ds * slope, F(0))
        ds = ds * self.scale
        grads["query"] += (self.heads_of(ds) @ k).reshape(self.q.shape)
        grads["key"][:, start:stop] += np.swapaxes(self.heads_of(ds), -1, -2) @ self.heads_of(self.q)

    def backward(self, go, grad_lse):
        out, top, log, some = self.forward()
        delta = np.einsum("hic,hic->hi", out, go)
        if grad_lse is not None:
            delta = delta - grad_lse
        grads = {"query": np.zeros_like(self.q), "key": np.zeros_like(self.k), "value": np.zeros_like(self.v)}
        if self.bias is not None:
            grads["attn_bias"] = np.zeros(self.bias.shape, F)
        for start, stop in plan(self.k.shape[1]):
            self.shard_backward(start, stop, go, top, log, delta, grads)
        if self.sinks is not None:
            share = np.exp((self.sinks[:, None] - top) - log)
            share = np.where(np.isneginf(self.sinks)[:, None], F(0), share)
            grads["sinks"] = -(share * delta).sum(axis=-1)
        return grads


def entries(query, key, value, o):
    """The batch entries of a call, one by one, with the index of each."""
    if o["past_key"] is not None:
        key = np.concatenate([o["past_key"].astype(F), key], axis=-2)
        value = np.concatenate([o["past_value"].astype(F), value], axis=-2)
    batch, kv_len = query.shape[:-3], key.shape[-2]
    offsets = np.broadcast_to(0 if o["q_offset"] is None else o["q_offset"], batch)
    left, right = o["window"] or (None, None)
    scale = query.shape[-1] ** -0.5 if o["scale"] is None else o["scale"]
    sinks = None if o["sinks"] is None else o["sinks"].astype(F)

    def per_token(x, b, length):
        return None if x is None else np.broadcast_to(x, (*batch, length))[b]

    for b in np.ndindex(batch):
        p = int(offsets[b])
        ends = ([p] if o["is_causal"] else []) + ([] if right is None else [p + int(right)])
        length = kv_len if o["kv_lengths"] is None else max(0, min(kv_len, int(np.asarray(o["kv_lengths"])[b])))
        keys, values = key[b], value[b]
        if length < kv_len:
            keys, values = keys.copy(), values.copy()
            keys[:, length:], values[:, length:] = 0, 0
        bias = entry_of(o["attn_bias"], b)
        yield b, Entry(
            query[b], keys, values, mask=entry_of(o["mask"], b), bias=None if bias is None else bias.astype(F),
            low=None if left is None else max(-FAR, min(FAR, p - int(left))),
            high=max(-FAR, min(FAR, min(ends))) if ends else None, length=length,
            q_seg=per_token(o["q_segments"], b, query.shape[-2]), kv_seg=per_token(o["kv_segments"], b, kv_len),
            scale=scale, softcap=o["softcap"], sinks=sinks)


def place_of(x, b):
    """The index of a batch entry in a mask or bias whose batch axes may be one."""
    return tuple(0 if n == 1 else i for i, n in zip(b, x.shape))


def entry_of(x, b):
    if x is None:
        return None
    return x[None] if x.ndim == 2 else x[place_of(x, b)]


def attention_forward(query, key, value, o):
    out = np.zeros((*query.shape[:-1], value.shape[-1]), F)
    lse = np.zeros(query.shape[:-1], F)
    for b, entry in entries(query, key, value, o):
        out[b], top, log, _ = entry.forward()
        lse[b] = top + log
    return out, lse


def attention_backward(query, key, value, go, o, grad_lse):
    past = 0 if o["past_key"] is None else o["past_key"].shape[-2]
    grads = {"query": np.zeros_like(query), "key": np.zeros_like(key), "value": np.zeros_like(value)}
    for word in ("attn_bias", "sinks"):
        if o[word] is not None:
            grads[word] = np.zeros(o[word].shape, F)
    for b, entry in entries(query, key, value, o):
        part = entry.backward(go[b], None if grad_lse is None else grad_lse[b].astype(F))
        grads["query"][b] = part["query"]
        grads["key"][b], grads["value"][b] = part["key"][:, past:], part["value"][:, past:]
        if "sinks" in part:
            grads["sinks"] += part["sinks"]
        if "attn_bias" in part:
            if o["attn_bias"].ndim == 2:
                grads["attn_bias"] += part["attn_bias"][0]
            else:
                grads["attn_bias"][place_of(o["attn_bias"], b)] += part["attn_bias"]
    return grads


# ---- the layer ----


def chunks(length):
    return [slice(n, min(n + TOKENS, length)) for n in range(0, length, TOKENS)]


def project(x, w, b):
    """(..., length, d_in) to (..., heads, length, d_head), some tokens at a time."""
    y = np.zeros((*x.shape[:-2], w.shape[0], x.shape[-2], w.shape[2]), F)
    for rows in chunks(x.shape[-2]):
        y[..., rows, :] = x[..., None, rows, :].astype(F) @ w.astype(F)
    return y if b is None else y + b.astype(F)[:, None, :]


def project_backward(x, w, b, gy):
    """Gradients of x, w and b; those of w and b grow from chunk to chunk."""
    gx, gw = np.zeros(x.shape, F), np.zeros(w.shape, F)
    gb = np.zeros((w.shape[0], w.shape[2]), F)
    w = w.astype(F)
    for rows in chunks(x.shape[-2]):
        g, t = gy[..., rows, :], x[..., rows, :].astype(F)
        gx[..., rows, :] = np.einsum("...hld,hed->...le", g, w)
        gw += np.einsum("nle,nhld->hed", t.reshape(-1, *t.shape[-2:]), g.reshape(-1, *g.shape[-3:]))
        gb += g.reshape(-1, *g.shape[-3:]).sum(axis=(0, 2))
    return gx, gw, None if b is None else gb


def cast(grads, given):
    return {word: grads[word].astype(x.dtype) for word, x in given.items() if x is not None}


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None, return_lse=False,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
             q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
             past_value=past_value)
    out, lse = attention_forward(query.astype(F), key.astype(F), value.astype(F), o)
    results = {"output": out.astype(query.dtype)}
    if return_lse:
        results["lse"] = lse
    if past_key is not None:
        results["present_key"] = np.concatenate([past_key, key], axis=-2)
        results["present_value"] = np.concatenate([past_value, value], axis=-2)
    return results


@np.errstate(all="ignore")
def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None, grad_lse=None,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
             q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
             past_value=past_value)
    grads = attention_backward(*(x.astype(F) for x in (query, key, value, grad_output)), o, grad_lse)
    return cast(grads, dict(query=query, key=key, value=value, attn_bias=attn_bias, sinks=sinks))


@np.errstate(all="ignore")
def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None, softcap=None,
    sinks=None, past_key=None, past_value=None, return_lse=False,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
             q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
             past_value=past_value)
    q, k, v = project(query, w_q, b_q), project(key, w_k, b_k), project(value, w_v, b_v)
    z, lse = attention_forward(q, k, v, o)
    out = np.zeros((*query.shape[:-1], w_o.shape[-1]), F)
    for rows in chunks(query.shape[-2]):
        out[..., rows, :] = (z[..., rows, :] @ w_o.astype(F)).sum(axis=-3)
    if b_o is not None:
        out = out + b_o.astype(F)
    results = {"output": out.astype(query.dtype)}
    if return_lse:
        results["lse"] = lse
    if past_key is not None:
        results["present_key"] = np.concatenate([past_key, k.astype(past_key.dtype)], axis=-2)
        results["present_value"] = np.concatenate([past_value, v.astype(past_value.dtype)], axis=-2)
    return results


@np.errstate(all="ignore")
def multi_head_attention_vjp(
    query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None, softcap=None,
    sinks=None, past_key=None, past_value=None, grad_lse=None,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
             q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
             past_value=past_value)
    q, k, v = project(query, w_q, b_q), project(key, w_k, b_k), project(value, w_v, b_v)
    z, _ = attention_forward(q, k, v, o)
    g = grad_output.astype(F)
    gz, gw_o = np.zeros_like(z), np.zeros(w_o.shape, F)
    for rows in chunks(query.shape[-2]):
        gz[..., rows, :] = np.einsum("...lo,hdo->...hld", g[..., rows, :], w_o.astype(F))
        part, t = g[..., rows, :], z[..., rows, :]
        gw_o += np.einsum("nhld,nlo->hdo", t.reshape(-1, *t.shape[-3:]), part.reshape(-1, *part.shape[-2:]))
    grads = attention_backward(q, k, v, gz, o, grad_lse)
    grads["w_o"] = gw_o
    if b_o is not None:
        grads["b_o"] = g.reshape(-1, g.shape[-1]).sum(axis=0)
    for word, x, w, b in (("query", query, w_q, b_q), ("key", key, w_k, b_k), ("value", value, w_v, b_v)):
        grads[word], grads["w_" + word[0]], grads["b_" + word[0]] = project_backward(x, w, b, grads[word])
    return cast(grads, dict(query=query, key=key, value=value, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v,
                            b_o=b_o, attn_bias=attn_bias, sinks=sinks))
