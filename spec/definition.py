"""Multi-head attention as this specification defines it, one query of one head at a time, in float64.

Written to be read: names are those of glossary.md, shapes those of shapes.md, and a comment names the requirement
that its line states. It checks nothing of a call. `mha-conformance run spec/definition.py` asks it every case.
"""

import numpy as np


def visible_keys(p, mask, attn_bias, same_segment, is_causal, window, length):
    """Which keys a query at place p may attend: booleans (kv_len,), as mask and attn_bias are."""
    j = np.arange(len(mask))
    left, right = (np.inf if side is None else side for side in window)     # MASK-11
    visible = mask & (attn_bias != -np.inf) & (j < length)                  # MASK-1, ATT-8, MASK-12
    visible &= same_segment                                                 # MASK-17
    visible &= (p - left <= j) & (j <= p + right)                           # MASK-10
    return visible & (j <= p) if is_causal else visible                     # MASK-6, MASK-9: all have to allow it


def one_query(query, key, value, attn_bias, scale, softcap, sink):
    """Output (d_v,), weights (n,) and lse of a query (d_k,) that sees n keys (n, d_k) and values (n, d_v)."""
    x = scale * (key @ query)                                               # ATT-1: (n,)
    y = x if softcap is None else softcap * np.tanh(x / softcap)            # ATT-5
    logits = y + attn_bias                                                  # ATT-6, ATT-7, ATT-9
    least = -np.inf if len(logits) else np.finfo(np.float64).min            # MASK-15: not what the logits are
    top = max(logits.max(initial=-np.inf), sink, least)                     # ATT-2: any finite number would do
    terms = np.exp(logits - top)                                            # ATT-10: NaN where top is infinite
    total = terms.sum() + np.exp(sink - top)                                # ATT-12: a sink of -inf adds nothing
    weights = terms / total                                                 # ATT-13
    finite = np.isfinite(value)                                             # ATT-11: what is not, whatever its weight,
    output = weights @ np.where(finite, value, 0)                           # ATT-1
    output += np.where(finite, 0, value).sum(axis=0)                        # reaches its column
    return output, weights, top + np.log(total)                             # ATT-14, MASK-3, MASK-16: an empty row too


@np.errstate(all="ignore")                                                  # inf - inf is NaN without a warning
def scaled_dot_product_attention(
    query, key, value, *, mask=True, attn_bias=0.0, is_causal=False, q_offset=0, window=(None, None),
    kv_lengths=None, q_segments=0, kv_segments=0, scale=None, softcap=None, sinks=None, past_key=None, past_value=None,
    return_weights=False, return_lse=False,
):
    """Results by name. query (..., H, q_len, d_k), key (..., G, kv_len, d_k), value (..., G, kv_len, d_v)."""
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)                      # CACHE-1
        value = np.concatenate([past_value, value], axis=-2)
    *batch, num_heads, q_len, d_k = query.shape                             # SHAPE-1, SHAPE-4
    num_kv_heads, kv_len, d_v = value.shape[-3:]                            # SHAPE-3, CACHE-3
    rows = (*batch, num_heads, q_len)
    mask = np.broadcast_to(mask, (*rows, kv_len))                           # SHAPE-8
    attn_bias = np.broadcast_to(attn_bias, (*rows, kv_len))                 # MASK-2: beside the mask
    q_offset = np.broadcast_to(q_offset, batch)                             # MASK-8
    lengths = np.broadcast_to(kv_len if kv_lengths is None else kv_lengths, batch)
    q_segments = np.broadcast_to(q_segments, (*batch, q_len))
    kv_segments = np.broadcast_to(kv_segments, (*batch, kv_len))            # MASK-18, CACHE-3: of every key, past too
    scale = 1 / np.sqrt(d_k) if scale is None else scale                    # ATT-3, ATT-4
    sinks = np.full(num_heads, -np.inf) if sinks is None else sinks
    output, weights, lse = np.zeros((*rows, d_v)), np.zeros((*rows, kv_len)), np.zeros(rows)    # SHAPE-2, SHAPE-9

    for *b, h, i in np.ndindex(rows):                                       # HEAD-1, IND-3: each row on its own
        row, b = (*b, h, i), tuple(b)
        kv = (*b, h // (num_heads // num_kv_heads))                         # HEAD-2
        p = i + int(q_offset[b])
        same = kv_segments[b] == q_segments[(*b, i)]
        seen = visible_keys(p, mask[row], attn_bias[row], same, is_causal, window, lengths[b])
        output[row], weights[row][seen], lse[row] = one_query(              # MASK-4, MASK-5: only what is seen enters
            query[row], key[kv][seen], value[kv][seen], attn_bias[row][seen], scale, softcap, sinks[h]
        )

    results = {"output": output}
    if return_weights:
        results["weights"] = weights
    if return_lse:
        results["lse"] = lse
    if past_key is not None:
        results |= {"present_key": key, "present_value": value}             # CACHE-2, CACHE-4
    return results


def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=0.0, **options):
    """Results by name. query (..., q_len, d_q), key (..., kv_len, d_kv), value (..., kv_len, d_vv)."""

    def heads(x, w, b):                                                     # PROJ-1, PROJ-2: (..., heads, length, d)
        return x[..., None, :, :] @ w + (0 if b is None else b[:, None, :])

    projected = heads(query, w_q, b_q), heads(key, w_k, b_k), heads(value, w_v, b_v)
    results = scaled_dot_product_attention(*projected, **options)           # PROJ-7
    return results | {"output": (results["output"] @ w_o).sum(axis=-3) + b_o}                   # PROJ-3, PROJ-4


