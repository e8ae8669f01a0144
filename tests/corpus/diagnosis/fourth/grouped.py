"""Grouped heads by einsum, the sink as one more column of the logits, float32 throughout."""
from collections import namedtuple

import numpy as np

Result = namedtuple("Result", "output weights lse", defaults=(None, None))


def split_groups(x, num_groups):
    """(b, H, n, d) -> (b, G, H/G, n, d)"""
    b, h, *rest = x.shape
    return x.reshape(b, num_groups, h // num_groups, *rest)


def softmax(x, axis=-1):
    x = x - np.max(x, axis=axis, keepdims=True, initial=np.finfo(np.float32).min)
    e = np.exp(x)
    return e / np.sum(e, axis=axis, keepdims=True)


def logsumexp(x):
    top = np.max(x, axis=-1, initial=-np.inf)
    shift = np.where(np.isinf(top), 0, top)
    return shift + np.log(np.sum(np.exp(x - shift[..., None]), axis=-1))


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 scale=None, softcap=None, sinks=None, return_weights=False, return_lse=False):
    batch, (H, n, d) = query.shape[:-3], query.shape[-3:]
    G, m = key.shape[-3:-1]
    B = int(np.prod(batch))
    q = split_groups(query.reshape(B, H, n, d).astype(np.float32), G)
    k = key.reshape(B, G, m, d).astype(np.float32)
    v = value.reshape(B, G, m, value.shape[-1]).astype(np.float32)
    if scale is None:
        scale = 1 / np.sqrt(d)

    logits = np.einsum("bgrqd,bgkd->bgrqk", q * np.float32(scale), k)
    if softcap is not None:
        logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))

    def full(x):
        x = np.broadcast_to(x, (*batch, H, n, m)).reshape(B, H, n, m)
        return split_groups(x, G)

    hidden = np.zeros((1, 1, 1, n, m), bool)
    if attn_bias is not None:
        bias = full(attn_bias).astype(np.float32)
        logits = logits + bias
        hidden = hidden | np.isneginf(bias)
    if mask is not None:
        hidden = hidden | ~full(mask)
    if is_causal:
        offset = np.broadcast_to(0 if q_offset is None else q_offset, batch).reshape(B)
        future = np.arange(m) > np.arange(n)[:, None] + offset[:, None, None]
        hidden = hidden | future[:, None, None]
    hidden = np.broadcast_to(hidden, logits.shape)
    logits = np.where(hidden, -np.inf, logits)
    empty = hidden.all(axis=-1)

    if sinks is not None:
        column = sinks.astype(np.float32).reshape(1, G, H // G, 1, 1)
        logits = np.concatenate([logits, np.broadcast_to(column, (*logits.shape[:-1], 1))], axis=-1)
    lost = np.isneginf(logits).all(axis=-1) & ~empty
    probs = softmax(logits)
    probs = probs[..., :m]
    probs = np.where(empty[..., None], 0, np.where(lost[..., None], np.nan, probs))
    output = np.einsum("bgrqk,bgkd->bgrqd", probs, v)
    lse = np.where(empty, -np.inf, np.where(lost, np.nan, logsumexp(logits)))
    shape = (*batch, H, n)
    return Result(
        output.reshape(*shape, v.shape[-1]).astype(query.dtype),
        probs.reshape(*shape, m).astype(query.dtype) if return_weights else None,
        lse.reshape(shape).astype(query.dtype) if return_lse else None,
    )
