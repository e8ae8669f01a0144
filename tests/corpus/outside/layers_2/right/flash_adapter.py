"""An adapter onto a flash-style kernel: lengths before heads, causal and windows that end at the last key, -1 for no limit.

The kernel (in this file, in NumPy) works in tiles with an online softmax and takes a padded head width; the adapter says
the options of the standard in the kernel's words.
"""
import ml_dtypes  # noqa: F401
import numpy as np

name, version = "flash-adapter", "2.0"
dtypes = ("float64", "float32", "float16", "bfloat16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "cache", "gqa",
    "segments", "return_lse", "value_dim", "broadcast", "empty",
}

TILE_Q, TILE_K = 32, 64
NO_LIMIT = -1


# The kernel ---------------------------------------------------------------------------------------------------------

def _tile_rules(q0, q1, k0, k1, seqlen_q, seqlen_k, shift, causal, window_size):
    """Visible keys of one tile of one batch entry; the diagonal ends at the last key, moved by shift."""
    place = np.arange(q0, q1)[:, None] + (seqlen_k - seqlen_q) + shift
    j = np.arange(k0, k1)[None, :]
    seen = np.broadcast_to(j < seqlen_k, (q1 - q0, k1 - k0))
    if causal:
        seen = seen & (j <= place)
    left, right = window_size
    if left != NO_LIMIT:
        seen = seen & (j >= place - left)
    if right != NO_LIMIT:
        seen = seen & (j <= place + right)
    return seen


def _forward_one(q, k, v, bias, mask, *, seqlen_k, shift, softmax_scale, causal, window_size, softcap, sink):
    """One batch entry and head: q (M, d), k (N, d), v (N, e); out (M, e) and lse (M,)."""
    m_total, n_total = q.shape[0], k.shape[0]
    out = np.zeros((m_total, v.shape[1]), q.dtype)
    lse = np.zeros(m_total, q.dtype)
    for q0 in range(0, m_total, TILE_Q):
        q1 = min(q0 + TILE_Q, m_total)
        acc = np.zeros((q1 - q0, v.shape[1]), q.dtype)
        top = np.full((q1 - q0, 1), -np.inf, q.dtype)
        total = np.zeros((q1 - q0, 1), q.dtype)
        any_seen = np.zeros((q1 - q0, 1), bool)
        for k0 in range(0, min(seqlen_k, n_total), TILE_K):
            k1 = min(k0 + TILE_K, seqlen_k, n_total)
            seen = _tile_rules(q0, q1, k0, k1, m_total, seqlen_k, shift, causal, window_size)
            if mask is not None:
                seen = seen & mask[q0:q1, k0:k1]
            logits = q[q0:q1] @ k[k0:k1].T * softmax_scale
            if softcap > 0:
                logits = softcap * np.tanh(logits / softcap)
            if bias is not None:
                tile = bias[q0:q1, k0:k1]
                seen = seen & ~np.isneginf(tile)
                logits = logits + tile
            if not seen.any():
                continue
            any_seen |= seen.any(axis=1, keepdims=True)
            logits = np.where(seen, logits, -np.inf)
            new_top = np.maximum(top, logits.max(axis=1, keepdims=True))
            safe = np.where(np.isneginf(new_top), 0, new_top)
            alpha = np.where(np.isneginf(top), 0, np.exp(top - safe))
            terms = np.where(seen, np.exp(logits - safe), 0)
            total = total * alpha + terms.sum(axis=1, keepdims=True)
            acc = acc * alpha + terms @ v[k0:k1]
            top = new_top
        if sink is not None:
            new_top = np.maximum(top, sink)
            safe = np.where(np.isneginf(new_top), 0, new_top)
            alpha = np.where(np.isneginf(top), 0, np.exp(top - safe))
            acc, total, top = acc * alpha, total * alpha + np.exp(sink - safe), new_top
        safe = np.where(np.isneginf(top), 0, top)
        out[q0:q1] = np.where(any_seen, acc / total, 0)
        row = safe + np.log(total)
        lse[q0:q1] = np.where(any_seen & (total == 0), np.nan, row)[:, 0]
    return out, lse


