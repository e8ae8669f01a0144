"""An adapter onto torch.nn.functional.scaled_dot_product_attention, with a layer on it.

The call gets is_causal as it is where the triangles agree, and one mask of floats otherwise. Widths are padded to a
multiple of 8, sinks are one more key, and rows that see nothing are set to zero afterwards.
"""
import torch
import torch.nn.functional as F

name, version = "sdpa-adapter", "1.1"
array_type = "torch"
dtypes = ("float32", "bfloat16")
accuracy = "eager"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "sinks", "cache", "gqa", "segments",
    "return_weights", "value_dim", "broadcast", "empty",
}

MULTIPLE = 8
BLOCK = 256         # queries of one call of the library


def _size(shape):
    n = 1
    for s in shape:
        n *= s
    return n


def _flat(x, rows):
    return x.reshape((rows,) + tuple(x.shape[-3:]))


def _per_row(x, rows, default):
    if x is None:
        return torch.full((rows,), default, dtype=torch.int64)
    x = torch.as_tensor(x).to(torch.int64).reshape(-1)
    return x.expand(rows) if x.numel() == 1 else x.reshape(rows)


def _broadcast(x, batch, rows, heads, q_len, kv_len):
    return x.expand(tuple(batch) + (heads, q_len, kv_len)).reshape(rows, heads, q_len, kv_len)


def _visible(batch, rows, heads, q_len, kv_len, o):
    """(B, H, q_len, kv_len), True where the query may attend."""
    seen = torch.ones((rows, 1, q_len, kv_len), dtype=torch.bool)
    offset = _per_row(o["q_offset"], rows, 0)
    place = (torch.arange(q_len) + offset[:, None])[:, None, :, None]
    j = torch.arange(kv_len)
    if o["is_causal"]:
        seen = seen & (j <= place)
    if o["window"] is not None:
        left, right = o["window"]
        if left is not None:
            seen = seen & (place - j <= left)
        if right is not None:
            seen = seen & (j - place <= right)
    if o["kv_lengths"] is not None:
        seen = seen & (j < _per_row(o["kv_lengths"], rows, kv_len)[:, None, None, None])
    if o["q_segments"] is not None:
        q_seg = o["q_segments"].expand(tuple(batch) + (q_len,)).reshape(rows, 1, q_len, 1)
        kv_seg = o["kv_segments"].expand(tuple(batch) + (kv_len,)).reshape(rows, 1, 1, kv_len)
        seen = seen & (q_seg == kv_seg)
    seen = seen.expand(rows, heads, q_len, kv_len)
    if o["mask"] is not None:
        seen = seen & _broadcast(o["mask"], batch, rows, heads, q_len, kv_len)
    if o["attn_bias"] is not None:
        seen = seen & (_broadcast(o["attn_bias"], batch, rows, heads, q_len, kv_len) != float("-inf"))
    return seen


def _pad(x, width):
    return F.pad(x, (0, width - x.shape[-1]))


def _library(q, k, v, additive, causal, scale):
    """The library's call, queries in blocks where there is a mask; widths padded."""
    width = -(-max(q.shape[-1], v.shape[-1]) // MULTIPLE) * MULTIPLE
    d_v = v.shape[-1]
    q, k, v = _pad(q, width), _pad(k, width), _pad(v, width)
    if additive is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)[..., :d_v]
    parts = [
        F.scaled_dot_product_attention(q[:, :, i:i + BLOCK], k, v, attn_mask=additive[:, :, i:i + BLOCK], scale=scale)
        for i in range(0, q.shape[2], BLOCK)
    ]
    return torch.cat(parts, dim=2)[..., :d_v]


def _by_hand(q, k, v, seen, bias, scale, sinks):
    """Without the library: for operands that are not finite, and for weights."""
    x = torch.matmul(q, k.transpose(-1, -2)) * scale
    if bias is not None:
        x = x + bias
    x = x.masked_fill(~seen, float("-inf"))
    empty = ~seen.any(-1, keepdim=True)
    if sinks is not None:
        x = torch.cat([x, sinks[None, :, None, None].expand(x.shape[:-1] + (1,))], -1)
    if x.shape[-1] == 0:
        return torch.zeros(q.shape[:-1] + (v.shape[-1],)), x
    weights = torch.softmax(x, -1)
    if sinks is not None:
        weights = weights[..., :-1]
    weights = weights.masked_fill(~seen & ~torch.isnan(weights).all(-1, keepdim=True), 0.0).masked_fill(empty, 0.0)
    return torch.matmul(weights, v), weights


