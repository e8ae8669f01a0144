"""How many gated defects an exploration finds, and how far it reduces them.

A gated defect is one of the bank that is made only where a random condition on sizes, options, entry or head holds.

    python -m tests.exploring.measure --defects 20 --seconds 60 --seed 1
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import conformance
from conformance.defects.bank import DEFECTS
from conformance.defects.call import Call
from conformance.defects.defect import Defect
from conformance.defects.reference import REFERENCE
from conformance.exploring.arrays import arrays, options
from conformance.exploring.recipe import Recipe, read_token
from conformance.exploring.smaller import of_keys, of_queries
from conformance.exploring.trial import certify_recipe
from conformance.names import FEATURES, SDPA


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
    kind = rng.choice(("rest", "width", "few", "from", "head", "entry", "many"))
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
        lambda r: replace(
            r, batch=(max(r.entries, place + 1),), lengths=r.lengths and (*r.lengths[:1],) * (place + 1),
            offset=r.offset if not isinstance(r.offset, tuple) else (r.offset[0],) * (place + 1),
        ),
        0, place,
    )  # fmt: skip


class Gated:
    """The reference, which makes a mistake where its gate is open."""

    dtypes = ("float32", "bfloat16")
    features = tuple(f for f in FEATURES if f not in ("validation", "strict_masking"))
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


def smallest(defect: Defect, gate: Gate, seconds: float, seed: int) -> Recipe | None:
    """The defect without its gate, reduced, and then as large as the gate asks for."""
    report = conformance.explore(Gated(defect, ALWAYS), seconds=seconds, seed=seed, x=True, no_diagnose=True)
    row = next((row for row in report.results if row.replay), None)
    if row is None:
        return None
    fitted = gate.fitted(read_token(row.replay))
    return fitted if fails(Gated(defect, gate), fitted) else None


def main() -> None:
    """Prints a line a defect, and what came of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--defects", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    able = [
        d for d in DEFECTS
        if not d.equivalent and not d.stateful and not callable(d.change) and not d.admitted and not d.unobservable
        and "strict_masking" not in d.features and "validation" not in d.features
        and all(v.startswith(("ATT", "MASK", "HEAD", "SHAPE-3", "CACHE")) for v in d.violates)
    ]  # fmt: skip
    found, ratios = 0, []
    for number in range(asked.defects):
        defect, closed = rng.choice(able), gate(rng)
        target = Gated(defect, closed)
        began = time.monotonic()
        report = conformance.explore(
            target, seconds=asked.seconds, seed=asked.seed + number, x=True, no_diagnose=True
        )
        row = next((row for row in report.results if row.replay), None)
        took, said = time.monotonic() - began, "NOT FOUND"
        if row is not None:
            found += 1
            least = smallest(defect, closed, asked.seconds, asked.seed + number)
            got = read_token(row.replay)
            ratio = size(got) / max(size(least), 1) if least is not None else None
            ratios += [] if ratio is None else [ratio]
            times = "" if ratio is None else f"{ratio:.2g} times the smallest known; "
            said = f"{row.replay}; {times}fails if {row.fails_if}"
        judged = report.drawing.judged if report.drawing else 0
        print(f"{target.name}: {judged} judged, {took:.0f} s: {said}", flush=True)
    share = (
        f"{sum(r <= 2 for r in ratios)} of {len(ratios)} at most twice the smallest known" if ratios else ""
    )
    print(
        f"{found} of {asked.defects} found; {share}; median {statistics.median(ratios) if ratios else 0:.2g}"
    )


if __name__ == "__main__":
    main()
