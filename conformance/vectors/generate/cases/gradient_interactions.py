"""Gradients of what an implementation treats apart: pairs of options, edges of blocks, numbers far from zero."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.cases.gradients import drafted
from conformance.vectors.generate.cases.interactions import SCALE, SOFTCAP, far_below
from conformance.vectors.generate.draft import Draft, gradient, project
from conformance.vectors.generate.random_inputs import Draws, exact, round_to_bits

# fmt: off

LONG = 70
"""Keys, so that blocks of 16, 32 and 64 have an edge."""


def drafts() -> Iterator[Draft]:
    """Blocks, biases, pairs of options, numbers, and the layer."""
    yield from _blocks()
    yield from _biases()
    yield from _pairs()
    yield from _far()
    yield from _digits()
    yield from _layer()


def _blocks() -> Iterator[Draft]:
    line: dict[str, Any] = {"batch": (), "heads": 1, "d_k": 1}
    for name, window, side in (("left", [1, 0], "before"), ("right", [None, 1], "after")):
        yield drafted(f"window-{name}-at-blocks",
            f"A window that ends one key {side} the query's own and a scale: edges of blocks lie within it.",
            "GRAD-1", "GRAD-3", q_len=LONG, kv_len=LONG, window=window, scale=0.75, **line)
    yield drafted("causal-scale-at-blocks",
        "The last query of a block of 64 is the only one that sees the first key of the next.",
        "GRAD-1", "GRAD-3", q_len=64, kv_len=65, is_causal=True, q_offset=1, scale=0.75, **line)
    yield drafted("causal-offsets-apart",
        "Offsets of 0 and 66: the second entry sees what lies far behind the first's reach.",
        "GRAD-1", "GRAD-3", q_len=4, kv_len=LONG, is_causal=True, q_offset=np.array([0, 66]), heads=1, d_k=1)


def _biases() -> Iterator[Draft]:
    draws = Draws("gradient/biases beside")
    yield drafted("bias-of-queries-by-entry",
        "A bias for queries and batch entries that all heads share, and sinks.", "GRAD-5",
        q_len=4, kv_len=5, d_k=2, attn_bias=draws.gauss(2, 1, 4, 1), sinks=exact([0.5, -1.0, 2.0]))
    yield drafted("bias-of-keys-two-batch-axes",
        "A bias for keys and the first of two batch axes, that all heads share.", "GRAD-5",
        batch=(2, 3), heads=2, q_len=2, kv_len=4, d_k=2, attn_bias=draws.gauss(2, 1, 1, 1, 4))
    # entries that are alike but for the sign of the cotangent: what is added up rises, and falls to nothing
    rises, alike = np.repeat([1.0, -1.0], 16)[:, None, None, None], Draws("gradient/bias-of-many-entries")
    query, key, value, grad_output = (
        round_to_bits(alike.gauss(1, 1, n, 2) + alike.gauss(32, 1, n, 2, sigma=0.25)) for n in (3, 4, 4, 3)
    )
    yield drafted("bias-of-many-entries",
        "A bias that 32 batch entries share: a sum of their gradients in 16 bits shows.", "GRAD-5", "GRAD-12",
        batch=(32,), heads=1, query=query[..., :1], key=key[..., :1], value=value[..., :1],
        grad_output=(rises * grad_output)[..., :1], attn_bias=draws.gauss(1, 1, 3, 4))


def _pairs() -> Iterator[Draft]:
    draws = Draws("gradient/pairs beside")
    yield drafted("grouped-lengths-scale", "Groups, lengths and a scale.", "GRAD-1", "GRAD-6",
        heads=4, kv_heads=2, d_k=2, kv_lengths=np.array([4, 6]), scale=0.75)
    yield drafted("window-lengths-bias", "A window and lengths that both hide keys, and a bias.",
        "GRAD-3", "GRAD-5", q_len=6, kv_len=12, d_k=2, heads=1, q_offset=5, window=[3, 0],
        kv_lengths=np.array([9, 11]), attn_bias=draws.gauss(1, 1, 12)[None])
    mask = draws.mask(2, 1, 1, 8)
    mask[..., 1] = True
    yield drafted("one-query-mask-causal-scale",
        "A single query that does not see the last keys, a mask and a scale.", "GRAD-1", "GRAD-3",
        heads=2, q_len=1, kv_len=8, d_k=2, is_causal=True, q_offset=3, mask=mask, scale=0.75)
    beside: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("negative-scale", "a negative scale and an offset for each batch entry",
         {"scale": -0.75, "is_causal": True, "q_offset": np.array([1, 4])}),
        ("two-batch-axes", "two batch axes", {"batch": (2, 2), "q_len": 2, "kv_len": 3}),
        ("one-query", "a single query without a batch axis", {"batch": (), "q_len": 1}),
    )
    for name, what, options in beside:
        yield drafted(f"softcap-sinks-{name}", f"A softcap and sinks beside {what}.", "GRAD-7", "GRAD-8",
            heads=2, d_k=2, sigma=1.5, softcap=2.0, sinks=exact([0.5, -1.0]), **options)


def _far() -> Iterator[Draft]:
    query, key = far_below("gradient/sinks-far-below", 3, 7, 4)
    yield drafted("sinks-far-below",
        "Logits and sinks of about -250: no exponential of one of them alone is a number.",
        "GRAD-8", "GRAD-15", batch=(), query=query, key=key, sinks=exact([-252.0, -256.0, -248.0]))
    yield drafted("softcap-far",
        "A softcap of 100 and products of hundreds: logits that are bounded still overflow an exponential.",
        "GRAD-7", "GRAD-15", batch=(), sigma=12.0, softcap=100.0)
    yield drafted("cotangent-of-1e-9",
        "A gradient of the output of about 1e-9: nothing is too small to count.", "GRAD-1", "NUM-1",
        batch=(), grad_output=Draws("gradient/cotangent-of-1e-9").gauss(3, 5, 4) * 2.0**-30,
        only=("float64", "float32", "bfloat16"))


def _digits() -> Iterator[Draft]:
    line: dict[str, Any] = {"batch": (), "heads": 1}
    # four keys have products of about 64, and a bias of about -96 puts them beside the others
    draws, near = Draws("gradient/scale-bias-of-full-width"), np.arange(9) < 4
    key = draws.gauss(1, 9, 4)
    key[:, near] = round_to_bits(4 + key[:, near] / 4)
    yield drafted("scale-bias-of-full-width",
        "A float32 bias and a scale, each of more digits than 16 bits hold, and large products.",
        "GRAD-1", "ATT-4", "DTYPE-3",
        query=round_to_bits(4 + draws.gauss(1, 5, 4) / 2), key=np.where(near[:, None], key, key / 16),
        value=draws.gauss(1, 9, 4), attn_bias=round_to_bits(draws.gauss(5, 9) - 96 * near, 20),
        dtype_of={"attn_bias": "float32"}, scale=SCALE, grad_output=draws.gauss(1, 5, 4), **line)
    # four keys are at the softcap, and a bias of -100 puts them beside the others
    draws = Draws("gradient/softcap-of-full-width")
    key = draws.gauss(1, 9, 4)
    key[:, near] = round_to_bits(64 + key[:, near])
    yield drafted("softcap-of-full-width", "A softcap of more digits than 16 bits hold, and logits at it.",
        "GRAD-7", "ATT-5", query=round_to_bits(8 + draws.gauss(1, 5, 4)),
        key=np.where(near[:, None], key, key / 16), value=draws.gauss(1, 9, 4), softcap=SOFTCAP,
        attn_bias=np.where(near, -100.0, 0.0)[None], grad_output=draws.gauss(1, 5, 4), **line)


def _layer() -> Iterator[Draft]:
    draws = Draws("gradient/layer-options-of-full-width")
    key, near = draws.gauss(2, 5, 6), np.arange(5) < 2
    key[:, near] *= 64
    yield gradient(project("gradient/layer-options-of-full-width",
            "A scale, and a softcap that logits are at, of more digits than 16 bits hold; the first entry sees no key.",
            "GRAD-10", "GRAD-11", "ATT-4", "ATT-5", heads=2, q_len=3, d_q=6, d_k=4, key=key,
            value=draws.gauss(2, 5, 6), scale=SCALE, softcap=SOFTCAP,
            attn_bias=np.where(near, -96.0, 0.0)[None], biases="o", kv_lengths=np.array([0, 4])))
    draws = Draws("gradient/layer-nan-behind-lengths-past")
    key, value = draws.gauss(1, 6, 5), draws.gauss(1, 6, 5)
    key[0, 4:], value[0, 5] = np.nan, np.inf
    value[0, 4] = np.nan
    yield gradient(project("gradient/layer-nan-behind-lengths-past",
            "Lengths count the past: the last two of the new tokens do not exist, and hold NaN and infinity.",
            "GRAD-9", "MASK-12", batch=(1,), heads=1, q_len=3, kv_len=9, past=3, d_q=5, d_k=2, key=key,
            value=value, biases="", kv_lengths=np.array([7]), needs=("strict_masking",)))
