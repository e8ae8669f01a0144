"""A past in front of the keys, and what is returned of it."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Draws

# fmt: off


def drafts() -> Iterator[Draft]:
    """Attention first, then the layer."""
    yield attend("cache/past", "The past stands in front of the keys and values; present is past, then new.",
        "CACHE-1", "CACHE-2", past=4)
    yield attend("cache/decode",
        "One new token after four, two sequences: kv_len counts the past in the causal rule.",
        "CACHE-1", "CACHE-3", "MASK-8", q_len=1, kv_len=5, past=4, is_causal=True, q_offset=4)
    yield attend("cache/chunk", "Three new tokens after four: causal within the chunk.",
        "CACHE-1", "CACHE-3", "MASK-6", q_len=3, kv_len=7, past=4, is_causal=True, q_offset=4)
    draws = Draws("cache/mask")
    yield attend("cache/mask-bias", "A mask and a bias over past and new keys together.", "CACHE-3", "MASK-2",
        past=3, mask=draws.mask(2, 3, 5, 7, share=0.8), attn_bias=draws.gauss(2, 3, 5, 7))
    yield attend("cache/window", "A window counts the past.", "CACHE-3", "MASK-10",
        past=3, window=(2, 0), q_offset=2)
    yield attend("cache/causal-without-offset",
        "As many queries as past and new keys: without an offset the first query is at the first key of the past.",
        "CACHE-3", "MASK-6", q_len=5, kv_len=5, past=2, is_causal=True)
    yield attend("cache/window-without-offset", "The same of a window that reaches one key ahead.",
        "CACHE-3", "MASK-10", q_len=5, kv_len=5, past=2, window=(2, 1))
    yield attend("cache/lengths",
        "Lengths count the past and hide the last new slots; present holds them all the same.",
        "CACHE-3", "CACHE-4", past=3, kv_lengths=np.array([5, 7]))
    yield attend("cache/weights", "The weights cover past and new keys.", "CACHE-3", "ATT-13",
        past=3, return_weights=True)
    yield attend("cache/grouped", "The past has the heads of the keys.", "CACHE-1", "HEAD-2",
        heads=6, kv_heads=2, past=3)
    yield attend("cache/value-dim", "Past values have the width of the values.", "CACHE-1", "SHAPE-3",
        d_v=6, past=3)
    empty_key, empty_value = np.zeros((2, 3, 0, 4)), np.zeros((2, 3, 0, 4))
    yield attend("cache/empty-past",
        "A past of length zero, as before the first token: present is the new keys.", "CACHE-1", "CACHE-2",
        past_key=empty_key, past_value=empty_value)
    yield project("cache/layer",
        "The layer's past is projected heads: it is not projected again, and present holds the new heads with b_k.",
        "CACHE-1", "CACHE-2", "PROJ-7", past=3)
    yield project("cache/layer-decode", "One new token of the layer after six.", "CACHE-1", "CACHE-3",
        q_len=1, past=6, is_causal=True, q_offset=6)
    yield project("cache/layer-causal",
        "Four new tokens of the layer after three: q_offset counts the past, once.", "CACHE-3", "MASK-8",
        heads=4, kv_heads=2, q_len=4, past=3, is_causal=True, q_offset=3)
    yield project("cache/layer-offsets",
        "Each batch entry goes on from an offset of its own, and has a length of its own.",
        "CACHE-3", "MASK-8", "MASK-12",
        q_len=3, past=4, is_causal=True, q_offset=np.array([2, 4]), kv_lengths=np.array([5, 7]))
    yield project("cache/layer-bias-k", "b_k is added to new keys alone: with a past it is visible.",
        "PROJ-2", "CACHE-1", biases="k", past=3)
