"""Draws, asks and reads calls of production size until the budget is spent; what fails is reduced and told once."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from conformance.exploring.claims import Claims
from conformance.exploring.explain import joined
from conformance.exploring.large.asking import Asker
from conformance.exploring.large.call import EVERY, Large, line, token
from conformance.exploring.large.draw import draw, needs
from conformance.exploring.large.pattern import EVERY_ROW
from conformance.exploring.large.reduce import Reduction
from conformance.exploring.large.told import Told
from conformance.exploring.search import Budget, Judged
from conformance.exploring.trial import COVERS
from conformance.judging.verdict import Row, Verdict
from conformance.names import DTYPES

WORDS = {"batch": "batch entries", "kv_len": "kv_len", "q_len": "q_len", "heads": "heads", "d_k": "d_k"}
FREE = {"batch": "the batch", "heads": "heads"}
SLOW = 30.0
"""Seconds that a call may take by what earlier ones took; those that would take longer are left out."""
TELLING = 1 << 26
"""Products from which on the time of a call says something of that of larger ones."""


@dataclass
class LargeNeeds:
    """What it takes to fail, in words."""

    options: tuple[str, ...]
    sizes: tuple[str, ...]
    dtypes: tuple[str, ...]
    free: tuple[str, ...]

    def sentence(self) -> str:
        """`is_causal; key 65,536 or more, kv_len 65,537 or more; float32; it does not depend on heads`."""
        what = [*([joined(self.options)] if self.options else []), *self.sizes]
        parts = [", ".join(what) or "always", joined(self.dtypes)]
        if self.free:
            parts.append(f"it does not depend on {joined(self.free)}")
        return "; ".join(parts)


@dataclass
class LargeFound:
    """A distinct failure at production size."""

    name: str
    drawn: Large
    reduced: Large
    needs: LargeNeeds
    edges: dict[str, int]  # size -> from which on it fails
    replay: str
    row: Row
    calls: int
    fresh: bool = True
    again: int = 0
    diagnosis: list[str] = field(default_factory=list)

    def covers(self, call: Large) -> bool:
        """Whether another failing call has all that this one needs."""
        return (
            call.operation == self.drawn.operation
            and set(self.needs.options) <= set(given(call))
            and all(getattr(call, name) >= least for name, least in self.edges.items())
        )


@dataclass
class LargeTally:
    """What was done so far."""

    drawn: int = 0
    judged: int = 0
    unjudged: int = 0
    unclaimed: int = 0
    calls: int = 0
    found: list[LargeFound] = field(default_factory=list)
    left_out: dict[str, int] = field(
        default_factory=dict
    )  # sizes that memory does not admit -> bytes at least
    slow: int = 0
    late: int = 0
    full: int = 0
    doubted: list[str] = field(default_factory=list)  # why nothing was said of a call
    rates: dict[tuple[str, str], float] = field(default_factory=dict)  # operation, dtype -> seconds a product


def search(
    asker: Asker, claims: Claims, policy: str, seed: int, budget: Budget, memory: float, tally: LargeTally
) -> Generator[Judged | LargeFound, None, None]:
    """Draws until the budget is spent; `memory` is in bytes."""
    until = time.monotonic() + budget.seconds
    number = 0
    while time.monotonic() < until and (budget.cases is None or tally.drawn < budget.cases):
        drawn = draw(claims, seed, number)
        name = f"explore/{seed}-{number}"
        number += 1
        tally.drawn += 1
        if drawn is None:
            tally.unclaimed += 1
            continue
        shape, call = drawn
        if call.memory > memory:
            tally.left_out[shape.name] = min(call.memory, tally.left_out.get(shape.name, call.memory))
            tally.unjudged += 1
            continue
        if call.work * tally.rates.get((call.operation, call.dtype), 0.0) > SLOW:
            tally.slow += 1
            tally.unjudged += 1
            continue
        yield from taken(asker, claims, policy, call, name, memory, tally)
        if len(tally.found) >= budget.failures:
            return


def taken(
    asker: Asker, claims: Claims, policy: str, call: Large, name: str, memory: float, tally: LargeTally
) -> Generator[Judged | LargeFound, None, None]:
    """Asks a call, and examines what fails."""
    told = _asked(asker, call, policy, tally)
    if told.kind in ("memory", "timeout", "unjudged"):
        tally.unjudged += 1
        tally.late += told.kind == "timeout"
        tally.full += told.kind == "memory"
        if told.kind == "unjudged":
            tally.doubted.append(told.message or "no bound is derived for it")
        return
    row = _row(call, told, name)
    tally.judged += told.kind != "unsupported"
    if not told.failed:
        yield Judged(row)
        return
    known = next((each for each in tally.found if each.covers(call)), None)
    if known is not None:
        known.again += 1
        yield Judged(row, known.name)
        return

    def allowed(other: Large) -> bool:
        known = other.operation in claims.operations
        return (
            known
            and other.memory <= memory
            and other.dtype in claims.dtypes
            and needs(other) <= claims.features
        )

    found = examine(lambda other: _asked(asker, other, policy, tally), allowed, call, told, name)
    tally.found.append(found)
    yield found


def _asked(asker: Asker, call: Large, policy: str, tally: LargeTally) -> Told:
    from conformance.exploring.large.sampled import certified

    tally.calls += 1
    began = time.monotonic()
    told = asker.ask(call, policy)
    spent = time.monotonic() - began
    kind = call.operation, call.dtype
    if call.work >= TELLING or told.kind == "timeout":
        tally.rates[kind] = max(tally.rates.get(kind, 0.0), (told.seconds or spent) / call.work)
    return certified(call, policy, told) if told.pieces is not None else told


def examine(
    ask: Callable[[Large], Told], allowed: Callable[[Large], bool], call: Large, told: Told, name: str
) -> LargeFound:
    """Reduces a failure, and says what it takes."""
    reduction = Reduction(ask, allowed, call, told)
    reduced = reduction.run()
    edges = {size: high for size, (_, high) in reduction.edges.items()}
    sizes = [told.needs] if told.needs and (told.needs != EVERY_ROW or not edges) else []
    sizes += [
        f"{WORDS[size]} {high:,} or more" if high - low == 1 else f"{WORDS[size]} {high:,}, not {low:,}"
        for size, (low, high) in reduction.edges.items()
    ]
    dtypes = [d for d in DTYPES if d == reduced.dtype or reduction.fails(replace(reduced, dtype=d))]
    free = tuple(
        dict.fromkeys(FREE.get(size, size) for size in reduction.free if size not in reduction.edges)
    )
    found = LargeNeeds(given(reduced), tuple(sizes), tuple(dtypes), free)
    row = replace(
        _row(reduced, reduction.last, name),
        reduced=line(reduced),
        fails_if=found.sentence(),
        replay=token(reduced),
    )
    return LargeFound(name, call, reduced, found, edges, token(reduced), row, reduction.calls)


def given(call: Large) -> tuple[str, ...]:
    """The options of a call."""
    options = {
        "is_causal": call.causal, "window": call.window is not None, "kv_lengths": call.lengths,
        "q_offset of each entry": call.offset == EVERY, "mask": bool(call.mask), "return_lse": call.lse,
        "grouped heads": call.groups < call.heads,
    }  # fmt: skip
    return tuple(name for name, there in options.items() if there)


def _row(call: Large, told: Told, name: str) -> Row:
    verdicts: dict[str, Verdict] = {
        "judged": "fail" if told.wrong else "pass", "error": "error", "wrong": "fail", "crash": "crash",
        "unsupported": "unsupported",
    }  # fmt: skip
    features = tuple(sorted(needs(call)))
    first = "GRAD-1" if call.gradients else "PROJ-1" if call.layer else "ATT-1"
    covers = [first, *(COVERS[f] for f in features if f in COVERS)]
    return Row(
        case=name, operation=call.operation, dtype=call.dtype, verdict=verdicts[told.kind],
        covers=tuple(dict.fromkeys(covers)), features=features, message=told.message, seconds=told.seconds,
    )  # fmt: skip
