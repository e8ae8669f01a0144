"""onnxruntime's contributed GroupQueryAttention on the CPU: the last keys are new, those before them are a buffer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from backends.onnx_attention import model
from backends.ort_backend import run, side_by_side

__all__ = ["scaled_dot_product_attention"]

name = "onnxruntime-gqa"
version = onnxruntime.__version__
dtypes = ("float32", "float16")
features = frozenset(
    {
        "attn_bias",
        "is_causal",
        "q_offset",
        "window",
        "kv_lengths",
        "scale",
        "softcap",
        "sinks",
        "cache",
        "gqa",
        "value_dim",
        "broadcast",
    }
)
accuracy = "eager"


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_bias: Any = None,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    kv_lengths: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    past_key: Any = None,
    past_value: Any = None,
) -> Mapping[str, Any]:
    """The operator gets as many new keys as queries, each entry's last; lengths count the keys of each entry."""
    if query.ndim != 4:
        raise NotImplementedError("there is one batch axis")
    keys = key if past_key is None else np.concatenate([past_key, key], axis=2)
    values = value if past_value is None else np.concatenate([past_value, value], axis=2)
    lengths = np.full(len(query), keys.shape[2]) if kv_lengths is None else np.asarray(kv_lengths)
    _check_expressible(query, keys, lengths, is_causal, window, q_offset, scale)
    options = {
        "causal": int(is_causal),
        "local_window_size": -1 if window is None or window[0] is None else window[0] + 1,
        "scale": query.shape[3] ** -0.5 if scale is None else scale,
        "softcap": softcap,
    }
    bias = None if attn_bias is None else _four_axes(attn_bias, query.shape[2], keys.shape[2])
    prompts = np.all(
        lengths == query.shape[2]
    )  # else each entry on its own: several may have one query each only
    entries = (
        [slice(None)] if prompts or query.shape[2] == 1 else [slice(b, b + 1) for b in range(len(query))]
    )
    results = [
        _attended(
            query[at],
            keys[at],
            values[at],
            lengths[at],
            bias if bias is None or len(bias) == 1 else bias[at],
            sinks,
            options,
        )
        for at in entries
    ]
    present = {} if past_key is None else {"present_key": keys, "present_value": values}
    return {"output": np.concatenate(results), **present}


def _attended(
    query: Any, keys: Any, values: Any, lengths: Any, bias: Any, sinks: Any, options: Mapping[str, Any]
) -> Any:
    """The output of some entries, whose rows are made as wide as the operator wants, by zeros."""
    batch, heads, q_len, d_k = query.shape
    d_v, total = values.shape[3], int(lengths.max())
    width = -(-max(d_k, d_v) // 8) * 8
    query, keys, values = (np.pad(x, [(0, 0)] * 3 + [(0, width - x.shape[3])]) for x in (query, keys, values))
    new, old = [], []
    for x in (keys, values):
        new.append(side_by_side(np.stack([x[b, :, n - q_len : n] for b, n in enumerate(lengths)])))
        old.append(np.zeros_like(x[:, :, : total - q_len]))
        for b, n in enumerate(lengths):
            old[-1][b, :, : n - q_len] = x[b, :, : n - q_len]
    inputs = {
        "query": side_by_side(query),
        "key": new[0],
        "value": new[1],
        "past_key": old[0],
        "past_value": old[1],
        "seqlens_k": (lengths - 1).astype(np.int32),
        "total_sequence_length": np.asarray(total, np.int32),
        "cos_cache": None,
        "sin_cache": None,
        "position_ids": None,
        "attention_bias": None if bias is None else np.ascontiguousarray(bias[..., :total]),
        "head_sink": sinks,
    }
    form = (query.dtype, 4)
    outputs = {"output": (query.dtype, 3), "present_key": form, "present_value": form}
    heads_of = {"num_heads": heads, "kv_num_heads": keys.shape[1]}
    one_node = model("GroupQueryAttention", inputs, outputs, 21, "com.microsoft", **heads_of, **options)
    output, *_ = run(one_node, {n: x for n, x in inputs.items() if x is not None})
    return output.reshape(batch, q_len, heads, width).swapaxes(1, 2)[..., :d_v]


def _check_expressible(
    query: Any, keys: Any, lengths: Any, is_causal: bool, window: Any, q_offset: Any, scale: float | None
) -> None:
    """Refuses what the operator has no word for."""
    q_len = query.shape[2]
    if query.size == 0 or np.any(lengths < max(1, q_len)) or np.any(lengths > keys.shape[2]):
        raise NotImplementedError("each entry has at least as many keys as queries, and one")
    if window is not None and not is_causal:
        raise NotImplementedError("a window is causal")
    if is_causal and np.any(np.asarray(0 if q_offset is None else q_offset) != lengths - q_len):
        raise NotImplementedError("causality is aligned with the last key of each entry")
    if scale == 0:
        raise NotImplementedError("a scale of 0 stands for the default")


def _four_axes(bias: Any, q_len: int, kv_len: int) -> Any:
    """(B or 1, H or 1, q_len, kv_len)."""
    four = bias if bias.ndim == 4 else bias[None, None]
    return np.broadcast_to(four, (*four.shape[:2], q_len, kv_len))
