"""A port of a functional attention: (batch, length, heads, width) inside, einsum, grouped heads by a reshape."""
import numpy as np

MIN = -np.inf


def attend(q, k, v, bias, live, scale, cap, sink):
    """q [B, T, G, R, K], k [B, S, G, K], v [B, S, G, V], bias, live [B, G, R, T, S]; float32 or float64 throughout."""
    logits = np.einsum("btgrk,bsgk->bgrts", q, k) * scale
    if cap is not None:
        logits = np.tanh(logits / cap) * cap
    if bias is not None:
        logits = logits + bias
    logits = np.where(live, logits, MIN)
    some = live.any(axis=-1, keepdims=True)
    peak = np.max(logits, axis=-1, keepdims=True, initial=MIN)
    if sink is not None:
        peak = np.maximum(peak, sink)
    peak = np.where(some, peak, 0)
    unnormalized = np.where(live, np.exp(logits - peak), 0)
    denom = unnormalized.sum(axis=-1, keepdims=True)
    if sink is not None:
        denom = denom + np.exp(sink - peak)
    probs = np.where(some, unnormalized / np.where(denom == 0, 1, denom), 0)
    finite = np.isfinite(v)
    out = np.einsum("bgrts,bsgv->btgrv", probs, np.where(finite, v, 0))
    if not finite.all():
        touched = np.einsum("bgrts,bsgv->btgrv", live.astype(float), (~finite).astype(float)) > 0
        exact = np.empty_like(out)
        for index in np.ndindex(*out.shape):
            b, t, g, r, d = index
            if touched[index]:
                keep = live[b, g, r, t]
                exact[index] = (probs[b, g, r, t][keep] * v[b, :, g, d][keep]).sum()
            else:
                exact[index] = out[index]
        out = exact
    lse = np.where(some, np.log(np.where(denom == 0, 1, denom)) + peak, -np.inf)[..., 0]
    return out, probs, lse


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, sinks=None, return_weights=False, return_lse=False,
):
    dtype = query.dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    lead = query.shape[:-3]
    n_heads, t, width = query.shape[-3:]
    groups, s, v_width = value.shape[-3:]
    share = n_heads // groups
    b = int(np.prod(lead))
    # (batch, length, heads, width)
    q = query.reshape(b, n_heads, t, width).transpose(0, 2, 1, 3).astype(wide)
    k = key.reshape(b, groups, s, width).transpose(0, 2, 1, 3).astype(wide)
    v = value.reshape(b, groups, s, v_width).transpose(0, 2, 1, 3).astype(wide)
    q = q.reshape(b, t, groups, share, width)
    full = (*lead, n_heads, t, s)

    def spread(x):
        return np.broadcast_to(x, full).reshape(b, groups, share, t, s)

    live = np.ones((b, groups, share, t, s), bool)
    if mask is not None:
        live = live & spread(mask)
    bias = None
    if attn_bias is not None:
        bias = spread(attn_bias).astype(wide)
        live = live & (bias != -np.inf)
    at = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), lead).reshape(b)
    rows = at[:, None, None] + np.arange(t)[None, :, None]
    cols = np.arange(s)[None, None, :]
    near = np.ones((b, t, s), bool)
    if is_causal:
        near &= cols <= rows
    if window is not None:
        before, after = window
        if before is not None:
            near &= rows - cols <= before
        if after is not None:
            near &= cols - rows <= after
    if kv_lengths is not None:
        near &= cols < np.asarray(kv_lengths).reshape(b, 1, 1)
    live = live & near[:, None, None]
    k = np.where(live.any(axis=(2, 3)).transpose(0, 2, 1)[..., None], k, 0)
    scale = width**-0.5 if scale is None else scale
    sink = None if sinks is None else np.asarray(sinks, wide).reshape(1, groups, share, 1, 1)
    with np.errstate(all="ignore"):
        out, probs, lse = attend(q, k, v, bias, live, wide(scale), None if softcap is None else wide(softcap), sink)
    out = out.reshape(b, t, n_heads, v_width).transpose(0, 2, 1, 3)
    found = {"output": out.reshape(*lead, n_heads, t, v_width).astype(dtype)}
    if return_weights:
        found["weights"] = probs.reshape(full).astype(dtype)
    if return_lse:
        found["lse"] = lse.reshape(*lead, n_heads, t).astype(wide)
    return found


dtypes = ("float64", "float32", "float16", "bfloat16")
