"""A call in a few words: sizes, options, and how its numbers are made; everything else follows from it."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any
from zlib import crc32

from conformance.errors import UsageError
from conformance.names import (
    APPEND,
    DTYPES,
    MERGE,
    MHA,
    MHA_VJP,
    OPERATIONS,
    PAGED,
    POSITIONAL,
    SDPA_VJP,
    SERVING,
)

TOKEN = "x1"
"""What every token begins with: the form and its version."""
LONGEST = 200
EXPLICIT = 16
"""Entries whose lengths and offsets are written one by one; of more they follow from a rule."""

EVERY = "*"
"""In place of numbers: one for each batch entry, from the stream."""
Numbers = tuple[int, ...] | str


@dataclass(frozen=True)
class Recipe:
    """A call, but for the numbers in its arrays, which `arrays` makes of it."""

    operation: str
    dtype: str
    batch: tuple[int, ...] = (1,)
    heads: int = 1
    groups: int = 1
    q_len: int = 1
    kv_len: int = 1  # the past included
    d_k: int = 1
    d_v: int = 1
    past: int = 0
    widths: tuple[int, ...] = ()  # of a layer: d_q, d_kv, d_vv, d_out
    biases: str = ""  # of a layer: which of q, k, v, o have one
    causal: bool = False
    offset: int | Numbers | None = None  # a number, or one for each entry
    window: tuple[int | None, int | None] | None = None
    lengths: Numbers | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    mask: str = ""  # axes that it has, dash, kind: `bhqk-r`; of rank 2 `QK-r`
    bias: str = ""
    segments: str = ""  # whose numbers they are, dash, kind: `b-s` one row for each entry; `-u` for all
    weights: bool = False
    lse: bool = False  # returned; of gradients: its cotangent is given
    data: tuple[tuple[str, str], ...] = ()  # operand -> family, where it is not the usual one
    poison: str = ""  # NaN in what must not be read: `n` behind the lengths, `s` behind all that hides
    memory: tuple[tuple[str, str], ...] = ()  # operand -> how it lies in memory
    again: str = (
        ""  # asked after the same call (`same`), one with another operand or option, or calls of two shapes
    )
    stream: int = 0  # where its numbers come from
    queries: Numbers | None = None  # of each part of a packed call; its keys are `lengths`
    page: int = 0  # slots of a page
    written: int = 0  # keys of each entry that the call itself writes to its pages, the last ones
    layout: str = ""  # what is unusual in how parts, pages and slots lie, a letter each (exploring/laid.py)
    broken: tuple[tuple[str, str], ...] = ()  # operand -> what in it is NaN or infinite, and seen

    @property
    def served(self) -> bool:
        """Whether it is an operation of spec/serving.md, made of the arrays of a call of attention."""
        return self.operation in SERVING

    @property
    def columns(self) -> int:
        """Places in the table of an entry; pages of `append_to_pages`."""
        return -(-self.kv_len // max(self.page, 1)) + (self.operation == PAGED and "x" in self.layout)

    @property
    def slots(self) -> int:
        """Keys that a mask has columns for: `kv_len`, and of pages as many as a table holds."""
        return self.columns * self.page if self.operation in (PAGED, APPEND) else self.kv_len

    @property
    def layer(self) -> bool:
        """Whether projections stand around the attention."""
        return self.operation in (MHA, MHA_VJP)

    @property
    def gradients(self) -> bool:
        """Whether it asks for gradients."""
        return self.operation in (SDPA_VJP, MHA_VJP)

    @property
    def entries(self) -> int:
        """Batch entries."""
        return math.prod(self.batch)

    @property
    def work(self) -> int:
        """Products of two numbers that plain attention takes."""
        attention = self.entries * self.heads * self.q_len * self.kv_len * (self.d_k + self.d_v)
        if not self.layer:
            return attention * (3 if self.gradients else 1)
        d_q, d_kv, d_vv, d_out = self.widths
        into = self.q_len * self.heads * (d_q * self.d_k + self.d_v * d_out)
        into += self.kv_len * self.groups * (d_kv * self.d_k + d_vv * self.d_v)
        return (attention + self.entries * into) * (3 if self.gradients else 1)

    @property
    def elements(self) -> int:
        """Numbers in query, key and value."""
        if self.operation == MERGE:
            return self.entries * self.heads * self.q_len * self.kv_len * self.d_v
        if self.layer:
            d_q, d_kv, d_vv, _ = self.widths
            return self.entries * (self.q_len * d_q + self.kv_len * (d_kv + d_vv))
        rows = self.heads * self.q_len * self.d_k + self.groups * self.kv_len * (self.d_k + self.d_v)
        return self.entries * rows

    def family(self, operand: str) -> str:
        """How the numbers of an operand are made."""
        return dict(self.data).get(operand, "n0")

    def made_of(self, operand: str, family: str) -> "Recipe":
        """With another family for an operand."""
        return replace(self, data=tuple(sorted({**dict(self.data), operand: family}.items())))


NUMBERS = ("query", "key", "value", "key_pages", "value_pages", "latent")
"""Operands whose numbers may be others in the call before, and that may lie in memory in other ways."""


def numbers_of(recipe: Recipe) -> tuple[str, ...]:
    """Those that an operation has."""
    return tuple(name for name in POSITIONAL[recipe.operation] if name in NUMBERS)


# Tokens

_OPERATIONS = dict(zip(OPERATIONS, ("a", "l", "ag", "lg", "pk", "pg", "ap", "la", "me"), strict=True))
_DTYPES = dict(zip(DTYPES, ("64", "32", "16", "b16"), strict=True))
_LETTERS = {
    "operation": "o", "dtype": "t", "batch": "b", "heads": "h", "groups": "g", "q_len": "q", "kv_len": "k",
    "d_k": "d", "d_v": "v", "past": "p", "widths": "x", "biases": "j", "causal": "c", "offset": "f",
    "window": "w", "lengths": "n", "scale": "s", "softcap": "u", "sinks": "i", "mask": "m", "bias": "a",
    "segments": "e", "weights": "y", "lse": "l", "data": "D", "poison": "N", "memory": "M", "again": "A", "stream": "r",
    "queries": "Q", "page": "P", "written": "W", "layout": "L", "broken": "I",
}  # fmt: skip
_OPERANDS = {
    "query": "q", "key": "k", "value": "v", "grad_output": "g", "grad_lse": "l", "past_key": "y", "past_value": "z",
    "sinks": "s", "attn_bias": "a", "mask": "m", "weights": "w", "biases": "b",
    "key_pages": "K", "value_pages": "V", "latent": "L",
}  # fmt: skip
"""Operands that a recipe says something of; the weights of a layer are one, and so are its biases."""
_AGAIN = {
    **_OPERANDS, "same": "same", "shape": "shape", "kv_lengths": "n", "is_causal": "c", "window": "wi",
    "scale": "sc", "softcap": "u", "q_segments": "eq", "kv_segments": "ek",
}  # fmt: skip
"""What the call before a call differs in."""


def token(recipe: Recipe) -> str:
    """The recipe as a word that can be typed, pasted and read."""
    parts = [TOKEN]
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if value != field.default:
            parts.append(f"{_LETTERS[field.name]}{_written(field.name, value)}")
    text = "_".join(parts)
    return f"{text}_{_check(text)}"


def _check(text: str) -> str:
    return f"{crc32(text.encode()) & 0xFFFF:04x}"


def _written(name: str, value: Any) -> str:
    if name == "operation":
        return _OPERATIONS[value]
    if name == "dtype":
        return _DTYPES[value]
    if name in ("data", "memory", "broken"):
        return ",".join(f"{_OPERANDS[operand]}{what}" for operand, what in value)
    if name == "again":
        return _AGAIN[value]
    if value is True:
        return ""
    if name == "offset" and isinstance(value, tuple):
        return f"e{','.join(map(str, value))}"
    if isinstance(value, tuple):
        return ",".join("" if x is None else str(x) for x in value)
    return value if isinstance(value, str) else repr(value)


def read_token(text: str) -> Recipe:
    """The recipe of a token.

    Raises:
        UsageError: it is none, or was changed on its way.
    """
    wrong = UsageError(
        f"--replay wants a token as `explore` prints it, such as x1_oa_t32_..., got {text[:60]!r}: copy all of it"
    )
    body, _, check = text.strip().rpartition("_")
    if not body.startswith(f"{TOKEN}_") or len(text) > 2 * LONGEST or check != _check(body):
        raise wrong
    names = {letter: name for name, letter in _LETTERS.items()}
    try:
        found = {names[part[0]]: _read(names[part[0]], part[1:]) for part in body.split("_")[1:]}
        return Recipe(**found)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise wrong from error


def _turned(table: dict[str, str]) -> dict[str, str]:
    return {short: long for long, short in table.items()}


def _read(name: str, text: str) -> Any:
    reading: dict[str, Callable[[str], Any]] = {
        "operation": lambda t: _turned(_OPERATIONS)[t],
        "dtype": lambda t: _turned(_DTYPES)[t],
        "batch": _ints,
        "widths": _ints,
        "lengths": lambda t: t if t == EVERY else _ints(t),
        "queries": lambda t: t if t == EVERY else _ints(t),
        "offset": lambda t: t if t == EVERY else _ints(t[1:]) if t[:1] == "e" else int(t),
        "window": lambda t: tuple(int(x) if x else None for x in t.split(",")),
        "scale": float,
        "softcap": float,
        "again": lambda t: _turned(_AGAIN)[t],
    }
    if name in reading:
        return reading[name](text)
    if name in ("data", "memory", "broken"):
        return tuple((_turned(_OPERANDS)[part[0]], part[1:]) for part in text.split(","))
    if name in ("biases", "mask", "bias", "segments", "poison", "layout"):
        if not re.fullmatch(r"[A-Za-z0-9-]*", text):
            raise ValueError(text)
        return text
    if name in ("causal", "sinks", "weights", "lse"):
        if text:
            raise ValueError(text)
        return True
    return int(text)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(x) for x in text.split(",")) if text else ()
