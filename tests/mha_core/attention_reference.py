"""Attention in scalar loops over float64, written from the specification's text and sharing no code with the core."""

import math

import numpy as np


def attention(
    query,
    key,
    value,
    *,
    mask=None,
    attn_bias=None,
    is_causal=False,
    q_offset=None,
    window=None,
    kv_lengths=None,
    scale=None,
    softcap=None,
    sinks=None,
    past_key=None,
    past_value=None,
):
    """Output, weights, lse, present_key and present_value of heads, as a dict of float64 arrays."""
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
    *batch, num_heads, q_len, d_k = query.shape
    num_kv_heads, kv_len, d_v = value.shape[-3:]
    full = (*batch, num_heads, q_len, kv_len)
    mask = np.broadcast_to(True if mask is None else mask, full)
    bias = np.broadcast_to(0.0 if attn_bias is None else np.asarray(attn_bias, np.float64), full)
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, tuple(batch))
    lengths = np.broadcast_to(kv_len if kv_lengths is None else kv_lengths, tuple(batch))
    factor = 1 / math.sqrt(d_k) if scale is None else scale
    output = np.zeros((*batch, num_heads, q_len, d_v))
    weights = np.zeros(full)
    lse = np.full(full[:-1], -math.inf)

    for entry in np.ndindex(*batch):
        for h in range(num_heads):
            g = h // (num_heads // num_kv_heads)
            for i in range(q_len):
                seen = [
                    j
                    for j in range(kv_len)
                    if mask[(*entry, h, i, j)]
                    and bias[(*entry, h, i, j)] != -math.inf
                    and j < lengths[entry]
                    and _in_band(j, i + int(offsets[entry]), is_causal, window)
                ]
                if not seen:
                    continue
                logits = {}
                for j in seen:
                    x = factor * _dot(query[(*entry, h, i)], key[(*entry, g, j)])
                    if softcap is not None:
                        x = softcap * math.tanh(x / softcap)
                    logits[j] = x + float(bias[(*entry, h, i, j)])
                row = weights[(*entry, h, i)]
                lse[(*entry, h, i)] = _softmax(logits, None if sinks is None else float(sinks[h]), row)
                for c in range(d_v):
                    column = {j: float(value[(*entry, g, j, c)]) for j in seen}
                    output[(*entry, h, i, c)] = _mean(row, column)
    return {"output": output, "weights": weights, "lse": lse, "present_key": key, "present_value": value}


def layer(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, **options):
    """The same of the layer, whose output is projected."""
    heads = attention(
        _projected(query, w_q, b_q), _projected(key, w_k, b_k), _projected(value, w_v, b_v), **options
    )
    z = heads["output"]  # (..., H, q_len, d_v)
    *batch, num_heads, q_len, d_v = z.shape
    output = np.zeros((*batch, q_len, w_o.shape[-1]))
    for entry in np.ndindex(*batch, q_len):
        for c in range(w_o.shape[-1]):
            terms = [
                z[(*entry[:-1], h, entry[-1], a)] * w_o[h, a, c] for h in range(num_heads) for a in range(d_v)
            ]
            output[(*entry, c)] = sum(terms, 0.0 if b_o is None else float(b_o[c]))
    return heads | {"output": output}


def _projected(x, w, b):
    *outer, n, _ = x.shape
    heads = np.zeros((*outer, w.shape[0], n, w.shape[-1]))
    for *entry, h, i, c in np.ndindex(*heads.shape):
        heads[(*entry, h, i, c)] = _dot(x[(*entry, i)], w[h, :, c]) + (0.0 if b is None else b[h, c])
    return heads


def _dot(x, y):
    return sum((float(a) * float(b) for a, b in zip(x, y, strict=True)), 0.0)


def _in_band(j, centre, is_causal, window):
    if is_causal and j > centre:
        return False
    left, right = window or (None, None)
    return (left is None or j >= centre - left) and (right is None or j <= centre + right)


def _softmax(logits, sink, row):
    """Writes the weights of a row that sees something, and returns its lse."""
    terms = [*logits.values(), *([] if sink is None else [sink])]
    if any(math.isnan(x) or x == math.inf for x in terms):
        row[:] = math.nan
        return math.nan
    highest = max(terms)
    if highest == -math.inf:  # 0 / 0
        row[:] = math.nan
        return -math.inf
    total = sum(math.exp(x - highest) for x in terms)
    for j, x in logits.items():
        row[j] = math.exp(x - highest) / total
    return highest + math.log(total)


def _mean(row, column):
    """The weighted mean of the values that a row sees, where a NaN or Inf reaches it whatever its weight."""
    if np.isnan(row).any() or any(math.isnan(v) for v in column.values()):
        return math.nan
    infinities = {v for v in column.values() if math.isinf(v)}
    if infinities:
        return math.nan if len(infinities) == 2 else infinities.pop()
    return sum(row[j] * v for j, v in column.items())
