"""The rounds of a search: every model on a few failing rows, the candidates on more, the winner on all."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from conformance.diagnosis.failing import Evidence, Failure
from conformance.diagnosis.finding import Diagnosed, Finding
from conformance.diagnosis.model import Model, length
from conformance.diagnosis.pairs import find, pairs
from conformance.diagnosis.parts import regions
from conformance.diagnosis.plausible import adding, plausible
from conformance.diagnosis.split import Split
from conformance.diagnosis.weigh import LARGE, SAMPLE, Bench, Weight, spread, telling

SCREEN = 3
"""Failing rows that every model is asked about in a round."""
NEAR = 60
"""The smallest failing rows, among which those are looked for."""
CANDIDATES = 40
"""Models that are weighed in a round."""
ROUNDS = 12
MISSES = 5
"""Rounds in which nothing is found, after which one mistake is no longer looked for."""
MOST_FINDINGS = 8
ASKED = 16
"""Models between two looks at the clock, which is slow."""
ENOUGH = 2
"""Cases that a model has to reproduce to be named: one may be chance."""


class Search:
    """One diagnosis under way."""

    def __init__(
        self,
        seen: Evidence,
        policy: str,
        every: Sequence[Model],
        until: float,
        split: tuple[Split, ...] = (),
        rounds: int = ROUNDS,
    ) -> None:
        self._seen, self._every, self._until, self._split = seen, every, until, split
        self._rounds = rounds
        self._bench = Bench(seen, policy)
        self._place = {model.name: number for number, model in enumerate(every)}

    def run(self) -> Diagnosed:
        """Rounds, each on what is left unexplained, then two mistakes at once."""
        seen = self._seen
        left, found = list(seen.failures), list[Finding]()
        single: tuple[Model, ...] = ()
        cases = len({f.case.id for f in seen.failures})
        raised = all(f.raised for f in seen.failures)
        rounds = misses = 0
        while (
            left and len(found) < MOST_FINDINGS and rounds < self._rounds and misses < MISSES and self._time()
        ):
            rounds += 1
            screen = self._screen(self._stratum(left, misses))
            weights = self._round(screen, left)
            best = next((w for w in weights if self._enough(w.model)), None)
            if best is not None:
                found.append(self._finding(best, weights))
                left = [f for f in left if not self._bench.explains(best.model, f)]
            else:
                misses += 1
                # every model that raises there would do the same, and many that are nearly right
                if cases == 1 and not raised and any(self._bench.clear(f) for f in screen):
                    single = tuple(w.model for w in weights)
                left = [f for f in left if f not in screen]
        if not raised and self._rounds > 1:
            found = pairs(self._bench, found, self._every, self._until)
            found += self._in_blocks(found)
            found += self._partly(found)
        found = [self._beside(finding) for finding in found]
        found = sorted(
            (f for f in found if plausible(f, seen)), key=lambda each: (-each.explains, -each.worth)
        )
        found = list(adding(found))
        hurried = bool(left) and not self._time()
        explained = {f for finding in found for f in finding.explained}
        unexplained = tuple(f for f in seen.failures if f not in explained)
        return Diagnosed(
            tuple(found), seen.failed, len(seen.failures), single, hurried, cases, raised, unexplained
        )

    def _beside(self, finding: Finding) -> Finding:
        """The finding, with what speaks against it among the passing rows that are such as those that fail."""
        whole = [split.rows for split in self._split if not split.failing_elsewhere]
        if not whole:
            return finding
        inside = [f for f in self._seen.passes if any((f.case.id, f.dtype) in rows for rows in whole)]
        passes = telling(finding.model, inside)
        against = sum(self._bench.fails(finding.model, each) for each in passes)
        return replace(finding, contradicted=against, looked_at=len(passes))

    def _unexplained(self, found: Sequence[Finding]) -> list[Failure]:
        """What no finding reproduces; nothing if that is one case only."""
        left = [f for f in self._seen.failures if not any(f in each.explained for each in found)]
        return left if len({f.case.id for f in left}) >= ENOUGH else []

    def _in_blocks(self, found: Sequence[Finding]) -> list[Finding]:
        """The mistake that reproduces most of what is left if some blocks of keys make it."""
        left = [
            f
            for f in self._unexplained(found)
            if f.size <= LARGE and f.outputs and not f.case.operation.endswith("_vjp")
        ]
        rows = spread(left[:NEAR], SCREEN)
        longest = max((length(f.case, "kv_len") for f in rows), default=0)
        best: Finding | None = None
        for whole in self._every if len({f.case.id for f in rows}) >= ENOUGH else ():
            if not whole.usual or not self._time():
                break
            for defect in regions(whole.defects[0], longest):
                model = Model((defect,))
                if sum(model.may_show(f.case) and self._bench.explains(model, f) for f in rows) >= ENOUGH:
                    finding = find(self._bench, model)
                    best = max(best, finding, key=lambda each: each.worth) if best else finding
        return [best] if best and best.worth > best.explains / 2 else []

    def _partly(self, found: Sequence[Finding]) -> list[Finding]:
        """The mistake that reproduces all that is wrong in most of what is left, though not in all of a call."""
        left = [f for f in self._unexplained(found) if f.size <= LARGE]
        names = self._bench.partial(self._place)
        reached = {
            model: tuple(f for f in left if model.may_show(f.case) and self._bench.explains(model, f, True))
            for model in self._every
            if model.name in names
        }
        enough = [model for model, rows in reached.items() if len({f.case.id for f in rows}) >= ENOUGH]
        if not enough:
            return []
        best = max(enough, key=lambda model: len(reached[model]))
        return [replace(find(self._bench, best), explained=reached[best], partly=True)]

    def _stratum(self, left: Sequence[Failure], misses: int) -> Sequence[Failure]:
        """Rows that fail under one condition, each condition in turn: two of them may be two mistakes."""
        strata, rest = list[list[Failure]](), list(left)
        for split in self._split:
            inside = [f for f in rest if (f.case.id, f.dtype) in split.rows]
            rest = [f for f in rest if f not in inside]
            strata.append(inside)
        strata = [stratum for stratum in (*strata, rest) if len({f.case.id for f in stratum}) >= ENOUGH]
        strata.sort(key=len, reverse=True)
        return strata[misses % len(strata)] if strata else left

    def _time(self) -> bool:
        return time.process_time() < self._until

    def _screen(self, left: Sequence[Failure]) -> list[Failure]:
        """Few and different ones; those that had to be refused cost next to nothing."""
        small = [f for f in left if f.size <= LARGE] or left
        accepted = [f for f in small if f.case.raises]
        return spread([f for f in small if not f.case.raises][:NEAR], SCREEN) or accepted

    def _round(self, screen: Sequence[Failure], left: Sequence[Failure]) -> list[Weight]:
        """The candidates of a round, the best first."""
        hits = {}
        for number, model in enumerate(self._every):
            if not model.usual and number % ASKED == 0 and not self._time():
                break
            if n := sum(model.may_show(f.case) and self._bench.explains(model, f) for f in screen):
                hits[model] = n
        turns = Counter[str]()  # of each mistake one number after the other
        order = {}
        for model in sorted(hits, key=lambda model: -hits[model]):
            order[model] = -hits[model], turns[model.defects[0].id]
            turns[model.defects[0].id] += 1
        candidates = sorted(order, key=lambda model: order[model])[:CANDIDATES]
        sample = self._sample(screen, left)
        weights = [self._bench.weigh(model, sample) for model in candidates]
        weights = [w for w in weights if w.by_numbers or "faint" in w.words or not w.contradicted]
        return sorted(weights, key=self._rank)

    def _sample(self, screen: Sequence[Failure], left: Sequence[Failure]) -> list[Failure]:
        """What the candidates are weighed by: the screen, what is left, and what is explained already."""
        chosen = {(f.case.id, f.dtype): f for f in screen}
        for rows in (left, self._seen.failures):
            for f in spread([f for f in rows if f.size <= LARGE][:300], SAMPLE):
                if len(chosen) < SAMPLE:
                    chosen.setdefault((f.case.id, f.dtype), f)
        return list(chosen.values())

    def _rank(self, weight: Weight) -> tuple[bool, float, int, int]:
        weak = (
            bool(weight.contradicted) and not weight.by_numbers
        )  # against NaN alone any contradiction decides
        return weak, -weight.score, -len(weight.model.features), self._place[weight.model.name]

    def _enough(self, model: Model) -> bool:
        cases: set[str] = set()
        for failure in self._seen.failures:
            if failure.case.id not in cases and self._bench.explains(model, failure):
                cases.add(failure.case.id)
                if len(cases) == ENOUGH:
                    return True
        return False

    def _finding(self, best: Weight, weights: Sequence[Weight]) -> Finding:
        same = [
            w.model
            for w in weights
            if w is not best and (w.words, w.contradicted) == (best.words, best.contradicted)
        ]
        return Finding(
            best.model,
            tuple(f for f in self._seen.failures if self._bench.explains(best.model, f)),
            self._seen.failed,
            tuple(same),
            best.contradicted,
            best.looked_at,
        )
