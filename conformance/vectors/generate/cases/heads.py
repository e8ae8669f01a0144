"""Many heads, and heads that share keys."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off


def drafts() -> Iterator[Draft]:
    """Head counts, then groups."""
    for heads in (1, 2, 6):
        yield attend(f"heads/{heads}", f"{heads} head(s), each with its own query, key and value.", "HEAD-1",
            heads=heads, d_k=8)
    draws = Draws("heads/one-head-masked")
    mask = np.ones((2, 3, 5, 7), dtype=bool)
    mask[:, 2] = False
    yield attend("heads/one-head-empty",
        "The last head may attend nothing, the others everything: a mask of the first head for all shows.",
        "HEAD-1", "MASK-3", mask=mask)
    for name, kv_heads, note in (
        ("two-of-six", 2, "Six query heads over two key heads: groups of three, in order."),
        ("three-of-six", 3, "Six query heads over three key heads: groups of two, in order."),
        ("one-of-six", 1, "Six query heads over one key head."),
    ):
        yield attend(f"heads/grouped-{name}", note + " Tiling instead of repeating gives other values.",
            "HEAD-2", heads=6, kv_heads=kv_heads, d_k=8)
    yield attend("heads/grouped-mask-bias", "Groups with a mask and a bias that differ for each query head.",
        "HEAD-2", "MASK-2", heads=6, kv_heads=2, mask=draws.mask(2, 6, 5, 7, share=0.8),
        attn_bias=draws.gauss(2, 6, 5, 7, sigma=2.0))
    yield attend("heads/grouped-causal", "Groups under causality with an offset.", "HEAD-2", "MASK-6",
        heads=6, kv_heads=3, is_causal=True, q_offset=2)
    yield attend("heads/grouped-value-dim", "Groups with d_v greater than d_k.", "HEAD-2", "SHAPE-3",
        heads=6, kv_heads=2, d_k=4, d_v=9)
    yield attend("heads/grouped-sinks-weights",
        "Groups: sinks, weights and lse are those of the query heads.", "HEAD-2", "ATT-12", "ATT-13", heads=6,
        kv_heads=2, sinks=exact([0.5, -1.0, 2.0, 0.0, 1.5, -0.25]), return_weights=True, return_lse=True)
    draws = Draws("heads/grouped-per-head")
    mask = draws.mask(2, 6, 5, 7, share=0.6)
    mask[..., 3] = True
    yield attend("heads/grouped-mask-per-head",
        "Three groups of two: the mask has a plane for each query head.", "HEAD-2", "MASK-1",
        heads=6, kv_heads=3, mask=mask)
    yield attend("heads/grouped-bias-per-head",
        "Three groups of two: the bias has a plane for each query head.", "HEAD-2", "ATT-7",
        heads=6, kv_heads=3, attn_bias=draws.gauss(1, 6, 5, 7, sigma=1.5))
    yield attend("heads/grouped-window-softcap", "Groups with a window and a softcap.",
        "HEAD-2", "MASK-10", "ATT-5", heads=4, kv_heads=2, q_len=7, window=(2, 1), softcap=1.5, sigma=2.0)
