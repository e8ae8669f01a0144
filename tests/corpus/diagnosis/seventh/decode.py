"""Split keys: every part leaves (accumulator, maximum, sum) in base two; a second kernel joins the parts."""
import math

import numpy as np

PARTS = 4
CHUNK = 8
F, W = np.float32, np.float64


def part(q, k, v, allowed, bias, scale):
    """One part of the keys: [m, e] accumulator not divided, [m] maximum and [m] sum, both of base 2."""
    m = q.shape[0]
    acc, top, total = np.zeros((m, v.shape[1])), np.full(m, -np.inf), np.zeros(m)
    for c in range(0, len(k), CHUNK):
        end = min(c + CHUNK, len(k))
        ok = allowed[:, c:end]
        s = q @ k[c:end].T * (scale * math.log2(math.e))
        if bias is not None:
            s = s + bias[:, c:end] * math.log2(math.e)
        s = np.where(ok, s, -np.inf)
        new = np.maximum(top, s.max(axis=1))
        base = np.where(np.isneginf(new), 0, new)
        w = np.where(ok, np.exp2(s - base[:, None]), 0)
        fade = np.exp2(top - base)
        total = total * fade + w.sum(axis=1)
        acc = acc * fade[:, None] + w @ np.where(ok.any(axis=0)[:, None], v[c:end], 0)
        top = new
    return acc, top, total, allowed.any(axis=1)


def join(parts, sink):
    """The parts of one head, with the sink once."""
    acc = np.stack([p[0] for p in parts])
    top = np.stack([p[1] for p in parts])
    total = np.stack([p[2] for p in parts])
    best = top.max(axis=0)
    some = np.stack([p[3] for p in parts]).any(axis=0)
    if sink is not None:
        best = np.maximum(best, sink * math.log2(math.e))
    best = np.where(np.isneginf(best), 0, best)
    factor = np.exp2(top - best)
    whole = (total * factor).sum(axis=0)
    if sink is not None:
        whole = whole + np.exp2(sink * math.log2(math.e) - best)
    out = (acc * factor[..., None]).sum(axis=0) / whole[:, None]
    lse = (best + np.log2(whole)) * math.log(2)
    return np.where(some[:, None], out, 0), np.where(some, lse, -np.inf)


def bounds(length):
    """Where the parts begin and end; whole chunks go to each."""
    chunks = -(-length // CHUNK)
    each = -(-chunks // PARTS) * CHUNK
    return [(p * each, min((p + 1) * each, length)) for p in range(PARTS)]


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None,
    sinks=None, past_key=None, past_value=None, return_lse=False,
):
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
    lead, (heads, m, d) = query.shape[:-3], query.shape[-3:]
    groups, n, e = value.shape[-3:]
    scale = 1 / math.sqrt(d) if scale is None else scale
    starts = np.broadcast_to(0 if q_offset is None else np.asarray(q_offset), lead)
    lengths = np.broadcast_to(n if kv_lengths is None else np.asarray(kv_lengths), lead)
    shape = (*lead, heads, m, n)
    shown = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    if attn_bias is not None:
        attn_bias = np.broadcast_to(attn_bias, shape).astype(W)
        shown = shown & ~np.isneginf(attn_bias)
    out, lse = np.zeros((*lead, heads, m, e), F), np.full((*lead, heads, m), -np.inf, F)
    with np.errstate(all="ignore"):
        for z in np.ndindex(*lead):
            length = int(lengths[z])
            column = np.arange(n)[None, :]
            near = column < length
            if is_causal:
                near = near & (column <= np.arange(m)[:, None] + int(starts[z]))
            for h in range(heads):
                g = h // (heads // groups)
                ok = shown[z][h] & near
                parts = []
                for lo, hi in bounds(length):
                    if lo < hi and m:
                        parts.append(part(
                            query[z][h].astype(W), key[z][g, lo:hi].astype(W), value[z][g, lo:hi].astype(W),
                            ok[:, lo:hi], None if attn_bias is None else attn_bias[z][h][:, lo:hi], scale,
                        ))
                if parts:
                    out[z][h], lse[z][h] = join(parts, None if sinks is None else float(sinks[h]))
    found = {"output": out.astype(query.dtype)}
    if return_lse:
        found["lse"] = lse
    if past_key is not None:
        found["present_key"], found["present_value"] = key, value
    return found


dtypes = ("float32", "float16")
