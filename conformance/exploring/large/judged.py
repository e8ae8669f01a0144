"""The answer to a call of production size, row by row: how many are wrong, what came in their place, and where."""

from collections.abc import Iterator

import numpy as np

from conformance.dtypes import dtype_name
from conformance.exploring.large.asked import place
from conformance.exploring.large.backward import judged_gradients
from conformance.exploring.large.call import Large
from conformance.exploring.large.contents import LOUDNESS
from conformance.exploring.large.layer import Headed
from conformance.exploring.large.making import BLOCK, spans
from conformance.exploring.large.pattern import common
from conformance.exploring.large.reading import flagged, sentence
from conformance.exploring.large.sampling import taken
from conformance.exploring.large.seen import sinks, span
from conformance.exploring.large.told import JUDGED, KEPT, Pieces, Told, some
from conformance.exploring.large.wanted import Counts, Wanted, capped, rounded, tolerance, wanted
from conformance.vectors.case import Array


def judged(call: Large, policy: str, answer: Pieces) -> Told:
    """The judgement of what was returned."""
    if told := _misshapen(call, answer):
        return Told("wrong", told)
    if call.layer and call.family != "sampled":
        answer = Headed(call, answer)
    if call.family == "sampled":
        return Told("judged", pieces=taken(call, answer))
    if call.gradients:
        return judged_gradients(call, policy, answer)
    return _Rows(call, policy).judge(answer)


def shapes(call: Large) -> dict[str, tuple[int, ...]]:
    """The shape of each result."""
    c = call
    if c.layer:
        found: dict[str, tuple[int, ...]] = {
            "query": (c.batch, c.q_len, c.heads * c.d_k),
            "key": (c.batch, c.kv_len, c.groups * c.d_k),
        }
        found["value"] = (c.batch, c.kv_len, c.groups * c.d_v)
        if not c.gradients:
            found = {"output": (c.batch, c.q_len, c.heads * c.d_v)}
        return {**found, **({"lse": (c.batch, c.heads, c.q_len)} if c.lse else {})}
    if c.gradients:
        return {
            "query": (c.batch, c.heads, c.q_len, c.d_k),
            "key": (c.batch, c.groups, c.kv_len, c.d_k),
            "value": (c.batch, c.groups, c.kv_len, c.d_v),
        }
    output: dict[str, tuple[int, ...]] = {"output": (c.batch, c.heads, c.q_len, c.d_v)}
    return {**output, "lse": (c.batch, c.heads, c.q_len)} if c.lse else output


def _misshapen(call: Large, answer: Pieces) -> str:
    for name, shape in shapes(call).items():
        if name not in answer.names:
            return f"returned {', '.join(answer.names) or 'nothing'}, and no {name}"
        if answer.shape(name) != shape:
            return f"{name} has shape {answer.shape(name)}, wanted {shape} (SHAPE-1)"
        first = answer.piece(name, tuple(slice(0, 1) for _ in shape))
        dtype = dtype_name(first.dtype)
        if dtype != call.dtype and not (name == "lse" and dtype == "float32"):
            return f"{name} is {dtype}, wanted {call.dtype} (DTYPE-1)"
    return ""


