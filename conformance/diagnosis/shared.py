"""What the reference makes of a call, step by step: a model computes anew only what is different in it."""

from collections.abc import Mapping
from copy import copy
from dataclasses import fields, replace
from typing import Any

import numpy as np

from conformance.defects.defect import Change
from conformance.defects.reference import REFERENCE
from conformance.defects.steps import Steps
from conformance.diagnosis.posed import call_of
from conformance.vectors.case import Array, Case

WHOLE = {"checks", "compute", "attend", "softmax", "compute_gradients"}
"""Steps that are made of others."""
KEPT = 128
"""Calls that are remembered."""


class Shared:
    """A call that is right in itself. Its arrays are read-only, and so are those of every step that is remembered."""

    def __init__(self, case: Case, dtype: str) -> None:
        operands: dict[str, Any] = {name: _frozen(array) for name, array in case.operands(dtype).items()}
        self._call = call_of(case.operation, operands, case.options)
        self._whole = "compute_gradients" if case.operation.endswith("_vjp") else "compute"
        self._known: dict[
            Any, tuple[Any, Any]
        ] = {}  # what a step was given, kept so that no other gets its id
        self._learning = True
        names = [field.name for field in fields(Steps) if field.name not in WHOLE]
        self._steps = replace(REFERENCE, checks=(), **{name: self._remembering(name) for name in names})
        self.compute({})
        self._learning = False

    def compute(self, change: Change) -> Mapping[str, Array]:
        """The outputs with some steps replaced."""
        steps = copy(self._steps)
        vars(steps).update(change)  # as `replace` does, which takes longer than some steps
        outputs: Mapping[str, Array] = getattr(steps, self._whole)(steps, self._call)
        return outputs

    def _remembering(self, name: str) -> Any:
        step = getattr(REFERENCE, name)

        def remembered(*given: Any) -> Any:
            key = name, _key(given)
            if key in self._known:
                return self._known[key][1]
            found = step(*given)
            if self._learning:
                self._known[key] = given, _frozen(found)
            return found

        return remembered


_calls: dict[tuple[int, str], tuple[Case, Shared | None]] = {}
"""The last ones, with the case itself, so that no other gets its id."""


def shared(case: Case, dtype: str) -> Shared | None:
    """What models of a call share; None where the way in which it is called matters, or whether it is refused."""
    key = id(case), dtype
    if key in _calls:
        _calls[key] = _calls.pop(key)  # the last one
    else:
        if len(_calls) == KEPT:
            del _calls[next(iter(_calls))]
        as_it_is = not case.raises and not case.memory and case.repeat == 1
        with np.errstate(all="ignore"):
            _calls[key] = case, Shared(case, dtype) if as_it_is else None
    return _calls[key][1]


def forget() -> None:
    """Lets go of all of them."""
    _calls.clear()


def _key(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers by what they are, all else by which one."""
    return tuple(
        _key(x) if x.__class__ is tuple else x if x.__class__ in (float, str) else id(x) for x in given
    )


def _frozen(x: Any) -> Any:
    """Not to be written to; arrays in tuples and dictionaries as well."""
    if isinstance(x, np.ndarray):
        x.setflags(write=False)
    elif isinstance(x, tuple | dict):
        for each in x.values() if isinstance(x, dict) else x:
            _frozen(each)
    return x
