"""Numbers without state on any array library: a hash of 32 bits in whole numbers that wrap around.

JAX has no whole numbers of 64 bits unless told, torch no unsigned ones that can be multiplied; int32 is on all.
"""

from typing import Any

from conformance.vectors.words import mix

FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32
"""The multipliers of Wellons' `lowbias32`, which permutes the numbers of 32 bits."""
STEP = 0x3C6EF372


def shifted(words: Any, bits: int) -> Any:
    """Bits moved down, zeros moved in: a signed number would move in its sign."""
    return (words >> bits) & ((1 << (32 - bits)) - 1) if bits else words


def mixed(words: Any) -> Any:
    """Each number of 32 bits as another one, well mixed; any int32 array."""
    words = words ^ shifted(words, 16)
    words = words * FIRST
    words = words ^ shifted(words, 15)
    words = words * SECOND
    return words ^ shifted(words, 16)


def salt(word: int, number: int = 0) -> int:
    """A constant of a stream, as a signed number of 32 bits."""
    return signed(mix(word ^ mix(number)) & 0xFFFFFFFF)


def signed(word: int) -> int:
    """The signed number of the same 32 bits."""
    return word - 2**32 if word >= 2**31 else word
