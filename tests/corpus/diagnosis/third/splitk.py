"""Flash decoding: the keys are cut into splits, each is attended on its own, and the parts are merged by their lse."""

import numpy as np

SPLITS = 4


def _part(q, k, v, ok, bias, scale, softcap):
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    s = np.where(ok, s, -np.inf)
    top = np.max(s, axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), 0, top)
    e = np.where(ok, np.exp(s - top), 0)
    total = e.sum(axis=-1, keepdims=True)
    out = (e / np.where(total == 0, 1, total)) @ v
    lse = np.where(total == 0, -np.inf, top + np.log(total))
    return out, lse[..., 0]


def _merge(outs, lses, sinks, hidden):
    outs = np.stack(outs)
    lses = np.stack(lses)
    if sinks is not None:
        top = np.maximum(lses.max(axis=0), sinks[:, None])
    else:
        top = lses.max(axis=0)
    top = np.where(np.isneginf(top), 0, top)
    w = np.where(np.isneginf(lses), 0, np.exp(lses - top))
    total = w.sum(axis=0)
    if sinks is not None:
        total = total + np.exp(sinks[:, None] - top)
    total = np.where(hidden, 1, total)
    out = (w[..., None] * outs).sum(axis=0) / total[..., None]
    return out, np.where(hidden, -np.inf, np.where(total == 0, np.nan, top + np.log(total)))


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    kv_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    return_lse=False,
):
    dtype = query.dtype
    *lead, H, Lq, d = query.shape
    n = key.shape[-2]
    r = H // key.shape[-3]
    q, k, v = (a.astype(np.float64) for a in (query, key, value))
    scale = d**-0.5 if scale is None else float(scale)
    full = (*lead, H, Lq, n)
    mask = np.broadcast_to(True if mask is None else mask, full)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, full)
        mask = mask & ~np.isneginf(attn_bias)
    off = np.asarray(0 if q_offset is None else q_offset)[..., None, None, None]
    lengths = None if kv_lengths is None else np.asarray(kv_lengths)[..., None, None, None]
    width = max(1, -(-n // SPLITS))
    outs = [np.zeros((*lead, H, Lq, v.shape[-1]))]
    lses = [np.full((*lead, H, Lq), -np.inf)]
    hidden = np.ones((*lead, H, Lq), bool)
    for part in range(SPLITS):
        start, stop = part * width, min((part + 1) * width, n)
        if start >= stop:
            break
        ks = np.repeat(k[..., start:stop, :], r, axis=-3)
        vs = np.repeat(v[..., start:stop, :], r, axis=-3)
        where = np.arange(start, stop)
        ok = mask[..., start:stop]
        bias = None if attn_bias is None else attn_bias[..., start:stop]
        if is_causal:
            ok = ok & (where <= np.arange(Lq)[:, None] + off)
        if lengths is not None:
            ok = ok & (where < lengths)
            vs = np.where(np.swapaxes(where < lengths, -1, -2), vs, 0)
        out, lse = _part(q, ks, vs, ok, bias, scale, softcap)
        hidden = hidden & ~ok.any(axis=-1)
        outs.append(out)
        lses.append(lse)
    out, lse = _merge(outs, lses, sinks, hidden)
    out = out.astype(dtype)
    return {"output": out, "lse": lse.astype(dtype)} if return_lse else out
