"""The families of numbers that operands are made of, each exact in its dtype and in every one unless it says so.

A family is a letter and perhaps a power of two. Those in capitals are closed forms that a line of NumPy writes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from conformance.exploring.counter import grid, key
from conformance.vectors.generate.random_inputs import round_to_bits
from conformance.vectors.words import Words, mix, mixed

Array = npt.NDArray[np.float64]

BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
FEW = 8
LOUD = 16.0
TURN = 251
"""A ramp goes up to here and begins anew: no power of two, so that no two tiles are alike."""
GROUP = 4
"""Neighbouring tokens that are equal among ties."""

ZEROS, ONES, RAMP, SCRAMBLED = "Z", "O", "R", "S"
"""Families of closed form."""


def numbers(family: str, shape: Sequence[int], dtype: str, name: str, stream: int) -> Array:
    """The numbers of an operand: float64, of the shape given, exact in `dtype`."""
    kind, power = family[0], int(family[1:] or 0)
    shape = tuple(shape)
    count = math.prod(shape)
    if kind == ZEROS:
        return np.zeros(shape)
    if kind == ONES:
        return np.full(shape, 2.0**power)
    if kind == RAMP:
        return (np.arange(count, dtype=np.float64) % TURN).reshape(shape)
    if kind == SCRAMBLED:
        return ((np.arange(count) * 40503 % 65521 % 255 - 127) / 64.0).reshape(shape)
    words = grid(key(name, stream), shape)
    if kind == "i":
        return (words % np.uint64(7)).astype(np.float64) - 3.0
    if kind == "f":
        return normal(words, BITS[dtype]) * 2.0**power
    plain = normal(words) * 2.0**power
    if kind == "n" or not count:
        return plain
    return _shaped(kind, plain, words, mix(key(name, stream)))


def _shaped(kind: str, plain: Array, words: Words, word: int) -> Array:
    """Normal numbers, with something done to some of them."""
    size = plain.shape[-2] if plain.ndim > 1 else plain.shape[-1]
    tokens = np.arange(size).reshape(-1, 1) if plain.ndim > 1 else np.arange(size)
    if kind == "l":  # one token is loud, not in the same place everywhere
        return np.where(tokens == word % size, LOUD * plain, plain)
    if (
        kind == "c"
    ):  # they cancel but for what the normal numbers add; in no order that a sum's lanes might have
        signs = np.where(mixed(words[..., :1]) & np.uint64(1), -1.0, 1.0)
        return round_to_bits(signs * 8.0 + plain)
    if kind == "t":
        return np.take(plain, (tokens // GROUP * GROUP).ravel(), axis=-2 if plain.ndim > 1 else -1)
    raise ValueError(f"unknown family {kind!r}")


def normal(words: Words, bits: int = FEW) -> Array:
    """About normal: the sum of four uniform 16-bit numbers, to so many bits; the rest comes from another word."""
    parts: Any = sum((words >> np.uint64(16 * n)) & np.uint64(0xFFFF) for n in range(4))
    total = parts.astype(np.float64) - 2 * 65535.0
    if bits > FEW:
        total = total + (mixed(words) >> np.uint64(12)).astype(np.float64) * 2.0**-52
    return round_to_bits(total / 32768.0, bits)


def poles(array: Array, power: int) -> Array:
    """The same with a first column that is one large number: all logits lie far on one side of zero."""
    array = np.array(array)
    array[..., 0] = math.copysign(2.0 ** abs(power), power)
    return array
