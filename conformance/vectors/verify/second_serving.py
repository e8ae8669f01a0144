"""A second reference of the operations on packed, paged, latent and partial operands, from spec/serving.md alone.

Every element of what they stand for is looked up by its place, one by one; the second reference of attention then
gives the numbers. Merging is one sum a row, by mpmath. It shares nothing with the oracle.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from mpmath import mp, mpf

from conformance.names import APPEND, LATENT, MERGE, PACKED, PAGED, SDPA
from conformance.vectors.case import Array, Case, Golden
from conformance.vectors.verify.second_reference import DIGITS, Compared, Place, references

SLACK = mpf(10) ** (12 - DIGITS)
At = Callable[[Place], Any]
"""Place -> the element there."""


def served(case: Case) -> Iterator[Compared]:
    """Yields (output, place in hi, value, slack) for what the case expects."""
    yield from {PACKED: _packed, PAGED: _paged, APPEND: _pages, LATENT: _latent, MERGE: _merged}[
        case.operation
    ](case)


def _made(shape: tuple[int, ...], at: At, dtype: Any = np.float64) -> Array:
    """An array by its elements."""
    array = np.empty(shape, dtype)
    for place in itertools.product(*map(range, shape)):
        array[place] = at(place)
    return array


def _attention(
    case: Case, inputs: dict[str, Array], rows: tuple[int, ...] | None = None, **options: Any
) -> Iterator[Compared]:
    """Attention on other operands, by the second reference of it."""
    kept = {name: x for name, x in case.options.items() if name != "value_dim"}
    expected: dict[str, Golden] = {
        name: replace(golden, rows=rows)
        for name, golden in case.expected.items()
        if name in ("output", "lse")
    }
    stub = replace(
        case, operation=SDPA, inputs=inputs, options={**kept, **options}, expected=expected, seeded={}
    )
    yield from references(stub)


def _packed(case: Case) -> Iterator[Compared]:
    x = dict(case.inputs)
    held = case.expected["output"].rows
    number = {row: at for at, row in enumerate(range(x["query"].shape[1]) if held is None else held)}
    for i in range(x["q_starts"].size - 1):
        first, end = int(x["q_starts"][i]), int(x["q_starts"][i + 1])
        key_first, key_end = int(x["kv_starts"][i]), int(x["kv_starts"][i + 1])
        rows = tuple(row - first for row in range(first, end) if row in number)
        part = {}
        for name, begin, end_ in (
            ("query", first, end),
            ("key", key_first, key_end),
            ("value", key_first, key_end),
        ):
            shape = (x[name].shape[0], end_ - begin, x[name].shape[2])

            def at(p: Place, name: str = name, begin: int = begin) -> Any:
                return x[name][p[0], begin + p[1], p[2]]

            part[name] = _made(shape, at)
        part |= {"sinks": x["sinks"]} if "sinks" in x else {}
        own = {"q_offset": int(x["q_offset"][i])} if "q_offset" in x else {}
        if not rows:
            continue
        for output, place, value, slack in _attention(case, part, rows, **own):
            row = number[first + rows[place[1]]]  # the axis of queries, of both results
            yield output, (place[0], row, *place[2:]), value, slack


def _cell(x: dict[str, Array], name: str, page: int, place: int, rest: Place) -> Any:
    """A number in a page after the writes of the call."""
    slot = page * int(x["key_pages"].shape[1]) + place
    if "slots" in x:
        for t, written in enumerate(x["slots"].tolist()):
            if written == slot:
                return x[f"new_{name}"][(t, *rest)]
    return x[f"{name}_pages"][(page, place, *rest)]


def _paged(case: Case) -> Iterator[Compared]:
    x = dict(case.inputs)
    table, size = x["page_table"], int(x["key_pages"].shape[1])
    inputs: dict[str, Array] = {
        name: x[name]
        for name in ("query", "mask", "attn_bias", "sinks", "q_offset", "kv_lengths")
        if name in x
    }
    for name in ("key", "value"):
        groups, width = x[f"{name}_pages"].shape[2:]

        def at(p: Place, name: str = name) -> Any:
            b, g, t, c = p
            if t >= int(x["kv_lengths"][b]):
                return 0.0  # not there
            return _cell(x, name, int(table[b, t // size]), t % size, (g, c))

        inputs[name] = _made((table.shape[0], groups, table.shape[1] * size, width), at)
    yield from _attention(case, inputs, case.expected["output"].rows)
    if "slots" in x:
        yield from _pages(case)


def _pages(case: Case) -> Iterator[Compared]:
    x = dict(case.inputs)
    for name in ("key", "value"):
        for place in itertools.product(*map(range, x[f"{name}_pages"].shape)):
            number = float(_cell(x, name, place[0], place[1], place[2:]))
            yield f"{name}_pages", place, mpf(number) if math.isfinite(number) else number, mpf(0)


def _latent(case: Case) -> Iterator[Compared]:
    x = dict(case.inputs)
    *batch, length, width = x["latent"].shape
    inputs = {name: array for name, array in x.items() if name != "latent"}
    for name, kept in (("key", width), ("value", int(case.options["value_dim"]))):
        inputs[name] = _made((*batch, 1, length, kept), lambda p: x["latent"][(*p[:-3], p[-2], p[-1])])
    yield from _attention(case, inputs, case.expected["output"].rows)


def _merged(case: Case) -> Iterator[Compared]:
    """The lse of each part is the logarithm of its share before it is divided."""
    x = dict(case.inputs)
    count = x["lses"].shape[0]
    with mp.workdps(DIGITS):
        for row in itertools.product(*map(range, x["lses"].shape[1:])):
            lses = [float(x["lses"][(i, *row)]) for i in range(count)]
            there = [i for i in range(count) if lses[i] != -math.inf]
            broken = any(not math.isfinite(lses[i]) for i in there)
            sink = float(x["sinks"][row[-2]]) if "sinks" in x else -math.inf
            width = x["outputs"].shape[-1]
            if not there or broken:
                of_sink = mpf(sink) if math.isfinite(sink) else sink
                lse: Any = math.nan if broken else of_sink  # of an empty row the sink, -inf without one
                yield "lse", row, lse, mpf(0)
                for c in range(width):
                    yield "output", (*row, c), math.nan if broken else mpf(0), mpf(0)
                continue
            top = max(lses[i] for i in there)
            shares = {i: mp.exp(mpf(lses[i]) - mpf(top)) for i in there}
            total = mp.fsum(shares.values())
            if sink != -math.inf:
                total += mp.exp(mpf(sink) - mpf(top))
            whole = mpf(top) + mp.log(total)
            yield "lse", row, whole, SLACK * (1 + abs(whole))
            for c in range(width):
                numbers = {i: mpf(float(x["outputs"][(i, *row, c)])) for i in there}
                size = max(abs(n) for n in numbers.values())
                yield (
                    "output",
                    (*row, c),
                    mp.fsum(shares[i] * numbers[i] for i in there) / total,
                    size * SLACK,
                )
