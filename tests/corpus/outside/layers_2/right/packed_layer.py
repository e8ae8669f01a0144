"""A multi-head attention layer in NumPy after torch.nn.MultiheadAttention: one packed input projection where widths allow."""
import ml_dtypes  # noqa: F401  (registers bfloat16)
import numpy as np

name, version = "packed-layer", "1.4"
dtypes = ("float64", "float32", "float16", "bfloat16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "cache", "gqa",
    "segments", "return_weights", "return_lse", "value_dim", "broadcast", "empty",
}


def _wide(dtype):
    return np.float64 if dtype == np.float64 else np.float32


def _flat_weight(w):
    """(heads, d_in, d_head) to (d_in, heads * d_head)."""
    heads, d_in, d_head = w.shape
    return w.transpose(1, 0, 2).reshape(d_in, heads * d_head)


def _linear(x, w, b):
    y = x @ w
    return y if b is None else y + b


def _packed_bias(biases, sizes, dtype):
    if all(b is None for b in biases):
        return None
    return np.concatenate([np.zeros(n, dtype) if b is None else b.reshape(n) for b, n in zip(biases, sizes)])


def _in_projection(query, key, value, weights, biases):
    """Three projections (B, length, heads * d_head)."""
    flat = [_flat_weight(w) for w in weights]
    sizes = [w.shape[1] for w in flat]
    bias = _packed_bias(biases, sizes, flat[0].dtype)
    cuts = np.cumsum(sizes)[:-1]
    if query.shape[-1] == key.shape[-1] == value.shape[-1]:
        packed = np.concatenate(flat, axis=1)
        if query is key and key is value:
            return np.split(_linear(query, packed, bias), cuts, axis=-1)
        parts = np.split(packed, cuts, axis=1)
        offsets = [None] * 3 if bias is None else np.split(bias, cuts)
        if key is value:
            both = _linear(
                key,
                np.concatenate(parts[1:], axis=1),
                None if bias is None else np.concatenate(offsets[1:]),
            )
            k, v = np.split(both, [sizes[1]], axis=-1)
            return [_linear(query, parts[0], offsets[0]), k, v]
        return [_linear(x, w, b) for x, w, b in zip((query, key, value), parts, offsets)]
    return [
        _linear(x, w, None if b is None else b.reshape(n))
        for x, w, b, n in zip((query, key, value), flat, biases, sizes)
    ]


def _split_heads(x, heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _merge_heads(x):
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def _canonical_mask(mask, batch, rows):
    """A mask or bias as (B or 1, H or 1, q_len or 1, kv_len or 1)."""
    if mask is None:
        return None
    mask = np.asarray(mask)
    if mask.ndim == 2:
        return mask[None, None]
    inner = mask.shape[-3:]
    return np.broadcast_to(mask, batch + inner).reshape((rows,) + inner)


def _visible(rows, q_len, kv_len, mask, bias, is_causal, window, q_offset, kv_lengths, q_segments, kv_segments):
    """Booleans that broadcast to (B, H, q_len, kv_len): True may attend."""
    seen = np.ones((rows, 1, q_len, kv_len), dtype=bool)
    offset = np.zeros(rows, dtype=np.int64) if q_offset is None else np.broadcast_to(np.asarray(q_offset).reshape(-1), rows)
    place = np.arange(q_len)[None, :] + offset[:, None]
    place = place[:, None, :, None]
    j = np.arange(kv_len)
    if is_causal:
        seen = seen & (j <= place)
    if window is not None:
        left, right = window
        if left is not None:
            seen = seen & (j >= place - left)
        if right is not None:
            seen = seen & (j <= place + right)
    if kv_lengths is not None:
        seen = seen & (j < np.asarray(kv_lengths).reshape(rows, 1, 1, 1))
    if q_segments is not None:
        qs = np.broadcast_to(np.reshape(q_segments, (-1, q_len)) if q_len else np.zeros((1, 0)), (rows, q_len))
        ks = np.broadcast_to(np.reshape(kv_segments, (-1, kv_len)) if kv_len else np.zeros((1, 0)), (rows, kv_len))
        seen = seen & (qs[:, None, :, None] == ks[:, None, None, :])
    if mask is not None:
        seen = seen & mask
    if bias is not None:
        seen = seen & ~np.isneginf(bias)
    return seen


def _attend(q, k, v, seen, bias, scale, softcap, sinks):
    logits = q @ k.swapaxes(-1, -2) * scale
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    seen = np.broadcast_to(seen, logits.shape)
    logits = np.where(seen, logits, -np.inf)
    empty = ~seen.any(axis=-1, keepdims=True)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None, None])
    top = np.where(empty & np.isneginf(top), 0, top)
    weights = np.where(seen, np.exp(logits - top), 0)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - top)
    weights = np.where(empty, 0, weights / total)
    lse = (top + np.log(total))[..., 0]
    return weights @ v, weights, lse


