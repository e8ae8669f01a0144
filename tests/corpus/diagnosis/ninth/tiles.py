"""A backward kernel: lse and delta of a forward kernel, a program per key tile, query tiles in its loop."""
import math

import numpy as np

BM, BN = 8, 8
F = np.float64


def live_tile(rows, cols, offset, causal, left, right, length, mask):
    i, j = rows[:, None] + offset, cols[None, :]
    live = np.broadcast_to(j < length, (len(rows), len(cols))).copy()
    if causal:
        live &= j <= i
    if left is not None:
        live &= j >= i - left
    if right is not None:
        live &= j <= i + right
    if mask is not None:
        live &= mask[np.ix_(rows, cols)]
    return live


def forward_kernel(q, k, v, bias, rules, scale):
    """o [T, E] and lse [T] of one head."""
    t, s = len(q), len(k)
    o, lse = np.zeros((t, v.shape[1]), F), np.full(t, np.inf, F)
    for a in range(0, t, BM):
        rows = np.arange(a, min(a + BM, t))
        m, l, acc = np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros((len(rows), v.shape[1]))
        for c in range(0, s, BN):
            cols = np.arange(c, min(c + BN, s))
            live = live_tile(rows, cols, *rules)
            x = q[rows] @ k[cols].T * scale
            if bias is not None:
                x = x + bias[np.ix_(rows, cols)]
                live &= ~np.isneginf(bias[np.ix_(rows, cols)])
            x = np.where(live, x, -np.inf)
            new = np.maximum(m, x.max(axis=1))
            base = np.where(np.isneginf(new), 0, new)
            p = np.where(live, np.exp(x - base[:, None]), 0)
            fade = np.exp(m - base)
            l = l * fade + p.sum(axis=1)
            acc = acc * fade[:, None] + p @ v[cols]
            m = new
        o[rows] = acc / np.where(l == 0, 1, l)[:, None]
        lse[rows] = np.where(l == 0, np.inf, m + np.log(np.where(l == 0, 1, l)))
    return o, lse


def backward_kernel(q, k, v, do, lse, delta, bias, rules, scale, dbias):
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for c in range(0, len(k), BN):
        cols = np.arange(c, min(c + BN, len(k)))
        dk_acc, dv_acc = np.zeros((len(cols), k.shape[1])), np.zeros((len(cols), v.shape[1]))
        for a in range(0, len(q), BM):
            rows = np.arange(a, min(a + BM, len(q)))
            live = live_tile(rows, cols, *rules)
            x = q[rows] @ k[cols].T * scale
            if bias is not None:
                x = x + bias[np.ix_(rows, cols)]
                live &= ~np.isneginf(bias[np.ix_(rows, cols)])
            p = np.where(live, np.exp(x - lse[rows, None]), 0)
            dv_acc += p.T @ do[rows]
            dp = do[rows] @ v[cols].T
            ds = p * (dp - delta[rows, None])
            if dbias is not None:
                dbias[np.ix_(rows, cols)] += ds
            dk_acc += ds.T @ q[rows] * scale
            dq[rows] += ds @ k[cols] * scale
        dk[cols] = dk_acc
        dv[cols] = dv_acc
    return dq, dk, dv


def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, past_key=None, past_value=None,
):
    past = 0 if past_key is None else past_key.shape[-2]
    k_all = key if past_key is None else np.concatenate([past_key, key], axis=-2)
    v_all = value if past_value is None else np.concatenate([past_value, value], axis=-2)
    lead, (heads, t, d) = query.shape[:-3], query.shape[-3:]
    groups, s, e = v_all.shape[-3:]
    scale = 1 / math.sqrt(d) if scale is None else scale
    full = (*lead, heads, t, s)
    offsets = np.broadcast_to(0 if q_offset is None else np.asarray(q_offset), lead)
    lengths = np.broadcast_to(s if kv_lengths is None else np.asarray(kv_lengths), lead)
    left, right = (None, None) if window is None else window
    masks = None if mask is None else np.broadcast_to(mask, full)
    biases = None if attn_bias is None else np.broadcast_to(attn_bias, full).astype(F)
    dq, dk, dv = np.zeros(query.shape, F), np.zeros(k_all.shape, F), np.zeros(v_all.shape, F)
    dbias = None if attn_bias is None else np.zeros(full, F)
    with np.errstate(all="ignore"):
        for z in np.ndindex(*lead):
            for h in range(heads):
                g = h // (heads // groups)
                rules = (int(offsets[z]), is_causal, left, right, int(lengths[z]),
                         None if masks is None else masks[z][h])
                bias = None if biases is None else biases[z][h]
                live = live_tile(np.arange(t), np.arange(s), *rules)
                if bias is not None:
                    live = live & ~np.isneginf(bias)
                kept, used = live.any(axis=0)[:, None], live.any(axis=1)[:, None]
                q_h, do_h = (np.where(used, x[z][h].astype(F), 0) for x in (query, grad_output))
                k_h, v_h = (np.where(kept, x[z][g].astype(F), 0) for x in (k_all, v_all))
                o, lse = forward_kernel(q_h, k_h, v_h, bias, rules, scale)
                delta = (o * do_h).sum(axis=1)
                part = backward_kernel(q_h, k_h, v_h, do_h, lse, delta, bias, rules, scale,
                                       None if dbias is None else dbias[z][h])
                dq[z][h] = part[0]
                dk[z][g] += part[1]
                dv[z][g] += part[2]
    found = {
        "query": dq.astype(query.dtype),
        "key": dk[..., past:, :].astype(key.dtype),
        "value": dv[..., past:, :].astype(value.dtype),
    }
    if attn_bias is not None:
        for axis in range(dbias.ndim):
            own = axis - dbias.ndim + attn_bias.ndim
            if own < 0 or attn_bias.shape[own] == 1:
                dbias = dbias.sum(axis=axis, keepdims=True)
        found["attn_bias"] = dbias.reshape(attn_bias.shape).astype(attn_bias.dtype)
    return found


dtypes = ("float64", "float32")
