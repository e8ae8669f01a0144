"""Inputs chosen for what they do to rounding: signature sets, large and small numbers, full mantissas."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Draws, round_to_bits

# fmt: off

HALF = ("float16", "bfloat16")


def drafts() -> Iterator[Draft]:
    """Signature sets, then the ends of the range."""
    yield from signature_sets()
    yield from _large()
    yield from _small()
    yield from _full_mantissa()


def signature_sets(prefix: str = "numerics/") -> Iterator[Draft]:
    """The sets of rule 3; another prefix draws other numbers of the same kind.

    Many rows of few elements: a row shares the errors of its denominator, and only other rows cancel them.
    """
    yield attend(f"{prefix}gauss", "Normal inputs: what a kernel sees in practice.",
        "NUM-1", "NUM-2", "NUM-3", "NUM-4", "NUM-7",
        batch=(1,), heads=2, q_len=48, kv_len=40, d_k=16, signatures={"gain": HALF})
    draws = Draws(f"{prefix}v-offset")
    yield attend(f"{prefix}v-offset", "Values with a mean of four: a gain in the weights shows.",
        "NUM-1", "NUM-2", "NUM-7", batch=(1,), heads=2, q_len=48, kv_len=40, d_k=8, signatures={"gain": HALF},
        value=round_to_bits(draws.gauss(1, 2, 40, 8) + 4.0))
    yield attend(f"{prefix}dk7",
        "d_k of 7 over 48 keys with large logits: the scale is not a power of two, and an error in it shows.",
        "NUM-1", "NUM-2", "NUM-7", "ATT-3", batch=(1,), heads=3, q_len=24, kv_len=48, d_k=7, sigma=2.0,
        signatures={"gain": ("float32",), "scale": HALF})


def _large() -> Iterator[Draft]:
    draws = Draws("numerics/large")
    for name, spread, note in (
        ("peaked", 16.0,
         "Logits of some hundreds: one key takes nearly all weight, and exp without a maximum overflows"),
        ("huge-logits", 90.0, "Logits of several thousand: beyond the range of exp in every dtype"),
    ):
        yield attend(f"numerics/{name}", f"{note}.", "ATT-2", "NUM-1", d_k=4, sigma=spread**0.5 * 2.0)
    negative = np.abs(draws.gauss(2, 3, 5, 4, sigma=30.0))
    yield attend("numerics/far-below-zero",
        "Every logit lies far below zero: exp without a maximum gives a row of zeros.", "ATT-2", "MASK-15",
        query=negative, key=-np.abs(draws.gauss(2, 3, 7, 4, sigma=30.0)) - 0.0, return_lse=True)
    rising = np.broadcast_to(round_to_bits(np.linspace(0.25, 24.0, 150))[:, None], (1, 2, 150, 4))
    yield attend("numerics/rising-logits",
        "Logits that rise over 150 keys: an online softmax must rescale in every block and in the tail.",
        "ATT-2", batch=(1,), heads=2, kv_len=150, key=rising * np.where(np.arange(4) == 1, 0.5, 1.0),
        query=np.abs(draws.gauss(1, 2, 5, 4)) + 0.0)
    yield attend("numerics/falling-logits",
        "Logits that fall over 150 keys: the first block holds the maximum.", "ATT-2",
        batch=(1,), heads=2, kv_len=150, key=rising[:, :, ::-1] * np.where(np.arange(4) == 1, 0.5, 1.0),
        query=np.abs(draws.gauss(1, 2, 5, 4)) + 0.0)
    yield attend("numerics/raw-product-overflow",
        "The raw product exceeds 65504 in float16 while the scaled logit is in range.", "NUM-5",
        batch=(1,), heads=2, d_k=64, query=round_to_bits(40.0 + draws.gauss(1, 2, 5, 64)),
        key=round_to_bits(40.0 + draws.gauss(1, 2, 7, 64)), scale=1 / 4096)
    yield attend("numerics/large-values", "Values of some thousands beside values of some thousandths.",
        "NUM-1", value=draws.gauss(2, 3, 7, 4) * np.array([4096.0, 1.0, 1 / 64, 256.0]))
    yield attend("numerics/beyond-float16",
        "Values beyond the range of float16, which bfloat16 has: a cast to float16 on the way gives infinity.",
        "NUM-1", "NUM-6", value=draws.gauss(2, 3, 7, 4) * 2.0**18)
    yield attend("numerics/wide-range", "Keys whose sizes span five orders of two.", "NUM-1", "ATT-2",
        key=draws.gauss(2, 3, 7, 4) * 2.0 ** np.arange(-3, 4)[:, None])


def _small() -> Iterator[Draft]:
    draws = Draws("numerics/small")
    yield attend("numerics/small-logits",
        "Nearly uniform weights: errors of the sum, not of the logits, prevail.", "NUM-1", "NUM-2",
        sigma=0.05, kv_len=33, d_k=8)
    yield attend("numerics/tiny-values", "Values near 2^-11: float16 outputs near its subnormal numbers.",
        "NUM-1", value=round_to_bits(draws.gauss(2, 3, 7, 4) / 2048))
    gaps = np.zeros((5, 7))
    gaps[:, 3:] = -round_to_bits(np.linspace(4.0, 80.0, 4))
    yield attend("numerics/subnormal-weights",
        "Weights from e^-4 to e^-80: float16 loses the small ones to its subnormal floor, float32 must not.",
        "NUM-1", attn_bias=gaps, sigma=0.5, return_weights=True)
    yield attend("numerics/small-weights-add-up",
        "One large weight and 300 of about e^-9 each: dropping the small ones shows.", "NUM-1", "ATT-2",
        batch=(1,), heads=2, kv_len=301, sigma=0.25,
        attn_bias=np.where(np.arange(301) == 150, 9.0, 0.0)[None, :] * np.ones((5, 1)),
        value=np.abs(draws.gauss(1, 2, 301, 4)) * 16.0)


def _full_mantissa() -> Iterator[Draft]:
    cases: dict[str, dict[str, Any]] = {"attention": {"kv_len": 33, "d_k": 16}, "small": {}}
    for name, sizes in cases.items():
        yield attend(f"numerics/full-mantissa-{name}",
            "Inputs of 24 significant bits: a silent cast to 16 bits, or TF32, shows.", "NUM-1", "NUM-4",
            bits=24, only=("float64", "float32"), **sizes)
    yield project("numerics/full-mantissa-layer",
        "A layer whose inputs and weights have 24 significant bits.", "NUM-1", "NUM-4", "PROJ-1",
        bits=24, only=("float64", "float32"), d_q=24, d_k=8)
