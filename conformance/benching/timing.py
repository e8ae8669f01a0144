"""CPU and wall time of rivals: interleaved in random order, each long enough to be measured."""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LOOP_SECONDS = 0.01
"""Shortest time that is measured at once; what is quicker is repeated."""


class Sample(NamedTuple):
    """Seconds of one call, the mean over a loop of them."""

    cpu: float
    """Of all threads."""
    wall: float


class Spread(NamedTuple):
    """Quartiles."""

    lower: float
    median: float
    upper: float


def measured(
    runs: Mapping[str, Callable[[], Any]], rounds: int, order: random.Random
) -> tuple[dict[str, list[Sample]], dict[str, int]]:
    """Samples by name, one a round, and how many calls each is the mean of."""
    loops = {name: _calls_for(run) for name, run in runs.items()}
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            names = list(runs)
            order.shuffle(names)
            for name in names:
                samples[name].append(_sample(runs[name], loops[name]))
    finally:
        if collects:
            gc.enable()
    return samples, loops


def _sample(run: Callable[[], Any], calls: int) -> Sample:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        run()
    return Sample((time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls)


def _calls_for(run: Callable[[], Any]) -> int:
    """How many calls last LOOP_SECONDS, found by doubling; the calls warm up as well."""
    run()
    calls = 1
    while True:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        if time.perf_counter() - start >= LOOP_SECONDS:
            return calls
        calls *= 2


def spread(values: Sequence[float]) -> Spread:
    """The quartiles of at least one value, by linear interpolation."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return Spread(at(0.25), at(0.5), at(0.75))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """The quartiles of ours over theirs, round by round; None where a clock was too coarse."""
    if not all(x > 0 for x in theirs):
        return None
    return spread([x / y for x, y in zip(ours, theirs, strict=True)])
