"""Sliding window by chunks of queries: each chunk reads the slice of keys that its window reaches."""
import numpy as np

CHUNK = 5


def scaled_dot_product_attention(query, key, value, *, attn_bias=None, is_causal=False, q_offset=None, window=None,
                                 kv_lengths=None, scale=None, softcap=None, return_weights=False):
    lead, (H, n, d) = query.shape[:-3], query.shape[-3:]
    m, d_v = value.shape[-2:]
    B = int(np.prod(lead))
    G = key.shape[-3]
    r = H // G
    q = query.reshape(B, H, n, d).astype(np.float64)
    k = key.reshape(B, G, m, d).astype(np.float64)
    v = value.reshape(B, G, m, d_v).astype(np.float64)
    if scale is None:
        scale = 1 / np.sqrt(d)
    before, after = window if window is not None else (None, None)
    if is_causal:
        after = 0
    offsets = np.zeros(B, int) if q_offset is None else np.broadcast_to(q_offset, lead).reshape(B)
    ends = np.full(B, m) if kv_lengths is None else np.clip(kv_lengths, 0, m).reshape(B)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, (*lead, H, n, m)).reshape(B, H, n, m)

    output = np.zeros((B, H, n, d_v))
    weights = np.zeros((B, H, n, m))
    for b in range(B):
        for c in range(0, n, CHUNK):
            stop = min(c + CHUNK, n)
            place = np.arange(c, stop) + offsets[b]
            lo = 0 if before is None else max(place[0] - before, 0)
            hi = ends[b] if after is None else min(place[-1] + after + 1, ends[b])
            if hi <= lo:
                continue
            j = np.arange(lo, hi)
            distance = j[None, :] - place[:, None]
            inside = np.ones(distance.shape, bool)
            if before is not None:
                inside &= distance >= -before
            if after is not None:
                inside &= distance <= after
            keys = np.repeat(k[b, :, lo:hi], r, axis=0)
            values = np.repeat(v[b, :, lo:hi], r, axis=0)
            s = np.einsum("hid,hjd->hij", q[b, :, c:stop], keys) * scale
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            if attn_bias is not None:
                part = attn_bias[b, :, c:stop, lo:hi]
                s = s + part
                inside = inside & (part != -np.inf)
            s = np.where(inside, s, -np.inf)
            live = np.broadcast_to(inside, s.shape).any(-1, keepdims=True)
            top = np.where(live, s.max(-1, keepdims=True), 0.0)
            e = np.exp(s - top)
            w = e / np.where(live, e.sum(-1, keepdims=True), 1.0)
            output[b, :, c:stop] = w @ values
            weights[b, :, c:stop, lo:hi] = w
    result = {"output": output.reshape(*lead, H, n, d_v).astype(query.dtype)}
    if return_weights:
        result["weights"] = weights.reshape(*lead, H, n, m).astype(query.dtype)
    return result
