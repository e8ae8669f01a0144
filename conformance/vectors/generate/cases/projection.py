"""The layer: projections, biases, widths, and every attention option on the projected heads."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, project
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off


def drafts() -> Iterator[Draft]:
    """Projections first, then options."""
    yield from _projections()
    yield from _options()


def _projections() -> Iterator[Draft]:
    yield project("projection/plain",
        "Projections without biases: x @ w for each head, concatenated heads times W^O.", "PROJ-1", "PROJ-3",
        biases="")
    for letter in "qkvo":
        extra: dict[str, Any] = {"sinks": exact([0.5, -1.0, 2.0])} if letter == "k" else {}
        yield project(f"projection/bias-{letter}",
            f"b_{letter} alone is given." + (
                            " A sink makes it visible: without one a key bias moves all logits of a row alike."
                        if extra else ""), "PROJ-2", biases=letter, **extra)
    yield project("projection/bias-k-softcap",
        "b_k under a softcap moves the logits of a row by different amounts.", "PROJ-2", "PROJ-7",
        biases="k", softcap=1.0)
    yield project("projection/all-biases", "Every bias is given.", "PROJ-1", "PROJ-2", "PROJ-3")
    yield project("projection/square",
        "Width, heads times d_k and output width are equal, as are the lengths: transposed weights fit, and show.",
        "PROJ-1", "PROJ-3", heads=3, d_q=12, q_len=7, d_k=4)
    yield project("projection/cross-widths", "Query, key, value and output have four different widths.",
        "PROJ-5", d_q=9, d_kv=6, d_vv=11, d_out=8)
    yield project("projection/value-dim", "d_v differs from d_k in the layer.", "PROJ-5", "SHAPE-3", d_v=6)
    yield project("projection/grouped", "Key and value weights for two heads, query weights for six.",
        "PROJ-1", "HEAD-2", heads=6, kv_heads=2, d_q=10)
    yield project("projection/grouped-three", "Key and value weights for three heads, query weights for six.",
        "PROJ-1", "HEAD-2", heads=6, kv_heads=3, d_q=10, biases="")
    yield project("projection/no-batch", "A layer without a batch axis.", "SHAPE-4", "SHAPE-2",
        batch=(), q_len=11)
    yield project("projection/no-batch-entries",
        "A layer with a batch of zero: the result is empty and has its shape.", "SHAPE-9",
        batch=(0,), d_out=9)
    yield project("projection/no-queries", "A layer without queries: the result is empty and has its shape.",
        "SHAPE-9", q_len=0, d_out=9)
    yield project("projection/two-batch-axes", "A layer with two batch axes.", "SHAPE-4", batch=(2, 2))
    yield project("projection/one-head", "One head is a head like any other.", "PROJ-1", "HEAD-1",
        heads=1, d_k=8)
    draws = Draws("projection/distinct-heads")
    w_q = draws.gauss(3, 9, 4, sigma=1 / 3)
    yield project("projection/distinct-heads",
        "The second head's query weights are the first head's negated: heads that share a projection show.",
        "PROJ-1", "HEAD-1", w_q=np.stack([w_q[0], -w_q[0], w_q[2]]))


def _options() -> Iterator[Draft]:
    draws = Draws("projection/options")
    mask = draws.mask(2, 3, 5, 7)
    mask[..., 2] = True
    mask[0, :, 1, :] = False
    mask[1, 2, 3, :] = False
    yield project("projection/empty-row",
        "An empty row still gets b_o: b_v must not reach it, nor may it be zero.", "PROJ-4", "MASK-3",
        mask=mask)
    yield project("projection/empty-row-no-bias", "Without b_o an empty row of every head is zero.",
        "PROJ-4", "MASK-3", mask=mask, biases="qkv")
    yield project("projection/mask", "A mask acts on the heads.", "PROJ-7", "MASK-1",
        mask=draws.mask(5, 7) | (np.arange(7) == 1))
    yield project("projection/bias-per-head",
        "attn_bias acts on the logits of each head, and has nothing to do with b_q.", "PROJ-7", "ATT-7",
        attn_bias=draws.gauss(2, 3, 5, 7))
    yield project("projection/causal", "Self-attention that looks only back.", "PROJ-7", "MASK-6",
        q_len=7, is_causal=True)
    yield project("projection/causal-offset", "Causality with an offset for each batch entry.",
        "PROJ-7", "MASK-8", is_causal=True, q_offset=np.array([2, 0]))
    yield project("projection/window", "A window on the heads.", "PROJ-7", "MASK-10", q_len=7, window=(2, 0))
    yield project("projection/kv-lengths",
        "Lengths hide the end of the keys; b_k and b_v do not bring it back.", "PROJ-7", "MASK-12",
        kv_lengths=np.array([3, 6]))
    yield project("projection/scale", "A given scale replaces 1/sqrt(d_k).", "PROJ-7", "ATT-4", scale=0.75)
    yield project("projection/softcap", "A softcap on the logits of the heads.", "PROJ-7", "ATT-5",
        softcap=0.5)
    yield project("projection/sinks", "Sinks take part of each head's weight.", "PROJ-7", "ATT-12",
        sinks=exact([1.0, 0.0, -1.0]))
    yield project("projection/weights", "The layer's weights are those of each head.", "PROJ-7", "ATT-13",
        return_weights=True)
    yield project("projection/lse", "The layer's lse is that of each head.", "PROJ-7", "ATT-14",
        return_lse=True)
    yield project("projection/everything",
        "Groups, widths, biases, mask, bias, causality, window, lengths, softcap, sinks, a past, weights and lse.",
        "PROJ-7", "MASK-9", "ATT-6", "CACHE-1", heads=6, kv_heads=2, d_q=10, d_kv=8, d_vv=11, d_k=4, d_v=5,
        d_out=7, past=3, kv_len=8, mask=draws.mask(2, 6, 5, 8, share=0.8), attn_bias=draws.gauss(2, 6, 5, 8),
        is_causal=True, q_offset=3, window=(5, 1), kv_lengths=np.array([7, 8]), softcap=2.0, scale=0.75,
        sinks=exact([0.5, -1.0, 2.0, 0.0, 1.5, -0.25]), return_weights=True, return_lse=True)
