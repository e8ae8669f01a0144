"""Operands that use every significant bit of their dtype: rows at that dtype alone, which no narrower one can hold."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.names import MHA
from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws

# fmt: off

BITS = {"float64": 53, "float32": 24, "float16": 11}
_SMALL: dict[str, Any] = {"heads": 2, "q_len": 4, "kv_len": 5, "d_k": 3}
_WIDE: dict[str, Any] = {"batch": (), "heads": 1, "q_len": 2, "kv_len": 3, "d_k": 64}
_LONG: dict[str, Any] = {"batch": (), "heads": 1, "q_len": 2, "kv_len": 130, "d_k": 3}


def drafts() -> Iterator[Draft]:
    """Attention, the layer, and the gradients of both: plain, and with each option alone."""
    for kind, operation in _KINDS.items():
        for dtype, bits in BITS.items():
            for path, sizes in _paths(kind, dtype).items():
                for name, (words, covers, given) in _options(f"digits/{kind}", sizes).items():
                    if name in _FORWARD and kind.startswith("gradient"):
                        continue
                    if name not in _ONLY.get((kind, path), (name,)):
                        continue
                    yield _filled(operation(f"digits/{kind}-{dtype}{path and '-'}{path}-{name}",
                            f"{words}: operands of {bits} significant bits{_WHERE[path]}.", "NUM-8",
                            *(("NUM-4",) if dtype == "float64" else ()), *covers, only=(dtype,),
                            **{**sizes, **given}), bits)


_WHERE = {"": "", "wide": ", 64 columns", "long": ", 130 keys"}
_BULKY = ("plain", "bias", "past")
_ONLY = {**{(kind, "long"): ("plain",) for kind in ("layer", "gradient", "gradient-layer")},
    ("gradient-layer", "wide"): _BULKY}
"""Where not every option is asked, which are: their gradients take much room."""
_FORWARD = ("weights", "lse")


def _layer(*given: Any, **more: Any) -> Draft:
    return project(*given, **{"d_q": 5, **more})


_KINDS: dict[str, Any] = {"attention": attend, "layer": _layer,
    "gradient": lambda *given, **more: gradient(attend(*given, **more)),
    "gradient-layer": lambda *given, **more: gradient(_layer(*given, **more))}


def _paths(kind: str, dtype: str) -> dict[str, dict[str, Any]]:
    """In float32 wide and long calls, where others have the bits of 8; else small ones."""
    if dtype != "float32":
        return {"": _SMALL}
    if "layer" in kind:  # wide is what the layer is given, so that its weights stay small
        wide = {**_WIDE, "d_q": 64, "d_k": 2, "d_out": 3}
        small = {"": _SMALL} if kind.startswith("gradient") else {}
        return {"wide": wide, "long": {**_LONG, "d_q": 3}, **small}
    return {"wide": _WIDE, "long": _LONG}


def _options(stream: str, sizes: dict[str, Any]) -> dict[str, tuple[str, tuple[str, ...], dict[str, Any]]]:
    """Words, requirements and what is given, for each option."""
    draws = Draws(f"{stream}/{sizes['kv_len']}/{sizes['d_k']}")
    batch, heads, q_len, kv_len = (
        sizes.get("batch", (2,)),
        *(sizes[n] for n in ("heads", "q_len", "kv_len")),
    )
    mask = draws.mask(q_len, kv_len, share=0.7)
    mask[..., kv_len // 2] = True
    return {
        "plain": ("No option", (), {}),
        "mask": ("A mask", ("MASK-1",), {"mask": mask}),
        "bias": ("A bias", ("ATT-7",), {"attn_bias": draws.gauss(q_len, kv_len)}),
        "causal": ("Causality", ("MASK-6",), {"is_causal": True, "q_offset": kv_len - q_len}),
        "window": ("A window", ("MASK-10",), {"window": (2, 1), "q_offset": kv_len // 2}),
        "lengths": ("Lengths", ("MASK-12",), {"kv_lengths": np.full(batch, kv_len - 1)}),
        "scale": ("A scale of 0.3", ("ATT-4",), {"scale": 0.3}),
        "softcap": ("A softcap of 1.7", ("ATT-5",), {"softcap": 1.7}),
        "sinks": ("Sinks", ("ATT-12",), {"sinks": draws.gauss(heads)}),
        "weights": ("Weights", ("ATT-13",), {"return_weights": True}),
        "lse": ("The lse", ("ATT-14",), {"return_lse": True}),
        "grouped": ("Grouped heads", ("HEAD-2",), {"heads": 2, "kv_heads": 1}),
        "past": ("A past", ("CACHE-1",), {"past": 2}),
    }


def _filled(draft: Draft, bits: int) -> Draft:
    """A draft whose floating operands have so many significant bits, each a last one that is set."""
    draws = Draws(f"{draft.id}:digits")
    inputs = {n: draws.filled(x, bits) if x.dtype.kind == "f" else x for n, x in draft.inputs.items()}
    covers = draft.covers
    if draft.operation.endswith("_vjp"):
        covers = ("GRAD-10" if draft.operation.startswith(MHA) else "GRAD-1", *covers)
    elif draft.operation == MHA:
        covers = ("PROJ-1", *covers)
    return replace(draft, inputs=inputs, covers=tuple(dict.fromkeys(covers)))
