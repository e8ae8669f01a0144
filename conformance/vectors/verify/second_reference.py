"""A second reference of the forward operations, in scalar loops, from the text of spec/*.md alone.

Projections and products are sums of Python integers, so they are exact; from the scale on it is mpmath at
60 digits. It shares nothing with the oracle: no ball, no matrix, no visibility array, no code.

A number is an integer that counts steps of 2^-shift, or a float if it is NaN or infinite: int * inf, int + nan
and the like are then what IEEE arithmetic makes of them.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import Any

import numpy as np
from mpmath import mp, mpf

from conformance.vectors.case import Array, Case

DIGITS = 60
TERMS = 60_000  # of one case's output projection; beyond it columns are sampled


Place = tuple[int, ...]
Number = Any
"""An int of steps, an mpf, or a float that is NaN or infinite."""
Compared = tuple[str, Place, Number, Any]


def references(case: Case) -> Iterator[Compared]:
    """Yields (output, place in hi, value, slack) for what the case expects.

    The value is an mpf, a float if it is NaN or infinite, or None where the spec asks for nothing.
    The slack is how far this reference itself may be off.
    """
    with mp.workdps(DIGITS):
        yield from Call(case).references()


class _Steps:
    """An array as integers that count steps of 2^-shift; NaN and infinities stay floats."""

    def __init__(self, given: Array) -> None:
        array = np.asarray(given, np.float64)
        finite = np.where(np.isfinite(array), array, 0.0)
        self.shift = next(s for s in range(200) if np.all(np.ldexp(finite, s) % 1 == 0))
        flat = [
            int(n) if math.isfinite(x) else x
            for n, x in zip(
                np.ldexp(finite, self.shift).ravel().tolist(), array.ravel().tolist(), strict=True
            )
        ]
        self.items = np.empty(array.shape, object)
        self.items.ravel()[:] = flat


def _dot(left: Sequence[Number], right: Sequence[Number]) -> Number:
    return sum(map(mul, left, right))


def real(number: Number, shift: int) -> Number:
    """The number as an mpf; a float if it is not finite."""
    return number if isinstance(number, float) else mp.ldexp(mpf(number), -shift)


def _bad(number: Number) -> bool:
    return isinstance(number, float)


def _kind(number: Number) -> float:
    """A float of the number, for sums of which only the kind matters: NaN, infinite or neither."""
    return number if _bad(number) else float(mp.sign(number))


class Call:
    """One call: its arrays, its sizes, and rows that are computed on demand."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.layer = case.operation.startswith("multi_head_attention")
        self.options = case.options
        arrays = self.inputs = dict(case.inputs)  # seeded ones are made once
        self.batch = arrays["query"].shape[: -2 if self.layer else -3]
        self.steps = {name: _Steps(a) for name, a in arrays.items() if a.dtype.kind == "f"}
        self.num_heads = arrays["w_q"].shape[0] if self.layer else arrays["query"].shape[-3]
        self.num_kv_heads = arrays["w_k"].shape[0] if self.layer else arrays["key"].shape[-3]
        self.past = arrays["past_key"].shape[-2] if "past_key" in arrays else 0
        self.q_len = arrays["query"].shape[-2]
        self.kv_len = self.past + arrays["key"].shape[-2]
        self.d_k = arrays["w_q"].shape[-1] if self.layer else arrays["query"].shape[-1]
        self.made: dict[Any, tuple[list[list[Number]], int]] = {}  # heads by (name, batch entry, head)

    # -- operands ------------------------------------------------------------------------------

    def heads(self, name: str, b: Place, head: int) -> tuple[list[list[Number]], int]:
        """Rows of one head of query, key or value, past in front, and their shift."""
        if (name, b, head) not in self.made:
            rows, shift = self.projected(name, b, head) if self.layer else self.given(name, (*b, head))
            if name != "query" and self.past:
                first, other = self.given(f"past_{name}", (*b, head))
                common = max(shift, other)
                rows = [[x * 2 ** (common - other) for x in row] for row in first] + [
                    [x * 2 ** (common - shift) for x in row] for row in rows
                ]
                shift = common
            self.made[name, b, head] = rows, shift
        return self.made[name, b, head]

    def given(self, name: str, place: Place) -> tuple[list[list[Number]], int]:
        """The rows that an argument holds, and their shift."""
        steps = self.steps[name]
        return steps.items[place].tolist(), steps.shift

    def projected(self, name: str, b: Place, head: int) -> tuple[list[list[Number]], int]:
        """Rows times the weights of a head, plus its bias."""
        letter = name[0]
        x, w = self.steps[name], self.steps[f"w_{letter}"]
        columns = w.items[head].T.tolist()
        rows = [[_dot(row, column) for column in columns] for row in x.items[b].tolist()]
        shift = x.shift + w.shift
        if f"b_{letter}" in self.steps:
            bias = self.steps[f"b_{letter}"]
            common = max(shift, bias.shift)
            offset = [n * 2 ** (common - bias.shift) for n in bias.items[head].tolist()]
            rows = [[n * 2 ** (common - shift) + o for n, o in zip(row, offset, strict=True)] for row in rows]
            shift = common
        return rows, shift

    # -- which key a query may attend ----------------------------------------------------------

    def entry(self, name: str, b: Place, h: int, i: int, j: int) -> Any:
        """The entry of a mask or bias that stands for this place: rank 2, or full rank; an axis of 1 broadcasts."""
        array = self.inputs[name]
        place = (i, j) if array.ndim == 2 else (*b, h, i, j)
        return array[tuple(0 if size == 1 else p for size, p in zip(array.shape, place, strict=True))]

    def segment(self, of: str, b: Place, place: int) -> int:
        """The segment number of a query or key; one row of numbers may serve every batch entry."""
        numbers = self.inputs[f"{of}_segments"]
        return int(numbers[place] if numbers.ndim == 1 else numbers[(*b, place)])

    def visible(self, b: Place, h: int, i: int, j: int) -> bool:
        """Whether query i may attend key j."""
        inputs, options = self.inputs, self.options
        offset = int(inputs["q_offset"][b]) if "q_offset" in inputs else options.get("q_offset") or 0
        place = i + offset
        if "mask" in inputs and not self.entry("mask", b, h, i, j):
            return False
        if "attn_bias" in inputs and float(self.entry("attn_bias", b, h, i, j)) == -math.inf:
            return False
        if "q_segments" in inputs and self.segment("q", b, i) != self.segment("kv", b, j):
            return False
        if options.get("is_causal") and j > place:
            return False
        if options.get("window") is not None:
            left, right = options["window"]
            if left is not None and j < place - left:
                return False
            if right is not None and j > place + right:
                return False
        return not ("kv_lengths" in inputs and j >= int(inputs["kv_lengths"][b]))

    # -- one row of one head -------------------------------------------------------------------

    def logit(
        self, b: Place, h: int, i: int, j: int, query: list[Number], key: list[Number], shift: int
    ) -> Number:
        """Scale, softcap, bias."""
        product = _dot(query, key)
        scale = self.options.get("scale")
        if _bad(product):
            x = product * (1.0 if scale is None else scale)
        else:
            x = real(product, shift)
            x = x / mp.sqrt(self.d_k) if scale is None else x * mpf(scale)
        if self.options.get("softcap") is not None:
            cap = mpf(self.options["softcap"])
            x = (x if math.isnan(x) else mp.sign(x) * cap) if _bad(x) else cap * mp.tanh(x / cap)
        if "attn_bias" in self.inputs:
            bias = float(self.entry("attn_bias", b, h, i, j))
            if not math.isfinite(bias):
                return bias if not _bad(x) else x + bias
            x = x + bias
        return x

    def row(self, b: Place, h: int, i: int) -> tuple[dict[int, Number], Number]:
        """(weights by visible key, lse) of one query of one head; NaN stands for every weight of a NaN row."""
        g = h // (self.num_heads // self.num_kv_heads)
        keys = [j for j in range(self.kv_len) if self.visible(b, h, i, j)]
        if not keys:
            return {}, self.alone(h)
        (queries, q_shift), (all_keys, k_shift) = self.heads("query", b, h), self.heads("key", b, g)
        logits = {j: self.logit(b, h, i, j, queries[i], all_keys[j], q_shift + k_shift) for j in keys}
        terms: dict[Any, Number] = {**logits}  # by key, and the sink
        if "sinks" in self.inputs:
            terms["sink"] = float(self.inputs["sinks"][h])
            terms["sink"] = mpf(terms["sink"]) if math.isfinite(terms["sink"]) else terms["sink"]
        finite = [x for x in terms.values() if not _bad(x)]
        if any(_bad(x) and x != -math.inf for x in terms.values()) or not finite:
            return dict.fromkeys(keys, math.nan), math.nan
        most = max(finite)
        powers = {key: mpf(0) if _bad(x) else mp.exp(x - most) for key, x in terms.items()}
        total = mp.fsum(powers.values())
        return {j: powers[j] / total for j in keys}, most + mp.log(total)

    def alone(self, h: int) -> Number:
        """The lse of a row without a key: its sink, -inf without one (MASK-16)."""
        sink = float(self.inputs["sinks"][h]) if "sinks" in self.inputs else -math.inf
        return mpf(sink) if math.isfinite(sink) else sink if sink < 0 else math.nan

    def average(self, b: Place, h: int, weights: Mapping[int, Number]) -> list[tuple[Number, Any]]:
        """The row of values, each times its weight, and its size in absolute terms, column by column."""
        g = h // (self.num_heads // self.num_kv_heads)
        rows, shift = self.heads("value", b, g)
        width = len(rows[0]) if rows else self.inputs["w_v" if self.layer else "value"].shape[-1]
        result = []
        for c in range(width):
            column = {j: rows[j][c] for j in weights}
            special = [x for x in column.values() if _bad(x)]
            if any(_bad(p) for p in weights.values()):
                result.append((math.nan, mpf(0)))
            elif special:
                result.append((sum(special), mpf(0)))
            else:
                # weights and integers: the sum is short of nothing but the weights' own error
                total = mp.fdot((p, column[j]) for j, p in weights.items())
                size = max((abs(x) for x in column.values()), default=0)
                result.append((mp.ldexp(total, -shift), mp.ldexp(mpf(size), -shift)))
        return result

    # -- outputs -------------------------------------------------------------------------------

    def references(self) -> Iterator[Compared]:
        """Everything that the case expects, row by row."""
        expected = self.case.expected
        for b in itertools.product(*map(range, self.batch)):
            yield from self.present(b)
            rows = expected["output"].rows
            for at, i in enumerate(range(self.q_len) if rows is None else rows):
                heads = []
                for h in range(self.num_heads):
                    weights, lse = self.row(b, h, i)
                    slack = mpf(10) ** (12 - DIGITS)
                    yield from self.softmax(b, h, i, weights, lse, slack)
                    heads.append(self.average(b, h, weights))
                    if not self.layer:
                        for c, (value, size) in enumerate(heads[-1]):
                            yield "output", (*b, h, at, c), value, size * slack
                if self.layer:
                    yield from self.merged(b, at, heads, slack)

    def softmax(
        self, b: Place, h: int, i: int, weights: Mapping[int, Number], lse: Number, slack: Any
    ) -> Iterator[Compared]:
        """Weights and lse of one query, where they are expected; each may have rows of its own."""
        at = {
            name: i if golden.rows is None else golden.rows.index(i)
            for name, golden in self.case.expected.items()
            if golden.rows is None or i in golden.rows
        }
        if "lse" in at:
            yield "lse", (*b, h, at["lse"]), lse, slack * (1 + (0 if _bad(lse) else abs(lse)))
        if "weights" in at:
            broken = any(_bad(p) for p in weights.values())
            for j in range(self.kv_len):
                yield "weights", (*b, h, at["weights"], j), weights.get(j, None if broken else mpf(0)), slack

    def merged(
        self, b: Place, at: int, heads: list[list[tuple[Number, Any]]], slack: Any
    ) -> Iterator[Compared]:
        """One row of the layer: concatenated heads times W^O, plus b_o."""
        steps, width = self.steps["w_o"], self.inputs["w_o"].shape[-1]
        flat = [z for head in heads for z in head]
        rows = len(self.case.expected["output"].rows or range(self.q_len)) * math.prod(self.batch)
        stride = max(1, rows * width * len(flat) // TERMS)
        for o in range(at % stride, width, stride):
            column = steps.items[:, :, o].ravel().tolist()
            if any(_bad(z) for z, _ in flat):
                yield (
                    "output",
                    (*b, at, o),
                    sum(_kind(z) * w for (z, _), w in zip(flat, column, strict=True)),
                    mpf(0),
                )
                continue
            total = mp.ldexp(mp.fdot((z, w) for (z, _), w in zip(flat, column, strict=True)), -steps.shift)
            size = mp.ldexp(
                mp.fdot((s, abs(w)) for (_, s), w in zip(flat, column, strict=True)), -steps.shift
            )
            if "b_o" in self.steps:
                total += mpf(float(self.inputs["b_o"][o]))
            yield "output", (*b, at, o), total, size * slack

    def present(self, b: Place) -> Iterator[Compared]:
        """The keys and values that a later call may be handed."""
        for name in ("key", "value"):
            if f"present_{name}" in self.case.expected:
                for g in range(self.num_kv_heads):
                    rows, shift = self.heads(name, b, g)
                    kept = self.case.expected[f"present_{name}"].rows or range(len(rows))
                    for at, j in enumerate(kept):
                        for c, number in enumerate(rows[j]):
                            yield f"present_{name}", (*b, g, at, c), real(number, shift), mpf(0)
