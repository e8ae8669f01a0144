"""The reduction goes on only with calls that the oracle confirms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.exploring.arrays import arrays
from conformance.exploring.claims import Claims
from conformance.exploring.coverage import Coverage
from conformance.exploring.draw import draw
from conformance.exploring.earlier import SHAPE, earlier
from conformance.exploring.recipe import Recipe, read_token, token
from conformance.exploring.reduce import Reduction
from conformance.exploring.smaller import given, others, without
from conformance.exploring.trial import Tried
from conformance.judging.verdict import Row
from conformance.names import DTYPES, FEATURES, OPERATIONS, SDPA


def row(recipe: Recipe, verdict: str) -> Row:
    return Row(
        case="explore/x", operation=SDPA, dtype=recipe.dtype, verdict=verdict, covers=(), features=(),
        message="", seconds=0.0,
    )  # type: ignore[arg-type]  # fmt: skip


def test_a_call_that_is_not_confirmed_is_never_the_smallest() -> None:
    """Below nine keys the two tiers of an oracle disagree: nothing is said of these calls, whatever came."""
    asked = []

    def ask(recipe: Recipe) -> Tried:
        asked.append(recipe)
        return Tried(recipe, row(recipe, "fail") if recipe.kv_len >= 9 else None)

    first = ask(Recipe(SDPA, "float32", (3,), 4, 2, 7, 40, 8, 8, causal=True, offset=33, stream=1))
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run()
    assert reduced.failed
    assert reduced.recipe.kv_len == 9
    assert (reduced.recipe.batch, reduced.recipe.heads, reduced.recipe.q_len) == ((), 1, 1)
    assert any(recipe.kv_len < 9 for recipe in asked)


def test_lengths_that_have_to_be_alike_go_down_together() -> None:
    def ask(recipe: Recipe) -> Tried:
        alike = isinstance(recipe.lengths, tuple) and len(set(recipe.lengths)) == 1 < len(recipe.lengths)
        wrong = alike and recipe.lengths[0] < recipe.kv_len  # type: ignore[index, operator]
        return Tried(recipe, row(recipe, "fail" if wrong else "pass"))

    first = ask(Recipe(SDPA, "float32", (3,), kv_len=481, lengths=(480,) * 3))
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.kv_len, reduced.lengths) == (2, (1, 1))


@pytest.mark.parametrize(
    "more", [{"causal": True, "offset": -1}, {"causal": True, "offset": "*", "lengths": "*"}]
)
def test_many_entries_go_down(more: dict[str, Any]) -> None:
    """The third of many entries is wrong: three are left, whatever their lengths and offsets."""

    def ask(recipe: Recipe) -> Tried:
        kept = recipe.lengths is not None if "lengths" in more else recipe.offset == more["offset"]
        wrong = recipe.entries > 2 and recipe.causal and kept
        return Tried(recipe, row(recipe, "fail" if wrong else "pass"))

    first = ask(Recipe(SDPA, "float32", (300,), q_len=2, kv_len=1, stream=1, **more))
    assert Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe.batch == (3,)


def test_keys_go_down_before_a_query_that_stands_near_the_end() -> None:
    """The query stands two keys before the end: fewer keys fail only where it moves with them."""

    def ask(recipe: Recipe) -> Tried:
        wrong = recipe.window is not None and recipe.offset == recipe.kv_len - 2
        return Tried(recipe, row(recipe, "fail" if wrong else "pass"))

    first = ask(Recipe(SDPA, "float32", kv_len=80, window=(None, 0), offset=78, stream=1))
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.kv_len, reduced.offset) == (1, -1)


@pytest.mark.parametrize(("length", "left"), [(-40, (1, (-1,))), (97, (1, (2,)))])
def test_a_length_out_of_range_goes_down_with_the_keys(length: int, left: tuple[int, tuple[int]]) -> None:
    def ask(recipe: Recipe) -> Tried:
        n = recipe.lengths[0] if isinstance(recipe.lengths, tuple) else 0
        assert isinstance(n, int)
        return Tried(recipe, row(recipe, "pass" if 0 <= n <= recipe.kv_len else "fail"))

    first = ask(Recipe(SDPA, "float32", kv_len=81, lengths=(length,)))
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.kv_len, reduced.lengths) == left


def test_widths_go_down_apart() -> None:
    def ask(recipe: Recipe) -> Tried:
        return Tried(recipe, row(recipe, "fail" if recipe.d_k >= 65 else "pass"))

    first = ask(Recipe(SDPA, "float32", kv_len=3, d_k=128, d_v=128))
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.d_k, reduced.d_v) == (65, 1)
    tied = Reduction(ask, first, lambda recipe: recipe.d_k == recipe.d_v, dtypes=("float32",)).run().recipe
    assert (tied.d_k, tied.d_v) == (65, 65)


def test_a_size_that_passed_by_chance_is_asked_with_other_numbers() -> None:
    """The second entry is wrong where its queries differ in sign; at a width of one the first numbers do not."""

    def ask(recipe: Recipe) -> Tried:
        signs = set(np.sign(arrays(recipe)["query"][-1, ..., 0]).ravel()) if recipe.batch == (2,) else set()
        return Tried(recipe, row(recipe, "fail" if {-1.0, 1.0} <= signs else "pass"))

    recipe = Recipe(SDPA, "float32", (2,), q_len=2, kv_len=3, d_k=5, d_v=5, stream=1).made_of("query", "S")
    narrow = replace(recipe, d_k=1, d_v=1)
    assert ask(recipe).failed
    assert not ask(narrow).failed
    reduced = Reduction(ask, ask(recipe), lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.q_len, reduced.kv_len, reduced.d_k, reduced.d_v) == (2, 1, 1, 1)


def test_numbers_of_segments_may_have_passed_by_chance() -> None:
    """Two keys next to each other have numbers that differ by one, which two keys alone have with some numbers."""

    def ask(recipe: Recipe) -> Tried:
        steps = np.diff(arrays(recipe).get("kv_segments", np.zeros(1)).astype(np.int64))
        return Tried(recipe, row(recipe, "fail" if (abs(steps) == 1).any() else "pass"))

    plain = Recipe(SDPA, "float32", (), q_len=3, kv_len=23, segments="-v")
    made = [replace(plain, stream=n) for n in range(1, 99)]
    first = next(
        r for r in map(ask, made) if r.failed and not ask(replace(r.recipe, q_len=1, kv_len=2)).failed
    )
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.q_len, reduced.kv_len) == (1, 2)


def test_the_calls_before_differ_in_what_is_named() -> None:
    plain = Recipe(
        SDPA, "float32", (2,), kv_len=9, q_len=3, mask="bhqk-r", lengths=(4, 9), window=(2, 0), offset=6,
        scale=0.5, stream=3,
    )  # fmt: skip
    assert others(plain) == ["mask", "kv_lengths", "window", "scale"]
    for name in (*others(plain), "value"):
        recipe = replace(plain, again=name)
        assert read_token(token(recipe)) == recipe
        inputs = arrays(recipe)
        ((before, options),) = earlier(recipe, inputs)
        changed = [n for n in inputs if (before[n] != inputs[n]).any()]
        if name in inputs:
            assert changed == [name]
        else:
            assert not changed
            assert options[name] != {"window": [2, 0], "scale": 0.5}[name]
    shaped = replace(plain, again=SHAPE)
    same, longer = earlier(shaped, arrays(shaped))
    assert same[0]["key"].shape == arrays(plain)["key"].shape
    assert longer[0]["key"].shape[-2] > 9


def test_what_was_met_is_counted() -> None:
    claims = Claims((SDPA,), frozenset({"mask", "softcap"}), ("float32",))
    coverage = Coverage()
    assert "met 0 of 3 options, 0 of 15 pairs" in coverage.line(claims)
    coverage.add(Recipe(SDPA, "float32", kv_len=32, mask="bhqk-r", softcap=2.0, d_k=300))
    said = coverage.line(claims)
    assert "met 2 of 3 options, 1 of 15 pairs" in said
    assert "several" in said
    assert "whole tiles" not in said


def test_what_differs_before_a_call_goes_with_its_option() -> None:
    """A call without a mask does not follow one with another mask: the calls before can be made of every part."""
    met, claims = set(), Claims(OPERATIONS, frozenset(FEATURES), DTYPES, "small")
    for number in range(3000):
        recipe = draw(claims, 1, number)
        if recipe is None or not recipe.again:
            continue
        for option in given(recipe):
            less = without(recipe, option)
            earlier(less, arrays(less))
            if less.again != recipe.again:
                met.add(option)
    assert met >= {"again", "mask", "attn_bias", "kv_lengths", "window", "scale", "sinks", "segments"}
