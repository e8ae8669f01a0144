"""Gradients with a cotangent of the log-sum-exp."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.vectors.case import Array
from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off

_SINKS = exact([0.5, -1.0, 2.0])


def drafts() -> Iterator[Draft]:
    """Alone, beside each option, in the layer, at sizes of tiles, in dtypes of its own, and wrong."""
    yield from _alone()
    yield from _beside()
    yield from _empty()
    yield from _layers()
    yield from _sizes()
    yield from _dtypes()
    yield from _wrong()


def _drafted(
    name: str, note: str, *covers: str, sigma: float = 1.0, grad_lse: Any = None, **given: Any
) -> Draft:
    draft = attend(f"gradient/lse-{name}", note, "GRAD-16", *covers, **given)
    return gradient(draft, lse=True, sigma=sigma, grad_lse=grad_lse)


def _alone() -> Iterator[Draft]:
    yield _drafted("plain", "A cotangent of the lse beside that of the output.", "GRAD-1")
    draft = attend("gradient/lse-alone",
        "A cotangent of the lse and a grad_output of zeros: no value has a part.", "GRAD-16")
    yield gradient(draft, lse=True, grad_output=np.zeros((2, 3, 5, 4)))
    yield _drafted("large", "Cotangents of the lse that are far larger than what the values give.",
        grad_lse=Draws("gradient/lse-large").gauss(2, 3, 5, sigma=64.0))
    yield _drafted("ones", "A cotangent of ones: each row adds its weights.", grad_lse=np.ones((2, 3, 5)))
    yield _drafted("one-key", "With one key the gradient of its logit is the cotangent of the lse.", kv_len=1)
    yield _drafted("one-query", "One query.", q_len=1)
    yield _drafted("of-one-row", "The cotangent of the lse is zero but in one row of one head.",
        grad_lse=_only_row(2, 3, 5))
    yield _drafted("no-batch-axis", "No batch axis.", batch=())
    yield _drafted("two-batch-axes", "Two batch axes.", "SHAPE-4", batch=(2, 1), heads=2)


def _only_row(*shape: int) -> Array:
    found = np.zeros(shape)
    found[1, 2, 3] = 1.5
    return found


def _beside() -> Iterator[Draft]:
    draws = Draws("gradient/lse-beside")
    mask = draws.mask(2, 3, 5, 7, share=0.7) | (np.arange(7) == 2)
    cases: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "softcap": ("a softcap, whose slope it passes", ("GRAD-7",), {"softcap": 1.5}),
        "scale": ("a given scale", ("GRAD-1",), {"scale": 0.75}),
        "bias": ("a bias", ("GRAD-5",), {"attn_bias": draws.gauss(2, 3, 5, 7)}),
        "bias-over-queries": ("a bias that queries share", ("GRAD-5",), {"attn_bias": draws.gauss(1, 7)}),
        "bias-over-keys": ("a bias of one column: its gradient is not zero", ("GRAD-5",),
            {"attn_bias": draws.gauss(5, 1)}),
        "sinks": ("sinks, which have a share of it", ("GRAD-8",), {"sinks": _SINKS}),
        "sinks-large": ("sinks that take nearly all, or nothing", ("GRAD-8",),
            {"sinks": exact([8.0, -12.0, 0.0])}),
        "sink-of-minus-inf": ("a sink of -inf", ("GRAD-8",), {"sinks": exact([0.5, -np.inf, 2.0])}),
        "mask": ("a mask", ("GRAD-3",), {"mask": mask}),
        "causal": ("causality", ("GRAD-3",), {"is_causal": True, "q_offset": 2}),
        "causal-square": ("causality, the first query having one key", ("GRAD-3",),
            {"is_causal": True, "kv_len": 5}),
        "window": ("a window", ("GRAD-3",), {"window": [2, 1], "q_offset": 1}),
        "lengths": ("lengths", ("GRAD-3",), {"kv_lengths": np.array([4, 6])}),
        "grouped": ("groups", ("GRAD-6",), {"heads": 6, "kv_heads": 2}),
        "past": ("a past", ("GRAD-13",), {"past": 3}),
        "value-dim": ("values wider than the keys", ("GRAD-1",), {"d_v": 6}),
        "softcap-sinks-bias-grouped": ("a softcap, sinks, a bias and groups", ("GRAD-7", "GRAD-8"),
            {"heads": 4, "kv_heads": 2, "softcap": 2.0, "sinks": exact([0.5, -1.0, 2.0, 0.25]),
             "attn_bias": draws.gauss(5, 7)}),
        "segments": ("segments", ("MASK-17",),
            {"q_segments": np.array([[0, 1, 0, 2, 1], [2, 2, 1, 0, 0]], np.int32),
             "kv_segments": np.array([0, 1, 2, 0, 1, 1, 2], np.int32)}),
    }
    for name, (words, covers, given) in cases.items():
        yield _drafted(name, f"A cotangent of the lse beside {words}.", *covers, **given)


def _empty() -> Iterator[Draft]:
    mask = np.ones((2, 3, 5, 7), bool)
    mask[0, 1, 2, :] = False
    mask[1, :, 4, :] = False
    yield _drafted("empty-rows", "An empty row has no lse, and its cotangent reaches nothing.", "GRAD-4",
        mask=mask)
    yield _drafted("empty-rows-sinks",
        "Of an empty row with a sink, the cotangent of the lse goes to the sink whole.", "GRAD-8", "MASK-16",
        mask=mask, sinks=_SINKS)
    yield _drafted("empty-rows-causal-sinks", "Rows before the first key, with sinks.", "GRAD-8", "MASK-16",
        is_causal=True, q_offset=-2, sinks=exact([0.5, -np.inf, 1.0]))
    yield _drafted("no-keys-sinks",
        "kv_len is zero: the gradient of each sink is the sum of the cotangents of its rows.",
        "MASK-14", "MASK-16", kv_len=0, sinks=_SINKS)
    yield _drafted("no-queries", "q_len is zero: all gradients are zero.", "GRAD-2", q_len=0)


def _layers() -> Iterator[Draft]:
    layers: dict[str, tuple[str, dict[str, Any]]] = {
        "layer": ("The layer: the cotangent has the heads' axis, and the gradient of b_k is not zero.", {}),
        "layer-causal-sinks-grouped": ("The layer with causality, sinks and groups.",
            {"heads": 4, "kv_heads": 2, "is_causal": True, "q_offset": 2,
             "sinks": exact([0.5, -1.0, 2.0, 0.25])}),
        "layer-bias-softcap-past": ("The layer with a bias, a softcap and a past.",
            {"attn_bias": Draws("gradient/lse-layer").gauss(5, 7), "softcap": 2.0, "past": 3}),
    }
    for name, (note, given) in layers.items():
        yield gradient(project(f"gradient/lse-{name}", note, "GRAD-16", "GRAD-10", **given), lse=True)


def _sizes() -> Iterator[Draft]:
    for q_len, kv_len, given in (
        (3, 64, {}),
        (2, 65, {"sinks": exact([0.5, -1.0])}),
        (2, 129, {"softcap": 2.0}),
        (33, 33, {"is_causal": True}),
    ):
        yield _drafted(f"{q_len}-queries-{kv_len}-keys", f"{q_len} queries over {kv_len} keys.",
            batch=(1,), heads=2, q_len=q_len, kv_len=kv_len, d_k=8, **given)


def _dtypes() -> Iterator[Draft]:
    draws = Draws("gradient/lse-dtypes")
    yield _drafted("of-24-bits",
        "A cotangent that float32 holds and the 16-bit dtypes do not: there it is float32, as the lse.",
        "DTYPE-6", grad_lse=draws.gauss(2, 3, 5, sigma=4.0, bits=24))
    for dtype in ("float16", "bfloat16"):
        yield replace(
            _drafted(f"in-{dtype}", f"A cotangent in {dtype}, as the operands, is taken too.", only=(dtype,)),
            dtype_of={"grad_lse": dtype})


def _wrong() -> Iterator[Draft]:
    calls: dict[str, tuple[str, Array]] = {
        "with-a-width": ("A cotangent of the lse in the shape of the output.", np.ones((2, 3, 5, 4))),
        "of-key-heads": ("A cotangent of the lse for each key head.", np.ones((2, 1, 5))),
        "without-heads": ("A cotangent of the lse without an axis of heads.", np.ones((2, 5))),
    }
    for name, (note, wrong) in calls.items():
        draft = attend(f"gradient/wrong-lse-{name}", note, "GRAD-14", raises=True, kv_heads=1)
        yield gradient(draft, grad_lse=wrong)
    draft = attend("gradient/wrong-lse-dtype", "A cotangent of the lse in float16 where the lse is wider.",
        "GRAD-14", raises=True, only=("float64", "float32"))
    yield replace(gradient(draft, lse=True), dtype_of={"grad_lse": "float16"})
