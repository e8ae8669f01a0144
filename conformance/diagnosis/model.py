"""A defect, or two at once, as something that can be asked what it would answer."""

import io
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from conformance.defects.defect import Change, Defect
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.defects.steps import Steps
from conformance.diagnosis.shared import shared
from conformance.running.messages import Answer, Question
from conformance.running.runner import InProcess
from conformance.running.target import adopt
from conformance.vectors.case import Case

CHAINED = "accept"
"""The step that two defects may both change: one takes what the other leaves."""


@dataclass(frozen=True, eq=False)
class Model:
    """What the reference would answer if it made one mistake, or two."""

    defects: tuple[Defect, ...]

    @property
    def name(self) -> str:
        """The IDs of its defects, and the numbers in them."""
        return " + ".join(f"{d.id} {d.detail}".strip() for d in self.defects)

    @property
    def usual(self) -> bool:
        """Whether its numbers are those of the bank."""
        return not any(d.variant for d in self.defects)

    @cached_property
    def features(self) -> frozenset[str]:
        """What a case has to use for it to show, as far as its record knows: for two defects what either needs."""
        return frozenset.intersection(*(frozenset(defect.features) for defect in self.defects))

    @cached_property
    def violates(self) -> tuple[str, ...]:
        """The requirements that it breaks."""
        return tuple(dict.fromkeys(name for defect in self.defects for name in defect.violates))

    def may_show(self, case: Case) -> bool:
        """Whether a case uses what the mistake is said to need to show."""
        return (
            self.features <= set(case.features)
            and all(_reached(d, case) for d in self.defects)
            and (
                case.operation.endswith("_vjp") or not all(name.startswith("GRAD-") for name in self.violates)
            )
        )

    def ask(self, case: Case, dtype: str) -> Answer:
        """What it answers; a defect that keeps state starts anew each time, so that the order does not matter."""
        if self._pure:
            # what raises, or writes to what it was given, is asked again in the way of a run
            with np.errstate(all="ignore"), suppress(Exception):
                same = shared(case, dtype)
                outputs = same.compute(self._change) if same else {}
                if outputs and all(isinstance(array, np.ndarray) for array in outputs.values()):
                    return Answer("outputs", outputs=outputs)
        _SHELL.become(replace(REFERENCE, **self._change))
        with redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
            return _ASKER.ask(Question(case, dtype))

    @property
    def _change(self) -> Change:
        """The steps that it replaces; with new state where there is any."""
        change: Change = {}
        for defect in self.defects:
            change = together(change, defect.change() if callable(defect.change) else defect.change)
        return change

    @cached_property
    def _pure(self) -> bool:
        """Whether its outputs are all that may be wrong with it: no state, nothing written, nothing shared."""
        return not any(callable(d.change) for d in self.defects) and not any(
            name.startswith("IND-") for name in self.violates
        )


def _reached(defect: Defect, case: Case) -> bool:
    """Whether a case has more than one block and not more than some: with more a smaller case would show it."""
    if defect.beyond is None:
        return True
    axis, sizes = defect.beyond
    most = length(case, axis)
    size = sizes.get(defect.detail)
    if size is None:
        return most > 1
    return most <= MOST_BLOCKS * size and (most > size or not axis)


def length(case: Case, axis: str) -> int:
    """How many queries a case has, or how many keys with those of the past."""
    names = ("query",) if axis == "q_len" else ("past_key", "key")
    shapes = case.shapes
    return sum(shapes[name][-2] for name in names if len(shapes.get(name, ())) > 1)


MOST_BLOCKS = 24


class Shell(Implementation):
    """One implementation after another: to look at each as a target takes longer than to ask it."""

    def become(self, steps: Steps) -> None:
        """Takes the steps of a model."""
        self._steps = steps


_SHELL = Shell(REFERENCE, "model")
_ASKER = InProcess(adopt(_SHELL, "model"))


def steps(defect: Defect) -> frozenset[str]:
    """The names of the steps that a defect replaces."""
    return frozenset(defect.change() if callable(defect.change) else defect.change)


def collide(one: Defect, other: Defect) -> bool:
    """Whether two defects replace the same step, so that they cannot be had at once."""
    return bool(steps(one) & steps(other) - {CHAINED})


def together(one: Mapping[str, Any], other: Mapping[str, Any]) -> Change:
    """Two changes at once; of the step that both may change, one follows the other."""
    change = {**one, **other}
    if CHAINED in one and CHAINED in other:
        change[CHAINED] = lambda c: other[CHAINED](one[CHAINED](c))
    return change
