"""Calls to judge, and plain attention in NumPy that answers them in the dtype of the call."""

import numpy as np

from conformance.dtypes import cast
from conformance.vectors.generate.random_inputs import Draws


def operands(
    name, *, batch=(2,), heads=3, groups=None, q_len=5, kv_len=7, d_k=4, d_v=None, dtype="float32", **more
):
    """Query, key and value of a stream of that name, and other arrays of given shapes."""
    draws = Draws(name)
    groups = groups or heads
    shapes = {
        "query": (*batch, heads, q_len, d_k),
        "key": (*batch, groups, kv_len, d_k),
        "value": (*batch, groups, kv_len, d_v or d_k),
        **more,
    }
    return {key: cast(draws.gauss(*shape), dtype) for key, shape in shapes.items()}


def attention(query, key, value, *, scale=None, bias=None):
    """Softmax in float32 or wider, stored in the dtype of the query once."""
    wide = np.float64 if query.dtype == np.float64 else np.float32
    q, k, v = (x.astype(wide) for x in (query, key, value))
    group = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, group, axis=-3) for x in (k, v))
    logits = q @ k.swapaxes(-1, -2) * wide(q.shape[-1] ** -0.5 if scale is None else scale)
    logits = logits if bias is None else logits + bias.astype(wide)
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (raised / raised.sum(axis=-1, keepdims=True) @ v).astype(query.dtype)
