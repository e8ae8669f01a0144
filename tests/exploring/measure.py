"""How many gated defects an exploration finds, and how far it reduces them.

A gated defect is one of the bank that is made only where a random condition on sizes, options, entry or head holds.
The budget is processor time, so that a busy machine measures the same.

    python -m tests.exploring.measure --defects 100 --seed 1 --share 1/2 --out one.json
    python -m tests.exploring.measure --merge one.json two.json
    python -m tests.exploring.measure --seed 3 35 51 84
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conformance.defects.bank import DEFECTS
from conformance.defects.call import Call
from conformance.defects.defect import Defect
from conformance.defects.reference import REFERENCE
from conformance.exploring.arrays import arrays, options
from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.needs import needs
from conformance.exploring.recipe import Recipe, token
from conformance.exploring.reduce import CALLS, Reduction
from conformance.exploring.smaller import of_keys, of_queries
from conformance.exploring.trial import Trials, certify_recipe
from conformance.names import DEFAULT_FEATURES, OPTION_FEATURES, SDPA
from conformance.running.runner import InProcess
from conformance.running.target import adopt


@dataclass(frozen=True)
class Gate:
    """When a defect is made."""

    words: str
    open: Callable[[Call], bool]
    fitted: Callable[[Recipe], Recipe]  # a recipe for which it is open, no larger than it must be
    axis: int | None = None  # of one head (-3) or entry (0) alone
    place: int = 0


def gate(rng: random.Random) -> Gate:
    """A random condition."""
    kind = rng.choice(("rest", "width", "few", "from", "head", "entry", "many", "beside"))
    if kind == "beside":
        option = rng.choice(("window", "kv_lengths", "softcap", "sinks", "mask", "attn_bias"))
        n = rng.choice((4, 8, 32))
        return Gate(
            f"q_len <= {n} and {option}", lambda c: c.q_len <= n and getattr(c, option, None) is not None,
            lambda r: of_queries(r, min(r.q_len, n), False),
        )  # fmt: skip
    if kind == "rest":
        tile = rng.choice((4, 8, 16, 32, 64))
        rest = rng.choice((0, 1, tile - 1, rng.randrange(tile)))
        least = rest or tile
        return Gate(
            f"kv_len mod {tile} = {rest}", lambda c: c.kv_len % tile == rest and c.kv_len > 0,
            lambda r: of_keys(r, least if r.kv_len <= least else r.kv_len + (rest - r.kv_len) % tile),
        )  # fmt: skip
    if kind == "width":
        n = rng.choice((4, 8, 16, 32, 64))
        return Gate(f"d_k > {n}", lambda c: c.d_k > n, lambda r: replace(r, d_k=max(r.d_k, n + 1)))
    if kind == "few":
        n = rng.choice((1, 2, 4, 8))
        return Gate(f"q_len <= {n}", lambda c: c.q_len <= n, lambda r: of_queries(r, min(r.q_len, n), False))
    if kind == "from":
        n = rng.choice((17, 33, 65, 129, 513))
        return Gate(f"kv_len >= {n}", lambda c: c.kv_len >= n, lambda r: of_keys(r, max(r.kv_len, n)))
    if kind == "many":
        n = rng.choice((2, 3, 5))
        return Gate(
            f"heads >= {n}", lambda c: c.heads >= n,
            lambda r: replace(r, heads=max(r.heads, n), groups=max(r.heads, n) if r.heads < n else r.groups),
        )  # fmt: skip
    place = rng.choice((0, 1, 2))
    if kind == "head":
        return Gate(
            f"head = {place}", lambda c: c.heads > place,
            lambda r: replace(r, heads=max(r.heads, place + 1), groups=max(r.heads, place + 1)), -3, place,
        )  # fmt: skip
    return Gate(
        f"entry = {place}", lambda c: len(c.batch) == 1 and c.batch[0] > place,
        lambda r: _with_entries(r, max(r.entries, place + 1)), 0, place,
    )  # fmt: skip


def _with_entries(r: Recipe, count: int) -> Recipe:
    """So many entries along one axis: its own, and more of the first."""

    def padded(each: Any) -> Any:
        return (*each, *each[:1] * (count - len(each))) if isinstance(each, tuple) else each

    return replace(r, batch=(count,), lengths=padded(r.lengths), offset=padded(r.offset))


class Gated:
    """The reference, which makes a mistake where its gate is open."""

    dtypes = ("float32", "bfloat16")
    features = tuple(f for f in (*OPTION_FEATURES, *DEFAULT_FEATURES) if f != "grad_lse")
    accuracy = "fused"

    def __init__(self, defect: Defect, gate: Gate) -> None:
        change = defect.change() if callable(defect.change) else defect.change
        self._gate, self._wrong = gate, replace(REFERENCE, **change)
        self.name = f"{defect.id} where {gate.words}"

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, **more: Any
    ) -> Mapping[str, Any]:
        def made(steps: Any) -> dict[str, Any]:
            with np.errstate(all="ignore"):
                return dict(steps.compute(steps, Call(SDPA, query, key, value, **more)))

        call = Call(SDPA, query, key, value, **more)
        if not self._gate.open(call):
            return made(REFERENCE)
        if self._gate.axis is None:
            return made(self._wrong)
        found, wrong = made(REFERENCE), made(self._wrong)
        for name in ("output", "weights", "lse"):
            if name in found:
                axis = self._gate.axis if name != "lse" or self._gate.axis == 0 else -2
                index = [slice(None)] * found[name].ndim
                index[axis] = slice(self._gate.place, self._gate.place + 1)
                found[name] = np.array(found[name])
                found[name][tuple(index)] = wrong[name][tuple(index)]
        return found


def size(recipe: Recipe) -> int:
    """Numbers that go in."""
    return sum(array.size for array in arrays(recipe).values())


def fails(target: Gated, recipe: Recipe) -> bool:
    certified = certify_recipe(recipe, "explore/measured")
    if certified is None:
        return False
    try:
        got = target.scaled_dot_product_attention(
            **certified.case.operands(recipe.dtype), **_tuples(options(recipe))
        )
    except Exception:
        return True
    return certified.judge(got, "fused").verdict == "fail"


def _tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


ALWAYS = Gate("always", lambda c: True, lambda r: r)
RIGHT = Gated(DEFECTS[0], Gate("never", lambda c: False, lambda r: r))


@dataclass
class Outcome:
    """What came of one gated defect."""

    number: int
    name: str
    found: bool
    calls: int  # drawn until it was found, or until the budget was spent
    seconds: float  # of processor time, the reduction included
    reduced: str = ""  # the token of the smallest call that was found
    size: int = 0  # numbers that go in
    least: int = 0  # the same of the smallest call that is known; 0 where none is known
    shown: bool = True  # whether any call shows it

    def line(self) -> str:
        """It in a line."""
        times = f", {self.size / self.least:.2g} times the smallest known" if self.least else ""
        missed = "NOT FOUND" if self.shown else "no call shows it"
        came = f"{self.reduced}{times}" if self.found else missed
        return f"{self.number} {self.name}: {self.calls} drawn, {self.seconds:.0f} CPU s: {came}"


def asked(target: Any) -> tuple[Trials, Claims]:
    """Who asks a program in this process, and what is drawn for it."""
    own = adopt(target, target.name)
    claims = Claims(own.hello.operations, frozenset(own.hello.features), own.hello.dtypes)
    return Trials(InProcess(own), own.hello, own.hello.accuracy), claims


def first(target: Any, seconds: float, seed: int) -> tuple[Recipe | None, int]:
    """The first failure of a seed, reduced; how many calls were drawn."""
    trials, claims = asked(target)
    began, number = time.process_time(), 0
    while time.process_time() - began < seconds:
        recipe = draw(claims, seed, number)
        number += 1
        tried = None if recipe is None else trials.ask(recipe, look=True)
        if tried is not None and tried.failed:

            def allowed(other: Recipe) -> bool:
                return other.dtype in claims.dtypes and needs(other) <= claims.features

            return Reduction(trials.ask, tried, allowed, CALLS, claims.dtypes).run().recipe, number
    return None, number


def smallest(defect: Defect, gate: Gate, seconds: float, seed: int) -> Recipe | None:
    """The defect without its gate, reduced, and then as large as the gate asks for."""
    least, _ = first(Gated(defect, ALWAYS), seconds, seed)
    if least is None:
        return None
    fitted = gate.fitted(least)
    return fitted if fails(Gated(defect, gate), fitted) else None


DRAWN = 3000
LOOKED = 12
"""Calls that the mistake shows in by itself, after which a gate that shows it in none is taken to show it in none."""


def shown(defect: Defect, gate: Gate, seed: int) -> bool:
    """Whether a gate leaves anything of a defect: what is done to head 0 alone may be what is right for it."""
    left, whole = Gated(defect, gate), Gated(defect, ALWAYS)
    (_, claims), seen = asked(whole), 0
    for number in range(DRAWN):
        recipe = draw(claims, seed, number)
        if recipe is None or recipe.work > 2**16:
            continue
        if differ(whole, recipe):
            seen += 1
            if differ(left, gate.fitted(recipe)):
                return True
        if seen == LOOKED:
            break
    return seen < 2


def differ(target: Gated, recipe: Recipe) -> bool:
    """Whether a bit of an answer is another one than that of the reference."""
    given = {name: x.astype(np.float32) if x.dtype.kind == "f" else x for name, x in arrays(recipe).items()}
    given |= _tuples(options(recipe))
    try:
        found, right = (each.scaled_dot_product_attention(**given) for each in (target, RIGHT))
    except Exception:
        return True
    return not all(np.array_equal(found[name], right[name], equal_nan=True) for name in right)


def able() -> list[Defect]:
    """The defects that a gate can be put before: of numbers, in attention, not excused."""
    return [
        d for d in DEFECTS
        if not d.equivalent and not d.stateful and not callable(d.change) and not d.admitted and not d.unobservable
        and "strict_masking" not in d.features and "validation" not in d.features
        and all(v.startswith(("ATT", "MASK", "HEAD", "SHAPE-3", "CACHE")) for v in d.violates)
    ]  # fmt: skip


def measured(seed: int, number: int, seconds: float) -> Outcome:
    """Gated defect `number` of a seed: a function of the two."""
    rng = random.Random(f"{seed}/{number}")
    defect, closed = rng.choice(able()), gate(rng)
    target = Gated(defect, closed)
    began = time.process_time()
    got, calls = first(target, seconds, seed + number)
    outcome = Outcome(number, target.name, got is not None, calls, time.process_time() - began)
    if got is not None:
        least = smallest(defect, closed, seconds, seed + number)
        outcome.reduced, outcome.size = token(got), size(got)
        outcome.least = 0 if least is None else max(size(least), 1)
    else:
        outcome.shown = shown(defect, closed, seed + number)
    return outcome


def last_line(outcomes: Sequence[Outcome]) -> str:
    """All of them in a line."""
    found, hidden = [each for each in outcomes if each.found], sum(not each.shown for each in outcomes)
    ratios = [each.size / each.least for each in found if each.least]
    within = f"{sum(r <= 2 for r in ratios)} of {len(ratios)} reduced to at most twice the smallest known"
    median = statistics.median(each.calls for each in found) if found else 0
    none = f" (and {hidden} that no call shows)" if hidden else ""
    return f"{len(found)} of {len(outcomes) - hidden} found{none}, half of them within {median:.0f} calls; {within}"


def main() -> None:
    """Prints a line a defect, and what came of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--defects", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time, for each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", default="1/1", help="every n-th of them")
    parser.add_argument("--out", type=Path, help="goes on where this file left off")
    parser.add_argument("--merge", type=Path, nargs="+", help="tells what these files hold, and runs nothing")
    parser.add_argument("numbers", type=int, nargs="*", help="these of the seed alone")
    given = parser.parse_args()
    files = given.merge or [given.out] if given.merge or (given.out and given.out.exists()) else []
    outcomes = [Outcome(**each) for file in files for each in json.loads(file.read_text())]
    part, of = map(int, given.share.split("/"))
    done = {each.number for each in outcomes}
    wanted = given.numbers or range(part - 1, given.defects, of)
    for number in () if given.merge else wanted:
        if number in done:
            continue
        outcomes.append(measured(given.seed, number, given.seconds))
        print(outcomes[-1].line(), flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    if given.merge:
        for each in outcomes:
            if not each.found or (each.least and each.size > 2 * each.least):
                print(each.line())
    print(last_line(outcomes))


if __name__ == "__main__":
    main()
