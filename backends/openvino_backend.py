"""OpenVINO's ScaledDotProductAttention on a CPU, with float32 inside and as it comes."""

import functools
import math
from typing import Any

import numpy as np
import openvino
from openvino import opset13

__all__ = ["as_it_comes", "in_float32"]

CORE = openvino.Core()


@functools.cache
def _compiled(kinds: tuple[tuple[str, str], ...], scale: float | None, causal: bool, hint: str) -> Any:
    """A model of this one node; kinds = name and element type of each operand, of four axes."""
    given = {
        name: opset13.parameter([-1] * 4, getattr(openvino.Type, kind), name=name) for name, kind in kinds
    }
    nodes = [given[name] for name, _ in kinds]
    options: dict[str, Any] = {"causal": causal}
    if scale is not None:
        kind = dict(kinds)["query"]
        options["scale"] = opset13.constant(np.array(scale, {"f32": np.float32, "f16": np.float16}[kind]))
        if len(nodes) == 3:  # a scale stands behind a mask
            options["attention_mask"] = opset13.constant(np.zeros((1, 1, 1, 1), options["scale"].data.dtype))
    node = opset13.scaled_dot_product_attention(*nodes, **options)
    model = openvino.Model([node], list(given.values()))
    return CORE.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint} if hint else {})


class AttentionOfOpenVino:
    """The operator on NumPy arrays, batch axes made one."""

    version = openvino.__version__.split("-")[0]
    array_type = "numpy"
    features = frozenset(
        ["mask", "attn_bias", "is_causal", "q_offset", "scale", "value_dim", "broadcast", "empty"]
    )

    def __init__(self, name: str, hint: str, dtypes: tuple[str, ...], accuracy: str) -> None:
        self.name = name
        self.dtypes = dtypes
        self.accuracy = accuracy
        self._hint = hint

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
    ) -> Any:
        """Attention; one of mask and attn_bias, causal from the first key."""
        if mask is not None and attn_bias is not None:
            raise NotImplementedError("attention_mask is boolean or added, not both at once")
        if attn_bias is not None and attn_bias.dtype != query.dtype:
            raise NotImplementedError("attention_mask is boolean or has the dtype of query")
        if is_causal and q_offset is not None and np.any(np.asarray(q_offset) != 0):
            raise NotImplementedError("causal counts from the first key")
        batch = query.shape[:-3]
        operands = {"query": _flat(query), "key": _flat(key), "value": _flat(value)}
        hidden = attn_bias if mask is None else mask
        if hidden is not None:
            if hidden.ndim == query.ndim and hidden.ndim > 4:
                hidden = _flat(np.broadcast_to(hidden, (*batch, *hidden.shape[-3:])))
            hidden = hidden.reshape((1,) * (4 - hidden.ndim) + hidden.shape)
            operands["mask"] = hidden
        kinds = tuple((name, _kind(x)) for name, x in operands.items())
        found = _compiled(kinds, scale, is_causal, self._hint)(list(operands.values()))[0]
        return np.array(found).reshape(*batch, *found.shape[1:])


def _flat(x: Any) -> Any:
    return np.ascontiguousarray(x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]))


def _kind(x: Any) -> str:
    return {"float32": "f32", "float16": "f16", "bool": "boolean"}[x.dtype.name]


in_float32 = AttentionOfOpenVino("openvino", "f32", ("float32", "float16"), "eager")
as_it_comes = AttentionOfOpenVino(
    "openvino-default", "", ("float32",), "bf16x1"
)  # bfloat16 on a CPU with AMX
