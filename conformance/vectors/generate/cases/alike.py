"""Sizes that are the same, where a wrong reading of an operand still fits: a mask by queries read as one by entries."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws


def drafts() -> Iterator[Draft]:
    """Masks and biases of rank 2 beside as many entries as queries; then square weights."""
    draws = Draws("alike")
    sizes: dict[str, Any] = {"batch": (3,), "heads": 2, "q_len": 3, "kv_len": 5}
    given: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "mask": ("mask", ("MASK-1", "SHAPE-7"), {"mask": draws.mask(3, 5) | (np.arange(5) == 2)}),
        "bias": ("bias", ("ATT-7", "SHAPE-7"), {"attn_bias": draws.gauss(3, 5, sigma=1.5)}),
    }
    for name, (word, covers, option) in given.items():
        note = f"A {word} of rank 2 beside as many batch entries as queries: its rows are queries."
        yield attend(f"mask/rank-2-{name}-as-many-entries", note, *covers, **sizes, **option)
        yield project(
            f"projection/rank-2-{name}-as-many-entries", note, "PROJ-7", *covers, d_q=5, **sizes, **option
        )
        yield gradient(
            attend(f"gradient/rank-2-{name}-as-many-entries", note, "GRAD-1", *covers, **sizes, **option)
        )
    square: dict[str, Any] = {"heads": 2, "q_len": 3, "kv_len": 4, "d_q": 4, "d_k": 4}
    note = "Every weight is square: none is read with its axes exchanged."
    yield project("projection/square-weights", note, "PROJ-1", "PROJ-3", **square)
    yield gradient(project("gradient/layer-square-weights", note, "GRAD-10", "PROJ-1", "PROJ-3", **square))
