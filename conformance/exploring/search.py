"""Draws, asks and judges until the budget is spent; what fails is reduced, explained and told once."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from conformance.exploring import smaller
from conformance.exploring.claims import Claims
from conformance.exploring.coverage import Coverage
from conformance.exploring.draw import draw
from conformance.exploring.earlier import SAME, SHAPE
from conformance.exploring.explain import CALLS as EXPLAINING
from conformance.exploring.explain import Needs, applies, explain, resized, size_of
from conformance.exploring.laid import SAME_LAYOUT
from conformance.exploring.needs import needs
from conformance.exploring.recipe import Recipe, numbers_of, token
from conformance.exploring.reduce import CALLS, Reduction
from conformance.exploring.sizes import ELEMENTS
from conformance.exploring.trial import NOT_TWICE, Trials, Tried
from conformance.judging.verdict import Row

SAME_AGAIN = 12
"""Calls of a failure that is known that are looked at closely; later ones are taken to be of the first that fits."""
EXPLAINED_WORK = 2**22
EVIDENCE = 4
REFUTING = 3
"""Calls with numbers that tell mistakes apart, each of which is asked without each option that the failure needs."""
REPEATS = 4
"""How often the smallest call is asked in a new process: a race is wrong some of the times."""


@dataclass(frozen=True)
class Budget:
    """When to stop drawing."""

    seconds: float = 60.0
    cases: int | None = None
    failures: int = 5


@dataclass
class Found:
    """A distinct failure: the call as it was drawn, the smallest one, and what it takes to fail."""

    name: str  # the case as it was drawn
    drawn: Tried
    reduced: Tried
    needs: Needs
    replay: str
    fresh: bool  # whether the smallest call fails in a process that has seen no other
    calls: int  # that the reduction took
    evidence: tuple[Tried, ...] = ()  # small calls around it, which fail or pass
    looked_into: bool = True  # whether it was reduced and explained
    again: int = 0  # how many later calls are of this failure
    row: Row | None = None
    diagnosis: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same failure as another one."""
        recipe = self.reduced.recipe
        return (recipe.operation, self.reduced.kind, *self.needs.options, *self.needs.sizes)


@dataclass(frozen=True)
class Judged:
    """One drawn call that was judged; `known` names the failure that it is one more of."""

    row: Row
    known: str = ""
    tried: Tried | None = None


@dataclass
class Tally:
    """What was done so far."""

    drawn: int = 0
    judged: int = 0
    unjudged: int = 0  # nothing is derived for them
    unclaimed: int = 0
    calls: int = 0
    found: list[Found] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


Event = Judged | Found


def explore(
    trials: Trials, claims: Claims, seed: int, budget: Budget, tally: Tally, start: int = 0
) -> Generator[Event, None, None]:
    """Draws until the budget is spent; each distinct failure comes as soon as it is explained."""
    until = time.monotonic() + budget.seconds
    number = start
    while time.monotonic() < until and (budget.cases is None or tally.drawn < budget.cases):
        recipe = draw(claims, seed, number)
        name = f"explore/{seed}-{number}"
        number += 1
        tally.drawn += 1
        if recipe is None:
            tally.unclaimed += 1
            continue
        tried = trials.ask(recipe, name, look=True)
        tally.calls = trials.calls
        if tried.row is None:
            tally.unjudged += 1
            continue
        if tried.row.verdict != "unsupported":
            tally.judged += 1
            tally.coverage.add(recipe)
        if not tried.failed:
            yield Judged(tried.row, tried=tried)
            continue
        known = _known(trials, claims, tally, tried)
        if known is not None:
            known.again += 1
            yield Judged(tried.row, known.name, tried)
            continue
        try:
            found = examine(trials, claims, tried, name)
        except KeyboardInterrupt:
            yield _unreduced(tried, name)
            raise
        same = next((each for each in tally.found if each.key == found.key), None)
        if same is not None:
            same.again += 1
            yield Judged(tried.row, same.name, tried)
            continue
        tally.found.append(found)
        yield found
        if sum(each.row is not None for each in tally.found) >= budget.failures:
            return


def examine(trials: Trials, claims: Claims, tried: Tried, name: str) -> Found:
    """Reduces a failure, and finds out what it takes."""
    before = trials.calls

    def allowed(recipe: Recipe) -> bool:
        return recipe.dtype in claims.dtypes and needs(recipe) <= claims.features

    tried, kept = _alone(trials, tried, allowed)
    reduction = Reduction(trials.ask, tried, allowed, CALLS, claims.dtypes, kept)
    reduced = reduction.run()
    spent = trials.calls - before
    trials.restart()
    asked = [trials.ask(reduced.recipe) for _ in range(REPEATS)]
    failing = [each for each in asked if each.failed]
    fresh = bool(failing)
    if fresh:
        reduced = failing[0]
    if fresh and len(failing) < REPEATS:
        return _unstable(tried, reduced, name, len(failing), spent)
    reduction.more(EXPLAINING)
    for other in varied(reduced.recipe):
        reduction.fails(other)

    def room(recipe: Recipe) -> bool:
        return recipe.work <= EXPLAINED_WORK and recipe.elements <= ELEMENTS

    found = explain(reduction, claims.dtypes, room)
    for other in varied(reduced.recipe)[:REFUTING]:
        for option in found.options:  # what passes without it speaks against mistakes that are made there too
            less = smaller.without(other, option)
            if less != other and allowed(less):
                reduction.fails(less)
    return Found(
        name, tried, reduced, found, token(reduced.recipe if fresh else tried.recipe), fresh, spent,
        evidence(reduction, reduced),
    )  # fmt: skip


