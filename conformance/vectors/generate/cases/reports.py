"""Public reports of wrong attention, each as the smallest call that shows it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend

# fmt: off

_NUMBERS = np.arange(32.0).reshape(1, 1, 32, 1)


def drafts() -> Iterator[Draft]:
    """Queries and keys are zeros where nothing else is said, so that each row is the mean of what it sees."""
    yield from _whole_tiles()
    yield _report("hidden-above-visible",
        "The hidden key would be seen if hidden logits became a finite number: the visible one is at -160,000.",
        "MASK-1", query=np.full((1, 1, 1, 1), 400.0), key=np.full((1, 1, 2, 1), -400.0),
        value=np.array([1.0, 3.0]).reshape(1, 1, 2, 1), mask=np.array([[True, False]]))
    yield _report("shorter-entry-beside-window",
        "The shorter entry ends inside a block of the longer one, and its window reaches over its newest keys.",
        "MASK-12", "MASK-10",
        query=np.zeros((2, 1, 1, 1)), key=np.zeros((2, 1, 32, 1)), value=np.repeat(_NUMBERS, 2, axis=0),
        kv_lengths=np.array([32, 20]), window=(15, 0), q_offset=np.array([31, 19]))
    yield _report("group-of-24",
        "Forty-eight query heads on two key heads: a group is no multiple of a block of 16 heads.", "HEAD-2",
        query=np.zeros((1, 48, 1, 1)), key=np.zeros((1, 2, 1, 1)),
        value=np.array([1.0, 2.0]).reshape(1, 2, 1, 1))


def _report(name: str, note: str, *covers: str, **given: Any) -> Draft:
    return attend(f"reports/{name}", note, *covers, **given)


def _whole_tiles() -> Iterator[Draft]:
    """Thirty-two queries and keys, which tiles of 8, 16 and 32 divide."""
    zeros = {name: np.zeros((1, 1, 32, 1)) for name in ("query", "key")}
    mask = np.arange(32) % 3 != 1
    options: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "causal": ("causality", ("MASK-6",), {"is_causal": True}),
        "mask": ("a mask", ("MASK-1",), {"mask": np.broadcast_to(mask, (32, 32)).copy()}),
        "bias": ("a bias", ("ATT-7",), {"attn_bias": np.broadcast_to(1.0 * ~mask, (32, 32)).copy()}),
        "window": ("a window", ("MASK-10",), {"window": (3, 0)}),
        "lengths": ("lengths", ("MASK-12",), {"kv_lengths": np.array([16])}),
    }
    for name, (words, covers, given) in options.items():
        note = f"Whole tiles of 8, 16 and 32, beside {words}."
        yield _report(f"whole-tiles-{name}", note, *covers, value=_NUMBERS, **zeros, **given)
