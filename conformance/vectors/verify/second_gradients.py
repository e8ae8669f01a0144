"""A second reference of the gradients, in scalar loops, from the text of spec/gradients.md alone.

It stands on the second reference of the forward operations, and like that one shares nothing with the oracle.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from mpmath import mp, mpf

from conformance.vectors.case import Case
from conformance.vectors.verify.second_reference import DIGITS, Call, Compared, Place, real

SLACK = mpf(10) ** (12 - DIGITS)
"""Of the size of what was added up."""

Row = list[Any]
"""One number for each column."""


def gradients(case: Case) -> Iterator[Compared]:
    """Yields (argument, place in hi, value, slack) for every element of every gradient that is stored."""
    with mp.workdps(DIGITS):
        sums = _Sums(case)
        for b in itertools.product(*map(range, sums.call.batch)):
            for h in range(sums.call.num_heads):
                _head(sums, b, h)
        sums.add_output_bias()
        for name, golden in case.expected.items():
            for at in itertools.product(*map(range, golden.hi.shape)):
                place = at if golden.rows is None else (*at[:-2], golden.rows[at[-2]], at[-1])
                value, size = sums.found[name].get(place, (mpf(0), mpf(0)))
                yield name, at, value, size * SLACK


class _Sums:
    """Every gradient so far by argument and place: its value, and the sum of the sizes of its terms."""

    def __init__(self, case: Case) -> None:
        self.case, self.call = case, Call(case)
        self.inputs = dict(case.inputs)  # seeded ones are made once
        self.found: dict[str, dict[Place, tuple[Any, Any]]] = defaultdict(dict)
        self.group = self.call.num_heads // self.call.num_kv_heads

    def stored(self, name: str, row: int) -> bool:
        """Whether anything depends on this row of the gradient of an argument: it is stored, or projected."""
        rows = self.case.expected[name].rows
        return self.call.layer or rows is None or row in rows

    def number(self, name: str, place: Place) -> Any:
        """An element of an argument."""
        return mpf(float(self.inputs[name][place]))

    def add(self, name: str, place: Place, value: Any, size: Any = None) -> None:
        """Adds a term."""
        before, of = self.found[name].get(place, (mpf(0), mpf(0)))
        self.found[name][place] = before + value, of + (abs(value) if size is None else size)

    def add_output_bias(self) -> None:
        """The gradient of b_o: every row of grad_output."""
        if "b_o" not in self.inputs:
            return
        *rows, width = self.inputs["grad_output"].shape
        for row in itertools.product(*map(range, rows)):
            for o in range(width):
                self.add("b_o", (o,), self.number("grad_output", (*row, o)))

    def add_bias(self, b: Place, h: int, i: int, j: int, value: Any, size: Any) -> None:
        """The gradient of one logit, where the bias holds what was added to it."""
        shape = self.inputs["attn_bias"].shape
        place = (i, j) if len(shape) == 2 else (*b, h, i, j)
        self.add(
            "attn_bias",
            tuple(0 if size == 1 else p for size, p in zip(shape, place, strict=True)),
            value,
            size,
        )

    def add_projected(self, name: str, b: Place, head: int, position: int, row: Row, sizes: Row) -> None:
        """The gradient of one row of a projected head: of the argument itself, or through its projection."""
        if not self.call.layer:
            for c, (value, size) in enumerate(zip(row, sizes, strict=True)):
                self.add(name, (*b, head, position, c), value, size)
            return
        weight, bias = f"w_{name[0]}", f"b_{name[0]}"
        for e in range(self.inputs[name].shape[-1]):
            x = self.number(name, (*b, position, e))
            for c, (value, size) in enumerate(zip(row, sizes, strict=True)):
                w = self.number(weight, (head, e, c))
                self.add(name, (*b, position, e), value * w, size * abs(w))
                self.add(weight, (head, e, c), value * x, size * abs(x))
        if bias in self.inputs:
            for c, (value, size) in enumerate(zip(row, sizes, strict=True)):
                self.add(bias, (head, c), value, size)


def _head(sums: _Sums, b: Place, h: int) -> None:
    """What one head of one batch entry adds."""
    call, g = sums.call, h // sums.group
    queries, keys, values = (
        _reals(call.heads(name, b, head)) for name, head in (("query", h), ("key", g), ("value", g))
    )
    scale = call.options.get("scale")
    factor = 1 / mp.sqrt(call.d_k) if scale is None else mpf(scale)
    d_keys: dict[int, list[Row]] = {}  # key -> gradient and sizes of its row
    d_values: dict[int, list[Row]] = {}
    for i in range(call.q_len):
        weights, lse = call.row(b, h, i)
        of_lse = mpf(0)
        if "grad_lse" in sums.inputs and mp.isfinite(lse):
            of_lse = sums.number("grad_lse", (*b, h, i))
        if not weights:
            if "sinks" in sums.inputs:  # MASK-16: the lse is the sink
                sums.add("sinks", (h,), of_lse)
            continue
        upstream = _upstream(sums, b, h, i)
        products = {j: mp.fdot(upstream, values[j]) for j in weights}
        sizes = {j: mp.fdot(map(abs, upstream), map(abs, values[j])) for j in weights}
        delta = mp.fsum(p * products[j] for j, p in weights.items())
        size = mp.fsum(p * sizes[j] for j, p in weights.items())
        if "sinks" in sums.inputs:
            p = mp.exp(sums.number("sinks", (h,)) - lse)
            sums.add("sinks", (h,), -p * (delta - of_lse), p * (size + abs(of_lse)))
        d_query: list[Row] = [[mpf(0)] * call.d_k, [mpf(0)] * call.d_k]
        for j, p in weights.items():
            logit, of = p * (products[j] - delta + of_lse), p * (sizes[j] + size + abs(of_lse))
            if "attn_bias" in sums.inputs:
                sums.add_bias(b, h, i, j, logit, of)
            asked = [sums.stored("query", i), *(sums.stored(x, j - call.past) for x in ("key", "value"))]
            if not any(asked):
                continue
            bend = _slope(call, mp.fdot(queries[i], keys[j]) * factor) * factor
            if asked[0]:
                _increase(d_query, keys[j], logit * bend, of * abs(bend))
            if asked[1]:
                _increase(d_keys.setdefault(j, _nothing(call.d_k)), queries[i], logit * bend, of * abs(bend))
            if asked[2]:
                _increase(d_values.setdefault(j, _nothing(len(upstream))), upstream, p, p)
        if sums.stored("query", i):
            sums.add_projected("query", b, h, i, *d_query)
        if call.layer:
            _output_projection(sums, b, h, i, weights, values)
    for name, rows in (("key", d_keys), ("value", d_values)):
        for j, row in rows.items():
            if j >= call.past:
                sums.add_projected(name, b, g, j - call.past, *row)


def _reals(head: tuple[list[Row], int]) -> list[Row]:
    rows, shift = head
    return [[real(x, shift) for x in row] for row in rows]


def _nothing(width: int) -> list[Row]:
    return [[mpf(0)] * width, [mpf(0)] * width]


def _increase(row: list[Row], by: Row, times: Any, size: Any) -> None:
    """Adds a multiple of a row, and of its sizes."""
    for c, x in enumerate(by):
        row[0][c] += times * x
        row[1][c] += size * abs(x)


def _upstream(sums: _Sums, b: Place, h: int, i: int) -> Row:
    """The gradient of one row of a head's output: through w_o in the layer."""
    if not sums.call.layer:
        return [
            sums.number("grad_output", (*b, h, i, c)) for c in range(sums.inputs["grad_output"].shape[-1])
        ]
    row = [sums.number("grad_output", (*b, i, o)) for o in range(sums.inputs["w_o"].shape[-1])]
    width = sums.inputs["w_o"].shape[1]
    return [mp.fdot(row, [sums.number("w_o", (h, c, o)) for o in range(len(row))]) for c in range(width)]


def _slope(call: Call, x: Any) -> Any:
    """The derivative of the softcap at a scaled product."""
    cap = call.options.get("softcap")
    with mp.workdps(4 * DIGITS):  # a saturated tanh is one less a very little
        return mpf(1) if cap is None else 1 - mp.tanh(x / mpf(cap)) ** 2


def _output_projection(
    sums: _Sums, b: Place, h: int, i: int, weights: dict[int, Any], values: list[Row]
) -> None:
    """What one row of a head adds to the gradient of w_o."""
    for c in range(sums.inputs["w_o"].shape[1]):
        z = mp.fsum(p * values[j][c] for j, p in weights.items())
        for o in range(sums.inputs["w_o"].shape[2]):
            of = max((abs(values[j][c]) for j in weights), default=mpf(0))
            g = sums.number("grad_output", (*b, i, o))
            sums.add("w_o", (h, c, o), z * g, of * abs(g))
