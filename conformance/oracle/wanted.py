"""What is wanted of a call that is wrong, by the name of the check that refuses it: what was given comes first."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.dtypes import dtype_name
from conformance.names import DTYPES, OPERANDS

HINTS = {
    "attn_mask": "a boolean one is `mask`, a float one is `attn_bias`",
    "enable_gqa": "leave it out: grouped heads are seen from the shapes",
    "dropout_p": "leave it out",
    "segment_ids": "those of the queries are `q_segments`, those of the keys `kv_segments`",
}
"""What to do with an option that others have, by its name."""


def wanted(name: str, call: Call) -> str:
    """A line of what was given and what is wanted; nothing for a check that has none."""
    return WANTED[name](call) if name in WANTED else ""


def _dtypes(c: Call) -> str:
    found = {name: getattr(c, name) for name in OPERANDS}
    told = [f"{name} is {dtype_name(x.dtype)}" for name, x in found.items() if x is not None]
    return f"{', '.join(told)}, but one dtype is wanted for all"


def _flags(c: Call) -> str:
    flags = {name: getattr(c, name) for name in ("is_causal", "return_weights", "return_lse")}
    wrong = [f"{name}={x!r}" for name, x in flags.items() if not isinstance(x, bool)]
    return f"{', '.join(wrong)} but True or False is wanted"


def _mask_dtype(c: Call) -> str:
    name = dtype_name(c.mask.dtype)
    return f"mask is {name} but bool is wanted" + (": a float mask is attn_bias" if name in DTYPES else "")


def _rank(x: str) -> Callable[[Call], str]:
    return lambda c: (
        f"{x} has shape {getattr(c, x).shape} but 2 axes, or {len(c.batch) + 3} that fit {c.logits_shape}, are wanted"
    )


def _fit(x: str) -> Callable[[Call], str]:
    return lambda c: (
        f"{x} has shape {getattr(c, x).shape} but one that broadcasts to {c.logits_shape} is wanted"
    )


def _of_batch(x: str) -> Callable[[Call], str]:
    return lambda c: f"{x} has shape {getattr(c, x).shape} but {c.batch} is wanted, one for each batch entry"


def _integers(x: str) -> Callable[[Call], str]:
    return lambda c: f"{x} is {dtype_name(getattr(c, x).dtype)} but integers are wanted"


def _segments(c: Call) -> tuple[tuple[str, Any, int], ...]:
    return ("q_segments", c.q_segments, c.q_len), ("kv_segments", c.kv_segments, c.kv_len)


def _window(c: Call) -> str:
    return f"window={c.window!r} but (left, right) is wanted, each None or an int from 0 on"


def _softcap(c: Call) -> str:
    return f"softcap={c.softcap!r} but a finite number above 0, or None, is wanted"


def _offset(c: Call) -> str:
    given = "is_causal" if c.is_causal else f"window={c.window!r}"
    return f"{given} with {c.q_len} queries and {c.kv_len} keys, but where the queries stand is wanted: give q_offset"


WANTED: dict[str, Callable[[Call], str]] = {
    "operands of two dtypes": _dtypes,
    "rank": lambda c: (
        f"query has shape {c.query.shape} but "
        f"{'(..., q_len, d_q)' if c.layer else '(..., H, q_len, d_k)'} is wanted"
    ),
    "ranks differ": lambda c: (
        f"query has {c.query.ndim} axes, key {c.key.ndim} and value {c.value.ndim}, but one number of axes is wanted"
    ),
    "batch": lambda c: (
        f"query has shape {c.query.shape}, key {c.key.shape} and value {c.value.shape}, "
        "but the same batch axes are wanted"
    ),
    "value length": lambda c: (
        f"value has shape {c.value.shape} but the length of key, {c.key.shape[-2]}, is wanted"
    ),
    "value heads": lambda c: (
        f"value has shape {c.value.shape} but the heads of key, {c.kv_heads}, are wanted"
    ),
    "key width": lambda c: f"key has shape {c.key.shape} but the width of query, {c.d_k}, is wanted",
    "groups": lambda c: (
        f"query has {c.heads} heads and key {c.kv_heads}, but a multiple of the heads of key is wanted"
    ),
    "grad_output dtype": lambda c: (
        f"grad_output is {dtype_name(c.grad_output.dtype)} but {dtype_name(c.dtype)} is wanted, as of query"
    ),
    "grad_output shape": lambda c: (
        f"grad_output has shape {c.grad_output.shape} but that of the output, {c.output_shape}, is wanted"
    ),
    "grad_lse without gradients": lambda c: (
        f"grad_lse is given but {c.operation} has no gradients: {c.operation}_vjp is wanted"
    ),
    "grad_lse dtype": lambda c: (
        f"grad_lse is {dtype_name(c.grad_lse.dtype)} but {dtype_name(np.dtype(c.wide))} is wanted, as of the lse"
    ),
    "grad_lse shape": lambda c: (
        f"grad_lse has shape {c.grad_lse.shape} but that of the lse, {c.logits_shape[:-1]}, is wanted"
    ),
    "half a past": lambda c: "one of past_key and past_value is given but both or none are wanted",
    "mask dtype": _mask_dtype,
    "mask rank": _rank("mask"),
    "mask shape": _fit("mask"),
    "bias dtype": lambda c: (
        f"attn_bias is {dtype_name(c.attn_bias.dtype)} but one of {', '.join(DTYPES)} is wanted"
        + (": a boolean one is mask" if c.attn_bias.dtype.kind == "b" else "")
    ),
    "bias rank": _rank("attn_bias"),
    "bias shape": _fit("attn_bias"),
    "sinks": lambda c: f"sinks has shape {c.sinks.shape} but {(c.heads,)} is wanted, one for each head",
    "lengths dtype": _integers("kv_lengths"),
    "lengths": _of_batch("kv_lengths"),
    "half of the segments": lambda c: (
        f"{'q' if c.kv_segments is None else 'kv'}_segments is given alone but both or none are wanted"
    ),
    "segments dtype": lambda c: ", ".join(
        f"{name} is {dtype_name(x.dtype)} but integers are wanted"
        for name, x, _ in _segments(c)
        if x.dtype.kind not in "iu"
    ),
    "segments": lambda c: ", ".join(
        f"{name} has shape {x.shape} but {(length,)}"
        + (f" or {(*c.batch, length)}" if c.batch else "")
        + " is wanted"
        for name, x, length in _segments(c)
        if x.shape not in ((length,), (*c.batch, length))
    ),
    "offsets dtype": _integers("q_offset"),
    "offsets": _of_batch("q_offset"),
    "offset kind": lambda c: f"q_offset={c.q_offset!r} but an int or an array of integers is wanted",
    "flags": _flags,
    "scale": lambda c: f"scale={c.scale!r} but a finite number, or None, is wanted",
    "softcap kind": _softcap,
    "softcap of zero": _softcap,
    "negative softcap": _softcap,
    "window of two": _window,
    "window kind": _window,
    "negative window": _window,
    "causal without offset": _offset,
    "window without offset": _offset,
}