@np.errstate(all="ignore")
def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None,
    softcap=None, sinks=None, past_key=None, past_value=None, return_weights=False, return_lse=False,
):
    dtype = query.dtype
    wide = _wide(dtype)
    batch, rows = query.shape[:-2], int(np.prod(query.shape[:-2]))
    num_heads, num_kv_heads = w_q.shape[0], w_k.shape[0]

    flat = {}

    def tokens(x):
        if id(x) not in flat:
            flat[id(x)] = x.astype(wide).reshape((rows,) + x.shape[-2:])
        return flat[id(x)]

    def up(x):
        return None if x is None else x.astype(wide)

    projected = _in_projection(
        tokens(query), tokens(key), tokens(value), [up(w) for w in (w_q, w_k, w_v)], [up(b) for b in (b_q, b_k, b_v)]
    )
    q, k, v = (
        _split_heads(x.astype(dtype), n) for x, n in zip(projected, (num_heads, num_kv_heads, num_kv_heads))
    )
    results = {}
    if past_key is not None:
        k = np.concatenate([past_key.reshape((rows,) + past_key.shape[-3:]), k], axis=2)
        v = np.concatenate([past_value.reshape((rows,) + past_value.shape[-3:]), v], axis=2)
        results["present_key"] = k.reshape(batch + k.shape[1:]).copy()
        results["present_value"] = v.reshape(batch + v.shape[1:]).copy()
    q_len, kv_len, d_k = q.shape[2], k.shape[2], q.shape[3]

    if kv_lengths is not None:
        unwritten = np.arange(kv_len) >= np.asarray(kv_lengths).reshape(rows, 1)
        k = np.where(unwritten[:, None, :, None], np.zeros((), dtype), k)
        v = np.where(unwritten[:, None, :, None], np.zeros((), dtype), v)
    q, k, v = (x.astype(wide) for x in (q, k, v))
    k, v = (np.repeat(x, num_heads // num_kv_heads, axis=1) for x in (k, v))

    mask = _canonical_mask(mask, batch, rows)
    bias = up(_canonical_mask(attn_bias, batch, rows))
    seen = _visible(rows, q_len, kv_len, mask, bias, is_causal, window, q_offset, kv_lengths, q_segments, kv_segments)
    scale = d_k ** -0.5 if scale is None else scale
    heads, weights, lse = _attend(q, k, v, seen, bias, wide(scale), softcap, up(sinks))

    merged = _merge_heads(heads.astype(dtype).astype(wide))
    output = _linear(merged, up(w_o).reshape(-1, w_o.shape[-1]), up(b_o))
    results["output"] = output.astype(dtype).reshape(batch + output.shape[1:])
    if return_weights:
        results["weights"] = weights.astype(dtype).reshape(batch + weights.shape[1:])
    if return_lse:
        results["lse"] = lse.astype(wide).reshape(batch + lse.shape[1:])
    return results
