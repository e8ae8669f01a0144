"""A whole trial over several processes."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from conformance.soundness.experiment import Outcome, framework_on, styles_on
from conformance.vectors.case import Case

SLOW = ("jax", "jax-jit")
"""Compile every shape anew, and are asked every fifth case."""


def trial(seed: int, count: int, frameworks: Sequence[str], processes: int) -> Outcome:
    """Makes the cases of a seed, and runs every style and framework on them."""
    outcome = Outcome()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        made = pool.map(_case, [seed] * count, [count] * count, range(count), chunksize=4)
        cases = [case for case in made if case is not None]
        outcome.undecided = count - len(cases)
        waiting = [
            pool.submit(framework_on, name, cases[:: 5 if name in SLOW else 1])
            for name in sorted(frameworks, key=lambda name: name not in SLOW)
        ]
        for part in pool.map(styles_on, cases, chunksize=4):
            outcome.add(part)
        for future in waiting:
            outcome.add(future.result())
    return outcome


def _case(seed: int, count: int, number: int) -> Case | None:
    """None where no ball can tell what is right."""
    from conformance.soundness.random_cases import drafts
    from conformance.vectors.generate.ball_rounding import NeverDecidedError
    from conformance.vectors.generate.build import build

    try:
        return build(list(drafts(seed, count))[number])
    except NeverDecidedError:
        return None
