"""Numbers, names and counts as the page writes them."""

import math
from collections.abc import Iterable

from conformance.judging.verdict import FAILURES

SYMBOLS = {
    "pass": "\u2713",
    "fail": "\u2717",
    "error": "!",
    "crash": "\u26a0",
    "timeout": "\u23f1",
    "unsupported": "\u2013",
    "xfail": "\u2717",
    "xpass": "\u2713",
}
"""What stands next to the colour of a verdict; all of them are in the fonts that systems ship."""
OTHER = "?"
CODES = {
    "pass": "p", "fail": "f", "error": "e", "crash": "c", "timeout": "t", "unsupported": "u",
    "xfail": "x", "xpass": "y",
}  # fmt: skip
"""A letter for each verdict, which the script filters by; `.` where a run has no such row."""
OUTCOMES = (("x", "\u2717", "failed"), ("p", "\u2713", "passed"), ("u", "\u2013", "not supported"))
"""CSS class, symbol and word of what is counted; the script has the same."""
DIGITS = 3


def number(value: float | None, digits: int = DIGITS) -> str:
    """A number in few digits."""
    if value is None:
        return ""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "\u221e" if value > 0 else "\u2212\u221e"
    text = f"{value:.{digits}g}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text


def index(place: Iterable[int]) -> str:
    """An index as users write it."""
    return f"[{', '.join(map(str, place))}]"


AXES = ("batch", "head")
"""What the leading axes of a headed array are, the last ones."""


def place(where: tuple[int, ...]) -> str:
    """The place of a matrix along the leading axes, in words: `batch 0, head 1`."""
    names = [*["batch"] * (len(where) - len(AXES)), *AXES[-len(where) :]] if where else []
    return ", ".join(f"{name} {i}" for name, i in zip(names, where, strict=True))


def shape(sizes: tuple[int, ...]) -> str:
    """A shape as Python writes it."""
    return str(tuple(sizes))


def kind(verdict: str) -> str:
    """The CSS class of a verdict."""
    if verdict in FAILURES or verdict == "xfail":
        return "x"
    return "p" if verdict in ("pass", "xpass") else "u"
