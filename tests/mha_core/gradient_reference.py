"""Attention as one plain expression of torch or of jax.numpy, for their own differentiation; no code of the core."""

import math


def attention(xp, query, key, value, *, visible=None, attn_bias=None, scale=None, softcap=None, sinks=None):
    """The output of heads; `visible` is bool and leaves every row a key."""
    group = query.shape[-3] // key.shape[-3]
    every = [h // group for h in range(query.shape[-3])]
    key, value = key[..., every, :, :], value[..., every, :, :]
    logits = xp.einsum("...ic,...jc->...ij", query, key)
    logits = logits * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if softcap is not None:
        logits = softcap * xp.tanh(logits / softcap)
    if attn_bias is not None:
        logits = logits + attn_bias
    exponentials = xp.exp(logits)
    if visible is not None:
        exponentials = exponentials * visible
    total = exponentials.sum(-1)
    if sinks is not None:
        total = total + xp.exp(sinks)[:, None]
    return xp.einsum("...ij,...jd->...id", exponentials / total[..., None], value)


def layer(xp, query, key, value, *, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, **options):
    """The output of the layer."""
    heads = (
        xp.einsum("...nd,hde->...hne", x, w) + b[:, None, :]
        for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
    )
    return xp.einsum("...hnd,hde->...ne", attention(xp, *heads, **options), w_o) + b_o
