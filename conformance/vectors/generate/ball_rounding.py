"""From a ball to floating-point numbers: only what every point of the ball rounds to is accepted."""

import math
from typing import Any

import flint

FORMATS = {"float64": (53, -1074), "float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}
"""Significant bits and the exponent of the smallest positive number."""

_VANISHED = -1200  # a magnitude below 2^-1200 rounds to zero in every format


class UndecidedError(Exception):
    """Two points of the ball round to different numbers: more precision is needed."""


class NeverDecidedError(ValueError):
    """The exact value lies where two numbers of a dtype meet, which no ball can tell: draw other inputs."""


def round_dyadic(mantissa: int, exponent: int, bits: int, smallest: int) -> float:
    """Mantissa * 2^exponent to the nearest number of a format, ties to even; exact in float64."""
    magnitude = abs(mantissa)
    if magnitude == 0:
        return 0.0
    quantum = max(exponent + magnitude.bit_length() - bits, smallest)
    shift = quantum - exponent
    if shift <= 0:
        rounded = magnitude << -shift
    else:
        rounded, rest = magnitude >> shift, magnitude & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        if rest > half or (rest == half and rounded & 1):
            rounded += 1
    return math.ldexp(rounded if mantissa > 0 else -rounded, quantum)


def split(ball: Any) -> tuple[float, float]:
    """The pair hi + lo: the ball's float64 rounding and the float64 rounding of what is left.

    Raises:
        UndecidedError: the ball is too wide for hi, for lo, or for its rounding in one of the four dtypes.
    """
    if ball == 0:
        return 0.0, 0.0
    if bool(abs(ball) < flint.arb((1, _VANISHED))):
        return 0.0, 0.0
    lower, upper, exponent = _ends(ball)
    for bits, smallest in FORMATS.values():
        if round_dyadic(lower, exponent, bits, smallest) != round_dyadic(upper, exponent, bits, smallest):
            raise UndecidedError
    hi = round_dyadic(lower, exponent, *FORMATS["float64"])
    hi_mantissa, hi_exponent = _dyadic(hi)
    shared = min(exponent, hi_exponent)
    hi_mantissa <<= hi_exponent - shared
    rests = [(end << (exponent - shared)) - hi_mantissa for end in (lower, upper)]
    lows = {round_dyadic(rest, shared, *FORMATS["float64"]) for rest in rests}
    if len(lows) > 1:
        raise UndecidedError
    return hi, lows.pop() + 0.0


def _ends(ball: Any) -> tuple[int, int, int]:
    """Both ends of the ball as integers over one power of two."""
    if not ball.is_finite():
        raise UndecidedError
    mid, mid_exponent = (int(x) for x in ball.mid().man_exp())
    if ball.is_exact():
        return mid, mid, mid_exponent
    rad, rad_exponent = (int(x) for x in ball.rad().man_exp())
    exponent = min(mid_exponent, rad_exponent) if mid else rad_exponent
    if max(mid_exponent, rad_exponent) - exponent > 1 << 16:
        raise UndecidedError
    mid <<= max(mid_exponent - exponent, 0)
    rad <<= rad_exponent - exponent
    return mid - rad, mid + rad, exponent


def _dyadic(value: float) -> tuple[int, int]:
    numerator, denominator = value.as_integer_ratio()
    return numerator, 1 - denominator.bit_length()
