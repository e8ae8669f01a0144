"""Each option on the paths that implementations take apart: decoding, wide heads, long keys, other batch axes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off

_SIZES: dict[str, dict[str, Any]] = {"decode": {"heads": 4, "q_len": 1},
    "wide": {"batch": (1,), "heads": 2, "q_len": 3, "d_k": 64},
    "long": {"batch": (1,), "heads": 2, "q_len": 3, "kv_len": 131, "d_k": 5},
    "full-mantissa": {"heads": 2, "bits": 24, "only": ("float64", "float32")}, "no-batch": {"batch": ()},
    "two-batch-axes": {"batch": (2, 3), "heads": 2}}
_WHAT = {"decode": "one query, as in decoding", "wide": "heads of width 64",
    "long": "131 keys, more than two tiles and a tail", "full-mantissa": "inputs of 24 significant bits",
    "no-batch": "no batch axis", "two-batch-axes": "two batch axes"}


def drafts() -> Iterator[Draft]:
    """Every option on every path, alone, so that a path that drops it is seen."""
    for path, sizes in _SIZES.items():
        whole = {"batch": (2,), "heads": 3, "q_len": 5, "kv_len": 7, **sizes}
        for name, (sentence, covers, given) in _options(f"paths/{path}", whole).items():
            yield attend(f"paths/{path}-{name}", f"{sentence} on the path of {_WHAT[path]}.", *covers,
                **{**sizes, **given})
    yield from _numbers()


def _options(stream: str, sizes: dict[str, Any]) -> dict[str, tuple[str, tuple[str, ...], dict[str, Any]]]:
    """Sentence, requirements and what is given, for each option."""
    draws = Draws(stream)
    batch, heads, q_len, kv_len = (sizes[name] for name in ("batch", "heads", "q_len", "kv_len"))
    full = (*batch, heads, q_len, kv_len)
    mask = draws.mask(*full, share=0.7)
    mask[..., kv_len // 2] = True
    fewer = np.broadcast_to(kv_len - 2, batch).copy()
    sinks = draws.gauss(heads, sigma=1.5)
    return {
        "mask": ("A mask", ("MASK-1",), {"mask": mask}),
        "bias": ("A bias", ("ATT-7",), {"attn_bias": draws.gauss(*full, sigma=1.5)}),
        "causal": ("Causality", ("MASK-6", "MASK-8"), {"is_causal": True, "q_offset": kv_len - q_len - 1}),
        "window": ("A window", ("MASK-10", "MASK-8"), {"window": (3, 1), "q_offset": kv_len // 2}),
        "lengths": ("Lengths", ("MASK-12",), {"kv_lengths": fewer}),
        "scale": ("A given scale", ("ATT-4",), {"scale": 0.25}),
        "softcap": ("A softcap", ("ATT-5",), {"softcap": 1.0}),
        "sinks": ("Sinks", ("ATT-12",), {"sinks": sinks}),
        "weights": ("Weights and lse", ("ATT-13", "ATT-14", "IND-1"),
            {"return_weights": True, "return_lse": True}),
        "grouped": ("Grouped heads", ("HEAD-2",), {"heads": 6, "kv_heads": 2}),
        "past": ("A past", ("CACHE-1", "CACHE-2"), {"past": 3}),
        "offsets": ("An offset for each batch entry", ("MASK-8",),
            {"is_causal": True,
             "q_offset": (np.arange(int(np.prod(batch))) % 3 + kv_len - q_len - 2).reshape(batch)}),
    }


def _numbers() -> Iterator[Draft]:
    """Integers beyond the bytes and halves that somebody may keep them in, and pairs that move a limit."""
    draws = Draws("paths/numbers")
    yield attend("paths/lengths-beyond-256",
        "Lengths of 261 and 300: not kept in eight bits, nor in a bfloat16.", "MASK-12",
        heads=2, q_len=2, kv_len=300, kv_lengths=np.array([261, 300]))
    yield attend("paths/lengths-of-int32-max",
        "Lengths of 2^31 - 1 and 2^24 + 1 hide nothing: nothing is added to them, and they are not cut.",
        "MASK-12", kv_lengths=np.array([2**31 - 1, 2**24 + 1]))
    yield attend("paths/window-of-int32-max",
        "A left side of 2^31 - 1, as some write an open one, hides nothing behind.", "MASK-10",
        q_len=7, window=(2**31 - 1, 1))
    yield attend("paths/offset-beyond-int32", "An offset of 2^31 makes every key visible.", "MASK-8",
        is_causal=True, q_offset=2**31)
    yield attend("paths/causal-window-offset", "Causality and a window share one offset.",
        "MASK-9", "MASK-8", "MASK-10", is_causal=True, window=(2, 0), q_offset=2)
    yield attend("paths/window-left-offset", "A window open ahead, around an offset, without causality.",
        "MASK-10", "MASK-11", "MASK-8", window=(1, None), q_offset=2)
    yield attend("paths/offset-alone", "An offset without causality or a window hides nothing.", "MASK-8",
        q_offset=1)
    yield attend("paths/decode-grouped-past-causal", "Groups, a past and one new token.",
        "CACHE-1", "HEAD-2", "MASK-6", heads=6, kv_heads=2, q_len=1, past=5, kv_len=6, is_causal=True,
        q_offset=5, sinks=exact([0.5, -1.0, 2.0, 0.0, 1.5, -0.25]))
    yield attend("paths/past-lengths-causal", "A past, lengths that end within it, and causality.",
        "CACHE-3", "MASK-12", "MASK-9",
        past=4, kv_len=7, q_len=3, kv_lengths=np.array([3, 6]), is_causal=True, q_offset=4)
    yield attend("paths/negative-scale-softcap", "A negative scale before a softcap.", "ATT-4", "ATT-6",
        scale=-0.75, softcap=1.0)
    yield attend("paths/zero-scale-bias", "A scale of zero leaves the bias alone to decide.",
        "ATT-4", "ATT-7", scale=0.0, attn_bias=draws.gauss(2, 3, 5, 7))
    yield attend("paths/softcap-far-beyond",
        "Logits a hundred times the softcap: tanh by exponentials overflows.", "ATT-5",
        d_k=8, sigma=12.0, softcap=0.5)
    yield attend("paths/mask-one-column", "A mask of shape (q_len, 1) allows or empties whole rows.",
        "SHAPE-8", "MASK-3", mask=np.array([True, False, True, True, False])[:, None])
    yield attend("paths/bias-one-row", "A bias of shape (1, kv_len) serves every query.", "SHAPE-8", "ATT-7",
        attn_bias=draws.gauss(1, 7, sigma=2.0))
    yield attend("paths/grouped-mask-without-heads", "Grouped heads under a mask without an axis of heads.",
        "HEAD-2", "SHAPE-8",
        heads=6, kv_heads=2, mask=draws.mask(2, 1, 5, 7, share=0.8) | (np.arange(7) == 3))
    yield attend("paths/sink-is-lse-of-row-emptied-by-length",
        "The lse of a row emptied by its length is its sink.", "MASK-16", "MASK-12",
        like="paths/lse-of-row-emptied-by-length", kv_lengths=np.array([0, 4]), return_lse=True,
        sinks=exact([0.5, -1.0, 2.0]))
    yield attend("paths/no-keys-lse-is-sink",
        "kv_len is zero, with sinks: zeros, and an lse that is the sink.", "MASK-14", "MASK-16",
        like="paths/no-keys-sinks", kv_len=0, sinks=exact([0.5, -1.0, 2.0]), return_lse=True)
