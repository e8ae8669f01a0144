"""Calls that differ next to nothing, one after the other: what keeps an answer too long gives the wrong one."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from conformance.defects.call import Call
from conformance.defects.checks import CHECKS
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import SERVING_CHECKS
from conformance.names import DENSE, FEATURES, OPERATION_FEATURES, SERVING
from conformance.running.changes import INTEGERS, changed
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.vectors.load import load_vectors

CASES = [case for case in load_vectors().cases if not case.raises]
SMALL = [case for case in CASES if sum(x.size for x in case.inputs.values()) < 2000]
EVERY = set(FEATURES) - set(OPERATION_FEATURES.values())
CORE = [case for case in SMALL if not case.features]
Answers = Mapping[str, Any]
Kept = Callable[[dict[Any, Any], tuple[Any, ...], Callable[[], Answers]], Answers]


def ends(x: Any) -> Any:
    """Shape, first and last number, and the sum of an operand; an option as it is."""
    if not isinstance(x, np.ndarray):
        return x
    wide = x.astype(np.float64)
    return (
        x.shape,
        x.dtype.str,
        wide.reshape(-1)[:1].tobytes(),
        wide.reshape(-1)[-1:].tobytes(),
        wide.sum().tobytes(),
    )


def light_fingerprint(kept: dict[Any, Any], given: tuple[Any, ...], answer: Callable[[], Answers]) -> Answers:
    key = tuple(map(ends, given))
    if key not in kept:
        kept[key] = answer()
    return {name: x.copy() for name, x in kept[key].items()}


def by_address(kept: dict[Any, Any], given: tuple[Any, ...], answer: Callable[[], Answers]) -> Answers:
    key = tuple((x.ctypes.data, x.shape) if isinstance(x, np.ndarray) else x for x in given)
    if key not in kept:
        kept.clear()  # one is remembered
        kept[key] = answer()
    return {name: x.copy() for name, x in kept[key].items()}


def right_once(kept: dict[Any, Any], given: tuple[Any, ...], answer: Callable[[], Answers]) -> Answers:
    key = tuple(x.tobytes() if isinstance(x, np.ndarray) else x for x in given)
    kept[key] = kept.get(key, 0) + 1
    return answer() if kept[key] == 1 else {name: 0 * x for name, x in answer().items()}


def remembering(how: Kept, features: Any) -> Any:
    """The reference, whose answers are kept in a wrong way."""
    right, kept = Implementation(REFERENCE), dict[Any, Any]()

    def operation(name: str) -> Callable[..., Any]:
        def asked(**given: Any) -> Any:
            key = (name, *(part for pair in sorted(given.items()) for part in pair))
            return how(kept, key, lambda: getattr(right, name)(**given))

        return asked

    target = type("Target", (), {name: staticmethod(operation(name)) for name in DENSE})()
    target.features, target.accuracy = features, "fused"
    return target


@pytest.mark.turns(3)
@pytest.mark.parametrize("operation", DENSE)
@pytest.mark.parametrize("how", [light_fingerprint, by_address, right_once])
@pytest.mark.parametrize("features", [set(), EVERY], ids=["core", "everything"])
@pytest.mark.covers("IND-4", "CONF-16")
def test_answers_that_are_kept_too_long(operation: str, how: Kept, features: Any) -> None:
    for seed in (1,) if features else (1, 2):
        request = Request(remembering(how, features), selection=Selection(operation=operation), fresh=seed)
        _, *rows = run(request, [case for case in (SMALL if features else CORE) if case.repeat == 1])
        failed = [row.message for row in rows if row.failed]  # type: ignore[union-attr]
        began = {
            light_fingerprint: "gives the answer of the call before, in which ",
            by_address: "gives the answer of the call before, in which ",
            right_once: "not the same twice (",
        }[how]
        telling = [message for message in failed if message.startswith(began)]
        assert 2 * len(telling) > len(failed) > 0, (seed, failed)
        assert {message[-7:] for message in telling} == {"(IND-4)"}


def test_a_changed_call_is_a_right_one_and_next_to_the_same() -> None:
    draw, none, swapped = random.Random(1), 0, 0
    for case in SMALL:
        for name, array in case.inputs.items():
            if (found := changed(case, name, draw)) is None:
                none += bool(array.size) and name not in (*INTEGERS, "kv_lengths")
                continue
            other = found.case.inputs[name]
            assert other.dtype == array.dtype
            apart = ~((other == array) | ((other != other) & (array != array)))
            assert 1 <= apart.sum() <= 2, (case.id, name)
            swapped += int(apart.sum()) == 2
            of, checks = (Served, SERVING_CHECKS) if case.operation in SERVING else (Call, CHECKS)
            call = of(case.operation, **found.case.operands(case.dtypes[0]), **case.options)
            for check in checks:
                check(call)
            assert f"{name}[" in found.words
    assert none < 40
    assert swapped > 2000


def test_no_row_loses_its_last_key() -> None:
    for case in SMALL:
        if "mask" in case.inputs:
            found = changed(case, "mask", random.Random(case.id))
            if found is not None and case.inputs["mask"].shape[-1] > 1:
                rows = [c.inputs["mask"].any(axis=-1) for c in (case, found.case)]
                assert (rows[0] <= rows[1]).all(), case.id
