"""New random cases: every pair of options meets, sizes and ranges are drawn, and the signature sets are drawn anew."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.names import OPERANDS
from conformance.vectors.generate.cases.numerics import signature_sets
from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws, round_to_bits

OPTIONS = (
    "mask",
    "attn_bias",
    "causal",
    "window",
    "lengths",
    "scale",
    "softcap",
    "sinks",
    "past",
    "grouped",
    "value_dim",
    "returned",
)
"""What is combined; each pair once in every round of cases."""

BITS = (8, 8, 8, 11, 24)
"""Significant bits of the inputs: 11 have no row in bfloat16, 24 none in 16 bits."""
KV_LENGTHS = (1, 2, 3, 5, 9, 17, 40, 64, 130)
WIDTHS = (1, 2, 3, 4, 7, 8, 16, 33, 64)
SPREADS = (0.25, 1.0, 1.0, 2.0, 4.0)
COTANGENTS = (2.0**-12, 0.25, 1.0, 8.0)
"""Spreads of a gradient's cotangent; with the first, gradients underflow in float16."""
SIGNATURES = 3


def drafts(seed: int, count: int) -> Iterator[Draft]:
    """The signature sets of a seed, then random cases: every third asks for gradients, every fourth is a layer."""
    yield from signature_sets(f"fresh/{seed}-")
    rng = random.Random(f"soundness/{seed}")
    pairs: list[tuple[str, ...]] = []
    for number in range(count - SIGNATURES):
        if not pairs:
            pairs = [(), *itertools.combinations(OPTIONS, 2)]
            rng.shuffle(pairs)
        yield draft(f"fresh/{seed}-{number}", rng, pairs.pop(), number % 4 == 3, number % 3 == 2)


def draft(
    name: str,
    rng: random.Random,
    options: tuple[str, ...],
    layer: bool,
    backward: bool,
    bits: tuple[int, ...] = BITS,
    kv_lengths: tuple[int, ...] = KV_LENGTHS,
) -> Draft:
    """A random case with these options, of the layer or not, of gradients or not."""
    significant = rng.choice(bits)
    drawn = _forward(name, rng, options, layer, significant, rng.choice(kv_lengths))
    if backward:
        kept = {key: value for key, value in drawn.options.items() if not key.startswith("return_")}
        of_lse = (
            random.Random(f"{name}/lse").random() < 0.4
        )  # apart, so that the other draws stay what they were
        sigma = rng.choice(COTANGENTS)
        drawn = gradient(replace(drawn, options=kept), sigma=sigma, bits=significant, lse=of_lse)
    drawn = _in_order(drawn, rng) if rng.random() < 0.25 else drawn
    return _one_exact(drawn, rng) if rng.random() < 0.5 else drawn


def _in_order(drawn: Draft, rng: random.Random) -> Draft:
    """One operand that rises with the token, so that sums over tokens do before they fall; or a cotangent of ones."""
    name = rng.choice([name for name in ("query", "key", "value", "grad_output") if name in drawn.inputs])
    ones = name == "grad_output" and rng.random() < 0.5
    numbers = drawn.inputs[name]
    return replace(
        drawn,
        inputs={**drawn.inputs, name: np.ones_like(numbers) if ones else np.sort(numbers, axis=-2)},
    )


def _one_exact(drawn: Draft, rng: random.Random) -> Draft:
    """One operand with few bits: exact where a policy rounds the others."""
    name = rng.choice([name for name in (*OPERANDS, "grad_output") if name in drawn.inputs])
    return replace(drawn, inputs={**drawn.inputs, name: round_to_bits(drawn.inputs[name])})


def _forward(
    name: str, rng: random.Random, options: tuple[str, ...], layer: bool, bits: int, kv_len: int
) -> Draft:
    draws = Draws(name)
    heads, q_len = rng.choice((1, 2, 4, 6)), rng.choice((1, 2, 5, 9))
    batch = rng.choice(((), (1,), (2,), (3,), (1, 2)))
    d_k = rng.choice(WIDTHS)
    given: dict[str, Any] = {"d_k": min(d_k, 16) if layer else d_k, "bits": bits}
    full = (*batch, heads, q_len, kv_len)
    if "mask" in options:
        given["mask"] = draws.mask(*full, share=rng.choice((0.3, 0.7, 0.9)))
    if "attn_bias" in options:
        narrow = [axis if rng.random() < 0.7 else 1 for axis in full]
        given["attn_bias"] = draws.gauss(*narrow, sigma=rng.choice((1.0, 4.0, 20.0)), bits=bits)
    if "causal" in options:
        given |= {"is_causal": True, "q_offset": rng.choice((0, 1, max(kv_len - q_len, 0)))}
    if "window" in options:
        given["window"] = (rng.choice((None, 0, 3, 20)), rng.choice((None, 0, 2)))
        given.setdefault("q_offset", rng.choice((0, kv_len // 2)))
    if "lengths" in options:
        lengths = [rng.randint(0, kv_len) for _ in range(math.prod(batch))]
        given["kv_lengths"] = np.array(lengths, np.int64).reshape(batch)
    if "scale" in options:
        given["scale"] = rng.choice((0.3, -0.7, 1.0, 0.05, 2.0**-16))
    if "softcap" in options:
        given["softcap"] = rng.choice((0.5, 2.0, 30.0))
    if "sinks" in options:
        given["sinks"] = draws.gauss(heads, sigma=3.0, bits=bits)
    if "past" in options and kv_len > 1:
        given["past"] = rng.randint(1, kv_len - 1)
    if "grouped" in options:
        given["kv_heads"] = rng.choice([n for n in (1, 2, 3) if heads % n == 0])
    if "value_dim" in options:
        given["d_v"] = rng.choice((1, 5, 24))
    if "returned" in options:
        given |= {"return_weights": True, "return_lse": True}
    sizes: dict[str, Any] = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
    note = "A random case."
    if layer:
        biases = rng.choice(("", "qkvo", "o", "k"))
        return project(name, note, "NUM-1", d_q=rng.choice((3, 9, 32)), biases=biases, **sizes, **given)
    if rng.random() < 0.2:
        groups, new = given.get("kv_heads", heads), kv_len - given.get("past", 0)
        shape = (*batch, groups, new, given.get("d_v", given["d_k"]))
        given["value"] = round_to_bits(draws.gauss(*shape) + rng.choice((4.0, -30.0)))
    spread = rng.choice(SPREADS)
    return attend(name, note, "NUM-1", sigma=min(spread, 2.0) if d_k > 32 else spread, **sizes, **given)
