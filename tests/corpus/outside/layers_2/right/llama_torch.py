"""Grouped-query attention in torch as decoder models write it: prefill in chunks of queries, decoding split over the keys."""
import torch

name, version = "decoder-attention", "0.9"
array_type = "torch"
dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "cache", "gqa",
    "segments", "return_weights", "return_lse", "value_dim", "broadcast", "empty",
}

CHUNK = 64          # queries of one step of the prefill
SPLIT = 128         # keys of one part of a decoding step


def _four(x):
    """(B, heads, length, width) of any number of batch axes."""
    rows = 1
    for n in x.shape[:-3]:
        rows *= n
    return x.reshape((rows,) + tuple(x.shape[-3:]))


def _expand(mask, batch, num_heads, q_len, kv_len):
    if mask is None:
        return None
    full = torch.broadcast_to(mask, tuple(batch) + (num_heads, q_len, kv_len))
    return _four(full)


class _Rules:
    """What a query may see, for any block of queries and keys."""

    def __init__(self, rows, q_len, kv_len, mask, bias, is_causal, window, q_offset, kv_lengths, q_seg, kv_seg):
        self.mask, self.bias, self.is_causal = mask, bias, is_causal
        self.left, self.right = (None, None) if window is None else window
        if q_offset is None:
            q_offset = 0
        offset = q_offset if torch.is_tensor(q_offset) else torch.tensor(int(q_offset))
        self.offset = offset.to(torch.int64).reshape(-1).expand(rows) if offset.numel() == 1 else offset.to(torch.int64).reshape(rows)
        self.lengths = None if kv_lengths is None else torch.as_tensor(kv_lengths).reshape(rows)
        self.q_seg = None if q_seg is None else q_seg.expand(q_seg.shape if q_seg.dim() > 1 else (rows, q_len)).reshape(rows, q_len)
        self.kv_seg = None if kv_seg is None else kv_seg.expand(kv_seg.shape if kv_seg.dim() > 1 else (rows, kv_len)).reshape(rows, kv_len)

    def block(self, rows, heads, q0, q1, k0, k1):
        """Booleans (B, H, q1 - q0, k1 - k0)."""
        seen = torch.ones((rows, 1, q1 - q0, k1 - k0), dtype=torch.bool)
        place = (torch.arange(q0, q1)[None, :] + self.offset[:, None])[:, None, :, None]
        j = torch.arange(k0, k1)
        if self.is_causal:
            seen = seen & (j <= place)
        if self.left is not None:
            seen = seen & (j >= place - self.left)
        if self.right is not None:
            seen = seen & (j <= place + self.right)
        if self.lengths is not None:
            seen = seen & (j < self.lengths[:, None, None, None])
        if self.q_seg is not None:
            seen = seen & (self.q_seg[:, None, q0:q1, None] == self.kv_seg[:, None, None, k0:k1])
        if self.mask is not None:
            seen = seen & self.mask[:, :, q0:q1, k0:k1]
        if self.bias is not None:
            seen = seen & (self.bias[:, :, q0:q1, k0:k1] != float("-inf"))
        return seen.expand(rows, heads, q1 - q0, k1 - k0)


def _logits(q, k, scale, softcap):
    """q (B, G, r, n, d), k (B, G, m, d)."""
    x = torch.matmul(q, k.unsqueeze(2).transpose(-1, -2)) * scale
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def _block(q, k, v, seen, bias, scale, softcap):
    """Unnormalised output, maximum, sum, and terms of one block of keys."""
    logits = _logits(q, k, scale, softcap)
    if bias is not None:
        logits = logits + bias.float()
    logits = logits.masked_fill(~seen, float("-inf"))
    if logits.shape[-1]:
        top = logits.amax(-1, keepdim=True)
    else:
        top = torch.full(logits.shape[:-1] + (1,), float("-inf"))
    shift = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    terms = torch.exp(logits - shift).masked_fill(~seen, 0.0)
    return torch.matmul(terms, v.unsqueeze(2)), top, terms.sum(-1, keepdim=True), terms


