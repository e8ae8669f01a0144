"""The ONNX operator Attention as a target: a model of one node, on whatever runs ONNX models."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper

Run = Callable[[ModelProto, Mapping[str, Any]], Sequence[Any]]
"""Runs a model on inputs by name, and returns its outputs in order."""

FEATURES = frozenset(
    {
        "mask",
        "attn_bias",
        "is_causal",
        "q_offset",
        "window",
        "kv_lengths",
        "scale",
        "softcap",
        "cache",
        "return_weights",
        "gqa",
        "value_dim",
        "broadcast",
        "empty",
        "validation",
    }
)


def model(
    operator: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    opset: int,
    domain: str = "",
    **attributes: Any,
) -> ModelProto:
    """One node; an input that is None is not given, an output is None, or has a dtype and a rank."""

    def declared(name: str, dtype: Any, rank: int) -> Any:
        """Of any size: what is wrong with the sizes is for the operator to find."""
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * rank
        )

    given = {name: x for name, x in inputs.items() if x is not None}
    wanted = {name: form for name, form in outputs.items() if form is not None}
    node = helper.make_node(
        operator,
        _places(inputs, given),
        _places(outputs, wanted),
        domain=domain,
        **{name: x for name, x in attributes.items() if x is not None},
    )
    graph = helper.make_graph(
        [node],
        operator,
        [declared(name, x.dtype, x.ndim) for name, x in given.items()],
        [declared(name, dtype, rank) for name, (dtype, rank) in wanted.items()],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=min(onnx.IR_VERSION, 13))


def _places(names: Iterable[str], used: Container[str]) -> list[str]:
    """Names in their places, those that are not used as blanks, up to the last that is."""
    places = [name if name in used else "" for name in names]
    while places and not places[-1]:
        places.pop()
    return places


class OnnxAttention:
    """What a runtime makes of `Attention`, at the first opset that has what a case asks for."""

    accuracy = "eager"
    features = FEATURES

    def __init__(self, run: Run, name: str, version: str, dtypes: Sequence[str]) -> None:
        self.name, self.version, self.dtypes = name, version, tuple(dtypes)
        self._run = run

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
        window: Any = None,
        kv_lengths: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        past_key: Any = None,
        past_value: Any = None,
        return_weights: bool = False,
    ) -> Mapping[str, Any]:
        """Attention; the place of the first query follows from the past or from the lengths."""
        if query.ndim != 4:
            raise NotImplementedError("heads that stand alone come in four axes")
        _check_one_mask(mask, attn_bias)
        if is_causal or window is not None:
            _check_place(query, past_key, kv_lengths, q_offset)
        if window is not None and len(window) != 2:
            raise NotImplementedError("left_window_size and right_window_size are two numbers")
        inputs = {
            "Q": query,
            "K": key,
            "V": value,
            "attn_mask": attn_bias if mask is None else mask,
            "past_key": past_key,
            "past_value": past_value,
            "nonpad_kv_seqlen": None if kv_lengths is None else _int64(kv_lengths),
        }
        wanted = (query.dtype, 4)
        present = None if past_key is None else wanted
        outputs = {
            "output": wanted,
            "present_key": present,
            "present_value": present,
            "weights": wanted if return_weights else None,
        }
        sides: tuple[Any, ...] = (None, None) if window is None else window
        one_node = model(
            "Attention",
            inputs,
            outputs,
            25 if window is not None else 24 if kv_lengths is not None else 23,
            scale=scale,
            softcap=softcap,
            is_causal=int(is_causal),
            left_window_size=sides[0],
            right_window_size=sides[1],
            qk_matmul_output_mode=3 if return_weights else None,
        )
        given = {name: x for name, x in inputs.items() if x is not None}
        names = [name for name, form in outputs.items() if form is not None]
        return dict(zip(names, self._run(one_node, given), strict=True))


def _int64(lengths: Any) -> Any:
    """Lengths of the one integer type that is taken."""
    return lengths.astype(np.int64) if lengths.dtype.kind in "iu" else lengths


def _check_one_mask(mask: Any, attn_bias: Any) -> None:
    """The one argument attn_mask is a mask if it is boolean, and a bias if it is floating."""
    if mask is not None and attn_bias is not None:
        raise NotImplementedError("attn_mask is boolean or added, not both at once")
    if (mask is not None and mask.dtype.kind not in "biu") or (
        attn_bias is not None and attn_bias.dtype == bool
    ):
        raise NotImplementedError("whether attn_mask is added is said by its dtype alone")


def _check_place(query: Any, past_key: Any, kv_lengths: Any, q_offset: Any) -> None:
    """The first query stands where the past or the lengths put it; no attribute moves it."""
    lengths = kv_lengths is not None and past_key is None
    place = (
        np.asarray(kv_lengths) - query.shape[-2] if lengths else 0 if past_key is None else past_key.shape[-2]
    )
    if np.any(np.asarray(0 if q_offset is None else q_offset) != place):
        raise NotImplementedError("the first query stands at the past's length, or at n - q_len with lengths")