def flash_attn_func(
    q, k, v, *, seqused_k=None, attn_bias=None, attn_mask=None, softmax_scale=None, causal=False,
    window_size=(NO_LIMIT, NO_LIMIT), diagonal_shift=None, softcap=0.0, s_aux=None,
):
    """q (B, M, H, d), k (B, N, G, d), v (B, N, G, e): out (B, M, H, e), softmax_lse (B, H, M).

    attn_bias and attn_mask are (B, H, M, N). d and e are multiples of 8.
    """
    batch, m_total, heads, width = q.shape
    n_total, groups = k.shape[1], k.shape[2]
    if width % 8 or v.shape[-1] % 8:
        raise ValueError("head widths have to be multiples of 8")
    if softmax_scale is None:
        softmax_scale = width ** -0.5
    out = np.zeros((batch, m_total, heads, v.shape[-1]), q.dtype)
    lse = np.zeros((batch, heads, m_total), q.dtype)
    for b in range(batch):
        seqlen_k = n_total if seqused_k is None else int(seqused_k[b])
        for h in range(heads):
            g = h // (heads // groups)
            out[b, :, h], lse[b, h] = _forward_one(
                q[b, :, h], k[b, :, g], v[b, :, g], None if attn_bias is None else attn_bias[b, h],
                None if attn_mask is None else attn_mask[b, h], seqlen_k=seqlen_k,
                shift=0 if diagonal_shift is None else int(diagonal_shift[b]), softmax_scale=softmax_scale,
                causal=causal, window_size=window_size, softcap=softcap, sink=None if s_aux is None else s_aux[h],
            )
    return out, lse


# The adapter --------------------------------------------------------------------------------------------------------

def _pad_width(x):
    extra = -x.shape[-1] % 8
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, extra)]) if extra else x


def _to_kernel(x, rows, wide):
    """(..., heads, length, width) to (B, length, heads, padded width)."""
    x = x.astype(wide).reshape((rows,) + x.shape[-3:])
    return _pad_width(x.transpose(0, 2, 1, 3))


def _per_entry(x, rows, default):
    if x is None:
        return np.full(rows, default, dtype=np.int64)
    return np.broadcast_to(np.asarray(x, dtype=np.int64).reshape(-1), (rows,)).copy()


def _whole(x, batch, rows, heads, q_len, kv_len):
    if x is None:
        return None
    return np.broadcast_to(x, batch + (heads, q_len, kv_len)).reshape(rows, heads, q_len, kv_len)


def _segment_mask(q_segments, kv_segments, batch, rows, heads, q_len, kv_len):
    q_seg = np.broadcast_to(q_segments, batch + (q_len,)).reshape(rows, 1, q_len, 1)
    kv_seg = np.broadcast_to(kv_segments, batch + (kv_len,)).reshape(rows, 1, 1, kv_len)
    return np.broadcast_to(q_seg == kv_seg, (rows, heads, q_len, kv_len))


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    return_lse=False,
):
    dtype = query.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    batch, rows = query.shape[:-3], int(np.prod(query.shape[:-3]))
    heads, q_len, d_k = query.shape[-3:]
    d_v = value.shape[-1]
    results = {}
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
        results["present_key"], results["present_value"] = key, value
    kv_len = key.shape[-2]

    attn_mask = _whole(mask, batch, rows, heads, q_len, kv_len)
    if q_segments is not None:
        same = _segment_mask(q_segments, kv_segments, batch, rows, heads, q_len, kv_len)
        attn_mask = same if attn_mask is None else attn_mask & same
    bias = _whole(attn_bias, batch, rows, heads, q_len, kv_len)
    if bias is not None:
        bias = bias.astype(wide)

    lengths = np.clip(_per_entry(kv_lengths, rows, kv_len), 0, kv_len)
    offsets = _per_entry(q_offset, rows, 0)
    shift = offsets - (lengths - q_len)
    left, right = (None, None) if window is None else window
    window_size = (NO_LIMIT if left is None else left, NO_LIMIT if right is None else right)
    out, lse = flash_attn_func(
        _to_kernel(query, rows, wide), _to_kernel(key, rows, wide), _to_kernel(value, rows, wide),
        seqused_k=lengths, attn_bias=bias, attn_mask=attn_mask,
        softmax_scale=d_k ** -0.5 if scale is None else float(scale), causal=bool(is_causal), window_size=window_size,
        diagonal_shift=shift, softcap=0.0 if softcap is None else float(softcap),
        s_aux=None if sinks is None else sinks.astype(wide),
    )
    output = out[..., :d_v].transpose(0, 2, 1, 3)
    results["output"] = np.ascontiguousarray(output).astype(dtype).reshape(batch + (heads, q_len, d_v))
    if return_lse:
        results["lse"] = lse.reshape(batch + (heads, q_len))
    return results