def _unreduced(tried: Tried, name: str) -> Found:
    """The failure as it was drawn: nothing was found out of it before an interrupt."""
    needs = Needs((), ("this call, which was not reduced: interrupted",), (tried.recipe.dtype,), ())
    return Found(name, tried, tried, needs, token(tried.recipe), True, 0, looked_into=False)


def _unstable(tried: Tried, reduced: Tried, name: str, failing: int, spent: int) -> Found:
    """A call that is wrong some of the times: nothing else can be said of what it takes."""
    assert reduced.row is not None
    message = f"{NOT_TWICE}: wrong {failing} of {REPEATS} times; {reduced.row.message} (IND-4)"
    reduced = replace(reduced, row=replace(reduced.row, message=message))
    needs = Needs((), (f"{failing} of {REPEATS} times that it is asked",), (reduced.recipe.dtype,), ())
    return Found(name, tried, reduced, needs, token(reduced.recipe), True, spent)


def _alone(trials: Trials, tried: Tried, allowed: Callable[[Recipe], bool]) -> tuple[Tried, tuple[str, ...]]:
    """The failure as it is in a new process, and the options that are not to be tried off.

    What an earlier call left behind makes later ones fail: there the call before belongs to the failure.
    """
    recipe = replace(tried.recipe, again="")
    trials.restart()
    first = trials.ask(recipe, _name(tried))
    if first.failed and first.kind == tried.kind:
        return first, ()
    *others, last = numbers_of(recipe) or (SAME,)
    for again in dict.fromkeys((tried.recipe.again or last, SAME, last, *others, SHAPE)):
        if again != SAME or tried.kind.endswith("twice"):
            trials.restart()
            other = trials.ask(replace(recipe, again=again), _name(tried))
            if other.failed and other.kind == tried.kind:
                return other, ("again",)
    return tried, ("again",)


def _name(tried: Tried) -> str:
    return "explore/reduced" if tried.row is None else tried.row.case


def varied(recipe: Recipe) -> list[Recipe]:
    """The smallest call with numbers that tell mistakes apart."""
    wide = (
        replace(recipe, d_k=3, d_v=3 if recipe.d_k == recipe.d_v else 2)
        if max(recipe.d_k, recipe.d_v) < 3
        else recipe
    )
    longer = wide
    if recipe.lengths is None and recipe.offset is None:
        longer = smaller.mended(replace(wide, q_len=max(wide.q_len, 3), kv_len=max(wide.kv_len, 5)))
    every = dict.fromkeys((wide, recipe, longer))
    streams = [recipe.stream + n * SAME_LAYOUT for n in (1, 2)] if recipe.served else [1, 2]
    return [replace(each, data=(), stream=stream) for stream in streams for each in every]


def evidence(reduction: Reduction, reduced: Tried) -> tuple[Tried, ...]:
    """Small calls of the reduction and the experiments: those that fail, and some that pass, for the diagnosis."""
    tried = [
        t for t in reduction.known.values() if t.row is not None and t is not reduced and t.case is not None
    ]
    tried.sort(key=lambda t: (t.recipe.work, token(t.recipe)))
    varied = [t for t in tried if any(t.recipe.family(n)[0] not in "ZO" for n in ("query", "key"))]
    failing = [t for t in tried if t.kind == reduced.kind and t.failed]
    telling = [t for t in failing if t in varied]
    # several queries and keys tell mistakes apart that are alike in a call of one query
    several = [t for t in telling if t.recipe.q_len > 2 and t.recipe.kv_len > 2]
    telling = [*several[:EVIDENCE], *[t for t in telling if t not in several[:EVIDENCE]][: EVIDENCE // 2]]
    failing = telling + [t for t in failing if t not in telling][:EVIDENCE]
    right = [t for t in tried if not t.failed]
    right.sort(key=lambda t: t not in varied or min(t.recipe.q_len, t.recipe.kv_len) <= 2)
    return (*failing, *right[: 4 * EVIDENCE])


def _known(trials: Trials, claims: Claims, tally: Tally, tried: Tried) -> Found | None:
    """The failure that a call is one more of: it has what that takes, and without it the call passes."""
    for found in tally.found:
        smallest = found.reduced.recipe
        if found.reduced.kind != tried.kind or smallest.operation != tried.recipe.operation:
            continue
        if not set(found.needs.options) <= set(smaller.given(tried.recipe)):
            continue
        if found.again >= SAME_AGAIN:
            return found
        if _passes_without(trials, claims, found, tried.recipe):
            return found
    return None


def _passes_without(trials: Trials, claims: Claims, found: Found, recipe: Recipe) -> bool:
    """Whether a call is right as soon as it lacks what the failure needs."""
    for option in found.needs.options:
        less = smaller.without(recipe, option)
        if needs(less) <= claims.features:
            tried = trials.ask(less)
            return tried.row is not None and not tried.failed
    for name in ("kv_len", "d_k", "d_v", "q_len", "heads", "batch"):
        least = size_of(found.reduced.recipe, name)
        if any(name in said for said in found.needs.sizes) and least > 1 and applies(name, recipe):
            other = _below(recipe, name, least - 1)
            if other is not None and needs(other) <= claims.features:
                tried = trials.ask(other)
                return tried.row is not None and not tried.failed
    return not found.needs.options and not found.needs.sizes


def _below(recipe: Recipe, name: str, size: int) -> Recipe | None:
    return resized(recipe, name, size) if size_of(recipe, name) > size else None
