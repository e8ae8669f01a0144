"""Smaller calls of spec/serving.md: what they may do without, and what hangs on the counts of their entries."""

from dataclasses import replace
from typing import Any

from conformance.exploring.counts import lengths, queries
from conformance.exploring.laid import UNUSUAL
from conformance.exploring.recipe import EVERY, EXPLICIT, Numbers, Recipe
from conformance.names import PACKED, PAGED

FEWER_QUERIES = "a part with fewer queries"
FEWER_KEYS = {PACKED: "a part with fewer keys", PAGED: "an entry that fills less of its table"}
WRITES = "keys that the call writes"


def off(r: Recipe) -> dict[str, dict[str, Any]]:
    """Option of an operation, in words -> the fields that leave it out."""
    if not r.served:
        return {}
    found: dict[str, dict[str, Any]] = {
        words: {"layout": r.layout.replace(letter, "")}
        for letter, words in UNUSUAL[r.operation].items()
        if letter in r.layout
    }
    if r.operation in (PACKED, PAGED):
        found |= {FEWER_KEYS[r.operation]: {"lengths": None}, FEWER_QUERIES: {"queries": None}}
    return {**found, WRITES: {"written": 0}}


def tied(r: Recipe) -> bool:
    """Whether the last query of each part or entry stands at its last key."""
    if r.operation not in (PACKED, PAGED) or not isinstance(r.offset, tuple):
        return False
    return bool((lengths(r) - queries(r) == r.offset).all())


def at_the_end(r: Recipe) -> Recipe:
    """With the last query of each part or entry at its last key."""
    return replace(r, offset=tuple(int(n) for n in lengths(r) - queries(r)))


def mended(r: Recipe) -> Recipe:
    """With counts that fit the sizes, none where all are alike, and an offset where one is required."""
    if isinstance(r.lengths, tuple):
        held = tuple(min(n, r.kv_len) for n in r.lengths)
        r = replace(
            r, lengths=held, kv_len=max(held, default=r.kv_len) if r.operation == PACKED else r.kv_len
        )
        r = replace(r, lengths=None) if set(held) <= {r.kv_len} else r
    if isinstance(r.queries, tuple):
        rows = tuple(min(n, r.q_len) for n in r.queries)
        r = replace(r, queries=rows, q_len=max(rows, default=r.q_len))
        r = replace(r, queries=None) if set(rows) <= {r.q_len} else r
    known = UNUSUAL[r.operation]
    r = replace(
        r,
        layout="".join(x for x in r.layout if x in known and (x != "e" or r.written or r.operation != PAGED)),
    )
    if r.offset is None and (r.causal or r.window is not None):
        apart = lengths(r) - queries(r)
        if len(set(apart.tolist())) == 1 and (r.operation == PAGED or apart[0]):
            return replace(r, offset=int(apart[0]))
        if r.operation == PAGED or apart.any():
            return replace(r, offset=EVERY) if r.entries > EXPLICIT else at_the_end(r)
    return r


def turned(r: Recipe) -> Recipe:
    """A call of the same shapes whose parts or entries have each other's counts, and whose pages lie otherwise."""
    if r.operation not in (PACKED, PAGED):
        return r
    found = replace(r, lengths=_moved_on(r.lengths), queries=_moved_on(r.queries))
    if r.operation == PAGED and "p" not in r.layout:
        found = replace(found, layout=f"p{r.layout}")
    return at_the_end(found) if tied(r) else found


def _moved_on(counts: Numbers | None) -> Numbers | None:
    return (*counts[1:], *counts[:1]) if isinstance(counts, tuple) else counts
