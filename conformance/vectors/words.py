"""Words of 64 bits without state: the finaliser of SplitMix64, which every machine computes alike."""

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(word: int) -> int:
    """A word of 64 bits, well mixed."""
    word = (word + STEP) & MASK
    word = ((word ^ (word >> 30)) * FIRST) & MASK
    word = ((word ^ (word >> 27)) * SECOND) & MASK
    return word ^ (word >> 31)


def mixed(words: Words) -> Words:
    """The same as `mix` of many words at once."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(STEP)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND)
    return words ^ (words >> np.uint64(31))
