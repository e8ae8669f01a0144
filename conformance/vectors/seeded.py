"""Operands that are not stored: numbers from a counter, by whole numbers alone (spec/vectors.md)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.dtypes import cast, same_numbers
from conformance.vectors.words import Words, mix, mixed

Array = np.typing.NDArray[Any]

KEPT = 64
"""Arrays that are kept, so that cases which share operands do not make them again."""
LARGEST = 1 << 24
"""Elements that one operand may have."""


@dataclass(frozen=True)
class Box:
    """A part of an array that holds one value: from `first` to `end`, without it, along every axis."""

    first: tuple[int, ...]
    end: tuple[int, ...]
    value: float | bool

    def __post_init__(self) -> None:
        """One NaN for all, so that equal boxes are equal."""
        if self.value != self.value:
            object.__setattr__(self, "value", math.nan)


@dataclass(frozen=True)
class Seed:
    """An array in a few numbers; boolean where `share` is given."""

    shape: tuple[int, ...]
    seed: int
    bits: int = 8  # significant bits of a number
    power: int = 1  # numbers lie from -2^power to 2^power
    share: int | None = None  # how many of 256 elements are true
    boxes: tuple[Box, ...] = ()  # laid over the rest, in this order

    def array(self) -> Array:
        """The array, read-only; floating ones in the narrowest of float16, float32, float64 that holds them."""
        return _made(self)

    @property
    def stream(self) -> tuple[int, ...]:
        """Shape, and where the numbers come from."""
        return (*self.shape, self.seed)


class Inputs(Mapping[str, Array]):
    """Operands by name, of which the seeded ones are made when they are asked for."""

    def __init__(self, stored: Mapping[str, Array], seeds: Mapping[str, Seed], order: tuple[str, ...]):
        self._stored, self._seeds, self._order = stored, seeds, order

    def __getitem__(self, name: str) -> Array:
        return self._seeds[name].array() if name in self._seeds else self._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._order


def narrowest(array: Array) -> Array:
    """The array in the narrowest of float16, float32, float64 that holds every value; others as they are."""
    if array.dtype.kind != "f":
        return array
    for dtype in ("float16", "float32"):
        narrow = cast(array, dtype)
        if same_numbers(narrow.astype(np.float64), array):
            return narrow
    return array


def words(seed: int, count: int) -> Words:
    """Word number i of a seed is `mix(mix(seed) + i)`."""
    with np.errstate(over="ignore"):
        return mixed(np.arange(count, dtype=np.uint64) + np.uint64(mix(seed)))


@lru_cache(KEPT)
def _made(seed: Seed) -> Array:
    drawn = words(seed.seed, math.prod(seed.shape))
    if seed.share is not None:
        array: Array = (drawn >> np.uint64(56) < np.uint64(seed.share)).reshape(seed.shape)
    else:
        whole = (drawn >> np.uint64(63 - seed.bits)).astype(np.int64) - 2**seed.bits
        array = np.ldexp(whole.astype(np.float64), seed.power - seed.bits).reshape(seed.shape)
    for box in seed.boxes:
        array[tuple(slice(*sides) for sides in zip(box.first, box.end, strict=True))] = box.value
    array = narrowest(array)
    array.flags.writeable = False
    return array


# As the index holds it

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def seed_of(entry: Mapping[str, Any]) -> Seed:
    """A seed as the index holds it; its form is that of the schema.

    Raises:
        ValueError: it is larger than any operand, or a box lies outside of the array.
    """
    shape = tuple(map(int, entry["shape"]))
    if math.prod(shape) > LARGEST:
        raise ValueError(f"a seeded operand of shape {shape} has more than {LARGEST} elements")
    boolean = "share" in entry
    boxes = tuple(_box(box, shape, boolean) for box in entry.get("boxes", ()))
    if boolean:
        return Seed(shape, int(entry["seed"]), share=int(entry["share"]), boxes=boxes)
    return Seed(shape, int(entry["seed"]), int(entry["bits"]), int(entry["power"]), boxes=boxes)


def _box(entry: Mapping[str, Any], shape: tuple[int, ...], boolean: bool) -> Box:
    first, end = (tuple(map(int, entry[side])) for side in ("first", "end"))
    inside = len(first) == len(end) == len(shape) and all(
        a <= b <= size for a, b, size in zip(first, end, shape, strict=True)
    )
    value = entry["value"]
    if not inside or boolean != isinstance(value, bool):
        raise ValueError(f"a box from {first} to {end} of {value} does not fit an operand of shape {shape}")
    return Box(first, end, value if boolean else _WORDS[value] if isinstance(value, str) else float(value))


def seed_json(seed: Seed) -> dict[str, Any]:
    """A seed as the index holds it."""
    numbers = {"bits": seed.bits, "power": seed.power} if seed.share is None else {"share": seed.share}
    boxes = [{"first": list(b.first), "end": list(b.end), "value": _value(b.value)} for b in seed.boxes]
    found = {"shape": list(seed.shape), "seed": seed.seed, **numbers}
    return {**found, "boxes": boxes} if boxes else found


def _value(value: float | bool) -> Any:
    if isinstance(value, bool) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
