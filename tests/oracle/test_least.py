"""The bounds of a first look are no larger than those of the specification, and what passes by them passes."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.recipe import Recipe, token
from conformance.exploring.trial import certify_recipe
from conformance.names import FEATURES, SDPA, SDPA_VJP
from conformance.oracle import certify
from conformance.oracle.certified import Certified
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
FEATURES_DRAWN = frozenset(f for f in FEATURES if f != "validation")
POLICY = {"float64": "eager", "float32": "tf32t", "bfloat16": "fused", "float16": "eager"}
SEED = 77


def drawn(operation: str, dtype: str, numbers: range) -> list[Recipe]:
    claims = Claims((operation,), FEATURES_DRAWN, (dtype,), "small")
    found = [draw(claims, SEED, number) for number in numbers]
    return [recipe for recipe in found if recipe is not None and recipe.work < 2**17]


def both(recipe: Recipe, policy: str) -> tuple[Certified, Certified] | None:
    look, whole = (certify_recipe(recipe, "call/test", (policy,), look=look) for look in (True, False))
    assert (look is None) == (whole is None)
    return None if look is None or whole is None else (look, whole)


@pytest.mark.parametrize("dtype", POLICY)
def test_bounds_of_a_look_are_no_larger(dtype: str) -> None:
    close = []
    for recipe in drawn(SDPA, dtype, range(10)):
        if (found := both(recipe, POLICY[dtype])) is None:
            continue
        look, whole = found
        for name, golden in whole.case.expected.items():
            for policy, bound in golden.bounds[dtype].items():
                less = look.case.expected[name].bounds[dtype][policy]
                assert (less.worst <= bound.worst).all(), (token(recipe), name)
                assert (less.rms <= bound.rms).all(), (token(recipe), name)
                if (some := bound.rms > 0).any():
                    close.append(float(np.median(less.rms[some] / bound.rms[some])))
    assert np.median(close) > 0.5  # else a look would seldom do


def answers(whole: Certified, times: float) -> dict[str, np.ndarray]:
    """Answers that are off by so many times s, to either side."""
    found = {}
    for name, golden in whole.case.expected.items():
        bound = next(iter(golden.bounds[whole.dtype].values()))
        sign = np.where(np.arange(golden.hi.size).reshape(golden.hi.shape) % 2, 1.0, -1.0)
        found[name] = (golden.hi + sign * times * bound.rms).astype(
            np.float32 if whole.dtype == "float32" else np.float64
        )
    return found


@pytest.mark.parametrize(
    ("operation", "dtype"), [(SDPA, "float32"), (SDPA, "float64"), (SDPA_VJP, "float64")]
)
def test_what_passes_a_look_passes(operation: str, dtype: str) -> None:
    said = []
    for recipe in drawn(operation, dtype, range(100, 108)):
        recipe = replace(recipe, again="", memory=())
        if (recipe.gradients and recipe.work > 2**12) or (found := both(recipe, "eager")) is None:
            continue
        look, whole = found
        for times in (0.0, 0.3, 0.9, 1.3, 2.5, 7.0):
            got = answers(whole, times)
            passes = look.passes(got, "eager") is not None
            assert not passes or whole.judge(got, "eager").verdict == "pass", (token(recipe), times)
            moved = any((got[name] != golden.hi).any() for name, golden in whole.case.expected.items())
            if moved or not times:
                said.append((times, passes))
    assert all(any(t == times and passes for t, passes in said) for times in (0.0, 0.3))
    assert not any(passes for times, passes in said if times > 6)


def test_what_is_wrong_by_more_than_w_is_known_without_many_draws() -> None:
    case = CASES["gradient/softcap"]
    found = certify(case.operation, case.inputs, case.options, "float32", look=True)
    right = {name: golden.hi.astype(np.float32) for name, golden in found.case.expected.items()}
    assert not found.beyond(right, "eager")
    worst = found.case.expected["key"].bounds["float32"]["eager"].worst
    for share, beyond in ((0.5, False), (4.0, True)):
        off = {**right, "key": (right["key"] + share * worst).astype(np.float32)}
        assert found.beyond(off, "eager") == beyond
    whole = certify(case.operation, case.inputs, case.options, "float32")
    assert whole.judge(off, "eager").verdict == "fail"


def test_a_first_look_at_an_output_knows_of_no_failure() -> None:
    case = CASES["attention/softcap"]
    found = certify(case.operation, case.inputs, case.options, "float32", look=True)
    wrong = {"output": np.zeros(found.case.expected["output"].shape, np.float32)}
    assert not found.beyond(wrong, "eager")


def test_a_gradient_that_is_missing_is_wrong_at_once() -> None:
    case = CASES["gradient/softcap"]
    found = certify(case.operation, case.inputs, case.options, "float32", look=True)
    given = {name: golden.hi.astype(np.float32) for name, golden in found.case.expected.items()}
    assert found.beyond({name: x for name, x in given.items() if name != "value"}, "eager")
    assert found.beyond({**given, "value": given["value"][..., :1]}, "eager")
