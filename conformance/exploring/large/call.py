"""A call of production size in a few words; what its arrays hold and what it is to give follow from it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from zlib import crc32

from conformance.dtypes import NUMPY_DTYPES
from conformance.errors import UsageError
from conformance.names import DTYPES, MHA, MHA_VJP, SDPA, SDPA_VJP

TOKEN = "L1"
"""What every token begins with: the form and its version."""
LONGEST = 200

FAMILIES = ("address", "counts", "sampled")
"""What the numbers are made for (spec/explore.md)."""
EVERY = "e"
"""In place of a number: one for each batch entry, by a rule."""
LOUD = 32
"""Keys of one word, each with a column of its own in the values."""


@dataclass(frozen=True)
class Large:
    """A call of production size; its one batch axis has `batch` entries."""

    family: str = "address"
    operation: str = SDPA
    dtype: str = "float32"
    batch: int = 1
    heads: int = 1
    groups: int = 1  # key heads
    q_len: int = 1
    kv_len: int = 1
    d_k: int = 64
    d_v: int = 64
    members: int = 1  # keys that have the same word: 1, 2 or 32
    strided: bool = False  # such keys lie far apart, else side by side
    levels: int = 1  # of counts: by how many steps the logits rise or fall along the keys
    causal: bool = False
    offset: int | str | None = None  # EVERY: the last query stands at the last key of its entry
    window: tuple[int | None, int | None] | None = None
    lengths: bool = False  # an entry's length follows from its number
    mask: str = ""  # k: one for each entry and key; q: of rank 2
    lse: bool = False
    biased: bool = False  # the mask is handed over as a bias of zero and -inf
    softcap: float | None = None
    sinks: bool = False  # one for each head, which follows from its number
    past: int = 0  # keys that are handed over as the past
    scale: float | None = None
    bias: bool = False  # of a layer: those of query, key and value
    few: bool = (
        False  # of sampled gradients: the cotangent is zero but for some rows, so that keys can be judged
    )
    at: int | None = None  # the key that every query asks for, in place of one by its place
    stream: int = 0

    @property
    def gradients(self) -> bool:
        """Whether it asks for gradients."""
        return self.operation in (SDPA_VJP, MHA_VJP)

    @property
    def layer(self) -> bool:
        """Whether it has projections."""
        return self.operation in (MHA, MHA_VJP)

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Of a layer: rows that each weight is multiplied with, and its numbers."""
        rows, keys = self.batch * self.q_len, self.batch * self.kv_len
        query, output = (self.heads * width for width in (self.d_k, self.d_v))
        key, value = (self.groups * width for width in (self.d_k, self.d_v))
        found = {
            "w_q": (rows, query**2),
            "w_k": (keys, key**2),
            "w_v": (keys, value**2),
            "w_o": (rows, output**2),
        }
        return found if self.layer else {}

    @property
    def multiplier(self) -> float:
        """What products are multiplied by."""
        return self.d_k**-0.5 if self.scale is None else self.scale

    @property
    def group(self) -> int:
        """Query heads that read one key head."""
        return self.heads // self.groups

    @property
    def elements(self) -> dict[str, int]:
        """Numbers in each operand and in the output."""
        rows, keys = self.batch * self.heads * self.q_len, self.batch * self.groups * self.kv_len
        found = {"query": rows * self.d_k, "key": keys * self.d_k, "value": keys * self.d_v}
        return {**found, "output": rows * self.d_v}

    @property
    def work(self) -> int:
        """Products of two numbers that plain attention takes."""
        pairs = self.batch * self.heads * self.q_len * self.kv_len
        inner = pairs * (self.d_k + self.d_v) + sum(
            rows * numbers for rows, numbers in self.projections.values()
        )
        return inner * (3 if self.gradients else 1)

    @property
    def memory(self) -> int:
        """Bytes that the arrays take, and plain attention with all its logits."""
        size = NUMPY_DTYPES[self.dtype].itemsize
        arrays = sum(self.elements.values()) * size * (3 if self.gradients else 2)
        pairs = self.batch * self.heads * self.q_len * self.kv_len
        arrays += (self.elements["key"] + self.elements["value"]) * size if self.past else 0
        repeated = (self.elements["key"] + self.elements["value"]) * max(size, 4) if self.group > 1 else 0
        widened = sum(self.elements.values()) * 4 if size == 2 else 0
        mask = self.q_len * self.kv_len * (12 if self.biased else 8) if self.mask == "q" else 0
        if self.layer:  # each tensor once more, by head, and its float32
            arrays += sum(self.elements.values()) * (size + 4)
            arrays += (
                sum(numbers for _, numbers in self.projections.values()) * (size + 4) * (1 + self.gradients)
            )
        return (
            arrays
            + widened
            + self.group * repeated
            + pairs * max(size, 4) * (8 if self.gradients else 5)
            + mask
        )


_LETTERS = {
    "family": "f", "operation": "o", "dtype": "t", "batch": "b", "heads": "h", "groups": "g", "q_len": "q",
    "kv_len": "k", "d_k": "d", "d_v": "v", "members": "e", "strided": "i", "levels": "l", "causal": "c",
    "offset": "p", "window": "w", "lengths": "n", "mask": "m", "lse": "y",
    "biased": "x", "softcap": "u", "sinks": "s", "past": "j", "scale": "z", "bias": "B", "few": "F", "at": "a",
    "stream": "r",
}  # fmt: skip
_SHORT = {
    "operation": {SDPA: "a", SDPA_VJP: "ag", MHA: "m", MHA_VJP: "mg"},
    "dtype": dict(zip(DTYPES, ("64", "32", "16", "b16"), strict=True)),
}


