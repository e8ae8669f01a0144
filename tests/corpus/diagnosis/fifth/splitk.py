"""Flash decoding: the keys are split, each part gives an output and a log-sum-exp, a second step joins them."""

import numpy as np

PARTS = 4


def attend_part(q, k, v, ok, bias, scale, softcap):
    """Over one part of the keys: normalised output, lse, and whether a row sees anything here."""
    s = np.einsum("...grnd,...gsd->...grns", q, k) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    s = np.where(ok, s, -np.inf)
    top = s.max(axis=-1, keepdims=True)
    alive = ok.any(axis=-1, keepdims=True)
    shift = np.where(top == -np.inf, 0.0, top)
    e = np.where(ok, np.exp(s - shift), 0.0)
    total = e.sum(axis=-1, keepdims=True)
    o = np.einsum("...grns,...gse->...grne", e, v) / np.where(total == 0, 1.0, total)
    lse = np.log(total) + shift
    return o, lse[..., 0], alive[..., 0]


def combine(outs, lses, sink):
    """Join the parts by their log-sum-exp."""
    top = lses.max(axis=0)
    if sink is not None:
        top = np.maximum(top, sink)
    shift = np.where(top == -np.inf, 0.0, top)
    w = np.exp(lses - shift)
    den = w.sum(axis=0)
    if sink is not None:
        den = den + np.exp(sink - shift)
    o = (w[..., None] * outs).sum(axis=0) / den[..., None]
    return o, np.log(den) + shift


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 kv_lengths=None, scale=None, softcap=None, sinks=None,
                                 past_key=None, past_value=None, return_lse=False):
    caching = past_key is not None
    if caching:
        key = np.concatenate((past_key, key), axis=-2)
        value = np.concatenate((past_value, value), axis=-2)
    *batch, H, n, d = query.shape
    G, S, dv = key.shape[-3], key.shape[-2], value.shape[-1]
    R = H // G
    if scale is None:
        scale = d ** -0.5
    q = query.reshape(*batch, G, R, n, d).astype(np.float64)

    def grouped(x):
        return np.broadcast_to(x, (*batch, H, n, S)).reshape(*batch, G, R, n, S)

    mask = None if mask is None else grouped(mask)
    bias = None if attn_bias is None else grouped(attn_bias)
    pos = np.arange(n)[:, None]
    if q_offset is not None:
        pos = pos + np.asarray(q_offset)[..., None, None, None, None]
    sink = None if sinks is None else sinks.astype(np.float64).reshape(G, R, 1)

    size = max(1, -(-S // PARTS))
    outs, lses, lives = [], [], []
    with np.errstate(all="ignore"):
        for lo in range(0, max(S, 1), size):
            hi = min(lo + size, S)
            j = np.arange(lo, hi)
            k = key[..., lo:hi, :].astype(np.float64)
            v = value[..., lo:hi, :].astype(np.float64)
            ok = np.ones((*batch, G, R, n, hi - lo), dtype=bool)
            if is_causal:
                ok &= j <= pos
            if kv_lengths is not None:
                used = j < kv_lengths[..., None]
                ok &= used[..., None, None, None, :]
                v = np.where(used[..., None, :, None], v, 0.0)
            if mask is not None:
                ok &= mask[..., lo:hi]
            b = None
            if bias is not None:
                b = bias[..., lo:hi].astype(np.float64)
                ok &= b != -np.inf
            if hi == lo:
                outs.append(np.zeros((*batch, G, R, n, dv)))
                lses.append(np.full((*batch, G, R, n), -np.inf))
                lives.append(np.zeros((*batch, G, R, n), dtype=bool))
                continue
            o, l, a = attend_part(q, k, v, ok, b, scale, softcap)
            outs.append(o), lses.append(l), lives.append(a)
        o, lse = combine(np.stack(outs), np.stack(lses), sink)
        alive = np.any(lives, axis=0)
        lse = np.where(alive, np.where(np.isneginf(lse), np.nan, lse), -np.inf)
        o = np.where(alive[..., None], o, 0.0)
        result = {"output": o.reshape(*batch, H, n, dv).astype(query.dtype)}
        if return_lse:
            result["lse"] = lse.reshape(*batch, H, n).astype(query.dtype)
    if caching:
        result["present_key"], result["present_value"] = key, value
    return result
