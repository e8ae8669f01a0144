"""Gradients in closed form: each query weighs the one or two keys of its word, so each gradient is a short sum."""

from dataclasses import dataclass, field

import numpy as np

from conformance.exploring.large.asked import place
from conformance.exploring.large.call import Large
from conformance.exploring.large.contents import fields, grad_output, query
from conformance.exploring.large.making import BLOCK, host, spans
from conformance.exploring.large.pattern import common
from conformance.exploring.large.reading import plainly
from conformance.exploring.large.told import JUDGED, KEPT, Pieces, Told, some
from conformance.exploring.large.wanted import rounded, wanted
from conformance.vectors.case import Array

LEAST = 2.0**-20


@dataclass(frozen=True)
class Sums:
    """The gradients of some key heads of entries, and the sums of what was added up, without signs."""

    value: dict[str, Array]  # query [rows, d_k], key [keys, d_k], value [keys, d_v]
    size: dict[str, Array]


def sums(call: Large, start: int, stop: int) -> Sums:
    """The gradients of key heads `start` to `stop`, counted through the entries."""
    c, make = call, host("float64")
    rows = c.group * c.q_len
    flat = np.arange(start * rows, stop * rows)
    want = wanted(c, flat)
    entry, head, _ = place(c, flat)
    owner = head // c.group
    g, q = (made(c, make, start * rows, stop * rows) for made in (grad_output, query))
    scale = c.multiplier
    p = want.seen / np.maximum(want.seen.sum(axis=1, keepdims=True), 1)  # [rows, members]
    products = np.zeros_like(p)
    for m in range(c.members):
        columns = fields(c, want.slots[:, m], owner, entry, np.zeros_like(entry))
        products[:, m] = (g * np.stack(columns, axis=-1)).sum(axis=1)
    delta = (p * products).sum(axis=1, keepdims=True)
    ds = p * (products - delta)
    size = p * (np.abs(products) + (p * np.abs(products)).sum(axis=1, keepdims=True))
    d_query = np.zeros((len(flat), c.d_k))
    turns = 1.0 - 2.0 * (np.arange(c.members) % 2)  # the first column of the keys of a word
    d_query[:, 0] = scale * (ds * turns).sum(axis=1)
    keys = (stop - start) * c.kv_len
    value = {"query": d_query, "key": np.zeros((keys, c.d_k)), "value": np.zeros((keys, c.d_v))}
    sizes = {
        "query": np.broadcast_to(scale * size.sum(axis=1, keepdims=True), d_query.shape),
        "key": np.zeros((keys, 1)),
        "value": np.zeros((keys, c.d_v)),
    }
    top = np.abs(q).max(initial=0.0)
    base = (flat // rows - start) * c.kv_len
    for m in range(c.members):
        there = want.seen[:, m]
        where = (base + want.slots[:, m])[there]
        _add(value["value"], where, (p[:, m : m + 1] * g)[there])
        _add(sizes["value"], where, (p[:, m : m + 1] * np.abs(g))[there])
        _add(value["key"], where, (scale * ds[:, m : m + 1] * q)[there])
        _add(sizes["key"], where, scale * top * size[:, m : m + 1][there])
    return Sums(value, sizes)


def _add(total: Array, where: Array, rows: Array) -> None:
    """Adds rows to those at some places, which may come more than once."""
    if not len(where):
        return
    order = np.argsort(where, kind="stable")
    places, first = np.unique(where[order], return_index=True)
    total[places] += np.add.reduceat(rows[order], first, axis=0)


@dataclass
class _Tally:
    rows: int = 0
    wrong: int = 0
    first: str = ""
    kept: dict[bool, list[Array]] = field(default_factory=lambda: {True: [], False: []})


def judged_gradients(call: Large, policy: str, answer: Pieces) -> Told:
    """The judgement of all three gradients."""
    part = rounded(call, policy)
    width = max(call.d_k, call.d_v)
    step = max(BLOCK // (max(call.group * call.q_len, call.kv_len) * width), 1)
    every = list(spans(call.batch * call.groups, step))
    tallies = {name: _Tally() for name in ("value", "key", "query")}
    for start, stop in some(every, max(JUDGED // (step * call.kv_len * width), 1)):
        found = sums(call, start, stop)
        for name, tally in tallies.items():
            got = _piece(call, answer, name, start, stop)
            with np.errstate(all="ignore"):
                off = np.abs(got - found.value[name])
                wrong = ~(off <= part * found.size[name] + LEAST).all(axis=1)
            _take(call, name, tally, start, wrong, got, found.value[name])
    bad = {name: tally for name, tally in tallies.items() if tally.wrong}
    rows = sum(tally.rows for tally in tallies.values())
    if not bad:
        return Told("judged", rows=rows)
    name, tally = next(iter(bad.items()))
    counts = ", ".join(f"{t.wrong:,} of {t.rows:,} rows of that of {n}" for n, t in bad.items())
    return Told(
        "judged",
        f"{tally.first}; {counts} wrong",
        rows,
        sum(t.wrong for t in bad.values()),
        _common(name, tally),
    )


def _piece(call: Large, answer: Pieces, name: str, start: int, stop: int) -> Array:
    """The gradients of some key heads, [rows, width]; with them those of the queries that read them."""
    each = call.group if name == "query" else 1
    heads = call.heads if name == "query" else call.groups
    parts, at = [], start
    while at < stop:  # from entry to entry
        entry, owner = divmod(at, call.groups)
        until = min(stop, (entry + 1) * call.groups)
        if owner == 0 and stop - at >= call.groups:  # whole entries at once
            until = at + (stop - at) // call.groups * call.groups
            index = slice(entry, until // call.groups), slice(0, heads)
        else:
            index = slice(entry, entry + 1), slice(owner * each, (owner + until - at) * each)
        found = answer.piece(name, (*index, slice(None), slice(None)))
        parts.append(found.reshape(-1, found.shape[-1]).astype(np.float64))
        at = until
    return np.concatenate(parts)


def _take(call: Large, name: str, tally: _Tally, start: int, wrong: Array, got: Array, want: Array) -> None:
    length, each = (call.q_len, call.group) if name == "query" else (call.kv_len, 1)
    at = np.arange(len(wrong))
    owner, row = start * each + at // length, at % length
    entry, head = np.divmod(owner, call.heads if name == "query" else call.groups)
    tally.rows += len(wrong)
    tally.wrong += int(wrong.sum())
    if wrong.any() and not tally.first:
        n = int(np.argmax(wrong))
        place = (
            f"{entry[n]}, {row[n]}] of head {head[n]}" if call.layer else f"{entry[n]}, {head[n]}, {row[n]}]"
        )
        tally.first = f"gradient of {name}[{place}: got {_read(got[n], want[n])}"
    for kind in (True, False):
        rows = np.flatnonzero(wrong == kind)
        if len(rows) > KEPT:
            rows = rows[np.linspace(0, len(rows) - 1, KEPT).astype(np.int64)]
        tally.kept[kind].append(np.stack([entry[rows], head[rows], row[rows]], axis=1))


def _read(got: Array, want: Array) -> str:
    """A wrong gradient in words."""
    if told := plainly(got):
        return f"{told}, wanted {want[np.argmax(np.abs(want))]:.6g} at most"
    size = float(want @ want)
    if size:
        share = float(got @ want) / size
        if np.abs(got - share * want).max() <= 0.02 * np.abs(want).max() and abs(share - 1) > 0.02:
            return f"{share:.3g} times what is wanted"
    column = int(np.argmax(np.abs(got - want)))
    return f"{got[column]:.6g} in column {column}, wanted {want[column]:.6g}"


def _common(name: str, tally: _Tally) -> str:
    wrong, right = (np.concatenate(tally.kept[kind]) for kind in (True, False))
    row = "query" if name == "query" else "key"
    names = ("entry", "head", row)
    found = common(*({n: x[:, k] for k, n in enumerate(names)} for x in (wrong, right)))
    return found.sentence if found is not None else ""
