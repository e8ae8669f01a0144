"""Attention by an operator in the manner of ONNX: rows of all heads side by side, one additive mask, outputs chosen by a mode.

The operator is in this file, in NumPy; the rest maps calls and a layer onto it. Sinks are joined afterwards by the log-sum-exp.
"""
import ml_dtypes  # noqa: F401
import numpy as np

name, version = "onnx-op", "23.1"
dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "cache", "gqa",
    "segments", "return_weights", "return_lse", "value_dim", "broadcast", "empty",
}

WIDTH_BLOCK = 64
QK_LOGITS, QK_WEIGHTS = 2, 3


# The operator -------------------------------------------------------------------------------------------------------

def _rows_to_heads(x, heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _heads_to_rows(x):
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def _product(q, k):
    """q @ k^T, summed over blocks of the width."""
    width = q.shape[-1]
    if width <= WIDTH_BLOCK:
        return q @ k.swapaxes(-1, -2)
    total = np.zeros(q.shape[:-1] + (k.shape[-2],))
    for c in range(0, width, WIDTH_BLOCK):
        total += q[..., c:c + WIDTH_BLOCK] @ k[..., c:c + WIDTH_BLOCK].swapaxes(-1, -2)
    return total


def attention_op(
    Q, K, V, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, q_num_heads, kv_num_heads,
    is_causal=0, scale=None, softcap=0.0, qk_matmul_output_mode=QK_WEIGHTS,
):
    """Q (B, M, H * d), K (B, N, G * d), V (B, N, G * e): Y (B, M, H * e), presents, and logits or weights (B, H, M, N).

    attn_mask is added and is of rank 4; causality counts from the length of the past.
    """
    q = _rows_to_heads(Q, q_num_heads)
    k, v = _rows_to_heads(K, kv_num_heads), _rows_to_heads(V, kv_num_heads)
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    present_key, present_value = k, v
    kv_len = k.shape[2]
    additive = np.zeros((1, 1, 1, kv_len)) if attn_mask is None else attn_mask
    if is_causal:
        later = np.arange(kv_len) > np.arange(q.shape[2])[:, None] + past
        additive = np.where(later, -np.inf, additive)
    if nonpad_kv_seqlen is not None:
        padding = np.arange(kv_len) >= nonpad_kv_seqlen[:, None]
        additive = np.where(padding[:, None, None, :], -np.inf, additive)
        k = np.where(padding[:, None, :, None], 0, k)
        v = np.where(padding[:, None, :, None], 0, v)
    repeats = q_num_heads // kv_num_heads
    k, v = np.repeat(k, repeats, axis=1), np.repeat(v, repeats, axis=1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = _product(q, k) * scale
    if softcap:
        logits = softcap * np.tanh(logits / softcap)
    hidden = np.broadcast_to(np.isneginf(additive), logits.shape)
    logits = np.where(hidden, -np.inf, logits + additive)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    weights = np.where(hidden, 0, np.exp(logits - top))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    chosen = logits if qk_matmul_output_mode == QK_LOGITS else weights
    return _heads_to_rows(weights @ v), present_key, present_value, chosen


# What is mapped onto it ---------------------------------------------------------------------------------------------

def _rank4(x, batch, rows):
    if x is None:
        return None
    if x.ndim == 2:
        return x[None, None]
    return np.broadcast_to(x, batch + x.shape[-3:]).reshape((rows,) + x.shape[-3:])


def _additive(mask, attn_bias, batch, rows, q_len, kv_len, is_causal, q_offset, window, q_segments, kv_segments):
    """One mask that is added, or None."""
    total = None
    if mask is not None:
        total = np.where(_rank4(mask, batch, rows), 0.0, -np.inf)
    if attn_bias is not None:
        bias = _rank4(attn_bias, batch, rows).astype(np.float64)
        total = bias if total is None else total + bias
    allowed = None
    offset = np.broadcast_to(np.reshape(0 if q_offset is None else q_offset, -1), (rows,))[:, None, None]
    place = np.arange(q_len)[:, None] + offset
    j = np.arange(kv_len)
    if is_causal:
        allowed = j <= place
    if window is not None:
        left, right = window
        if left is not None:
            near = j >= place - left
            allowed = near if allowed is None else allowed & near
        if right is not None:
            near = j <= place + right
            allowed = near if allowed is None else allowed & near
    if q_segments is not None:
        q_seg = np.broadcast_to(q_segments, batch + (q_len,)).reshape(rows, q_len, 1)
        kv_seg = np.broadcast_to(kv_segments, batch + (kv_len,)).reshape(rows, 1, kv_len)
        same = q_seg == kv_seg
        allowed = same if allowed is None else allowed & same
    if allowed is not None:
        hidden = np.where(allowed, 0.0, -np.inf)[:, None]
        total = hidden if total is None else np.where(np.isneginf(hidden), -np.inf, total)
    return total


def _call(q_rows, k_rows, v_rows, batch, rows, heads, groups, options):
    """Runs the operator and returns output rows (B, M, H * e) in float64 and results by name in float64."""
    q_len = q_rows.shape[1]
    past_key, past_value = (options.get(n) for n in ("past_key", "past_value"))
    past = 0
    if past_key is not None:
        past = past_key.shape[-2]
        past_key, past_value = (x.astype(np.float64).reshape((rows,) + x.shape[-3:]) for x in (past_key, past_value))
    kv_len = k_rows.shape[1] + past
    q_offset, is_causal = options.get("q_offset"), options.get("is_causal", False)
    native = bool(is_causal) and np.ndim(q_offset) == 0 and (0 if q_offset is None else q_offset) == past
    additive = _additive(
        options.get("mask"), options.get("attn_bias"), batch, rows, q_len, kv_len, is_causal and not native, q_offset,
        options.get("window"), options.get("q_segments"), options.get("kv_segments"),
    )
    lengths = options.get("kv_lengths")
    common = dict(
        attn_mask=additive, past_key=past_key, past_value=past_value,
        nonpad_kv_seqlen=None if lengths is None else np.asarray(lengths).reshape(rows), q_num_heads=heads,
        kv_num_heads=groups, is_causal=int(native), scale=options.get("scale"), softcap=options.get("softcap") or 0.0,
    )
    output, present_key, present_value, logits = attention_op(
        q_rows, k_rows, v_rows, qk_matmul_output_mode=QK_LOGITS, **common
    )
    top = logits.max(axis=-1, initial=-np.inf)
    safe = np.where(np.isneginf(top), 0, top)
    terms = np.exp(logits - safe[..., None])
    lse = safe + np.log(terms.sum(axis=-1))
    sinks = options.get("sinks")
    weights = None
    if options.get("return_weights"):
        weights = attention_op(q_rows, k_rows, v_rows, **common)[3]
    shown = _any_visible(logits.shape, additive, native, past, lengths)
    if sinks is None:
        factor = np.where(np.isneginf(lse) & shown, np.nan, 1.0)
        lse = np.where(np.isneginf(lse) & shown, np.nan, lse)
    else:
        sink = sinks.astype(np.float64)[:, None]
        both = np.logaddexp(lse, sink)
        factor = np.where(np.isneginf(lse), 0.0, np.exp(lse - both))
        factor = np.where(np.isneginf(both) & shown, np.nan, factor)
        lse = np.where(np.isneginf(both) & shown, np.nan, both)
    output = _heads_to_rows(_rows_to_heads(output, heads) * factor[..., None])
    results = {"lse": lse}
    if weights is not None:
        results["weights"] = weights * factor[..., None]
    if past_key is not None:
        results["present_key"], results["present_value"] = present_key, present_value
    return output, results


def _any_visible(shape, additive, native, past, lengths):
    """Whether a row has a visible key, (B, H, M)."""
    seen = np.ones(shape, dtype=bool)
    if additive is not None:
        seen = seen & ~np.isneginf(additive)
    if native:
        seen = seen & (np.arange(shape[3]) <= np.arange(shape[2])[:, None] + past)
    if lengths is not None:
        seen = seen & (np.arange(shape[3]) < np.asarray(lengths).reshape(shape[0], 1, 1, 1))
    return seen.any(axis=-1)


def _named(results, batch, dtype, return_lse):
    lse = results.pop("lse")
    named = {n: x.astype(dtype).reshape(batch + x.shape[1:]) for n, x in results.items()}
    if return_lse:
        named["lse"] = lse.astype(np.float32).reshape(batch + lse.shape[1:])
    return named


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    return_weights=False, return_lse=False,
):
    options = dict(
        mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
        past_value=past_value, return_weights=return_weights,
    )
    batch, rows = query.shape[:-3], int(np.prod(query.shape[:-3]))
    heads, groups = query.shape[-3], key.shape[-3]
    q_rows, k_rows, v_rows = (
        _heads_to_rows(x.astype(np.float64).reshape((rows,) + x.shape[-3:])) for x in (query, key, value)
    )
    output, results = _call(q_rows, k_rows, v_rows, batch, rows, heads, groups, options)
    output = _rows_to_heads(output, heads)
    named = _named(results, batch, query.dtype, return_lse)
    return named | {"output": output.astype(query.dtype).reshape(batch + output.shape[1:])}


def _as_linear(w):
    """(heads, d_in, width) as nn.Linear stores it, (heads * width, d_in)."""
    heads, d_in, width = w.shape
    return np.swapaxes(w, 1, 2).reshape(heads * width, d_in).astype(np.float64)


def _apply(x, weight, bias, dtype):
    y = x.astype(np.float64) @ weight.T
    if bias is not None:
        y = y + bias.reshape(-1).astype(np.float64)
    return y.astype(dtype)


@np.errstate(all="ignore")
def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, window=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None,
    softcap=None, sinks=None, past_key=None, past_value=None, return_weights=False, return_lse=False,
):
    options = dict(
        mask=mask, attn_bias=attn_bias, is_causal=is_causal, q_offset=q_offset, window=window, kv_lengths=kv_lengths,
        q_segments=q_segments, kv_segments=kv_segments, scale=scale, softcap=softcap, sinks=sinks, past_key=past_key,
        past_value=past_value, return_weights=return_weights,
    )
    dtype = query.dtype
    batch, rows = query.shape[:-2], int(np.prod(query.shape[:-2]))
    heads, groups = w_q.shape[0], w_k.shape[0]
    q_rows, k_rows, v_rows = (
        _apply(x.reshape((rows,) + x.shape[-2:]), _as_linear(w), b, dtype).astype(np.float64)
        for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
    )
    z, results = _call(q_rows, k_rows, v_rows, batch, rows, heads, groups, options)
    weight = w_o.reshape(-1, w_o.shape[-1]).T.astype(np.float64)
    output = _apply(z, weight, b_o, dtype)
    return _named(results, batch, dtype, return_lse) | {"output": output.reshape(batch + output.shape[1:])}
