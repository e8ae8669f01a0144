"""Cells of the coverage table that no other chapter fills: sizes beyond, dtypes beside, what is asked for at once."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off

_BOTH: dict[str, Any] = {"return_weights": True, "return_lse": True}


def drafts() -> Iterator[Draft]:
    """Sizes, dtypes, what is asked for at once, no keys, one array for all, and what hides NaN."""
    yield from _sizes()
    yield from _dtypes()
    yield from _asked()
    yield from _without_keys()
    yield from _shared()
    yield from _hidden()


def _sizes() -> Iterator[Draft]:
    yield attend("sizes/heads-wider-than-128",
        "d_k and d_v of 136: more than the widest head of many kernels.", "ATT-1",
        batch=(1,), heads=2, q_len=2, kv_len=3, d_k=136)
    yield attend("sizes/nine-heads", "Nine heads, none of them like another.", "HEAD-1",
        batch=(1,), heads=9, q_len=2, kv_len=3)
    yield attend("sizes/batch-8", "Eight batch entries, none of them like another.", "SHAPE-4", "IND-3",
        batch=(8,), heads=2, q_len=2, kv_len=3)
    yield attend("sizes/kv-len-2060",
        "2,060 keys, causal around the last of them: every place is read, and none is rounded.",
        "ATT-1", "MASK-6", batch=(1,), heads=1, q_len=2, kv_len=2060, is_causal=True, q_offset=2055,
        key=Draws("sizes/kv-len-2060/key").gauss(1, 1, 2060, 4) * np.where(np.arange(2060) > 2040, 4.0,
            1.0)[:, None])
    yield attend("cache/long-past", "A past of 20 and two new keys: more than one page of 16.",
        "CACHE-1", "CACHE-2", past=20, kv_len=22)


def _dtypes() -> Iterator[Draft]:
    draws = Draws("edges/dtypes")
    lengths = np.array([4, 6], np.int32)
    yield attend("mask/kv-lengths-int32", "Lengths in 32-bit integers.", "MASK-12", kv_lengths=lengths)
    yield attend("causal/offset-int32",
        "An offset for each batch entry in 32-bit integers, beyond what eight bits hold.", "MASK-8",
        batch=(2,), heads=1, q_len=2, kv_len=140, is_causal=True, q_offset=np.array([130, 60], np.int32))
    yield attend("causal/offset-of-two-batch-axes", "An offset for each entry of two batch axes.", "MASK-8",
        "SHAPE-4", batch=(2, 3), heads=2, is_causal=True, q_offset=np.array([[0, 2, 1], [3, 4, -1]]))
    yield attend("mask/one-of-two-batch-axes", "A mask that is shared along the first of two batch axes.",
        "SHAPE-8", "MASK-1", batch=(2, 3), heads=2, mask=draws.mask(1, 3, 1, 5, 7) | (np.arange(7) == 0))
    for dtype, note in (
        ("float16", "A bias in float16: narrower than wide operands, and read by its values"),
        ("float64", "A bias in float64 does not widen the result"),
    ):
        yield attend(f"attention/bias-{dtype}", f"{note}.", "DTYPE-3", "ATT-7",
            attn_bias=draws.gauss(5, 7, sigma=1.5), dtype_of={"attn_bias": dtype})
    yield attend("attention/bias-float32-full-mantissa",
        "A float32 bias of 24 significant bits, large, beside operands of any dtype.", "DTYPE-3", "ATT-7",
        attn_bias=draws.gauss(2, 3, 5, 7, sigma=4.0, bits=24), dtype_of={"attn_bias": "float32"})
    yield attend("attention/sinks-full-mantissa", "Sinks of 24 significant bits.", "ATT-12", "NUM-4",
        sinks=draws.gauss(3, bits=24), only=("float64", "float32"))
    yield attend("attention/softcap-full-mantissa",
        "A softcap of 0.3, which no binary format holds, is the float64 number.", "ATT-5", "ATT-6",
        sigma=2.0, softcap=0.3)


def _asked() -> Iterator[Draft]:
    with_options: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "window": ("a window", ("MASK-10",), {"window": (2, 1), "q_offset": 1}),
        "lengths": ("lengths", ("MASK-12",), {"kv_lengths": np.array([4, 6])}),
        "softcap": ("a softcap", ("ATT-5",), {"softcap": 1.0, "sigma": 2.0}),
        "scale": ("a given scale", ("ATT-4",), {"scale": 0.75, "d_k": 8}),
        "causal": ("causality", ("MASK-6", "MASK-8"), {"is_causal": True, "q_offset": 2}),
    }
    for name, (words, covers, given) in with_options.items():
        yield attend(f"pairs/asked-{name}", f"Weights and lse are asked for under {words}.",
            "ATT-13", "ATT-14", "IND-1", *covers, **given, **_BOTH)
    yield attend("pairs/asked-value-dim-past",
        "Weights and lse are asked for over a past with values wider than the keys.",
        "ATT-13", "ATT-14", "CACHE-3", "SHAPE-3", past=3, d_v=6, **_BOTH)
    yield project("pairs/asked-layer",
        "Weights and lse of a layer are asked for under a window, a softcap and a given scale.",
        "ATT-13", "ATT-14", "IND-1", window=(2, 1), q_offset=1, softcap=1.0, scale=0.75, **_BOTH)


def _without_keys() -> Iterator[Draft]:
    yield attend("cache/no-new-keys", "A past of seven and no new key, as when one cache serves two queries.",
        "CACHE-1", "CACHE-2", past=7, kv_len=7)
    yield attend("mask/no-keys-masked",
        "kv_len is zero under causality, with a mask of no columns; weights of no columns are asked for.",
        "MASK-14", "MASK-9", kv_len=0, mask=np.ones((5, 0), bool), is_causal=True, q_offset=0, **_BOTH)
    yield project("mask/layer-no-keys", "The layer without keys gives b_o, and zeros under it.",
        "MASK-14", "MASK-3", kv_len=0)


def _shared() -> Iterator[Draft]:
    same = Draws("edges/shared").gauss(2, 3, 6, 4)
    memory = dict.fromkeys(("key", "value"), "shared")
    note = "Query, key and value are one and the same array: a path for self-attention."
    yield attend("independence/one-array", note, "IND-2", "IND-5",
        query=same, key=same, value=same, q_len=6, kv_len=6, memory=memory)
    tokens = Draws("edges/shared-layer").gauss(2, 6, 9)
    yield project("independence/layer-one-array", note, "IND-2", "IND-5",
        query=tokens, key=tokens, value=tokens, memory=memory)


def _hidden() -> Iterator[Draft]:
    draws = Draws("edges/hidden")
    heads = {"heads": 4, "kv_heads": 2}
    lengths = np.array([5, 7])
    key, value = draws.gauss(2, 2, 7, 4), draws.gauss(2, 2, 7, 4)
    key[0, :, 5:], value[0, 0, 5:], value[0, 1, 5:] = np.nan, np.inf, -np.inf
    hidden: dict[str, Any] = {"key": key, "value": value, "kv_lengths": lengths, **heads}
    yield attend("nonfinite/unwritten-grouped", "Unwritten slots of a grouped cache hold NaN and Inf.",
        "MASK-12", "MASK-5", "HEAD-2", **hidden)
    yield attend("nonfinite/unwritten-causal-weights", "The same, causal, with weights and lse.",
        "MASK-12", "MASK-5", "MASK-9", is_causal=True, q_offset=2, **hidden, **_BOTH)
    tokens = draws.gauss(2, 7, 9)
    tokens[0, 5:, 3] = np.nan
    yield project("nonfinite/layer-unwritten",
        "Padding tokens of a layer hold NaN: their projections are never read.", "MASK-12", "MASK-5",
        key=tokens, value=tokens, kv_lengths=lengths)
    square = draws.gauss(2, 3, 7, 4)
    square[:, :, 6] = np.nan
    yield attend("nonfinite/window-value", "NaN values beside a window reach only the queries that see them.",
        "MASK-5", "MASK-10", "ATT-11", q_len=7, value=square, window=(2, 1), needs=("strict_masking",))
    bias = draws.gauss(5, 7)
    bias[:, 5:] = -np.inf
    poisoned = draws.gauss(2, 3, 7, 4)
    poisoned[:, :, 5:] = np.nan
    yield attend("nonfinite/bias-sinks-softcap",
        "Values behind a bias of -inf hold NaN, with sinks and a softcap.", "MASK-5", "ATT-8", "ATT-12",
        value=poisoned, attn_bias=bias, sinks=exact([0.5, -1.0, 2.0]), softcap=2.0, needs=("strict_masking",))
