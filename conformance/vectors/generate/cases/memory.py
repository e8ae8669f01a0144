"""How operands lie in memory, as an axis of its own: each way for all operands at once, and for each alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws

# fmt: off

_WAYS = {"heads": "have lengths before heads in memory",
    "packed": "are slices of wider tensors, as of one that holds all three",
    "stepped": "are every second number of wider tensors",
    "spread": "have strides of zero along every axis of equal numbers",
    "behind": "begin in the middle of a longer array"}
_KINDS: dict[str, Any] = {"attention": attend, "layer": project,
    "gradient": lambda *given, **more: gradient(attend(*given, **more)),
    "gradient-layer": lambda *given, **more: gradient(project(*given, **more))}
_SIZES: dict[str, Any] = {"heads": 2, "q_len": 3, "kv_len": 5}
_NARROW: dict[str, Any] = {"d_q": 5, "d_k": 3}


def drafts() -> Iterator[Draft]:
    """Operands of every call, then those of the options, one by one."""
    for kind, operation in _KINDS.items():
        sizes = _SIZES | (_NARROW if "layer" in kind else {})
        for way, words in _WAYS.items():
            draft = _equal(operation(f"memory/{kind}-{way}", f"All operands {words}.", "IND-2", **sizes), way)
            yield replace(draft, memory=dict.fromkeys(draft.inputs, way))
    for name, (covers, given) in _options().items():
        for way in ("stepped", "behind", *(("packed", "heads") if name == "past" else ())):
            operands = ("past_key", "past_value") if name == "past" else (_OPERAND[name],)
            for kind in ("attention", "gradient"):
                draft = _KINDS[kind](f"memory/{kind}-{way}-{name}",
                    f"{_OF[name]}, which alone of all operands lies {_LIES[way]}.", "IND-2", *covers,
                    **_SIZES, **given)
                yield replace(draft, memory=dict.fromkeys(operands, way))
    for name, (covers, given) in _options(equal=True).items():
        draft = attend(f"memory/attention-spread-{name}",
            f"{_OF[name]}, of equal numbers along some axes, whose strides are zero there.", "IND-2", *covers,
            **_SIZES, **given)
        yield replace(draft, memory={_OPERAND[name]: "spread"})


_OPERAND = {"mask": "mask", "bias": "attn_bias", "lengths": "kv_lengths", "offsets": "q_offset",
    "sinks": "sinks"}
_OF = {"mask": "A mask", "bias": "A bias", "lengths": "Lengths", "offsets": "Offsets", "sinks": "Sinks",
    "past": "A past"}
_LIES = {"stepped": "as every second number of a wider array", "behind": "in the middle of a longer array",
    "packed": "as a slice of a wider tensor", "heads": "with lengths before heads"}


def _options(equal: bool = False) -> dict[str, tuple[tuple[str, ...], dict[str, Any]]]:
    """Requirements and what is given, for each option that is an array; of equal numbers along an axis if so asked."""
    draws = Draws("memory/options")
    mask, bias = draws.mask(2, 2, 3, 5) | (np.arange(5) == 1), draws.gauss(2, 2, 3, 5)
    found: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
        "mask": (("MASK-1",), {"mask": mask}),
        "bias": (("ATT-7",), {"attn_bias": bias}),
        "lengths": (("MASK-12",), {"kv_lengths": np.array([2, 4])}),
        "offsets": (("MASK-8",), {"is_causal": True, "q_offset": np.array([0, 2])}),
        "sinks": (("ATT-12",), {"sinks": draws.gauss(2)}),
        "past": (("CACHE-1",), {"past": 2}),
    }
    if equal:
        del found["past"]
        found["mask"] = (("MASK-1",), {"mask": np.repeat(mask[:, :1], 2, axis=1)})
        found["bias"] = (("ATT-7",), {"attn_bias": np.repeat(bias[:1], 2, axis=0)})
        found["lengths"] = (("MASK-12",), {"kv_lengths": np.array([3, 3])})
        found["offsets"] = (("MASK-8",), {"is_causal": True, "q_offset": np.array([1, 1])})
        found["sinks"] = (("ATT-12",), {"sinks": np.array([0.75, 0.75])})
    return found


def _equal(draft: Draft, way: str) -> Draft:
    """For strides of zero: operands that are the same for both batch entries, and weights for both heads."""
    if way != "spread":
        return draft
    return replace(draft,
        inputs={name: np.repeat(x[:1], x.shape[0], axis=0) for name, x in draft.inputs.items()})