def boxes(call: Large, length: int, heads: int, width: int) -> Iterator[tuple[int, int, tuple[slice, ...]]]:
    """Blocks of rows: from .. to, counted through entries, heads and rows, and where they stand in the result."""
    whole = slice(None)
    if heads * length * width <= BLOCK:
        for start, stop in spans(call.batch, max(BLOCK // (heads * length * width), 1)):
            yield start * heads * length, stop * heads * length, (slice(start, stop), whole, whole)
        return
    for entry in range(call.batch):
        one = slice(entry, entry + 1)
        if length * width <= BLOCK:
            for start, stop in spans(heads, BLOCK // (length * width)):
                base = entry * heads * length
                yield base + start * length, base + stop * length, (one, slice(start, stop), whole)
            continue
        for head in range(heads):
            base = (entry * heads + head) * length
            for start, stop in spans(length, max(BLOCK // width, 1)):
                yield base + start, base + stop, (one, slice(head, head + 1), slice(start, stop))


class _Rows:
    """Rows of an output, as they are judged."""

    def __init__(self, call: Large, policy: str) -> None:
        self._call, self._policy = call, policy
        self._counts = Counts(call) if call.family == "counts" else None
        self._first = ""
        self._key: int | None = None
        self._rows = self._wrong = 0
        self._kept: dict[bool, list[Array]] = {True: [], False: []}  # wrong? -> [rows, (place, key)]

    def judge(self, answer: Pieces) -> Told:
        """All blocks, one after another."""
        call = self._call
        every = list(boxes(call, call.q_len, call.heads, call.d_v))
        for start, stop, index in some(every, max(JUDGED // BLOCK, 1)):
            got = answer.piece("output", (*index, slice(None))).reshape(-1, call.d_v).astype(np.float64)
            lse = answer.piece("lse", index).ravel().astype(np.float64) if call.lse else None
            self._take(np.arange(start, stop), got, lse)
        return self.told()

    def _take(self, flat: Array, got: Array, lse: Array | None) -> None:
        call = self._call
        want = wanted(call, flat) if self._counts is None else _plain(self._counts.wanted(flat))
        with np.errstate(all="ignore"):
            off = np.abs(got - want.output)
        wrong = ~(off <= tolerance(call, self._policy, want.output)).all(axis=1)
        expected, other = np.zeros(0), np.zeros_like(wrong)
        if lse is not None and self._counts is None:
            expected = self._lse(flat, want)
            other = self._lse_off(lse, expected)
        self._rows += len(flat)
        places = np.flatnonzero(wrong)
        if len(places) and not self._first:
            n = int(places[0])
            one = _only(want, slice(n, n + 1))
            self._first = sentence(call, int(flat[n]), got[n], one)
            if self._counts is None:
                self._key = int(one.slots[0][flagged(call, got[n : n + 1], one)[0]][0])
        if other.any() and not self._first:
            n = int(np.flatnonzero(other)[0])
            entry, head, row = (int(x[0]) for x in place(call, flat[n : n + 1]))
            self._first = (
                f"lse[{entry}, {head}, {row}] is {lse[n]:.6g}, wanted {expected[n]:.6g}: "  # type: ignore[index]
                "the weights do not add up to what the output was divided by"
            )
        self._wrong += int((wrong | other).sum())
        self._keep(flat, wrong | other, got, want)

    def _lse(self, flat: Array, want: Wanted) -> Array:
        """What the log-sum-exp is to be: the logit of the asked word, and how many keys have it."""
        call = self._call
        top = capped(call, np.array(LOUDNESS * (call.d_k - 1) * call.multiplier))
        count = want.seen.sum(axis=1)
        none = sinks(call)[place(call, flat)[1]] if call.sinks else -np.inf  # of a row that sees no key
        with np.errstate(divide="ignore"):
            return np.where(count > 0, top + np.log(count), none)

    def _lse_off(self, lse: Array, expected: Array) -> Array:
        with np.errstate(invalid="ignore"):
            near = np.abs(lse - expected) <= rounded(self._call, self._policy) * np.abs(expected)
        found: Array = ~(near | (np.isneginf(expected) & (lse == expected)))
        return found

    def _keep(self, flat: Array, wrong: Array, got: Array, want: Wanted) -> None:
        """Keeps some rows of either kind, with the keys that their weights are wrong or right for."""
        for kind in (True, False):
            rows = np.flatnonzero(wrong == kind)
            if len(rows) > KEPT:
                rows = rows[np.linspace(0, len(rows) - 1, KEPT).astype(np.int64)]
            if not len(rows):
                continue
            part = _only(want, rows)
            if self._counts is not None:
                self._kept[kind].append(np.stack([flat[rows], np.zeros_like(rows)], axis=1))
                continue
            keys = flagged(self._call, got[rows], part) if kind else part.seen
            which, member = np.nonzero(keys)
            self._kept[kind].append(np.stack([flat[rows][which], part.slots[which, member]], axis=1))

    def told(self) -> Told:
        """The judgement."""
        if not self._wrong:
            return Told("judged", rows=self._rows)
        counted = f"{self._wrong:,} of {self._rows:,} rows wrong"
        return Told("judged", f"{self._first}; {counted}", self._rows, self._wrong, self._common(), self._key)

    def _common(self) -> str:
        wrong, right = (
            self._attributes(np.concatenate(kept) if kept else np.zeros((0, 2), np.int64))
            for kept in (self._kept[True], self._kept[False])
        )
        found = common(wrong, right)
        return found.sentence if found is not None else ""

    def _attributes(self, kept: Array) -> dict[str, Array]:
        flat, slot = kept[:, 0], kept[:, 1]
        entry, head, row = place(self._call, flat)
        first, end = span(self._call, entry, row)
        found = {"entry": entry, "head": head, "query": row, "seen": end - first}
        if self._counts is not None:
            return found
        sides = {
            "before": slot == first - 1,
            "first": slot == first,
            "last": slot == end - 1,
            "behind": slot == end,
        }
        return {"key": slot, **found, **{name: x.astype(np.int64) for name, x in sides.items()}}


def _plain(output: Array) -> Wanted:
    none = np.zeros((len(output), 0), np.int64)
    return Wanted(output, np.zeros(len(output), np.int64), none, none.astype(bool))


def _only(want: Wanted, rows: slice | Array) -> Wanted:
    return Wanted(want.output[rows], want.slot[rows], want.slots[rows], want.seen[rows])
