"""Defects that the bank calls equivalent or unobservable, on new random cases: not one answer may break a rule."""

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, islice
from multiprocessing import get_context

import numpy as np

from conformance.defects.bank import DEFECTS
from conformance.defects.bank.kernels import OTHERS
from conformance.defects.defect import Defect
from conformance.judging.judge import judge
from conformance.names import DTYPES, OPERATION_FEATURES
from conformance.running.invoke import call
from conformance.running.target import Target, adopt
from conformance.vectors.case import Case

MOST = 20
"""Cases for each one that is wanted: some features are rare."""
POLICY = "fused"
"""The stricter of the two that the bank is run under."""
OFTEN, SHARE = ("mask", "attn_bias", "lengths", "past", "grouped", "returned"), 0.7
SELDOM, LESS = ("scale", "softcap", "sinks"), 0.4
"""Options that such a defect may need, and the share of the cases that has each: of the latter few need one."""
NEVER_DRAWN = {"validation"}
"""A call that has to be refused is never drawn: what concerns such calls is run on every other."""
GATHERED = frozenset(OPERATION_FEATURES.values())
BITS, KV_LENGTHS = (8,), (1, 2, 3, 5, 9, 17)
"""For every dtype, and small, so that there can be many."""


@dataclass
class Unseen:
    """What one defect came to at one dtype where it is said not to show."""

    defect: str
    dtype: str
    cases: int = 0  # in which it could act
    largest: float = 0.0  # error over bound
    alarms: list[str] = field(default_factory=list)


Answer = tuple[str, str, float, str]
"""Defect, dtype, error over bound, message."""


def excused() -> list[tuple[Defect, str]]:
    """Every defect and dtype where nothing is said to show it whatever the numbers.

    Where the vectors have no call of the size at a dtype, a call of that size would show it: that is no such claim.
    Operations on gathered operands are not drawn, so what acts in them alone is left out.
    """
    return [
        (defect, dtype)
        for defect in DEFECTS
        for dtype in DTYPES
        if (defect.equivalent or defect.unobservable.get(dtype, OTHERS) != OTHERS)
        and not GATHERED & set(defect.features)
    ]


def unobservable(seed: int, wanted: int, processes: int) -> list[Unseen]:
    """Runs each on new cases until it could act in as many as are wanted.

    Raises:
        RuntimeError: so many cases do not come up.
    """
    found = {(defect.id, dtype): Unseen(defect.id, dtype) for defect, dtype in excused()}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for backward in (False, True):
            numbers = iter(range(MOST * wanted))
            meant = [found[d.id, dtype] for d, dtype in excused() if of_gradients(d) == backward]
            while (least := min(meant, key=lambda unseen: unseen.cases)).cases < wanted:
                batch = [(seed, number, backward) for number in islice(numbers, 4 * processes)]
                if not batch:
                    raise RuntimeError(
                        f"{least.defect} at {least.dtype} could act in {least.cases} cases only"
                    )
                for name, dtype, ratio, message in chain.from_iterable(pool.map(_answers, batch)):
                    unseen = found[name, dtype]
                    unseen.cases += 1
                    unseen.largest = max(unseen.largest, ratio)
                    unseen.alarms += [message] if message else []
    return list(found.values())


def of_gradients(defect: Defect) -> bool:
    """Whether it concerns gradients alone."""
    return any(requirement.startswith("GRAD-") for requirement in defect.violates)


def lines(found: list[Unseen], seed: int, seconds: float) -> Iterator[str]:
    """One line each, the alarms, and a line that sums up."""
    for unseen in found:
        yield f"{unseen.defect:40} {unseen.dtype:9} {unseen.cases:6} cases, error over bound {unseen.largest:.2f}"
    alarms = [f"{unseen.defect} {alarm}" for unseen in found for alarm in unseen.alarms]
    yield from (f"ALARM {alarm}" for alarm in alarms)
    fewest = min(unseen.cases for unseen in found)
    yield (
        f"{len({unseen.defect for unseen in found})} defects at {len(found)} dtypes where nothing shows them, "
        f"{fewest} or more cases of seed {seed} each, {len(alarms)} alarms, {seconds:.0f} s"
    )


def _answers(request: tuple[int, int, bool]) -> list[Answer]:
    from conformance.soundness.random_cases import draft
    from conformance.vectors.generate.ball_rounding import NeverDecidedError
    from conformance.vectors.generate.build import build

    seed, number, backward = request
    name = f"unobservable/{seed}-{number}-{backward}"
    rng = random.Random(name)
    shares = {**dict.fromkeys(OFTEN, SHARE), **dict.fromkeys(SELDOM, LESS)}
    options = tuple(option for option, share in shares.items() if rng.random() < share)
    drawn = draft(name, rng, options, rng.random() < 0.3, backward, BITS, KV_LENGTHS)
    if "mask" in drawn.inputs and rng.random() < SHARE:
        drawn.inputs["mask"][..., 0, :] = False  # an empty row
    try:
        case = build(drawn)
    except NeverDecidedError:
        return []
    return [
        _answer(defect, case, dtype)
        for defect, dtype in excused()
        if case.judged(dtype, POLICY)
        and of_gradients(defect) == backward
        and set(defect.features) - NEVER_DRAWN <= set(case.features)
    ]


def _answer(defect: Defect, case: Case, dtype: str) -> Answer:
    with np.errstate(all="ignore"):
        target = _target(defect.id)
        answer = call(target, case.operation, case.operands(dtype), case.options, case.memory, case.repeat)
    if answer.kind != "outputs":
        return defect.id, dtype, 0.0, f"{case.id} {dtype}: {answer.message}"
    said = judge(case, dtype, POLICY, answer.outputs)
    message = f"{case.id} {dtype}: {said.message}" if said.message else ""
    return defect.id, dtype, said.error_over_bound or 0.0, message


@cache
def _target(name: str) -> Target:
    return adopt(next(defect for defect in DEFECTS if defect.id == name).implementation(), name)
