"""How many planted mistakes of packed, paged, latent and merged attention are found, and how far they are reduced.

First those of the bank as they are, then some of them made only where a random condition on sizes or options holds.

    python -m tests.exploring.measure_served --out served.json
    python -m tests.exploring.measure_served --gated 60 --seed 1 --out gated.json
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.defects.bank import BANK
from conformance.defects.defect import Defect
from conformance.defects.reference import REFERENCE
from conformance.defects.serving.call import Served
from conformance.defects.serving.steps import serve
from conformance.exploring import explain, smaller
from conformance.exploring.parts import mended
from conformance.exploring.recipe import Recipe, token
from conformance.exploring.valid import valid
from conformance.names import APPEND, FEATURES, LATENT, MERGE, PACKED, PAGED
from tests.exploring.measure import Outcome, asked, first, last_line, size

KINDS = ("packed", "page_tables", "page_writes", "merges")
SIZES = (16, 32, 64)
SKIPPED = ("validation", "strict_masking")


@dataclass(frozen=True)
class Gate:
    """When a mistake is made."""

    words: str
    open: Callable[[Served], bool]
    fitted: Callable[[Recipe], Recipe]  # a recipe for which it is open, no larger than it must be


ALWAYS = Gate("always", lambda c: True, lambda r: r)


class Gated:
    """The reference of serving, which makes a mistake where its gate is open."""

    dtypes = ("float32", "bfloat16")
    features = tuple(f for f in FEATURES if f not in SKIPPED)
    accuracy = "fused"

    def __init__(self, defect: Defect, gate: Gate) -> None:
        change = defect.change() if callable(defect.change) else defect.change
        self._gate, self._wrong = gate, replace(REFERENCE, **change)
        self.name = f"{defect.id} where {gate.words}"

    def _served(self, operation: str, **given: Any) -> Any:
        call = Served(operation, **given)
        with np.errstate(all="ignore"):
            return serve(self._wrong if self._gate.open(call) else REFERENCE, call)

    def packed_attention(self, query: Any, key: Any, value: Any, **more: Any) -> Any:
        return self._served(PACKED, query=query, key=key, value=value, **more)

    def paged_attention(self, query: Any, key_pages: Any, value_pages: Any, **more: Any) -> Any:
        return self._served(PAGED, query=query, key_pages=key_pages, value_pages=value_pages, **more)

    def append_to_pages(
        self, key_pages: Any, value_pages: Any, new_key: Any, new_value: Any, *, slots: Any
    ) -> Any:
        arrays = {
            "key_pages": key_pages,
            "value_pages": value_pages,
            "new_key": new_key,
            "new_value": new_value,
        }
        return self._served(APPEND, **arrays, slots=slots)

    def latent_attention(self, query: Any, latent: Any, **more: Any) -> Any:
        return self._served(LATENT, query=query, latent=latent, **more)

    def merge_attention(self, outputs: Any, lses: Any, *, sinks: Any = None) -> Any:
        return self._served(MERGE, outputs=outputs, lses=lses, sinks=sinks)


def keys(c: Served) -> int:
    """The keys of the longest part or entry; slots where pages are written, parts where they are merged."""
    if c.operation == PACKED:
        return int(np.diff(c.kv_starts).max(initial=0))
    if c.operation == PAGED:
        return int(c.kv_lengths.max(initial=0))
    if c.operation == LATENT:
        return int(c.latent.shape[-2])
    return c.cells if c.operation == APPEND else len(c.outputs)


def rows(c: Served) -> int:
    """The queries of the longest part or entry, or the new rows."""
    if c.operation == PACKED:
        return int(np.diff(c.q_starts).max(initial=0))
    if c.operation == APPEND:
        return len(c.slots)
    return int(c.outputs[0].shape[-2] if c.operation == MERGE else c.query.shape[-2])


def entries(c: Served) -> int:
    """Parts, or entries of the first batch axis."""
    if c.operation == PACKED:
        return c.parts
    return 1 if c.query is None or c.query.ndim < 4 else int(c.query.shape[0])


def heads(c: Served) -> int:
    if c.operation == APPEND:
        return int(c.key_pages.shape[2])
    return int((c.outputs[0] if c.operation == MERGE else c.query).shape[-3])


def gate(rng: random.Random, features: tuple[str, ...]) -> Gate:
    """A random condition."""
    merge, append = "merge" in features, features == ("append",)
    kinds = (
        ["from", "few", "heads"] if merge or append else ["from", "rest", "few", "heads", "beside", "entries"]
    )
    kind = rng.choice([*kinds, *(["page", "page"] if append or "paged" in features else [])])
    if kind == "page":
        n = rng.choice((16, 64, 256))
        return Gate(
            f"pages of {n}", lambda c: c.pages and c.page == n, lambda r: explain.resized(r, "page", n)
        )
    if kind == "rest":
        tile = rng.choice(SIZES)
        rest = rng.choice((0, 1, tile - 1))
        least = rest or tile
        return Gate(
            f"keys mod {tile} = {rest}", lambda c: keys(c) % tile == rest and keys(c) > 0,
            lambda r: smaller.of_keys(r, least if r.kv_len <= least else r.kv_len + (rest - r.kv_len) % tile),
        )  # fmt: skip
    if kind == "from":
        n = rng.choice((3, 5, 9)) if merge else rng.choice((17, 33, 65, 129))
        return Gate(
            f"keys >= {n}", lambda c: keys(c) >= n, lambda r: smaller.of_keys(r, max(r.kv_len, n), False)
        )
    if kind == "few":
        n = rng.choice((1, 2, 4))
        return Gate(
            f"rows <= {n}", lambda c: rows(c) <= n, lambda r: smaller.of_queries(r, min(r.q_len, n), False)
        )
    if kind == "heads":
        n = rng.choice((2, 3, 5))
        return Gate(
            f"heads >= {n}", lambda c: heads(c) >= n,
            lambda r: replace(r, heads=max(r.heads, n), groups=1 if r.operation == LATENT else max(r.groups, n)),
        )  # fmt: skip
    if kind == "beside":
        option = rng.choice(("window", "softcap", "sinks", "return_lse"))
        on = {"window": {"window": (None, 0)}, "softcap": {"softcap": 2.0}, "sinks": {"sinks": True}}
        fields = on.get(option, {"lse": True})
        return Gate(
            f"{option} is given", lambda c: getattr(c, option) not in (None, False)
            if option != "sinks" else c.sinks is not None,
            lambda r: smaller.mended(replace(r, **fields)),
        )  # fmt: skip
    n = rng.choice((2, 3, 5))
    return Gate(
        f"entries >= {n}", lambda c: entries(c) >= n, lambda r: smaller.of_batch(r, max(r.entries, n))
    )


def able() -> list[Defect]:
    """The mistakes of the bank that a call which is drawn can show."""
    return [
        d for name in KINDS for d in BANK[name]
        if not d.equivalent and not set(SKIPPED) & set(d.features)
    ]  # fmt: skip


def fails(target: Gated, recipe: Recipe) -> bool:
    """Whether a call shows it."""
    trials, _ = asked(target)
    return valid(recipe) and trials.ask(recipe).failed


def least_of(defect: Defect, closed: Gate, seconds: float, seed: int) -> Recipe | None:
    """The mistake without its gate, reduced, and then as large as the gate asks for."""
    least, _ = first(Gated(defect, ALWAYS), seconds, seed)
    if least is None:
        return None
    fitted = closed.fitted(least)
    fitted = mended(fitted) if fitted.operation in (PACKED, PAGED) else fitted
    return fitted if fails(Gated(defect, closed), fitted) else None


def measured(defect: Defect, closed: Gate, number: int, seconds: float, seed: int) -> Outcome:
    """One mistake."""
    target: Any = Gated(defect, closed) if closed is not ALWAYS else _Whole(defect)
    began = time.process_time()
    got, calls = first(target, seconds, seed)
    outcome = Outcome(number, target.name, got is not None, calls, time.process_time() - began)
    if got is not None:
        outcome.reduced, outcome.size = token(got), size(got)
        if closed is not ALWAYS:
            least = least_of(defect, closed, seconds, seed)
            outcome.least = 0 if least is None else max(size(least), 1)
    return outcome


class _Whole(Gated):
    """The mistake wherever it can be made."""

    def __init__(self, defect: Defect) -> None:
        super().__init__(defect, ALWAYS)
        self.name = defect.id


def main() -> None:
    """Prints a line a mistake, and what came of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gated", type=int, default=0, help="so many behind a random condition, in place of all"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="goes on where this file left off")
    given = parser.parse_args()
    known = given.out is not None and given.out.exists()
    outcomes = [Outcome(**each) for each in json.loads(given.out.read_text())] if known else []
    done, every = {each.number for each in outcomes}, able()
    for number in range(given.gated or len(every)):
        if number in done:
            continue
        rng = random.Random(f"served {given.seed}/{number}")
        defect = rng.choice(every) if given.gated else every[number]
        closed = gate(rng, defect.features) if given.gated else ALWAYS
        outcomes.append(measured(defect, closed, number, given.seconds, given.seed + number))
        print(outcomes[-1].line(), flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    small = sum(0 < each.size <= SMALL for each in outcomes)
    print(last_line(outcomes) if given.gated else f"{last_line(outcomes).partition(';')[0]}; {small} reduced to "
          f"operands of {SMALL} numbers at most")  # fmt: skip


SMALL = 32

if __name__ == "__main__":
    main()
