"""What the cases hold between them, as a table of cells: an empty cell is a missing case."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.names import (
    DENSE,
    FEATURES,
    MHA,
    MHA_VJP,
    OPERATION_FEATURES,
    OPTION_FEATURES,
    OPTIONS,
    SDPA,
)
from conformance.vectors import meeting
from conformance.vectors.case import Case
from conformance.vectors.case_view import View

Test = Callable[[View], Any]


def having(test: Callable[..., Any], *wanted: Any) -> Test:
    """A test of a view with what it is asked for."""
    return lambda view: test(view, *wanted)


@dataclass(frozen=True)
class Cell:
    """One thing that some case has to hold."""

    part: str  # of the table
    name: str
    cases: tuple[str, ...]  # IDs of those that hold it


KV_LENGTHS: tuple[int, ...] = (0, 1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
KV_LENGTHS += (255, 256, 257, 511, 512, 513, 1025, 2060)
SIZES: Mapping[str, Sequence[int]] = {
    "kv_len": KV_LENGTHS,
    "q_len": (0, 1, 2, 16, 17, 33, 65, 129),
    "d_k": (1, 2, 3, 5, 7, 8, 9, 33, 64, 65, 80, 128, 136),
    "d_v": (1, 2, 3, 5, 6, 64, 128, 136),
    "heads": (1, 2, 3, 6, 9),
    "kv_heads": (1, 2, 3),
    "batch": (0, 1, 2, 3, 5, 8),
    "past": (3, 20),
}
PAIRED = (*(x for x in OPTION_FEATURES if x not in ("segments", "grad_lse")), "gqa", "value_dim")
"""Features of which each pair has a cell."""
FEW = 7
"""A pair counts where it meets among at most so many features: a failure can then be told."""
LAYOUTS = ("transposed", "reversed", "readonly", "unaligned", "shared")
MASKS = ("mask", "attn_bias")

OTHER: Mapping[str, Mapping[str, Test]] = {
    "batch axes": {
        **{f"{n} axes": having(lambda v, n: len(v.batch) == n, n) for n in range(4)},
        **{f"{n} axes, layer": having(lambda v, n: v.layer and len(v.batch) == n, n) for n in range(3)},
    },
    "shapes": {
        "1 < G < H": lambda v: 1 < v.sizes["kv_heads"] < v.sizes["heads"],
        "G = 1 < H": lambda v: v.sizes["kv_heads"] == 1 < v.sizes["heads"],
        "d_v > d_k": lambda v: v.sizes["d_v"] > v.sizes["d_k"],
        "d_v < d_k": lambda v: v.sizes["d_v"] < v.sizes["d_k"],
        "q_len = kv_len, nothing else": lambda v: (
            v.sizes["q_len"] == v.sizes["kv_len"] > 1 and not v.case.features
        ),
        "q_len > kv_len": lambda v: v.sizes["q_len"] > v.sizes["kv_len"] > 0,
        "a past and no new key": lambda v: v.sizes["past"] == v.sizes["kv_len"] > 0,
        "sampled rows": lambda v: any(golden.rows is not None for golden in v.case.expected.values()),
        "no keys, layer": lambda v: v.layer and v.sizes["kv_len"] == 0,
        "many queries, few keys": lambda v: v.sizes["q_len"] >= 100 and 0 < v.sizes["kv_len"] <= 16,
    },
    "masks and biases": {
        **{
            f"{name}, {kind}": having(lambda v, n, k: k in v.mask_kinds(n), name, kind)
            for name in MASKS
            for kind in (
                "rank 2",
                "full rank",
                "of each batch entry",
                "of each head",
                "of each query",
                "shared by the heads",
                "shared by the batch",
                "one row",
                "one column",
                "full rank, no batch axis",
                "full rank, two batch axes",
            )
        },
        **{
            f"bias of {dtype} in other operands": having(
                lambda v, d: v.case.dtype_of.get("attn_bias") == d and len(v.case.dtypes) > 1, dtype
            )
            for dtype in ("float64", "float32", "float16")
        },
        "bias of 24 bits in 16-bit operands": lambda v: (
            v.case.dtype_of.get("attn_bias") == "float32"
            and v.bits("attn_bias") > 11
            and "bfloat16" in v.case.dtypes
        ),
    },
    "options": {
        "negative scale": lambda v: v.number("scale") < 0,
        "scale of zero": lambda v: v.case.options.get("scale") == 0,
        "scale of one": lambda v: v.number("scale") == 1,
        "scale of full mantissa": lambda v: v.number("scale") == 0.3,
        "softcap of full mantissa": lambda v: v.number("softcap") == 0.3,
        "sinks of full mantissa": lambda v: v.bits("sinks") > 11,
        "sink of -inf": lambda v: v.has("sinks", np.isneginf),
        "negative offset": lambda v: v.number("q_offset") < 0,
        "offset of each batch entry": lambda v: v.ranks("q_offset", 1),
        "offset of two batch axes": lambda v: v.ranks("q_offset", 2),
        "offset without batch axis, an array": lambda v: v.ranks("q_offset", 0),
        "offset beyond int32": lambda v: v.number("q_offset") >= 2**31,
        "offset in int32": lambda v: v.dtype("q_offset") == np.int32,
        "lengths in int32": lambda v: v.dtype("kv_lengths") == np.int32,
        "lengths below zero": lambda v: v.has("kv_lengths", lambda x: x < 0),
        "lengths beyond the keys": lambda v: v.has("kv_lengths", lambda x: x > v.sizes["kv_len"]),
        "window open to the left": lambda v: (v.case.options.get("window") or [0])[0] is None,
        "window open to the right": lambda v: (v.case.options.get("window") or [0])[-1] is None,
        "past of length zero": lambda v: "past_key" in v.case.inputs and v.sizes["past"] == 0,
    },
    "rows without a key": {
        f"by {name}": having(lambda v, n: v.empties({n}), name)
        for name in ("mask", "attn_bias", "is_causal", "window", "kv_lengths")
    }
    | {
        "because there are no keys": lambda v: v.sizes["kv_len"] == 0 < v.sizes["q_len"],
        "because options leave nothing together": lambda v: (
            v.empty and v.sizes["kv_len"] > 0 and not v.empties(set(v.given))
        ),
        "in a layer with b_o": lambda v: v.empty and "b_o" in v.case.inputs,
        "all of them": lambda v: v.all_empty and v.sizes["kv_len"] > 0,
        "with sinks": lambda v: v.empty and "sinks" in v.case.inputs,
        "with lse": lambda v: v.empty and v.case.options.get("return_lse"),
        "with weights": lambda v: v.empty and v.case.options.get("return_weights"),
    },
    "NaN and infinity": {
        f"{kind} in a {place} {name}": having(lambda v, k, n, p: k in v.nonfinite(n, p), kind, name, place)
        for name in ("key", "value")
        for place in ("hidden", "visible")
        for kind in ("nan", "inf", "-inf")
    }
    | {
        "NaN in a query": lambda v: v.has("query", np.isnan),
        "NaN in a bias": lambda v: v.has("attn_bias", np.isnan),
        "+inf in a bias": lambda v: v.has("attn_bias", np.isposinf),
        "NaN behind a length, grouped": lambda v: v.behind("kv_lengths") and "gqa" in v.case.features,
        "NaN behind a length, causal": lambda v: v.behind("kv_lengths") and "is_causal" in v.given,
        "NaN behind a length, layer": lambda v: v.behind("kv_lengths") and v.layer,
        "NaN behind a window": lambda v: v.behind("window"),
        "NaN behind a mask": lambda v: v.behind("mask"),
        "NaN behind a bias": lambda v: v.behind("attn_bias"),
        "NaN in the future": lambda v: v.behind("is_causal"),
        "a result that is NaN": lambda v: v.results(np.isnan),
        "a result that is infinite": lambda v: v.results(np.isinf),
    },
    "values": {
        "24 bits": lambda v: v.bits("query") > 11,
        "integers": lambda v: v.every(lambda x: x == np.round(x)),
        "negative values alone": lambda v: v.one("value", lambda x: x.size and (x < 0).all()),
        "values with a common offset": lambda v: v.one(
            "value", lambda x: x.size and np.abs(x.mean()) > 3 * x.std()
        ),
        "values beyond float16": lambda v: v.one("value", lambda x: x.size and np.abs(x).max() > 65504),
        "values near 2^-11": lambda v: v.one("value", lambda x: 0 < np.abs(x).max(initial=0) < 2.0**-8),
        "equal keys": lambda v: v.one("key", lambda x: x.shape[-2] > 1 and (x == x[..., :1, :]).all()),
        "logits beyond exp": lambda v: v.largest_logit > 800,
        "left out in float16 under eager alone": lambda v: "float16/eager" in v.case.excluded,
    },
    "memory and calls": {
        **{f"{how} operands": having(lambda v, how: how in v.case.memory.values(), how) for how in LAYOUTS},
        **{
            f"{how} operands of a layer": having(
                lambda v, how: v.layer and how in v.case.memory.values(), how
            )
            for how in ("transposed", "readonly", "shared")
        },
        "transposed mask and bias": lambda v: {"mask", "attn_bias"} <= set(v.case.memory),
        "a repeated call": lambda v: v.case.repeat > 1,
        "a repeated call with a past": lambda v: v.case.repeat > 1 and "past_key" in v.case.inputs,
        "one batch entry alone and among others": lambda v: "IND-3" in v.case.covers,
    },
}
"""Part -> cell -> whether a case that returns something holds it."""

HOLES: Mapping[tuple[str, str], str] = {
    ("options", "return_weights of multi_head_attention_vjp"): "gradients of the output alone are defined",
    (
        "options",
        "return_weights of scaled_dot_product_attention_vjp",
    ): "gradients of the output alone are defined",
    ("options", "return_lse of multi_head_attention_vjp"): "gradients of the output alone are defined",
    (
        "options",
        "return_lse of scaled_dot_product_attention_vjp",
    ): "gradients of the output alone are defined",
}
"""Cells that are empty for a reason."""


def coverage(cases: Iterable[Case]) -> Iterator[Cell]:
    """Every cell, with the cases that hold it."""
    returning = [case for case in cases if not case.raises]
    views = [
        View(case) for case in returning if case.operation in DENSE and not case.seeded
    ]  # a detail is best seen where it is small
    for part, name, test in _cells():
        yield Cell(part, name, tuple(view.case.id for view in views if test(view)))
    held = meeting.held(returning)
    for part, name in meeting.wanted():
        yield Cell(part, name, tuple(held.get((part, name), ())))


def _cells() -> Iterator[tuple[str, str, Test]]:
    for option, operation in itertools.product(OPTIONS, DENSE):
        yield (
            "options",
            f"{option} of {operation}",
            having(lambda v, o, op: v.case.operation == op and o in v.given, option, operation),
        )
    for feature, operation in itertools.product(FEATURES, (SDPA, MHA)):
        if feature not in ("validation", "grad_lse", *OPERATION_FEATURES.values()):
            yield (
                "features",
                f"{feature} of {operation}",
                having(lambda v, f, op: v.case.operation == op and f in v.case.features, feature, operation),
            )
    for left, right in itertools.combinations(PAIRED, 2):
        yield "pairs", f"{left} and {right}", having(_meet, {left, right})
    for size, lengths in SIZES.items():
        for length in lengths:
            yield "sizes", f"{size} of {length}", having(lambda v, s, n: v.sizes[s] == n, size, length)
    for biases in ("", "b_q", "b_k", "b_v", "b_o", "b_q b_k b_v b_o"):
        for operation in (MHA, MHA_VJP):
            yield (
                "biases of the layer",
                f"{biases or 'none'} of {operation}",
                having(
                    lambda v, b, op: v.case.operation == op and v.biases == b, set(biases.split()), operation
                ),
            )
    for part, tests in OTHER.items():
        for name, test in tests.items():
            yield part, name, test


def _meet(view: View, pair: set[str]) -> bool:
    found = view.case.features
    return pair <= set(found) and len(found) <= FEW and view.case.operation in (SDPA, MHA)
