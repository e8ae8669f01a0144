"""What a call must not be given to fail: options that it lacks, each added so that it hides nothing."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.exploring.details import FAR
from conformance.exploring.vary import Varied
from conformance.names import BIASES, MHA_VJP, SDPA_VJP
from conformance.vectors.case import Array

CAP = 30.0


def additions(v: Varied) -> Iterator[tuple[str, Varied]]:
    """The name of an option that a call lacks, and the call with it; what it shows is as it was."""
    dice = np.random.default_rng(0)
    q_len, kv_len = v.size("q_len"), v.past + v.size("kv_len")
    heads = v.inputs["w_q"].shape[0] if v.layer else v.size("heads")
    batch = v.inputs["query"].shape[: -2 if v.layer else -3]
    gradients = v.operation in (SDPA_VJP, MHA_VJP)

    def numbers(*shape: int) -> Array:
        found: Array = np.round(np.clip(dice.normal(size=shape), -3, 3) * 16) / 16
        return found.astype(v.inputs["query"].dtype)

    operands: dict[str, Any] = {
        "mask": np.ones((q_len, kv_len), bool),
        "attn_bias": numbers(q_len, kv_len),
        "kv_lengths": np.full(batch, kv_len, np.int64) if batch else None,
        "sinks": None if v.layer and gradients else numbers(heads),
    }
    for name in BIASES if v.layer else ():
        width = v.inputs[f"w_{name[-1]}"].shape
        operands[name] = numbers(width[-1]) if name == "b_o" else numbers(width[0], width[-1])
    options: dict[str, Any] = {
        "softcap": CAP, "scale": float(v.inputs["w_q"].shape[-1] if v.layer else v.size("d_k")) ** -0.5,
        "window": [FAR, FAR], "return_lse": None if gradients else True,
    }  # fmt: skip
    for name, x in operands.items():
        if x is not None and not v.given(name):
            yield name, replace(v, inputs={**v.inputs, name: x})
    for name, value in options.items():
        if value is not None and not v.given(name):
            yield name, replace(v, options={**v.options, name: value})
    if not v.given("is_causal"):
        offset = {} if v.given("q_offset") else {"q_offset": kv_len}
        placed = offset and v.given("window")  # which an offset would move
        if not placed:
            yield "is_causal", replace(v, options={**v.options, "is_causal": True, **offset})
