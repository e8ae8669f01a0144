"""Calls with a visible number that is NaN or infinite: drawn, certified, reduced, explained (ATT-10, ATT-11)."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conformance
from conformance.diagnosis.agree import Wrong
from conformance.diagnosis.failing import Failure
from conformance.exploring.arrays import arrays
from conformance.exploring.broken import EVERY_KEY, KINDS, OPERANDS, kinds, said
from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.needs import needs
from conformance.exploring.recipe import Recipe, read_token, token
from conformance.exploring.saved import case_file
from conformance.exploring.smaller import given, without
from conformance.exploring.stored import stored_file
from conformance.exploring.trial import Tried, certify_recipe
from conformance.judging.verdict import Row
from conformance.names import DENSE, DTYPES, FEATURES, MHA, SDPA
from conformance.oracle import Certified, UnjudgedError, certify
from conformance.running.invoke import call
from conformance.running.target import load
from conformance.soundness.implementations import implementation
from conformance.soundness.style import Style
from tests.exploring.programs import right

ALL = Claims(DENSE, frozenset(FEATURES) - {"validation"}, DTYPES, "small")
BASE = Recipe(SDPA, "float32", (2,), 2, 2, q_len=3, kv_len=5, d_k=4, d_v=3, bias="bhqk-n0", stream=7)


@pytest.mark.parametrize(
    ("operand", "kind"),
    [(name, kind) for name in OPERANDS for kind in kinds(name, False)],
)
def test_one_number_is_another_one_and_goes_first(operand: str, kind: str) -> None:
    recipe = replace(BASE, broken=((operand, kind),))
    assert read_token(token(recipe)) == recipe
    made, plain = arrays(recipe), arrays(BASE)
    for name, array in made.items():
        count = int((~np.isfinite(array)).sum())
        assert count == (0 if name != operand else 5 if kind == EVERY_KEY else 1)
        assert np.array_equal(array[np.isfinite(array)], plain[name][np.isfinite(array)])
    assert given(recipe)[0] == f"NaN or infinity in {operand}"
    assert without(recipe, given(recipe)[0]) == BASE
    smallest = Recipe(SDPA, "float32", bias="bhqk-n0", broken=((operand, kind),))
    assert not np.isfinite(arrays(smallest)[operand]).any()


def test_all_kinds_are_drawn_and_only_what_is_claimed() -> None:
    met: set[tuple[str, str]] = set()
    masks = replace(ALL, features=ALL.features - {"strict_masking", "empty"})
    for number in range(4000):
        recipe = draw(ALL, 3, number)
        assert recipe is not None
        met |= set(recipe.broken)
        assert not (recipe.broken and recipe.gradients)
        other = draw(masks, 3, number)
        assert other is None or needs(other) <= masks.features
    assert met == {(name, kind) for name in OPERANDS for kind in kinds(name, False)}


def test_a_value_that_some_row_does_not_see_needs_strict_masking() -> None:
    causal = replace(BASE, bias="", causal=True, offset=0, kv_len=3)
    needed = {stream: needs(replace(causal, broken=(("value", "n"),), stream=stream)) for stream in range(24)}
    for stream, features in needed.items():
        value = arrays(replace(causal, broken=(("value", "n"),), stream=stream))["value"]
        first = bool(np.isnan(value[..., 0, :]).any())  # which every query sees
        assert ("strict_masking" in features) != first
    assert len(set(needed.values())) == 2


def test_a_saved_case_says_that_it_needs_strict_masking() -> None:
    causal = replace(BASE, bias="", causal=True, offset=0, kv_len=3, broken=(("value", "n"),))
    for stream in range(24):
        recipe = replace(causal, stream=stream)
        case = certified(recipe).case
        row = Row(case.id, case.operation, "float32", "fail", case.covers, case.features)
        found = case_file(Tried(recipe, row, case), case.id, "always", "", "x.py:f", "eager", "")
        assert set(found["features"]) == needs(recipe) | set(case.features)
        assert "strict_masking" not in case.features, "which is why the file has to say it"


def certified(recipe: Recipe) -> Certified:
    found = certify_recipe(recipe, "explore/broken")
    assert found is not None
    return found


def test_present_holds_what_was_given() -> None:
    recipe = replace(BASE, bias="", past=2, broken=(("key", "p"),))
    expected = certified(recipe).case.expected["present_key"]
    assert int(np.isposinf(expected.hi).sum()) == 1


def test_weights_of_a_nan_row_at_masked_keys_may_be_anything() -> None:
    recipe = replace(BASE, bias="", mask="bhqk-r", weights=True, broken=(("query", "n"),))
    judge = certified(recipe)
    outputs = answer(Style("plain", "fused"), judge, "float32")
    gone = np.isnan(outputs["output"]).all(axis=-1)
    assert gone.sum() == 1
    for anything in (0.0, np.nan, 5.0):
        weights = outputs["weights"].copy()
        weights[gone[..., None] & ~judge.case.inputs["mask"]] = anything
        assert judge.judge({**outputs, "weights": weights}, "fused").verdict == "pass"
        assert judge.passes({**outputs, "weights": weights}, "fused")
    weights[gone] = 0.0
    assert judge.judge({**outputs, "weights": weights}, "fused").verdict == "fail"


def plain(query: Any, key: Any, value: Any, *, mask: Any = None, return_weights: bool = False) -> Any:
    """A softmax over the visible keys alone: a NaN row has weights of zero at its masked keys."""
    seen = np.broadcast_to(True if mask is None else mask, (*query.shape[:-1], key.shape[-2]))
    with np.errstate(all="ignore"):
        logits = np.where(seen, query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5, -np.inf)
        terms = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights = np.where(seen, terms / terms.sum(axis=-1, keepdims=True), 0).astype(query.dtype)
        output = (weights @ value).astype(query.dtype)
    return (output, weights) if return_weights else output


@pytest.mark.covers("ATT-10")
def test_a_saved_case_is_judged_so_too(tmp_path: Path) -> None:
    recipe = replace(BASE, bias="", mask="bhqk-r", weights=True, broken=(("query", "n"),))
    case = certified(recipe).case
    nan = np.isnan(case.expected["weights"].hi)
    assert (nan & ~case.inputs["mask"]).any()
    file = tmp_path / "case.json"
    file.write_text(json.dumps(stored_file(case, "float32")), "utf-8")
    report = conformance.run(plain, case=file)
    assert {row.verdict for row in report.results} == {"pass"}
    report = conformance.run(swallows, case=file)
    assert {row.verdict for row in report.results} == {"fail"}
    assert all("weights[" in row.message for row in report.results)


def test_the_diagnosis_takes_them_for_right_too() -> None:
    judged = certified(replace(BASE, bias="", mask="bhqk-r", weights=True, broken=(("query", "n"),)))
    case = judged.case
    nan = np.isnan(case.expected["weights"].hi)
    output, weights = (case.expected[name].hi.astype(np.float32) for name in ("output", "weights"))
    given = {"output": output, "weights": np.where(nan & ~case.inputs["mask"], np.float32(5), weights)}
    assert judged.judge(given).verdict == "pass"
    assert Wrong(Failure(case, "float32", outputs=given), "eager").results == {
        "output": True,
        "weights": True,
    }


def swallows(query: Any, key: Any, value: Any, *, mask: Any = None, return_weights: bool = False) -> Any:
    """The same with weights of zero in a row that is NaN, at its visible keys too."""
    output, weights = plain(query, key, value, mask=mask, return_weights=True)
    return (output, np.nan_to_num(weights)) if return_weights else output


def answer(style: Style, judge: Certified, dtype: str) -> Mapping[str, Any]:
    case = judge.case
    with np.errstate(all="ignore"):
        found: Any = implementation(style).scaled_dot_product_attention(
            **case.operands(dtype), **case.options
        )
    return found if isinstance(found, dict) else {"output": found}


def test_an_infinite_value_that_weighs_next_to_nothing_is_not_judged() -> None:
    query, key = np.full((1, 1, 1), 8.0), np.array([[[8.0], [-8.0]]])
    with pytest.raises(UnjudgedError, match="weighs next to nothing"):
        certify(SDPA, {"query": query, "key": key, "value": np.array([[[0.0], [np.inf]]])}, {}, "float32")
    seen = certify(SDPA, {"query": query, "key": key, "value": np.array([[[np.inf], [0.0]]])}, {}, "float32")
    assert np.isposinf(seen.case.expected["output"].hi).all()


def test_a_row_whose_visible_logits_are_all_minus_infinity_has_no_lse() -> None:
    recipe = Recipe(SDPA, "float32", kv_len=3, lse=True, data=(("query", "O"),), broken=(("key", EVERY_KEY),))
    judge = certified(recipe)
    assert np.isnan(judge.case.expected["lse"].hi).all()
    for style in (Style("plain", "fused"), Style("online", "fused", softmax="online", block=1)):
        assert judge.judge(answer(style, judge, "float32"), "fused").verdict == "pass"
    for name in ("numpy", "torch", "array-api-strict", "jax"):
        case = judge.case
        with np.errstate(all="ignore"):
            given = call(load(name), SDPA, case.operands("float32"), case.options, case.memory)
        assert judge.judge(given.outputs, "fused").verdict == "pass", name


@pytest.mark.parametrize(
    ("failing", "words"),
    [
        (("n",), "a NaN in value"),
        (("n", "p", "m"), "NaN or infinity in value"),
        (("p", "m"), "+inf or -inf in value"),
    ],
)
def test_what_it_takes_is_said(failing: tuple[str, ...], words: str) -> None:
    assert said("value", failing) == words


def swallowed(query: Any, key: Any, value: Any) -> Any:
    """A NaN among the values is taken for zero."""
    found = right(query, key, np.where(np.isnan(value), 0, value).astype(value.dtype))
    return np.where(np.isfinite(query).all(axis=-1, keepdims=True), found, np.nan).astype(value.dtype)


def test_a_swallowed_nan_is_found_reduced_and_explained() -> None:
    report = conformance.explore(swallowed, seed=1, cases=1500, seconds=60, no_diagnose=True, x=True)
    row = next(row for row in report.results if row.replay)
    assert "a NaN in value" in row.fails_if
    reduced = read_token(row.replay)
    assert (reduced.broken, reduced.q_len, reduced.kv_len, reduced.entries) == ((("value", "n"),), 1, 1, 1)
    assert "wanted nan" in row.message


def test_a_layer_has_nan_alone() -> None:
    assert kinds("query", layer=True) == ("n",)
    drawn = (draw(replace(ALL, operations=(MHA,)), 4, number) for number in range(1500))
    assert {kind for recipe in drawn if recipe is not None for _, kind in recipe.broken} == {"n"}
    assert set(KINDS) == {"n", "p", "m"}
