"""onnxruntime on the CPU: the standard operator Attention, and the contributed MultiHeadAttention."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from backends.onnx_attention import OnnxAttention, model

__all__ = ["attention", "contrib", "run", "side_by_side"]

onnxruntime.set_default_logger_severity(4)  # what a case is refused for, the answer says


def run(one_node: Any, given: Mapping[str, Any]) -> list[Any]:
    """The outputs of a model of one node."""
    session = onnxruntime.InferenceSession(one_node.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(given)))


attention = OnnxAttention(run, "onnxruntime", onnxruntime.__version__, ("float64", "float32", "float16"))


class Contrib:
    """`com.microsoft.MultiHeadAttention`: heads lie side by side in one axis, (B, length, H * d)."""

    name = "onnxruntime-contrib"
    version = onnxruntime.__version__
    dtypes = ("float32", "float16")
    accuracy = "eager"
    features = frozenset(
        {
            "mask",
            "attn_bias",
            "is_causal",
            "q_offset",
            "scale",
            "cache",
            "value_dim",
            "broadcast",
            "empty",
            "validation",
        }
    )

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        attn_bias: Any = None,
        is_causal: bool = False,
        q_offset: Any = None,
        scale: float | None = None,
        past_key: Any = None,
        past_value: Any = None,
    ) -> Mapping[str, Any]:
        """Attention between heads that are already projected."""
        if query.ndim != 4:
            raise NotImplementedError("there is one batch axis")
        past = 0 if past_key is None else past_key.shape[-2]
        if is_causal and np.any(np.asarray(0 if q_offset is None else q_offset) != past):
            raise NotImplementedError("unidirectional counts from the end of the past")
        batch, heads, q_len, _ = query.shape
        inputs = {
            "query": side_by_side(query),
            "key": side_by_side(key),
            "value": side_by_side(value),
            "bias": None,
            "key_padding_mask": None
            if mask is None
            else _key_padding(mask, batch, q_len, past + key.shape[-2]),
            "attention_bias": None
            if attn_bias is None
            else _four_axes(attn_bias, q_len, past + key.shape[-2]),
            "past_key": past_key,
            "past_value": past_value,
        }
        present = None if past_key is None else (query.dtype, 4)
        one_node = model(
            "MultiHeadAttention",
            inputs,
            {"output": (query.dtype, 3), "present_key": present, "present_value": present},
            21,
            "com.microsoft",
            num_heads=heads,
            scale=scale,
            unidirectional=int(is_causal),
        )
        output, *rest = run(one_node, {name: x for name, x in inputs.items() if x is not None})
        output = output.reshape(batch, q_len, heads, value.shape[-1]).swapaxes(1, 2)
        return {"output": output, **dict(zip(("present_key", "present_value"), rest, strict=False))}


def side_by_side(x: Any) -> Any:
    """(B, H, length, d) -> (B, length, H * d)."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def _key_padding(mask: Any, batch: int, q_len: int, kv_len: int) -> Any:
    """(B, kv_len) where a mask is one over keys alone, else (B, q_len, kv_len); integers, 1 = attend."""
    if mask.dtype != np.bool_ or (mask.ndim == 4 and mask.shape[1] > 1):
        raise NotImplementedError("key_padding_mask is one of integers, the same for every head")
    rows = mask if mask.ndim == 2 else mask[:, 0]
    if mask.ndim == 4 and mask.shape[2] == 1:
        return np.broadcast_to(rows[:, 0], (batch, kv_len)).astype(np.int32)
    return np.broadcast_to(rows, (batch, q_len, kv_len)).astype(np.int32)


def _four_axes(bias: Any, q_len: int, kv_len: int) -> Any:
    """(B or 1, H or 1, q_len, kv_len)."""
    four = bias if bias.ndim == 4 else bias[None, None]
    return np.ascontiguousarray(np.broadcast_to(four, (*four.shape[:2], q_len, kv_len)))


contrib = Contrib()