def packed_attention(query, key, value, *, q_starts, kv_starts, q_offset=0, **options):
    """Results by name. query (H, T_q, d_k), key (G, T_k, d_k), value (G, T_k, d_v); part i from starts[i] on."""
    results = {"output": np.zeros((*query.shape[:2], value.shape[-1])), "lse": np.full(query.shape[:2], -np.inf)}
    for i, offset in enumerate(np.broadcast_to(q_offset, len(q_starts) - 1)):                   # PACK-3, PACK-4
        q, kv = slice(*q_starts[i:i + 2]), slice(*kv_starts[i:i + 2])
        part = scaled_dot_product_attention(query[:, q], key[:, kv], value[:, kv], q_offset=offset, **options)
        for name in part:                                                   # PACK-1, PACK-2: each part on its own
            results[name][:, q] = part[name]                                # PACK-5: other rows may hold anything
    return results if options.get("return_lse") else {"output": results["output"]}


def append_to_pages(key_pages, value_pages, new_key, new_value, *, slots):
    """Both arrays of pages. pages (N, P, G, d), new (T, G, d), slots (T,)."""
    key_pages, value_pages = key_pages.copy(), value_pages.copy()           # PAGE-9: no other cell changes
    for slot, key, value in zip(slots, new_key, new_value, strict=True):
        if slot != -1:                                                      # PAGE-8
            place = divmod(slot, key_pages.shape[1])                        # PAGE-7: page and place in it
            key_pages[place], value_pages[place] = key, value
    return {"key_pages": key_pages, "value_pages": value_pages}


def paged_attention(
    query, key_pages, value_pages, *, page_table, kv_lengths, new_key=None, new_value=None, slots=None, **options
):
    """Results by name. query (B, H, q_len, d_k), pages (N, P, G, d), page_table (B, M), kv_lengths (B,)."""
    pages = {"key_pages": key_pages, "value_pages": value_pages}
    if slots is not None:
        pages = append_to_pages(**pages, new_key=new_key, new_value=new_value, slots=slots)     # PAGE-10: writes first
    dense = []
    for x in pages.values():
        dense.append(np.zeros((len(query), x.shape[2], page_table.shape[1] * x.shape[1], x.shape[3])))
        for b, length in enumerate(kv_lengths):
            for t in range(length):                                         # PAGE-2: nothing behind the length is read
                dense[-1][b, :, t] = x[page_table[b, t // x.shape[1]], t % x.shape[1]]          # PAGE-1, PAGE-3
    results = scaled_dot_product_attention(query, *dense, kv_lengths=kv_lengths, **options)     # PAGE-4, PAGE-5
    return results if slots is None else results | pages


def latent_attention(query, latent, *, value_dim, **options):
    """Results by name. query (..., H, q_len, c + r), latent (..., kv_len, c + r)."""
    key = latent[..., None, :, :]                                           # LAT-1: one group for all heads
    return scaled_dot_product_attention(query, key, key[..., :value_dim], **options)            # LAT-2


@np.errstate(all="ignore")
def merge_attention(outputs, lses, *, sinks=None):
    """Results by name. outputs: a list of (..., H, q_len, d_v), lses: one of (..., H, q_len)."""
    output, lse = np.zeros(outputs[0].shape), np.zeros(lses[0].shape)
    for row in np.ndindex(lse.shape):                                       # MERGE-1: an lse is the logit of its part
        logits, values = (np.array([x[row] for x in parts]) for parts in (lses, outputs))
        seen = logits != -np.inf                                            # MERGE-4
        sink = -np.inf if sinks is None else sinks[row[-2]]                 # MERGE-3: once
        zeros = np.zeros((seen.sum(), 1))                                   # a query and keys that add nothing
        output[row], _, lse[row] = one_query(np.zeros(1), zeros, values[seen], logits[seen], 1, None, sink)
    return {"output": output, "lse": lse}


dtypes, features = ("float64",), {                                          # what the suite may ask: not `validation`
    "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks", "cache", "gqa",
    "segments", "return_weights", "return_lse", "value_dim", "broadcast", "empty", "strict_masking",
    "packed", "paged", "append", "latent", "merge",
}
