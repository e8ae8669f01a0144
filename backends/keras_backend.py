"""keras.layers.MultiHeadAttention and GroupQueryAttention; KERAS_BACKEND says on what, torch by default."""

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when keras is imported

import keras

__all__ = ["multi_head_attention"]

name = "keras"
version = f"{keras.__version__} on {keras.backend.backend()}"
array_type = keras.backend.backend()
dtypes = ("float64", "float32", "float16", "bfloat16")
features = frozenset(
    {
        "mask",
        "is_causal",
        "q_offset",
        "window",
        "return_weights",
        "gqa",
        "value_dim",
        "broadcast",
        "empty",
    }
)
accuracy = "eager"


def _sliding(window: Any, is_causal: bool, furthest: int) -> int | None:
    """The library's width: W sees W - 1 keys to each side, and what is causal none to the right."""
    if window is None:
        return None
    left, right = (furthest if side is None else side for side in window)
    if left != right and not (is_causal and right in (0, furthest)):
        raise NotImplementedError("sliding_window reaches as far to the left as to the right")
    return int(left) + 1


def _layer(w_q: Any, w_k: Any, w_v: Any, w_o: Any, d_in: int, **options: Any) -> Any:
    (heads, _, d_k), groups, d_v, d_out = w_q.shape, w_k.shape[0], w_v.shape[-1], w_o.shape[-1]
    if heads == groups:
        return keras.layers.MultiHeadAttention(heads, d_k, d_v, output_shape=d_out, **options)
    if d_v != d_k or d_out != d_in:
        raise NotImplementedError("GroupQueryAttention has d_v = d_k, and an output as wide as its query")
    return keras.layers.GroupQueryAttention(d_k, heads, groups, **options)


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    w_q: Any,
    w_k: Any,
    w_v: Any,
    w_o: Any,
    b_q: Any = None,
    b_k: Any = None,
    b_v: Any = None,
    b_o: Any = None,
    mask: Any = None,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    return_weights: bool = False,
) -> Mapping[str, Any]:
    """The layer, built for the shapes and given the weights."""
    if query.ndim != 3:
        raise NotImplementedError("there is one batch axis: further axes would be attended over")
    positional = is_causal or window is not None
    if positional and q_offset is not None and keras.ops.any(keras.ops.convert_to_tensor(q_offset) != 0):
        raise NotImplementedError("the causal mask and the sliding window count from the upper left")
    dtype = keras.backend.standardize_dtype(query.dtype)
    biased = any(b is not None for b in (b_q, b_k, b_v, b_o))
    sliding = _sliding(window, is_causal, query.shape[-2] + key.shape[-2])
    layer = _layer(w_q, w_k, w_v, w_o, query.shape[-1], use_bias=biased, sliding_window=sliding, dtype=dtype)
    layer.build(tuple(query.shape), tuple(value.shape), tuple(key.shape))
    dense = [getattr(layer, f"_{part}_dense") for part in ("query", "key", "value", "output")]
    for part, w, b in zip(dense, (w_q, w_k, w_v, w_o), (b_q, b_k, b_v, b_o), strict=True):
        part.kernel.assign(w if part is dense[-1] else keras.ops.swapaxes(w, 0, 1))  # (d_in, H, d)
        if b is not None:
            part.bias.assign(b)  # one flag for all four: those that are not given stay zeros
    if mask is not None and mask.ndim == 4 and mask.shape[1] == 1:
        mask = mask[:, 0]  # as documented: (B, q_len, kv_len)
    returned = layer(
        query,
        value,
        key,
        attention_mask=mask,
        use_causal_mask=is_causal,
        return_attention_scores=return_weights,
        training=False,
    )
    return dict(zip(("output", "weights"), returned if return_weights else (returned,), strict=False))