def _finish(acc, top, total, seen_any, sinks):
    """Divides, with the sink of each head in the denominator."""
    if sinks is not None:
        new_top = torch.maximum(top, sinks)
        shift = torch.where(torch.isneginf(new_top), torch.zeros_like(new_top), new_top)
        factor = torch.exp(torch.where(torch.isneginf(top), shift, top) - shift)
        acc, total = acc * factor, total * factor + torch.exp(sinks - shift)
    else:
        shift = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
        factor = torch.ones_like(total)
    output = (acc / total).masked_fill(~seen_any, 0.0)
    lse = shift + torch.log(total)
    lse = torch.where(seen_any & (total == 0), torch.full_like(lse, float("nan")), lse)
    return output, lse, factor / total


def _prefill(q, k, v, rules, scale, softcap, sinks):
    rows, groups, repeats, q_len, _ = q.shape
    kv_len, heads = k.shape[2], groups * repeats
    outputs, lses, weights = [], [], []
    for q0 in range(0, q_len, CHUNK):
        q1 = min(q0 + CHUNK, q_len)
        seen = rules.block(rows, heads, q0, q1, 0, kv_len).reshape(rows, groups, repeats, q1 - q0, kv_len)
        bias = rules.bias
        if bias is not None:
            bias = bias[:, :, q0:q1].reshape(rows, groups, repeats, q1 - q0, kv_len)
        acc, top, total, terms = _block(q[:, :, :, q0:q1], k, v, seen, bias, scale, softcap)
        seen_any = seen.any(-1, keepdim=True)
        output, lse, norm = _finish(acc, top, total, seen_any, sinks)
        outputs.append(output)
        lses.append(lse)
        weights.append((terms * norm).masked_fill(~seen_any, 0.0))
    return torch.cat(outputs, 3), torch.cat(lses, 3), torch.cat(weights, 3)


def _decode(q, k, v, rules, scale, softcap, sinks):
    """One query: the keys in parts, joined by their maxima."""
    rows, groups, repeats, _, _ = q.shape
    kv_len, heads = k.shape[2], groups * repeats
    acc = torch.zeros((rows, groups, repeats, 1, v.shape[-1]))
    top = torch.full((rows, groups, repeats, 1, 1), float("-inf"))
    total = torch.zeros_like(top)
    seen_any = torch.zeros(top.shape, dtype=torch.bool)
    parts = []
    for k0 in range(0, kv_len, SPLIT):
        k1 = min(k0 + SPLIT, kv_len)
        seen = rules.block(rows, heads, 0, 1, k0, k1).reshape(rows, groups, repeats, 1, k1 - k0)
        bias = rules.bias
        if bias is not None:
            bias = bias[..., k0:k1].reshape(rows, groups, repeats, 1, k1 - k0)
        part, part_top, part_total, terms = _block(q, k[:, :, k0:k1], v[:, :, k0:k1], seen, bias, scale, softcap)
        new_top = torch.maximum(top, part_top)
        shift = torch.where(torch.isneginf(new_top), torch.zeros_like(new_top), new_top)
        old = torch.where(torch.isneginf(top), torch.zeros_like(total), torch.exp(top - shift))
        new = torch.where(torch.isneginf(part_top), torch.zeros_like(total), torch.exp(part_top - shift))
        acc, total = acc * old + part * new, total * old + part_total * new
        top = new_top
        seen_any = seen_any | seen.any(-1, keepdim=True)
        parts.append((terms, part_top))
    output, lse, norm = _finish(acc, top, total, seen_any, sinks)
    if not parts:
        return output, lse, torch.zeros((rows, groups, repeats, 1, 0))
    shift = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
    weights = torch.cat(
        [t * torch.where(torch.isneginf(m), torch.zeros_like(m), torch.exp(m - shift)) * norm for t, m in parts], -1
    )
    return output, lse, weights.masked_fill(~seen_any, 0.0)


