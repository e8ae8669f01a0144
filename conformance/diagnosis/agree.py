"""Whether a model reproduces a wrong answer: within the judge's tolerance, laid around the model's answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.model import Model
from conformance.dtypes import UNIT_ROUNDOFF
from conformance.judging.judge import free, judge
from conformance.judging.measure import allowed, held_rows
from conformance.running.messages import Answer
from conformance.vectors.case import Array, Golden

Word = Literal["same", "faint", "alike", "partly", "other", "right"]
"""What a model says of a failing row: the same numbers; the same, though all that is wrong is NaN, which many mistakes
give; a failure of the same kind; the same numbers wherever the target's are wrong, which are right elsewhere; another
failure; none."""

BOTH = 2.0
"""Target and model may both err by what one of them is allowed."""
SHARE = 1e-3
"""Or they differ by at most this share of what the target is off by: the bound is that of the right function,
and a wrong one may amplify roundings more."""
CLEAR = 4.0
"""Times the tolerance that a number has to be off by, so that only a mistake of that size gives it."""
FLOOR = 64
"""Units in the last place of the largest element that are allowed where the right answer is exact, or none."""


@dataclass(frozen=True)
class Side:
    """One output of the target's, as a model is compared with it; arrays have the shape of Golden.hi."""

    golden: Golden | None  # None where the output has none of its shape
    whole: Array  # as it was returned
    held: Array  # float64
    finite: Array  # bool
    limit: Array  # what target and model may differ by; NaN where it is to be FLOOR
    off: float  # the most that the target is off by
    right: Array  # bool: where the target is right


