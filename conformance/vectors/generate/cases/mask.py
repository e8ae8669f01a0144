"""Boolean masks, lengths and rows that may attend nothing."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off


def drafts() -> Iterator[Draft]:
    """Masks first, then lengths, then empty rows."""
    yield from _masks()
    yield from _lengths()
    yield from _empty()


def _masks() -> Iterator[Draft]:
    draws = Draws("mask/full")
    full = draws.mask(2, 3, 5, 7)
    full[..., 0] = True
    yield attend("mask/full-rank",
        "A mask of its own for every batch entry, head and query; True may attend.", "MASK-1", mask=full)
    square = draws.mask(5, 7)
    square[:, 3] = True
    yield attend("mask/rank-2", "A mask of rank 2 is shared by batch and heads.", "MASK-1", "SHAPE-7",
        mask=square)
    for name, shape in (
        ("batch", (1, 3, 5, 7)),
        ("heads", (2, 1, 5, 7)),
        ("queries", (2, 3, 1, 7)),
        ("batch-and-queries", (1, 3, 1, 7)),
        ("heads-and-queries", (2, 1, 1, 7)),
    ):
        mask = draws.mask(*shape)
        mask[..., 2] = True
        yield attend(f"mask/broadcast-{name}", f"A mask of shape {shape} broadcasts over its axes of one.",
            "MASK-1", "SHAPE-8", mask=mask)
    column = draws.mask(2, 3, 5, 1)
    column[0, 0, 0, 0], column[1, 2, 4, 0] = False, True
    yield attend("mask/broadcast-keys", "A mask whose last axis is one allows or empties whole rows.",
        "SHAPE-8", "MASK-3", mask=column)
    row = draws.mask(1, 7)
    row[0, 1] = True
    yield attend("mask/rank-2-one-row", "A mask of shape (1, kv_len) serves every query.",
        "MASK-1", "SHAPE-8", mask=row)
    yield attend("mask/all-true", "A mask that allows everything changes nothing.", "MASK-1",
        mask=np.ones((5, 7), dtype=bool))
    padding = np.arange(7) < np.array([4, 6])[:, None]
    yield attend("mask/key-padding",
        "Padding hides keys, not queries, and q_len equals kv_len: a mask on the wrong axis shows.",
        "MASK-1", "SHAPE-8", q_len=7, mask=padding[:, None, None, :])
    yield attend("mask/more-queries-than-keys",
        "More queries than keys under a mask: it is read for every query.", "MASK-1",
        q_len=7, kv_len=5, mask=(np.arange(7)[:, None] + np.arange(5)) % 3 != 1)
    yield attend("mask/diagonal-hidden", "Every query but its own key: not symmetric under a shift by one.",
        "MASK-1", q_len=7, mask=~np.eye(7, dtype=bool))
    first_block = np.zeros((5, 140), dtype=bool)
    first_block[:, 129:] = draws.mask(5, 11)
    first_block[:, 139] = True
    yield attend("mask/first-blocks-hidden",
        "The first 129 keys are masked: an online softmax starts on blocks without a single visible key.",
        "MASK-1", "ATT-2", kv_len=140, mask=first_block)
    yield attend("mask/mask-and-bias", "A mask and a bias together: both act.", "MASK-2",
        mask=full, attn_bias=draws.gauss(2, 3, 5, 7, sigma=2.0))
    yield attend("mask/mask-rank-2-bias-full",
        "A mask and a bias of different rank, and a -inf where the mask allows.", "MASK-2", "ATT-8",
        mask=square, attn_bias=np.where(np.arange(7) == 5, -np.inf, draws.gauss(2, 3, 5, 7)))
    masked_bias = draws.gauss(2, 3, 5, 7)
    masked_bias[:, :, 0, :] = 30.0
    yield attend("mask/huge-bias-behind-mask",
        "A large bias at a masked key must not become the maximum that is subtracted.", "MASK-2", "ATT-2",
        mask=full, attn_bias=np.where(full, masked_bias, 28672.0), scale=0.5)


def _lengths() -> Iterator[Draft]:
    lengths = np.array([4, 7])
    yield attend("mask/kv-lengths", "Only the first 4 slots of the first batch entry exist.", "MASK-12",
        kv_lengths=lengths)
    draws = Draws("mask/kv-lengths-poisoned")
    key, value = draws.gauss(2, 3, 7, 4), draws.gauss(2, 3, 7, 4)
    key[0, :, 4:], value[0, :, 4:] = np.nan, np.inf
    key[1, :, 6:], value[1, :, 6:] = -np.inf, np.nan
    yield attend("mask/kv-lengths-poisoned",
        "Slots beyond the length hold NaN and Inf, as memory that was never written may: they are never read.",
        "MASK-12", kv_lengths=np.array([4, 6]), key=key, value=value)
    yield attend("mask/kv-lengths-mask", "Lengths and a mask intersect.", "MASK-12", "MASK-9",
        kv_lengths=np.array([5, 3]), mask=draws.mask(5, 7, share=0.8))
    padding = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 0, 1]], dtype=bool)
    yield attend("mask/kv-lengths-padding-mask",
        "Lengths and a mask that heads and queries share intersect: neither stands for the other.",
        "MASK-12", "MASK-9", "SHAPE-8", kv_lengths=np.array([5, 3]), mask=padding[:, None, None, :])
    yield attend("mask/kv-lengths-causal",
        "Lengths and causality intersect, with the offset of each batch entry.",
        "MASK-12", "MASK-9", "MASK-8", is_causal=True, kv_lengths=np.array([6, 7]), q_offset=np.array([1, 2]))
    yield attend("mask/kv-lengths-out-of-range",
        "A length beyond the keys hides nothing, one below zero everything: neither wraps around.",
        "MASK-12", "MASK-3", kv_lengths=np.array([9, -2]))
    yield attend("mask/kv-lengths-two-batch-axes", "One length for each entry of two batch axes.",
        "MASK-12", "SHAPE-4", batch=(2, 3), heads=2, kv_lengths=np.array([[1, 7, 3], [5, 2, 6]]))


def _empty() -> Iterator[Draft]:
    draws = Draws("mask/empty")
    mask = draws.mask(2, 3, 5, 7)
    mask[..., 1] = True
    mask[0, 1, 2, :] = False  # one head of one query
    mask[1, :, 4, :] = False  # every head of one query
    yield attend("mask/empty-row-is-zero",
        "A query that may attend nothing yields zeros, alone among rows that attend.", "MASK-3", mask=mask)
    yield attend("mask/empty-row-weights-lse", "An empty row has weights of zero and an lse of -inf.",
        "MASK-3", "MASK-16", mask=mask, return_weights=True, return_lse=True)
    yield attend("mask/empty-row-lse-is-sink",
        "A sink does not fill an empty row: output and weights are zero, and the lse is the sink.",
        "MASK-3", "MASK-16", "ATT-12", like="mask/empty-row-sinks", mask=mask, sinks=exact([1.0, -2.0, 0.5]),
        return_weights=True, return_lse=True)
    bias = draws.gauss(2, 3, 5, 7)
    bias[0, 2, 1, :] = -np.inf
    yield attend("mask/empty-row-by-bias", "A row whose bias is -inf everywhere is empty.", "MASK-3", "ATT-8",
        attn_bias=bias)
    half = np.zeros((5, 7), dtype=bool)
    half[:, :3] = True
    other = np.zeros((5, 7))
    other[2, :3] = -np.inf
    yield attend("mask/empty-row-by-both", "Mask and bias leave a row empty together, neither alone.",
        "MASK-3", "MASK-2", mask=half, attn_bias=other)
    yield attend("mask/empty-row-by-length", "A length of zero empties every row of its batch entry.",
        "MASK-3", "MASK-12", kv_lengths=np.array([0, 5]))
    yield attend("mask/empty-row-softcap",
        "With a softcap an empty row is still empty: masked logits are not lifted to -c.", "MASK-3", "ATT-6",
        mask=mask, softcap=2.0)
    yield attend("mask/empty-everywhere", "No query may attend anything: all zeros.", "MASK-3",
        mask=np.zeros((5, 7), dtype=bool))
    hidden = np.ones((5, 7), dtype=bool)
    hidden[3] = False
    yield attend("mask/empty-row-large-logits",
        "Emptiness is decided on the mask: logits far below zero in other rows are not empty.",
        "MASK-15", "MASK-3", query=-np.abs(draws.gauss(2, 3, 5, 4, sigma=8.0)),
        key=np.abs(draws.gauss(2, 3, 7, 4, sigma=8.0)), mask=hidden, scale=1.0)
    yield attend("mask/no-keys", "kv_len is zero: every row is empty.", "MASK-14", kv_len=0, return_lse=True)
    yield attend("mask/no-keys-weights", "kv_len is zero: the weights have an axis of zero.", "MASK-14",
        kv_len=0, return_weights=True)
    yield attend("mask/no-queries", "q_len is zero: the result is empty and has its shape.", "SHAPE-9",
        q_len=0)
    yield attend("mask/no-batch-entries", "A batch of zero: the result is empty and has its shape.",
        "SHAPE-9", batch=(0,))