def _attention(q, k, v, rules, scale, softcap, sinks):
    """Heads (B, H, q_len, d_v), lse (B, H, q_len) and weights (B, H, q_len, kv_len) in float32."""
    rows, heads, q_len, d_k = q.shape
    groups, kv_len = k.shape[1], k.shape[2]
    repeats = heads // groups
    if q_len == 0:
        return q.new_zeros((rows, heads, 0, v.shape[-1])), q.new_zeros((rows, heads, 0)), q.new_zeros((rows, heads, 0, kv_len))
    scale = d_k ** -0.5 if scale is None else scale
    grouped = q.reshape(rows, groups, repeats, q_len, d_k)
    if sinks is not None:
        sinks = sinks.float().reshape(1, groups, repeats, 1, 1)
    if rules.lengths is not None:
        unwritten = (torch.arange(kv_len) >= rules.lengths[:, None])[:, None, :, None]
        k, v = k.masked_fill(unwritten, 0.0), v.masked_fill(unwritten, 0.0)
    path = _decode if q_len == 1 else _prefill
    output, lse, weights = path(grouped, k, v, rules, scale, softcap, sinks)
    return (
        output.reshape(rows, heads, q_len, v.shape[-1]),
        lse.reshape(rows, heads, q_len),
        weights.reshape(rows, heads, q_len, kv_len),
    )


def _run(q, k, v, batch, dtype, options):
    mask, bias = options.get("mask"), options.get("attn_bias")
    past_key, past_value = options.get("past_key"), options.get("past_value")
    results = {}
    if past_key is not None:
        k = torch.cat([_four(past_key), k], dim=2)
        v = torch.cat([_four(past_value), v], dim=2)
        results["present_key"] = k.reshape(tuple(batch) + tuple(k.shape[1:])).clone()
        results["present_value"] = v.reshape(tuple(batch) + tuple(v.shape[1:])).clone()
    rows, heads, q_len, _ = q.shape
    kv_len = k.shape[2]
    rules = _Rules(
        rows, q_len, kv_len, _expand(mask, batch, heads, q_len, kv_len), _expand(bias, batch, heads, q_len, kv_len),
        options.get("is_causal", False), options.get("window"), options.get("q_offset"), options.get("kv_lengths"),
        options.get("q_segments"), options.get("kv_segments"),
    )
    output, lse, weights = _attention(
        q.float(), k.float(), v.float(), rules, options.get("scale"), options.get("softcap"), options.get("sinks")
    )
    if options.get("return_weights"):
        results["weights"] = weights.to(dtype).reshape(tuple(batch) + tuple(weights.shape[1:]))
    if options.get("return_lse"):
        results["lse"] = lse.reshape(tuple(batch) + tuple(lse.shape[1:]))
    return output.to(dtype), results


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    return_weights=False, return_lse=False,
):
    options = dict(
        mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
        past_value=past_value, return_weights=return_weights, return_lse=return_lse,
    )
    batch = query.shape[:-3]
    output, results = _run(_four(query), _four(key), _four(value), batch, query.dtype, options)
    results["output"] = output.reshape(tuple(batch) + tuple(output.shape[1:]))
    return results


class _Linear:
    """A projection to heads as decoder models store it: (heads * width, d_in), applied as x @ w.T."""

    def __init__(self, w, b):
        self.heads, d_in, self.width = w.shape
        self.weight = w.transpose(1, 2).reshape(self.heads * self.width, d_in)
        self.bias = None if b is None else b.reshape(-1)

    def __call__(self, x):
        y = torch.nn.functional.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())
        y = y.to(x.dtype)
        return y.reshape(x.shape[0], x.shape[1], self.heads, self.width).transpose(1, 2)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None,
    softcap=None, sinks=None, past_key=None, past_value=None, return_weights=False, return_lse=False,
):
    options = dict(
        mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
        past_value=past_value, return_weights=return_weights, return_lse=return_lse,
    )
    batch = query.shape[:-2]
    rows = 1
    for n in batch:
        rows *= n
    x_q, x_k, x_v = (x.reshape((rows,) + tuple(x.shape[-2:])) for x in (query, key, value))
    q, k, v = _Linear(w_q, b_q)(x_q), _Linear(w_k, b_k)(x_k), _Linear(w_v, b_v)(x_v)
    heads, results = _run(q, k, v, batch, query.dtype, options)
    merged = heads.transpose(1, 2).reshape(rows, heads.shape[2], heads.shape[1] * heads.shape[3])
    weight = w_o.reshape(w_o.shape[0] * w_o.shape[1], w_o.shape[2]).T
    output = torch.nn.functional.linear(merged.float(), weight.float(), None if b_o is None else b_o.float())
    results["output"] = output.to(query.dtype).reshape(tuple(batch) + tuple(output.shape[1:]))
    return results