def token(call: Large) -> str:
    """The call as a word that can be typed, pasted and read."""
    parts = [TOKEN]
    for field in fields(Large):
        value = getattr(call, field.name)
        if value != field.default:
            parts.append(f"{_LETTERS[field.name]}{_written(field.name, value)}")
    text = "_".join(parts)
    return f"{text}_{_check(text)}"


def is_token(text: str) -> bool:
    """Whether a token is one of this form."""
    return text.strip().startswith(f"{TOKEN}_")


def read_token(text: str) -> Large:
    """The call of a token.

    Raises:
        UsageError: it is none, or was changed on its way.
    """
    wrong = UsageError(
        f"--replay wants a token as `explore` prints it, such as {TOKEN}_t32_..., got {text[:60]!r}: copy all of it"
    )
    body, _, check = text.strip().rpartition("_")
    if not is_token(text) or len(text) > 2 * LONGEST or check != _check(body):
        raise wrong
    names = {letter: name for name, letter in _LETTERS.items()}
    try:
        found = Large(**{names[part[0]]: _read(names[part[0]], part[1:]) for part in body.split("_")[1:]})
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise wrong from error
    if not _sound(found):
        raise wrong
    return found


def _sound(call: Large) -> bool:
    sizes = (call.batch, call.heads, call.groups, call.q_len, call.kv_len, call.d_k, call.d_v, call.levels)
    return (
        call.family in FAMILIES
        and min(sizes) > 0
        and call.heads % call.groups == 0
        and call.members in (1, 2, LOUD)
        and 0 <= call.past < call.kv_len
        and not (call.layer and (call.past or (call.gradients and call.family == "sampled")))
        and not (call.few and not (call.gradients and call.family == "sampled"))
        and not (call.bias and (not call.layer or call.family == "sampled"))
        and not (call.gradients and (call.past or call.sinks or call.softcap or call.biased))
    )


def _check(text: str) -> str:
    return f"{crc32(text.encode()) & 0xFFFF:04x}"


def _written(name: str, value: Any) -> str:
    if name in _SHORT:
        return _SHORT[name][value]
    if value is True:
        return ""
    if isinstance(value, tuple):
        return ",".join("" if x is None else str(x) for x in value)
    return str(value)


def _read(name: str, text: str) -> Any:
    if name in _SHORT:
        return {short: long for long, short in _SHORT[name].items()}[text]
    reading: dict[str, Callable[[str], Any]] = {
        "family": str,
        "softcap": float,
        "scale": float,
        "offset": lambda t: t if t == EVERY else int(t),
        "window": _pair,
        "mask": lambda t: re.fullmatch("[kq]", t)[0],  # type: ignore[index]
    }
    if name in reading:
        return reading[name](text)
    if name in ("strided", "causal", "lengths", "lse", "biased", "sinks", "bias", "few"):
        if text:
            raise ValueError(text)
        return True
    return int(text)


def _pair(text: str) -> tuple[int | None, int | None]:
    left, right = (int(x) if x else None for x in text.split(","))
    return left, right


def line(call: Large) -> str:
    """The operation, shapes, options and dtype."""
    c = call
    shapes = {
        "query": (c.batch, c.heads, c.q_len, c.d_k),
        "key": (c.batch, c.groups, c.kv_len - c.past, c.d_k),
        "value": (c.batch, c.groups, c.kv_len - c.past, c.d_v),
    }
    if c.past:
        shapes["past_key"] = (c.batch, c.groups, c.past, c.d_k)
        shapes["past_value"] = (c.batch, c.groups, c.past, c.d_v)
    if c.gradients:
        shapes["grad_output"] = (c.batch, c.heads, c.q_len, c.d_v)
    told = {
        name: (n, length, heads * d) if c.layer else (n, heads, length, d)
        for name, (n, heads, length, d) in shapes.items()
    }
    words = [f"{name} {'x'.join(map(str, shape))}" for name, shape in told.items()]
    if c.layer:
        words += [f"{c.heads} heads" + (f" on {c.groups}" if c.groups < c.heads else "")]
        words += ["b_q, b_k and b_v"] if c.bias else []
    words += ["is_causal=True"] if c.causal else []
    words += [f"window={c.window}"] if c.window is not None else []
    if c.offset is not None:
        words += ["q_offset of each entry" if c.offset == EVERY else f"q_offset={c.offset}"]
    words += ["kv_lengths"] if c.lengths else []
    name = "attn_bias" if c.biased else "mask"
    words += [f"{name} {c.batch}x1x1x{c.kv_len}"] if c.mask == "k" else []
    words += [f"{name} {c.q_len}x{c.kv_len}"] if c.mask == "q" else []
    words += [f"softcap={c.softcap:g}"] if c.softcap is not None else []
    words += ["sinks"] if c.sinks else []
    words += [f"scale={c.scale:g}"] if c.scale is not None else []
    words += ["return_lse=True"] if c.lse else []
    return f"{c.operation}({', '.join(words)}) in {c.dtype}, {said(c)}"


def said(call: Large) -> str:
    """What the numbers are made for, in words."""
    if call.family == "counts":
        return "counted keys" + (f" whose weights step {call.levels} times" if call.levels > 1 else "")
    if call.family == "sampled":
        return "sampled rows" + (", the cotangent zero in the others" if call.few else "")
    which = (
        "each query"
        if call.at is None
        else f"each query, key {call.at}" + (" among them" * (call.members > 1))
    )
    if call.members == 1:
        return f"one key asked by {which}"
    apart = "far apart" if call.strided else "side by side"
    return f"{call.members} keys {apart} asked by {which}"
