"""What an option has to hold for a call to fail: each of its values changed to one that does less."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.exploring.vary import Varied
from conformance.vectors.case import Array

OFFSET = "`q_offset`"
WIDE = ("below the number of keys", "above 0", "of finite numbers")
"""What an option has to hold for whatever else it may hold."""
FAR = 2**20
"""A side of a window that hides nothing."""


def details(v: Varied) -> Iterator[tuple[str, str, Varied]]:
    """The name of an option, what it holds in words, and the call in which it does not hold that."""
    for name, of in (("window", _window), ("scale", _scale), ("kv_lengths", _lengths), ("q_offset", _offset)):
        if v.given(name):
            for words, changed in of(v):
                yield name, words, changed
    for name in ("mask", "attn_bias"):
        if name in v.inputs:
            for words, x in _table(name, v.inputs[name]):
                yield name, words, replace(v, inputs={**v.inputs, name: x}, memory={})


def _option(v: Varied, name: str, value: Any) -> Varied:
    return replace(v, options={**v.options, name: value})


def _window(v: Varied) -> Iterator[tuple[str, Varied]]:
    """Open sides first: without the other side both are open."""
    left, right = v.options["window"]
    if left is None:
        yield "with an open left side", _option(v, "window", [FAR, right])
    if right is None:
        yield "with an open right side", _option(v, "window", [left, FAR])
    if left == 0:
        yield "with a left side of 0", _option(v, "window", [1, right])
    if right == 0:
        yield "with a right side of 0", _option(v, "window", [left, 1])
    if left is not None:
        yield "with a left side", _option(v, "window", [None, right])
    if right is not None:
        yield "with a right side", _option(v, "window", [left, None])


def _scale(v: Varied) -> Iterator[tuple[str, Varied]]:
    scale = float(v.options["scale"])
    if scale == 0:
        yield "of 0", _option(v, "scale", 0.5)
    if scale < 0:
        yield "below 0", _option(v, "scale", -scale)


def _lengths(v: Varied) -> Iterator[tuple[str, Varied]]:
    lengths = v.inputs["kv_lengths"]
    every = v.past + v.size("kv_len")

    def to(x: Array) -> Varied:
        return replace(v, inputs={**v.inputs, "kv_lengths": x.astype(lengths.dtype)})

    if (lengths == 0).any() and every:
        yield "with a 0", to(np.maximum(lengths, 1))
    if (lengths < every).any():
        yield "below the number of keys", to(np.full(lengths.shape, every))
    if (np.diff(lengths.reshape(-1)) > 0).any():
        yield "not in descending order", to(-np.sort(-lengths.reshape(-1)).reshape(lengths.shape))


def _offset(v: Varied) -> Iterator[tuple[str, Varied]]:
    given = v.inputs.get("q_offset", v.options.get("q_offset"))
    numbers = np.asarray(given)

    def to(x: Array) -> Varied:
        if "q_offset" in v.inputs:
            return replace(v, inputs={**v.inputs, "q_offset": x.astype(numbers.dtype)})
        return _option(v, "q_offset", int(x))

    if (numbers < 0).any():
        yield "below 0", to(np.maximum(numbers, 0))
    if (numbers > 0).any():
        yield "above 0", to(np.minimum(numbers, 0))
    if numbers.size > 1 and len(set(numbers.reshape(-1).tolist())) > 1:
        yield "that differs between batch entries", to(np.full(numbers.shape, numbers.reshape(-1)[0]))


def _table(name: str, x: Array) -> Iterator[tuple[str, Array]]:
    """What a mask or bias holds in words, and the same without it."""
    bias = name == "attn_bias"
    hidden = np.isneginf(x) if bias else ~x
    if hidden.any():
        yield "that hides a key", np.where(hidden, 0, x) if bias else np.ones_like(x)
    if bias and (np.where(hidden, 0, x) != 0).any():
        yield "of finite numbers", np.where(hidden, x, 0)
    for axis, words in ((-3, "heads"), (-4, "batch entries"), (-2, "queries")):
        if x.ndim >= -axis and x.shape[axis] > 1 and _varies(x, axis):
            yield f"that differs between {words}", _same(x, axis)


def _varies(x: Array, axis: int) -> bool:
    return bool((x != np.take(x, [0], axis=axis)).any())


def _same(x: Array, axis: int) -> Array:
    """The last along an axis for all of it: the first is what a mistake reads most often."""
    return np.broadcast_to(np.take(x, [-1], axis=axis), x.shape).copy()


def told(
    v: Varied, fails: Callable[[Varied], bool | None], needed: list[str], over: Callable[[], bool]
) -> tuple[list[str], Varied]:
    """What is needed, each option with what it has to hold, and the call with what it need not hold left out."""
    found = {words: list[str]() for words in needed}
    if v.given("q_offset"):  # a window without one may be no right call, so that it is not left out
        found.setdefault(OFFSET, [])
    for name, words, _ in list(details(v)):
        key = f"`{name}`"
        if key not in found or over():
            continue
        again = next((call for n, w, call in details(v) if (n, w) == (name, words)), None)
        if again is None:  # what was left out before had it
            continue
        answer = fails(again)
        if answer:
            v = again
        elif answer is False:
            found[key].append(words)
    every = [words for words in needed if not (found.get(OFFSET) and words == f"{OFFSET} as an array")]
    every += [OFFSET] if found.get(OFFSET) and OFFSET not in needed else []
    return [_joined(words, found[words]) for words in every], v


def _joined(option: str, held: list[str]) -> str:
    """`window` (with a left side of 0): of two that say the same the narrower one."""
    narrow = [words for words in held if not any(o != words and o.startswith(f"{words} ") for o in held)]
    narrow = [words for words in narrow if words not in WIDE] or narrow
    return f"{option} ({', '.join(narrow)})" if narrow else option
