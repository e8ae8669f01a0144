"""What later blocks hold: large logits beside hidden keys; NaN, infinity and zeros in a middle and the last block."""

import math
from collections.abc import Iterator
from typing import Any

from conformance.vectors.case import Array
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.seeding import Sizes, box, seed, seeded, shapes, spread, whole
from conformance.vectors.seeded import Seed

# fmt: off

SIZES = Sizes(groups=2, q_len=4, kv_len=128)
LAST, MIDDLE = 120, 70
"""A key of the last and of the middle block."""
CAUSAL: dict[str, Any] = {"is_causal": True, "q_offset": 60}


def drafts() -> Iterator[Draft]:
    """Logits, then what is not finite, then zeros and what is loud."""
    yield from _logits()
    yield from _not_finite()
    yield from _blocks()
    yield from _every_bit()


def far(sizes: Sizes, power: int, sign: int) -> dict[str, Seed]:
    """Queries and keys whose first column moves every logit to one side of zero: by 4^power / 4."""
    found = {}
    for name, value in (("query", 2.0**power), ("key", sign * 2.0**power)):
        shape = shapes(sizes, False)[name]
        found[name] = seed(name, shape, boxes=(box(shape, value, slice(0, 1)),))
    return found


def _hiding() -> dict[str, tuple[str, str, dict[str, Any], dict[str, Seed], dict[str, Array]]]:
    """Word, requirement, options, seeds and arrays of what hides."""
    full = SIZES.full
    lengths = whole(100, 37)
    return {
        "mask": ("a mask", "MASK-1", {}, {"mask": seed("mask", full, share=128)}, {}),
        "lengths": ("lengths", "MASK-12", {}, {}, {"kv_lengths": lengths}),
        "causal": ("causality", "MASK-6", CAUSAL, {}, {}),
        "window": ("a window", "MASK-10", {"window": [30, 2], "q_offset": 60}, {}, {}),
    }


def _logits() -> Iterator[Draft]:
    """Hidden logits replaced by a finite number win where the visible ones are lower."""
    for name, (word, covers, options, seeds, arrays) in _hiding().items():
        for power, sign, where in ((5, -1, "minus-256"), (10, -1, "minus-262144")):
            yield seeded(f"kernels/logits-of-{where}-{name}",
                f"All logits lie about {where.replace('minus-', '-')}, and {word} hides some of them.",
                covers, "ATT-14",
                sizes=SIZES, rows=(3,), only=("float64", "float32") if power > 5 else ("float32", "float16"),
                return_lse=True, seeds={**far(SIZES, power, sign), **seeds}, arrays=arrays, **options)
    for power, where in ((5, "256"), (10, "262144")):
        yield seeded(f"kernels/logits-of-{where}-bias",
            f"All logits lie about {where}, and a bias of -inf hides the last keys.", "ATT-8", "ATT-14",
            sizes=SIZES, rows=(3,), only=("float32", "float64"), return_lse=True,
            seeds={**far(SIZES, power, 1),
                   "attn_bias": seed("attn_bias", (1, 1, 4, 128),
                       boxes=(box((1, 1, 4, 128), -math.inf, slice(90, None)),))})
    sizes = Sizes((2,), 2, 1, 4, 64, 8, 8)
    for power, sign, where in ((5, -1, "minus-256"), (10, -1, "minus-262144")):
        yield seeded(f"kernels/gradient-logits-of-{where}-mask",
            f"All logits lie about {where.replace('minus-', '-')}, and a mask hides half of them.",
            "GRAD-3", "GRAD-15", sizes=sizes, backward=True, only=("float32",),
            sampled={"query": (1, 3), "key": (0, 63), "value": (0, 63)},
            seeds={**far(sizes, power, sign), "mask": seed("mask", sizes.full, share=128)})


def _not_finite() -> Iterator[Draft]:
    """In the middle and in the last block, hidden from some queries or from all."""
    square = Sizes((1,), 2, 1, 128, 128)
    for name, argument, at, value in (
        ("nan-in-a-late-value", "value", LAST, math.nan),
        ("infinity-in-a-middle-value", "value", MIDDLE, math.inf),
        ("nan-in-a-middle-key", "key", MIDDLE, math.nan),
        ("minus-infinity-in-a-late-value", "value", LAST, -math.inf),
    ):
        shape = shapes(square, False)[argument]
        yield seeded(f"kernels/{name}",
            f"{argument.capitalize()} {at} of 128 holds what is no number, which earlier queries do not see.",
            "MASK-6", "MASK-5" if argument == "value" else "MASK-4",
            "ATT-11" if argument == "value" else "ATT-10", sizes=square, rows=(5, at - 1, at, 127),
            only=("float32", "float16"), needs=("strict_masking",), is_causal=True,
            seeds={argument: seed(argument, shape,
                       boxes=(box(shape, value, slice(at, at + 1), slice(3, 4)),))})
    for name, at in (("middle", MIDDLE), ("late", LAST)):
        boxed = {
            x: seed(
                x, shapes(SIZES, False)[x], boxes=(box(shapes(SIZES, False)[x], math.nan, at, slice(None)),)
            )
            for x in ("key", "value")
        }
        yield seeded(f"kernels/nan-behind-mask-{name}",
            f"A mask hides key {at} of 128 from all queries, and it holds NaN.", "MASK-5", "MASK-4",
            sizes=SIZES, rows=spread(4, 2), only=("float32", "bfloat16"), needs=("strict_masking",),
            seeds={**boxed,
                   "mask": seed("mask", SIZES.full, boxes=(box(SIZES.full, False, slice(at, at + 1)),))})


def _blocks() -> Iterator[Draft]:
    """Blocks that differ from the others by much."""
    shape = shapes(SIZES, False)["key"]
    yield seeded("kernels/zero-block-of-keys", "The keys of the second of four blocks are zero.", "ATT-1",
        sizes=SIZES, rows=spread(4, 2), only=("float32", "bfloat16"),
        seeds={"key": seed("key", shape, boxes=(box(shape, 0.0, slice(32, 64), slice(None)),))})
    for name, at in (("first", 0), ("middle", MIDDLE), ("last", 127)):
        loud = Seed(shape, seed("key", shape).seed, boxes=(box(shape, 16.0, at, slice(0, 2)),))
        yield seeded(f"kernels/loud-key-{name}",
            f"Key {at} of 128 has by far the largest logits, or by far the lowest.", "ATT-2", "ATT-14",
            sizes=SIZES, rows=spread(4, 2), only=("float32", "float16"), return_lse=True, seeds={"key": loud})


def _every_bit() -> Iterator[Draft]:
    """Operands of as many bits as their dtype has, in wide and in long calls."""
    wide = Sizes((1,), 2, 1, 16, 128, 128, 128)
    long = Sizes((2,), 4, 2, 1, 1024)
    layer = Sizes((1,), 4, 4, 129, 129, 16, 16, width=64)
    for dtype, bits in (("float64", 53), ("float32", 24), ("float16", 11)):
        for name, sizes in (("width-128", wide), ("decode-1024", long), ("layer-129", layer)):
            every = {
                x: seed(x, shape, bits=bits)
                for x, shape in shapes(sizes, False).items()
                if bits > 11 or not sizes.width or x in ("query", "key", "value")
            }
            yield seeded(f"kernels/{name}-of-{bits}-bits",
                f"Operands of {bits} significant bits, all that {dtype} has.",
                "PROJ-1" if sizes.width else "ATT-1", "NUM-4" if bits == 53 else "NUM-1",
                sizes=sizes, rows=spread(sizes.q_len, 1), only=(dtype,), seeds=every)
