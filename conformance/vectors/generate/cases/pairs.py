"""Options together that act on the same numbers: each pair meets in a case of few features."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off

_SINKS = exact([0.5, -1.0, 2.0])


def drafts() -> Iterator[Draft]:
    """Causality, lengths, the past and windows with everything that shapes the logits."""
    draws = Draws("pairs")
    yield attend("pairs/causal-softcap-scale-sinks",
        "Causality with an offset hides keys after scale and softcap, and leaves the sink alone.", "MASK-6",
        "ATT-6", "ATT-4", "ATT-12", is_causal=True, q_offset=1, softcap=1.5, scale=0.75, sinks=_SINKS)
    yield attend("pairs/causal-value-dim-mask-bias",
        "Causality with an offset, a mask and a bias, over values wider than the keys.",
        "MASK-9", "SHAPE-3", "MASK-2", d_v=6, is_causal=True, q_offset=2,
        mask=draws.mask(2, 3, 5, 7, share=0.8), attn_bias=draws.gauss(2, 3, 5, 7))
    yield attend("pairs/lengths-grouped-sinks-scale", "Lengths, groups, sinks and a given scale.",
        "MASK-12", "HEAD-2", "ATT-12", "ATT-4", heads=6, kv_heads=2, kv_lengths=np.array([4, 6]),
        sinks=exact([0.5, -1.0, 2.0, 0.0, 1.5, -0.25]), scale=0.75)
    yield attend("pairs/lengths-softcap-bias-value-dim",
        "Lengths, a softcap and a bias, over values wider than the keys.", "MASK-12", "ATT-6", "SHAPE-3",
        d_v=6, kv_lengths=np.array([4, 6]), softcap=1.5, sigma=2.0, attn_bias=draws.gauss(2, 3, 5, 7))
    yield attend("pairs/past-softcap-scale-sinks", "A past under a given scale, a softcap and sinks.",
        "CACHE-1", "ATT-6", "ATT-12", past=3, softcap=1.5, scale=0.75, sinks=_SINKS)
    yield attend("pairs/window-sinks-scale-value-dim",
        "A window, sinks and a given scale, over values wider than the keys.",
        "MASK-10", "ATT-12", "ATT-4", "SHAPE-3", d_v=6, q_len=7, window=(2, 1), sinks=_SINKS, scale=0.75)
    yield attend("pairs/window-bias", "A window and a bias: the bias does not open what the window hides.",
        "MASK-9", "ATT-7", q_len=7, window=(2, 1), attn_bias=draws.gauss(2, 3, 7, 7, sigma=2.0))
    yield attend("pairs/scale-grouped-value-dim", "A given scale, groups, and values wider than the keys.",
        "ATT-4", "HEAD-2", "SHAPE-3", heads=6, kv_heads=3, d_v=6, scale=0.75)
    yield attend("pairs/softcap-sinks-value-dim", "A softcap and sinks, over values wider than the keys.",
        "ATT-5", "ATT-12", "SHAPE-3", d_v=6, softcap=1.5, sigma=2.0, sinks=_SINKS)
