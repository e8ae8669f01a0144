"""The operands of a bench: standard normal, of weights scaled so that heads are standard normal as well."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.benching.request import Request
from conformance.dtypes import NUMPY_DTYPES
from conformance.names import MHA, MHA_VJP
from conformance.vectors.case import Array

HALF = 0.5


@dataclass(frozen=True)
class Problem:
    """What every rival is called with."""

    operation: str
    inputs: dict[str, Array]
    options: dict[str, Any]


WINDOW = 256
"""Keys that a query sees in a window."""


def problem_of(request: Request) -> Problem:
    """The operands, the same for the same request."""
    rng = np.random.default_rng(request.seed)
    batch, heads, q_len, width = request.shape
    kv_len = q_len if request.kv_len is None else request.kv_len
    kv_heads = request.kv_heads or heads
    layer = request.operation in (MHA, MHA_VJP)
    model = heads * width

    def draw(*shape: int, scale: float = 1.0) -> Array:
        return (scale * rng.standard_normal(shape)).astype(NUMPY_DTYPES[request.dtype])

    if layer:
        inputs = {
            name: draw(batch, n, model) for name, n in (("query", q_len), ("key", kv_len), ("value", kv_len))
        }
        for name, n in (("w_q", heads), ("w_k", kv_heads), ("w_v", kv_heads)):
            inputs[name] = draw(n, model, width, scale=model**-0.5)
        inputs["w_o"] = draw(heads, width, model, scale=model**-0.5)
    else:
        inputs = {"query": draw(batch, heads, q_len, width)}
        inputs |= {name: draw(batch, kv_heads, kv_len, width) for name in ("key", "value")}
    if request.operation.endswith("_vjp"):
        inputs["grad_output"] = draw(*inputs["query"].shape)
    if request.mask == "padding":
        inputs["mask"] = np.broadcast_to(np.arange(kv_len) < max(1, kv_len // 2), (batch, 1, 1, kv_len))
    elif request.mask == "random":
        inputs["mask"] = rng.random((batch, 1, q_len, kv_len)) < HALF
        inputs["mask"][..., 0] = True  # no row is empty
    elif request.mask == "bias":
        inputs["attn_bias"] = draw(1, heads, q_len, kv_len)
    elif request.mask == "lengths":
        inputs["kv_lengths"] = np.full(batch, max(1, kv_len // 2))
    options: dict[str, Any] = {"is_causal": True} if request.is_causal else {}
    if request.mask == "window":
        options["window"] = [WINDOW - 1, 0]
    if options and q_len != kv_len:
        options["q_offset"] = kv_len - q_len
    return Problem(request.operation, inputs, options)
