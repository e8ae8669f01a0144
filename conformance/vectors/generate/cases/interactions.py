"""Options beside each other, at edges of blocks and far from zero: what an implementation treats apart."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Array, Draws, exact, round_to_bits

# fmt: off

LONG = 130
"""Keys, so that blocks of 32, 64 and 128 have an edge, and one beside it."""
SCALE, SOFTCAP = 1.503408, 100.21875
"""As far from what bfloat16 and float16 hold as half of their last digit, or nearly."""


def drafts() -> Iterator[Draft]:
    """Blocks, pairs of options, numbers far from zero, sizes and sums."""
    yield from _blocks()
    yield from _pairs()
    yield from _far()
    yield from _scaled()
    yield from _sizes()


def far_below(name: str, *shape: int) -> tuple[Array, Array]:
    """Queries and keys of a width of 4 whose logits lie about 250 below zero; shape of the keys, queries aligned."""
    draws = Draws(name)
    query = round_to_bits(8 + draws.gauss(*shape[:-2], 5, 4, sigma=0.5))
    return query, round_to_bits(-16 + draws.gauss(*shape, sigma=0.5))


def _blocks() -> Iterator[Draft]:
    draws = Draws("blocks")
    mask = draws.mask(2, 8, LONG)
    mask[0, :, :64], mask[1, :, 64:128] = False, False
    yield attend("mask/by-head-long",
        "One head sees nothing of the first 64 keys, the other nothing of the next 64.", "MASK-1", "HEAD-1",
        batch=(), heads=2, q_len=8, kv_len=LONG, mask=mask)
    padding = draws.mask(2, 1, 1, 16)
    padding[..., 3] = True
    yield attend("mask/row-for-many-queries", "A padding mask of one row, for 70 queries.", "SHAPE-8",
        "MASK-1", heads=1, q_len=70, kv_len=16, d_k=2, mask=padding, rows=(0, 15, 16, 31, 32, 63, 64, 69))
    yield attend("attention/bias-column-long",
        "A bias of one column, for 130 keys: it shifts the lse and leaves the output.", "SHAPE-8", "ATT-8",
        batch=(1,), heads=2, q_len=8, kv_len=LONG, d_k=2, attn_bias=draws.gauss(1, 2, 8, 1, sigma=2.0),
        return_lse=True)
    for name, window, side in (("left", [1, 0], "before"), ("right", [None, 1], "after")):
        yield attend(f"causal/window-{name}-at-blocks",
            f"A window that ends one key {side} the query's own, over 130 keys: edges of blocks lie within it.",
            "MASK-10", batch=(), heads=1, q_len=LONG, kv_len=LONG, d_k=2, window=window,
            rows=(0, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129))
    yield attend("attention/softcap-sinks-long",
        "A softcap bounds the logits and not the sinks, over 130 keys.", "ATT-12", "ATT-6",
        batch=(1,), heads=2, q_len=4, kv_len=LONG, d_k=2, softcap=4.0, sinks=exact([6.0, 5.0]))


def _pairs() -> Iterator[Draft]:
    draws = Draws("pairs beside")
    mask = draws.mask(2, 3, 1, 9)
    mask[..., 4] = True
    yield attend("paths/decode-mask-bias", "One query, a mask and a bias.", "MASK-2",
        q_len=1, kv_len=9, mask=mask, attn_bias=draws.gauss(2, 3, 1, 9, sigma=2.0))
    yield attend("causal/window-lengths-offsets",
        "A window, offsets and lengths of each batch entry, not causal.", "MASK-9", "MASK-12",
        kv_len=16, window=[8, 4], q_offset=np.array([4, 9]), kv_lengths=np.array([6, 11]))
    yield attend("attention/bias-two-batch-axes", "Two batch axes; the entries of the second share a bias.",
        "SHAPE-8", "SHAPE-4",
        batch=(2, 3), heads=2, q_len=3, kv_len=4, attn_bias=draws.gauss(2, 1, 2, 3, 4, sigma=2.0))
    yield attend("causal/empty-rows-lse-is-sink", "A sink beside rows that see no key: it is their lse.",
        "MASK-16", "ATT-12", like="causal/empty-rows-sinks-lse", heads=2, is_causal=True, q_offset=-2,
        sinks=exact([0.5, -1.0]), return_lse=True)
    yield project("projection/softcap-value-width",
        "A softcap, and the default scale is that of d_k beside a wider d_v.", "PROJ-7", "ATT-3",
        d_k=4, d_v=9, softcap=5.0)


def _far() -> Iterator[Draft]:
    yield attend("attention/scale-negative-far",
        "A negative scale and products of hundreds: the largest logit is that of the smallest product.",
        "ATT-2", "ATT-4", sigma=6.0, scale=-1.0)
    yield attend("attention/softcap-far",
        "A softcap of 100 and products of hundreds: logits that are bounded still overflow an exponential.",
        "ATT-2", "ATT-5", sigma=12.0, softcap=100.0)
    yield attend("attention/softcap-wide",
        "A softcap far above the products: it changes next to nothing, and may not lose digits.",
        "ATT-5", "NUM-1", softcap=1000.0)
    query, key = far_below("lengths-far-below-zero", 2, 3, 9, 4)
    key[:, :, 6:] = 0
    yield attend("mask/lengths-far-below-zero",
        "Logits of -250 before unused slots of zeros, whose logits of zero are not the largest.",
        "MASK-12", "ATT-2", kv_len=9, query=query, key=key, kv_lengths=np.array([4, 6]))


def _scaled() -> Iterator[Draft]:
    """A scale of zero or below beside what is hidden: minus infinity times such a scale hides nothing."""
    yield attend("causal/scale-negative", "Causality and a negative scale: what is hidden stays so.",
        "ATT-4", "MASK-6", q_len=4, kv_len=6, is_causal=True, q_offset=2, scale=-0.75)
    yield attend("causal/scale-zero",
        "Causality and a scale of zero: each row is the mean of the values that it sees.", "ATT-4", "MASK-6",
        q_len=5, kv_len=5, is_causal=True, scale=0.0)
    yield attend("mask/scale-negative", "A mask and a negative scale: what is hidden stays so.",
        "ATT-4", "MASK-1", q_len=3, kv_len=7, mask=Draws("mask/scale-negative").mask(3, 7), scale=-1.25)
    yield attend("mask/scale-zero",
        "A mask and a scale of zero: each row is the mean of the values that it sees.", "ATT-4", "MASK-1",
        q_len=3, kv_len=7, mask=Draws("mask/scale-zero").mask(3, 7), scale=0.0)


def _sizes() -> Iterator[Draft]:
    yield attend("sizes/head-width-320", "d_k of 320.", "ATT-1",
        batch=(), heads=1, q_len=3, kv_len=5, d_k=320, d_v=4)
    yield attend("heads/groups-of-32", "Groups of 32 query heads.", "HEAD-2",
        batch=(), heads=64, kv_heads=2, q_len=2, kv_len=3, d_k=2)
    # twelve heads add to every output and twelve take away as much, and so do the columns of every value
    draws = Draws("projection/many-heads")
    signs, columns = np.repeat([1.0, -1.0], 12)[:, None, None], np.repeat([1.0, -1.0], 32)[:, None]
    yield project("projection/many-heads",
        "A width of 64 and 24 heads whose sums rise and fall again: sums in 16 bits show.", "NUM-3", "PROJ-1",
        batch=(), heads=24, q_len=8, d_q=64, d_k=2, d_out=12,
        value=round_to_bits(1 + draws.gauss(3, 64, sigma=0.25)), key=draws.gauss(3, 64),
        w_v=round_to_bits(columns * (1 + draws.gauss(24, 64, 2, sigma=0.125))),
        w_o=round_to_bits(signs * (0.5 + draws.gauss(24, 2, 12, sigma=0.125))),
        b_v=round_to_bits(2 + draws.gauss(24, 2, sigma=0.25)), biases="v")
    # the first half of the values adds to every output and the other takes away as much
    halves = np.repeat([8.0, -8.0], 512)[:, None]
    draws = Draws("sizes/values-that-cancel")
    yield attend("sizes/values-that-cancel",
        "A weighted sum that rises over 512 keys and falls over 512: a sum in 16 bits between blocks shows.",
        "NUM-3", batch=(), heads=1, q_len=8, kv_len=1024, d_k=1,
        value=round_to_bits(halves * (1 + draws.gauss(1, 1024, 2, sigma=0.125))), d_v=2)
    yield project("projection/options-of-full-width",
        "A scale and a softcap of more digits than 16 or 32 bits hold.", "ATT-4", "ATT-5", "PROJ-7",
        d_q=16, d_k=8, scale=SCALE, softcap=SOFTCAP)
