"""Causality, its offset, and windows."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws

# fmt: off


def drafts() -> Iterator[Draft]:
    """Causal rows, then windows."""
    yield from _causal()
    yield from _windows()


def _causal() -> Iterator[Draft]:
    yield attend("causal/square", "Equal lengths: key j is visible to query i where j is at most i.",
        "MASK-6", q_len=7, is_causal=True)
    yield attend("causal/offset-zero", "Fewer queries than keys, offset 0: aligned at the top left.",
        "MASK-6", "MASK-8", is_causal=True, q_offset=0)
    yield attend("causal/offset-bottom-right",
        "Fewer queries than keys, offset kv_len - q_len: aligned at the bottom right, the last query sees all.",
        "MASK-6", "MASK-8", is_causal=True, q_offset=2)
    yield attend("causal/more-queries-than-keys",
        "More queries than keys, offset 0: the last queries see every key.", "MASK-6", "MASK-8",
        q_len=7, kv_len=5, is_causal=True, q_offset=0)
    yield attend("causal/offset-negative", "A negative offset leaves the first queries without a key.",
        "MASK-8", "MASK-3", q_len=7, kv_len=5, is_causal=True, q_offset=-2)
    yield attend("causal/offset-beyond", "An offset beyond the last key makes every key visible.", "MASK-8",
        is_causal=True, q_offset=11)
    yield attend("causal/offset-per-batch",
        "An offset of its own for each batch entry, one of them negative.", "MASK-8", "MASK-3",
        is_causal=True, q_offset=np.array([3, -1]))
    yield attend("causal/offset-square", "Equal lengths and an offset that is not zero.", "MASK-8",
        q_len=7, is_causal=True, q_offset=2)
    yield attend("causal/single-query", "One query at the end of the keys, as in decoding.",
        "MASK-6", "MASK-8", q_len=1, is_causal=True, q_offset=6)
    yield attend("causal/single-query-in-the-middle",
        "One query that stands before the last keys: they are hidden from it.", "MASK-6", "MASK-8",
        q_len=1, is_causal=True, q_offset=3)
    yield attend("causal/false", "is_causal given as False masks nothing.", "MASK-6", is_causal=False)
    draws = Draws("causal/mask")
    mask = draws.mask(2, 3, 7, 7, share=0.5)
    yield attend("causal/mask", "Causality and a mask intersect: a key needs both.", "MASK-9",
        q_len=7, is_causal=True, mask=mask)
    padding = np.arange(7) < np.array([4, 6])[:, None]
    yield attend("causal/padding", "Causality and padding at the end intersect.", "MASK-9",
        q_len=7, is_causal=True, mask=padding[:, None, None, :])
    left = np.arange(7) >= np.array([3, 1])[:, None]
    yield attend("causal/left-padding", "Causality and padding at the front leave the first queries empty.",
        "MASK-9", "MASK-3", q_len=7, is_causal=True, mask=left[:, None, None, :])
    yield attend("causal/bias", "Causality and a bias: the bias does not open what causality hides.",
        "MASK-9", "ATT-7", q_len=7, is_causal=True, attn_bias=draws.gauss(2, 3, 7, 7, sigma=2.0))
    yield attend("causal/weights",
        "Asking for weights keeps the future hidden: weights above the diagonal are zero.",
        "MASK-6", "IND-1", "ATT-13", q_len=7, is_causal=True, return_weights=True)
    yield attend("causal/long", "Two hundred and sixty keys, rows on both sides of every tile edge.",
        "MASK-6", batch=(1,), heads=2, q_len=260, kv_len=260, d_k=8, is_causal=True,
        rows=(0, 1, 15, 16, 31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257, 259))


def _windows() -> Iterator[Draft]:
    for name, window, covers, note in (
        ("both", (2, 1), ("MASK-10",), "Two keys back and one ahead, both inclusive, around i."),
        ("left", (1, None), ("MASK-10", "MASK-11"), "One key back, open ahead."),
        ("right", (None, 1), ("MASK-10", "MASK-11"), "Open behind, one key ahead."),
        ("zero", (0, 0), ("MASK-10",), "A window of zero on both sides: each query sees its own key."),
        ("open", (None, None), ("MASK-11",), "Open on both sides: nothing is hidden."),
        ("wide", (40, 40), ("MASK-10",), "A window wider than the sequence hides nothing."),
    ):
        yield attend(f"causal/window-{name}", note, *covers, q_len=7, window=window)
    yield attend("causal/window-causal", "A window that looks ahead intersects with causality.",
        "MASK-10", "MASK-9", q_len=7, window=(2, 3), is_causal=True)
    yield attend("causal/window-offset", "The window is centred on i + q_offset.", "MASK-10", "MASK-8",
        window=(2, 0), q_offset=2)
    yield attend("causal/window-offset-per-batch",
        "The centre is that of each batch entry, and a centre outside the keys empties rows.",
        "MASK-10", "MASK-8", "MASK-3", window=(1, 1), q_offset=np.array([4, -3]))
    yield attend("causal/window-mask", "A window and a mask intersect.", "MASK-10", "MASK-9",
        q_len=7, window=(3, 1), mask=Draws("causal/window-mask").mask(2, 3, 7, 7, share=0.7))
    yield attend("causal/window-lengths", "A window and lengths intersect.", "MASK-10", "MASK-12", "MASK-9",
        q_len=7, window=(3, 2), kv_lengths=np.array([5, 7]))
    yield attend("causal/window-long",
        "A window of 32 over 150 keys: rows whose first visible key lies in a later block.", "MASK-10",
        batch=(1,), heads=2, q_len=150, kv_len=150, d_k=8, window=(32, 0),
        rows=(0, 31, 32, 33, 64, 97, 128, 149))