def _attend(q, k, v, batch, o):
    """q (B, H, M, d), k (B, G, N, d), v (B, G, N, e) in float32: output and weights or None."""
    rows, heads, q_len, d_k = q.shape
    groups, kv_len = k.shape[1], k.shape[2]
    scale = d_k ** -0.5 if o["scale"] is None else float(o["scale"])
    if o["kv_lengths"] is not None:
        padding = torch.arange(kv_len) >= _per_row(o["kv_lengths"], rows, kv_len)[:, None]
        k = k.masked_fill(padding[:, None, :, None], 0.0)
        v = v.masked_fill(padding[:, None, :, None], 0.0)
    k, v = (x.repeat_interleave(heads // groups, dim=1) for x in (k, v))
    sinks = None if o["sinks"] is None else o["sinks"].float()
    bias = None
    if o["attn_bias"] is not None:
        bias = _broadcast(o["attn_bias"].float(), batch, rows, heads, q_len, kv_len)
    others = ("mask", "attn_bias", "window", "kv_lengths", "q_segments")
    plain = all(o[n] is None for n in others) and sinks is None
    zero_offset = o["q_offset"] is None or (not torch.is_tensor(o["q_offset"]) and o["q_offset"] == 0)
    finite = all(bool(torch.isfinite(x).all()) for x in (q, k, v) + (() if sinks is None else (sinks,)))
    if bias is not None:
        finite = finite and not bool(torch.isnan(bias).any() | torch.isposinf(bias).any())
    if not q.numel() or not kv_len or not finite or o["return_weights"]:
        seen = _visible(batch, rows, heads, q_len, kv_len, o)
        return _by_hand(q, k, v, seen, bias, scale, sinks)
    if plain and scale > 0 and (not o["is_causal"] or (zero_offset and q_len == kv_len)):
        return _library(q, k, v, None, bool(o["is_causal"]), scale), None
    seen = _visible(batch, rows, heads, q_len, kv_len, o)
    empty = ~seen.any(-1, keepdim=True)
    additive = torch.zeros(seen.shape) if bias is None else bias
    additive = additive.masked_fill(~seen, float("-inf"))
    if sinks is None:
        additive = additive.masked_fill(empty, 0.0)
    else:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        column = sinks[None, :, None, None].expand(rows, heads, q_len, 1)
        additive = torch.cat([additive, column.masked_fill(empty, 0.0)], -1)
    output = _library(q, k, v, additive, False, scale)
    return output.masked_fill(empty, 0.0), None


def _with_past(x, past):
    return x if past is None else torch.cat([past, x], dim=-2)


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, sinks=None, past_key=None, past_value=None, return_weights=False,
):
    o = dict(mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window,
             kv_lengths=kv_lengths, q_segments=q_segments, kv_segments=kv_segments, scale=scale, sinks=sinks,
             return_weights=return_weights)
    batch, rows = query.shape[:-3], _size(query.shape[:-3])
    key, value = _with_past(key, past_key), _with_past(value, past_value)
    output, weights = _attend(
        _flat(query, rows).float(), _flat(key, rows).float(), _flat(value, rows).float(), batch, o
    )
    results = {"output": output.to(query.dtype).reshape(tuple(batch) + tuple(output.shape[1:]))}
    if return_weights:
        results["weights"] = weights.to(query.dtype).reshape(tuple(batch) + tuple(weights.shape[1:]))
    if past_key is not None:
        results["present_key"], results["present_value"] = key, value
    return results


def _to_heads(x, w, b):
    """x (..., length, d_in), w (heads, d_in, width): (..., heads, length, width)."""
    y = torch.matmul(x.float().unsqueeze(-3), w.float())
    if b is not None:
        y = y + b.float().unsqueeze(-2)
    return y.to(x.dtype)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None,
    sinks=None, past_key=None, past_value=None, return_weights=False,
):
    results = scaled_dot_product_attention(
        _to_heads(query, w_q, b_q), _to_heads(key, w_k, b_k), _to_heads(value, w_v, b_v), mask=mask,
        attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        q_segments=q_segments, kv_segments=kv_segments, scale=scale, sinks=sinks, past_key=past_key,
        past_value=past_value, return_weights=return_weights,
    )
    merged = torch.matmul(results["output"].float(), w_o.float()).sum(dim=-3)
    if b_o is not None:
        merged = merged + b_o.float()
    return results | {"output": merged.to(query.dtype)}