class Wrong:
    """A wrong answer, made ready to be compared with many models'."""

    def __init__(self, failure: Failure, policy: str) -> None:
        self.failure, self.policy = failure, policy
        self._floor = FLOOR * UNIT_ROUNDOFF[failure.dtype]
        self._sides: dict[str, Side] | None = None
        if failure.outputs is not None:
            sides = {name: self._side(name, array) for name, array in failure.outputs.items()}
            self._sides = dict(
                sorted(sides.items(), key=lambda item: bool(item[1].right.all()))
            )  # wrong ones first

    def _side(self, name: str, array: Array) -> Side:
        failure, golden = self.failure, self.failure.case.expected.get(name)
        if golden is None or golden.shape != array.shape:
            held = _float(array)
            nowhere = np.zeros(held.shape, dtype=bool)
            return Side(None, array, held, np.isfinite(held), np.full(held.shape, np.nan), 0.0, nowhere)
        held = _float(held_rows(name, golden, array))
        bound = golden.bounds[failure.dtype][failure.case.policy(failure.dtype, self.policy)]
        limit = allowed(bound)
        measured = np.isfinite(golden.hi) & (limit > 0)
        apart, finite = _apart(held, golden.hi), np.isfinite(held)
        right = (
            (held == golden.hi)
            | (np.isnan(held) & np.isnan(golden.hi))
            | (measured & finite & (apart <= limit))
        )
        if (anything := free(failure.case, name)) is not None:
            right = right | anything
        off = float(apart.max(initial=0.0))
        return Side(golden, array, held, finite, np.where(measured, BOTH * limit, np.nan), off, right)

    @cached_property
    def _only_nan(self) -> bool:
        """Whether all that is wrong is NaN where a number is wanted."""
        sides = [side for side in (self._sides or {}).values() if side.golden is not None]
        wrong = [np.isnan(side.held[~side.right]).all() for side in sides if not side.right.all()]
        return bool(wrong) and len(sides) == len(self._sides or {}) and all(wrong)

    @property
    def sides(self) -> Mapping[str, Side]:
        """Each result that was given."""
        return self._sides or {}

    @property
    def results(self) -> Mapping[str, bool]:
        """Whether each result that is wanted is right."""
        return {
            name: bool(side.right.all())
            for name, side in (self._sides or {}).items()
            if name in self.failure.case.expected
        }

    @property
    def rights(self) -> Mapping[str, tuple[Array, Array, Golden]]:
        """Of each result of a right shape: where it is right, what came, and what is wanted."""
        return {
            name: (side.right, side.held, side.golden)
            for name, side in (self._sides or {}).items()
            if side.golden is not None
        }

    @cached_property
    def clear(self) -> bool:
        """Whether some number is off by far more than the judge allows: what is nearly right is not the same."""
        for side in (self._sides or {}).values():
            if side.golden is None:
                return True
            held, right = side.held[~side.right], side.golden.hi[~side.right]
            limit = side.limit[~side.right] / BOTH
            if not np.isfinite(held).all() or not (np.abs(held - right) <= CLEAR * limit).all():
                return True
        return not self._sides

    def word(self, model: Model, unlike: Word | None = None) -> Word:
        """What a model says of the row; `unlike` spares the judge where it is neither the same nor alike."""
        case, dtype = self.failure.case, self.failure.dtype
        answer = model.ask(case, dtype)
        near: Word | None = self._near(answer.outputs) if answer.kind == "outputs" else None
        if near is not None and self._only_nan:
            near = "faint" if near == "same" else None
        if near is None and self._alike(answer):
            near = "alike"
        if near is None and unlike is not None:
            return unlike
        return (near or "other") if _wrong(answer, self.failure, self.policy) else "right"

    def _alike(self, answer: Answer) -> bool:
        """The same kind of failure where there are no numbers to compare."""
        failure = self.failure
        if answer.kind == "error":
            return failure.raised
        if answer.kind == "outputs":
            return failure.case.raises and failure.outputs is not None
        return bool(failure.message) and answer.message == failure.message

    def _near(self, outputs: Mapping[str, Array]) -> Literal["same", "partly"] | None:
        """Whether the numbers are the same, or the same wherever the target is wrong."""
        if self._sides is None or self._sides.keys() != outputs.keys():
            return None
        whole = True
        for name, side in self._sides.items():  # most models are told apart by the first
            array = outputs[name]
            if array.shape != side.whole.shape or array.dtype != side.whole.dtype:
                return None
            held = _float(array if side.golden is None else held_rows(name, side.golden, array))
            same = self._same(held, side)
            if not (same | side.right).all():
                return None
            whole = whole and bool(same.all())
        if whole:
            return "same"
        return None if all(side.right.all() for side in self._sides.values()) else "partly"

    def _same(self, model: Array, side: Side) -> Array:
        """Where the numbers of a model are those of the target."""
        apart = _apart(side.held, model)
        kind = (
            (np.isfinite(model) & side.finite)
            | (model == side.held)
            | (np.isnan(model) & np.isnan(side.held))
        )
        if side.off and (apart <= SHARE * side.off).all():
            return kind
        floor = self._floor * float(np.abs(model[side.finite]).max(initial=0.0))
        near: Array = kind & (apart <= np.where(np.isnan(side.limit), floor, side.limit))
        return near


def predicts_failure(model: Model, asked: Asked, policy: str) -> bool:
    """Whether a model would fail a row."""
    return _wrong(model.ask(asked.case, asked.dtype), asked, policy)


def _wrong(answer: Answer, asked: Asked, policy: str) -> bool:
    if answer.kind == "error":
        return not asked.case.raises
    if answer.kind != "outputs":
        return answer.kind != "unsupported"
    return judge(asked.case, asked.dtype, policy, answer.outputs).verdict == "fail"


def _float(array: Array) -> Array:
    with np.errstate(all="ignore"):
        return array.astype(np.float64)


def _apart(one: Array, two: Array) -> Array:
    """|one - two|; 0 where either is no finite number."""
    with np.errstate(all="ignore"):
        apart = np.abs(one - two)
    return np.where(np.isfinite(one) & np.isfinite(two), apart, 0.0)
