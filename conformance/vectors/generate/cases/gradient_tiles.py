"""Gradients over lengths that a kernel cuts into tiles: sums that are long, and each option beyond the first tile."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.cases.gradients import drafted
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off


def drafts() -> Iterator[Draft]:
    """Sizes, then options."""
    yield from _sizes()
    yield from _options()


def _sizes() -> Iterator[Draft]:
    draws = Draws("gradient/sizes")
    small: dict[str, Any] = {"batch": (1,), "heads": 1, "d_k": 4}
    yield drafted("tiles", "More than two tiles of 64 queries and one of keys, causal.", "GRAD-1", "GRAD-12",
        batch=(1,), heads=2, q_len=130, kv_len=70, d_k=8, is_causal=True, q_offset=-40)
    yield drafted("wide", "d_k of 64: the whole width takes part.", "GRAD-1",
        batch=(1,), heads=2, q_len=9, kv_len=11, d_k=64)
    yield drafted("odd-width", "d_k of 33.", "GRAD-1", batch=(1,), heads=2, d_k=33, d_v=17)
    yield drafted("long-keys", "Eight queries over 1,027 keys.", "GRAD-1", "GRAD-12",
        q_len=8, kv_len=1027, **small)
    yield drafted("long-queries",
        "1,027 queries over eight keys: long sums in the gradients of key and value.", "GRAD-1", "GRAD-12",
        q_len=1027, kv_len=8, **{**small, "d_k": 3})
    yield drafted("bias-of-517-rows", "The gradients of 517 rows add up in one row of the bias.",
        "GRAD-5", "GRAD-12", q_len=517, kv_len=9, attn_bias=draws.gauss(1, 9), **{**small, "d_k": 2})
    rising = np.linspace(-6.0, 6.0, 150)[:, None] * np.array([1.0, 0.0, 0.0, 0.0])
    yield drafted("rising-logits", "The largest logit comes last, after two tiles of 64.",
        "GRAD-1", "GRAD-15", batch=(1,), heads=2, q_len=7, kv_len=150,
        key=exact(np.round((draws.gauss(1, 2, 150, 4, sigma=0.25) + rising) * 8) / 8),
        query=exact(np.round((draws.gauss(1, 2, 7, 4, sigma=0.25) + 2.0) * 8) / 8))


def _options() -> Iterator[Draft]:
    """40 queries and 131 keys: tiles of 8 to 128 have a second one and a tail."""
    draws = Draws("gradient/tiled")
    tiled: dict[str, Any] = {
        "batch": (1,),
        "heads": 4,
        "kv_heads": 2,
        "q_len": 40,
        "kv_len": 131,
        "d_k": 3,
        "d_v": 2,
        "sigma": 1.5,
    }
    two = {**tiled, "batch": (2,), "heads": 2, "kv_heads": 1}
    yield drafted("tiled-grouped", "Two query heads share each of 131 keys.", "GRAD-1", "GRAD-6", **tiled)
    mask = draws.mask(1, 4, 40, 131, share=0.6)
    yield drafted("tiled-mask", "A mask of its own for each head, over several tiles.", "GRAD-3",
        mask=mask, **tiled)
    yield drafted("tiled-bias", "Each query and key has a bias of its own, shared by the heads.", "GRAD-5",
        attn_bias=draws.gauss(1, 1, 40, 131), **tiled)
    yield drafted("tiled-bias-of-keys",
        "Each key of each head has a bias, shared by the queries of several tiles.", "GRAD-5", "GRAD-12",
        attn_bias=draws.gauss(1, 4, 1, 131), **tiled)
    yield drafted("tiled-softcap", "A softcap over several tiles.", "GRAD-7", softcap=2.0, **tiled)
    sinks = exact([0.5, -1.0, 2.0, 0.25])
    yield drafted("tiled-sinks", "Sinks beside several tiles of keys.", "GRAD-8", sinks=sinks, **tiled)
    yield drafted("tiled-lengths", "One length ends within a tile, and leaves tiles of unused keys.",
        "GRAD-3", kv_lengths=np.array([131, 45]), **two)
    yield drafted("tiled-window", "A window that moves over the tiles.", "GRAD-3",
        window=[37, 5], q_offset=91, **tiled)
    yield drafted("tiled-offsets",
        "Causal, each batch entry from an offset of its own: the first tile of queries sees more than one of keys.",
        "GRAD-3", is_causal=True, q_offset=np.array([91, 13]), **two)
    yield drafted("tiled-window-open",
        "A window open ahead around places before the keys: the last queries see less and less.", "GRAD-3",
        window=[3, None], q_offset=-4, **tiled)
    yield drafted("tiled-window-past", "A window that begins in the past and ends in the new keys.",
        "GRAD-3", "GRAD-13", window=[20, 1], q_offset=66, past=70, **tiled)
    yield drafted("tiled-causal",
        "The diagonal begins within the second tile of keys, and hides tiles from the first queries.",
        "GRAD-3", is_causal=True, q_offset=83, **tiled)
    yield drafted("tiled-causal-lengths", "Causality and lengths end in different tiles.", "GRAD-3",
        is_causal=True, q_offset=60, kv_lengths=np.array([77, 93]), **two)
    yield drafted("tiled-past", "A past longer than a tile, before the keys that have gradients.", "GRAD-13",
        is_causal=True, q_offset=70, past=70, **tiled)
