"""A case as it is declared: inputs and options, and what it is there to expose."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformance.names import MHA, MHA_VJP, SDPA, SDPA_VJP
from conformance.vectors.case import Array, Case
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.seeded import Seed


@dataclass(frozen=True)
class Draft:
    """What a person writes; the golden values, features and bounds are derived."""

    id: str
    note: str
    covers: tuple[str, ...]
    operation: str
    inputs: Mapping[str, Array]
    options: Mapping[str, Any]
    rows: tuple[int, ...] | None = None  # query rows to judge, for long sequences
    only: tuple[str, ...] | None = None  # dtypes, where the values are not exact in all of them
    readable: bool = False  # stored as JSON decimals
    raises: bool = False
    needs: tuple[str, ...] = ()  # features that neither options nor shapes tell
    memory: Mapping[str, str] = field(default_factory=dict)
    repeat: int = 1
    dtype_of: Mapping[str, str] = field(default_factory=dict)
    signatures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the output -> dtypes
    seeded: Mapping[str, Seed] = field(default_factory=dict)  # operands that are not stored
    sampled: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # result -> rows that are stored


FIELDS = ("rows", "only", "readable", "raises", "needs", "memory", "repeat", "dtype_of", "signatures")


def attend(
    id: str,  # noqa: A002 - the word that the index and the reports use
    note: str,
    *covers: str,
    batch: tuple[int, ...] = (2,),
    heads: int = 3,
    kv_heads: int | None = None,
    q_len: int = 5,
    kv_len: int = 7,
    d_k: int = 4,
    d_v: int | None = None,
    past: int = 0,
    sigma: float = 1.0,
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """A draft of scaled dot-product attention; operands not given are drawn from a stream named by the ID.

    All sizes differ by default, so that a swap of two axes changes the values. kv_len counts the past.
    `like` names another ID whose stream to draw from: the same operands under other options.
    """
    draws = Draws(like or id)
    groups, width = kv_heads or heads, d_v or d_k
    inputs: dict[str, Array] = {
        "query": draws.gauss(*batch, heads, q_len, d_k, sigma=sigma, bits=bits),
        "key": draws.gauss(*batch, groups, kv_len - past, d_k, sigma=sigma, bits=bits),
        "value": draws.gauss(*batch, groups, kv_len - past, width, bits=bits),
    }
    if past:
        inputs["past_key"] = draws.gauss(*batch, groups, past, d_k, sigma=sigma, bits=bits)
        inputs["past_value"] = draws.gauss(*batch, groups, past, width, bits=bits)
    return drafted(id, note, covers, SDPA, inputs, given)


def project(
    id: str,  # noqa: A002 - as above
    note: str,
    *covers: str,
    batch: tuple[int, ...] = (2,),
    heads: int = 3,
    kv_heads: int | None = None,
    q_len: int = 5,
    kv_len: int = 7,
    d_q: int = 9,
    d_kv: int | None = None,
    d_vv: int | None = None,
    d_k: int = 4,
    d_v: int | None = None,
    d_out: int | None = None,
    past: int = 0,
    biases: str = "qkvo",
    bits: int = 8,
    like: str | None = None,
    **given: Any,
) -> Draft:
    """A draft of the layer; projection weights have a variance of one over their input width.

    `biases` names the projections that have one.
    """
    draws = Draws(like or id)
    groups, width = kv_heads or heads, d_v or d_k
    d_kv, d_out = d_kv or d_q, d_out or d_q
    d_vv = d_vv or d_kv
    shapes: dict[str, tuple[int, ...]] = {
        "w_q": (heads, d_q, d_k),
        "w_k": (groups, d_kv, d_k),
        "w_v": (groups, d_vv, width),
        "w_o": (heads, width, d_out),
    }
    fan_in = {"w_q": d_q, "w_k": d_kv, "w_v": d_vv, "w_o": heads * width}
    inputs: dict[str, Array] = {
        "query": draws.gauss(*batch, q_len, d_q, bits=bits),
        "key": draws.gauss(*batch, kv_len - past, d_kv, bits=bits),
        "value": draws.gauss(*batch, kv_len - past, d_vv, bits=bits),
    }
    for name, shape in shapes.items():
        inputs[name] = draws.gauss(*shape, sigma=fan_in[name] ** -0.5, bits=bits)
    bias_shapes: dict[str, tuple[int, ...]] = {
        "q": (heads, d_k),
        "k": (groups, d_k),
        "v": (groups, width),
        "o": (d_out,),
    }
    for letter in biases:
        inputs[f"b_{letter}"] = draws.gauss(*bias_shapes[letter], sigma=0.5, bits=bits)
    if past:
        inputs["past_key"] = draws.gauss(*batch, groups, past, d_k, bits=bits)
        inputs["past_value"] = draws.gauss(*batch, groups, past, width, bits=bits)
    return drafted(id, note, covers, MHA, inputs, given)


def gradient(
    draft: Draft,
    sigma: float = 1.0,
    bits: int = 8,
    grad_output: Array | None = None,
    lse: bool = False,
    grad_lse: Array | None = None,
) -> Draft:
    """The same call of the gradient's operation; its cotangents are drawn from the case's stream unless given.

    That of the lse is there where it is given, or where `lse` asks for one.
    """
    query = draft.inputs["query"]
    layer = draft.operation == MHA
    width = draft.inputs["w_o" if layer else "value"].shape[-1]
    if grad_output is None:
        grad_output = Draws(f"{draft.id}:grad_output").gauss(*query.shape[:-1], width, sigma=sigma, bits=bits)
    operation = MHA_VJP if layer else SDPA_VJP
    inputs = {**draft.inputs, "grad_output": grad_output}
    if lse or grad_lse is not None:
        heads = draft.inputs["w_q"].shape[0] if layer else query.shape[-3]
        batch = query.shape[: -2 if layer else -3]
        drawn = Draws(f"{draft.id}:grad_lse").gauss(*batch, heads, query.shape[-2], sigma=sigma, bits=bits)
        inputs["grad_lse"] = drawn if grad_lse is None else grad_lse
    return replace(draft, operation=operation, inputs=inputs)


def drafted(
    name: str,
    note: str,
    covers: tuple[str, ...],
    operation: str,
    inputs: dict[str, Array],
    given: dict[str, Any],
) -> Draft:
    """Arrays among what was given replace or join the inputs; the rest are options or fields of the draft."""
    fields = {key: given.pop(key) for key in FIELDS if key in given}
    inputs = inputs | {key: value for key, value in given.items() if isinstance(value, np.ndarray)}
    options = {key: value for key, value in given.items() if not isinstance(value, np.ndarray)}
    return Draft(name, note, covers, operation, inputs, options, **fields)


def rows_of(case: Case) -> tuple[int, ...] | None:
    """The query rows that are judged; of gradients all are derived."""
    return case.expected["output"].rows if "output" in case.expected else None


def sampled_of(case: Case) -> dict[str, tuple[int, ...]]:
    """The rows of each result that is stored in part, where they are not the query rows that are judged."""
    held = {name: golden.rows for name, golden in case.expected.items() if golden.rows is not None}
    return own_rows(held, rows_of(case))


def own_rows(
    held: Mapping[str, tuple[int, ...]], judged: tuple[int, ...] | None
) -> dict[str, tuple[int, ...]]:
    """Those that are not just the query rows that are judged."""
    return {
        name: rows
        for name, rows in held.items()
        if rows != judged or name not in ("output", "weights", "lse")
    }
