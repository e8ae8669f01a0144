"""The suite's call on a library of another convention: (batch, length, heads, width), True hides, -1 is no window."""
import numpy as np


def fused_attention(q, k, v, *, softmax_scale, hide=None, bias=None, q_start=None, causal=False,
                    window_size=(-1, -1), seqused_k=None, cap=0.0):
    """q (B, L, N, D), k and v (B, S, K, .); hide and bias (B, N, L, S); gives out (B, L, N, E), lse (B, L, N)."""
    B, L, N, D = q.shape
    S, K = k.shape[1:3]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, N // K, axis=2) for x in (k, v))
    rows = np.arange(L)[None, :, None] + q_start[:, None, None]
    cols = np.arange(S)[None, None, :]
    gone = np.zeros((B, L, S), bool)
    if causal:
        window_size = (window_size[0], 0)
    if window_size[0] >= 0:
        gone |= cols < rows - window_size[0]
    if window_size[1] >= 0:
        gone |= cols > rows + window_size[1]
    if seqused_k is not None:
        gone |= cols >= seqused_k[:, None, None]
        v = np.where((np.arange(S)[None, :] < seqused_k[:, None])[:, :, None, None], v, 0.0)
    gone = np.broadcast_to(gone[:, None], (B, N, L, S)).copy()
    if hide is not None:
        gone |= hide
    scores = np.einsum("blnd,bsnd->bnls", q, k) * softmax_scale
    if cap > 0.0:
        scores = cap * np.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
        gone |= bias == -np.inf
    scores[gone] = -np.inf
    dead = gone.all(axis=-1)
    peak = scores.max(axis=-1, initial=-np.inf)
    peak[dead] = 0.0
    e = np.exp(scores - peak[..., None])
    e[gone] = 0.0
    total = e.sum(axis=-1)
    lse = np.log(total) + peak
    total[dead] = 1.0
    probs = e / total[..., None]
    out = np.einsum("bnls,bsne->blne", probs, v)
    return out, lse.transpose(0, 2, 1), probs


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None,
    kv_lengths=None, scale=None, softcap=None, return_weights=False, return_lse=False,
):
    batch = query.shape[:-3]
    H, L, D = query.shape[-3:]
    S = key.shape[-2]
    B = int(np.prod(batch, dtype=int))

    def bshd(x):
        return x.reshape(B, *x.shape[-3:]).transpose(0, 2, 1, 3)

    def full(x):
        return np.broadcast_to(x, (*batch, H, L, S)).reshape(B, H, L, S)

    options = {"causal": bool(is_causal), "softmax_scale": D**-0.5 if scale is None else scale}
    options["q_start"] = np.broadcast_to(0 if q_offset is None else q_offset, batch).reshape(B)
    if mask is not None:
        options["hide"] = ~full(mask)
    if attn_bias is not None:
        options["bias"] = full(attn_bias).astype(np.float64)
    if window is not None:
        options["window_size"] = tuple(-1 if side is None else side for side in window)
    if kv_lengths is not None:
        options["seqused_k"] = np.asarray(kv_lengths).reshape(B)
    if softcap is not None:
        options["cap"] = softcap
    with np.errstate(all="ignore"):
        out, lse, probs = fused_attention(bshd(query), bshd(key), bshd(value), **options)
    found = {"output": out.transpose(0, 2, 1, 3).reshape(*batch, H, L, -1 if out.size else value.shape[-1])}
    if return_weights:
        found["weights"] = probs.reshape(*batch, H, L, S)
    if return_lse:
        found["lse"] = lse.transpose(0, 2, 1).reshape(*batch, H, L)
    return {name: x.astype(query.dtype) for name, x in found.items()}
