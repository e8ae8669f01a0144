"""Each option over several tiles of queries and of keys, with a tail of both: what a tile decides for its rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off

_SIZES: dict[str, Any] = {
    "batch": (1,),
    "heads": 4,
    "kv_heads": 2,
    "q_len": 41,
    "kv_len": 139,
    "d_k": 3,
    "d_v": 2,
    "sigma": 1.5,
}
_TWO: dict[str, Any] = {**_SIZES, "batch": (2,), "heads": 2, "kv_heads": 1}


def drafts() -> Iterator[Draft]:
    """Tiles of 8 to 32 queries and 8 to 128 keys have a second one and a tail; no length or offset ends with one."""
    draws = Draws("paths/tiled")

    def tiled(name: str, note: str, *covers: str, **given: Any) -> Draft:
        return attend(f"paths/tiled-{name}", note, *covers, **{**_SIZES, **given})

    yield tiled("causal", "The diagonal runs through four tiles.", "MASK-6", "ATT-14",
        return_lse=True, is_causal=True, q_offset=17)
    yield tiled("causal-offset", "The diagonal begins within the second tile.", "MASK-6", "MASK-8",
        is_causal=True, q_offset=83)
    yield tiled("causal-offsets",
        "Each batch entry begins in a tile of its own, one with rows that see nothing.", "MASK-8", "MASK-3",
        is_causal=True, q_offset=np.array([98, -11]), **_TWO)
    yield tiled("window", "A window that moves over the tiles.", "MASK-10", "MASK-8",
        window=(37, 5), q_offset=91)
    yield tiled("window-bias", "A narrow window, and a bias of its own for each query and key.",
        "MASK-10", "ATT-7", window=(13, 6), q_offset=70, attn_bias=draws.gauss(1, 1, 41, 139))
    yield tiled("lengths", "One length ends within a tile, and leaves tiles that nobody reads.", "MASK-12",
        return_lse=True, kv_lengths=np.array([139, 45]), **_TWO)
    yield tiled("causal-lengths", "Causality and lengths end in different tiles.", "MASK-9", "MASK-12",
        is_causal=True, q_offset=60, kv_lengths=np.array([77, 101]), **_TWO)
    yield tiled("mask", "A mask of its own for each head, which leaves whole tiles out.", "MASK-1",
        return_lse=True, mask=_holes(draws.mask(1, 4, 41, 139, share=0.6)))
    yield tiled("sinks", "Sinks beside several tiles of keys, and causality.", "ATT-12", "MASK-6",
        sinks=exact([0.5, -1.0, 2.0, 0.25]), return_lse=True, is_causal=True, q_offset=51)
    yield tiled("softcap", "A softcap over several tiles.", "ATT-5", softcap=2.0, is_causal=True, q_offset=98)
    yield tiled("past", "A past longer than a tile.", "CACHE-1", "CACHE-3",
        past=98, is_causal=True, q_offset=98)
    yield from _decoding(draws)


def _decoding(draws: Draws) -> Iterator[Draft]:
    """One query that reads several tiles: each option a second time on the path of decoding, and with lse."""
    mask = draws.mask(2, 6, 1, 39, share=0.6)
    options: dict[str, tuple[str, str, dict[str, Any]]] = {
        "mask": ("a mask", "MASK-1", {"mask": mask}),
        "bias": ("a bias", "ATT-7", {"attn_bias": draws.gauss(2, 1, 1, 39)}),
        "lengths": ("lengths", "MASK-12", {"kv_lengths": np.array([17, 38])}),
        "window": ("a window over a past", "MASK-10", {"window": (3, 0), "q_offset": 38, "past": 38}),
        "softcap": ("a softcap", "ATT-5", {"softcap": 1.5}),
        "sinks": ("sinks", "ATT-12", {"sinks": exact([0.5, -1.0, 2.0, 0.25, -3.0, 1.0])}),
        "scale": ("a given scale", "ATT-4", {"scale": 1.25}),
    }
    for name, (what, covers, given) in options.items():
        yield attend(f"paths/tiled-decode-{name}", f"One query, grouped heads and {what} over several tiles.",
            covers, "ATT-14", heads=6, kv_heads=2, q_len=1, kv_len=39, d_k=5, return_lse=True, **given)


def _holes(mask: Any) -> Any:
    """Rows of which the first, a middle or the last tile shows nothing."""
    mask[..., 3:9, :67], mask[..., 17:26, 32:128], mask[..., 30:, 128:] = False, False, False
    return mask
