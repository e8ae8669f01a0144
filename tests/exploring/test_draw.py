import hashlib
from dataclasses import replace

import numpy as np
import pytest

from conformance.dtypes import cast
from conformance.errors import UsageError
from conformance.exploring.arrays import arrays, changed, options, segments
from conformance.exploring.claims import OPTIONS, PATHS, Claims
from conformance.exploring.counter import Dice, grid, key
from conformance.exploring.draw import draw
from conformance.exploring.needs import needs
from conformance.exploring.numbers import numbers
from conformance.exploring.recipe import LONGEST, Recipe, read_token, token
from conformance.exploring.sizes import PLACES
from conformance.exploring.smaller import given
from conformance.exploring.trial import certify_recipe
from conformance.names import DENSE, DTYPES, FEATURES, MHA_VJP, SDPA, SDPA_VJP

ALL = Claims(DENSE, frozenset(FEATURES) - {"validation"}, DTYPES, "small")


def digest(claims: Claims, seed: int, count: int) -> str:
    found = hashlib.sha256()
    for number in range(count):
        recipe = draw(claims, seed, number)
        assert recipe is not None
        found.update(token(recipe).encode())
        for name, array in sorted(arrays(recipe).items()):
            found.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


PINNED = {
    "small": "c28a2a60a1ae850826a25e99689c49a373451f6c263c711979db25974e5435c9",
    "kernel": "04af87e51d04955df8c8f8e4f39d480661e55b5fd9dff2e3df56705870f76fb8",
}
"""Tokens and arrays of some cases of seed 7; whoever changes the draw changes them, and says so in the changelog."""


@pytest.mark.parametrize(("size", "count"), [("small", 60), ("kernel", 20)])
def test_case_k_of_seed_n_never_changes(size: str, count: int) -> None:
    assert digest(replace(ALL, size=size), 7, count) == PINNED[size]


def test_any_case_alone_is_the_same_as_in_order() -> None:
    alone = draw(ALL, 3, 41)
    assert [draw(ALL, 3, n) for n in range(42)][41] == alone
    assert draw(ALL, 4, 41) != alone


def test_a_token_is_the_call() -> None:
    for number in range(400):
        recipe = draw(ALL, 11, number)
        assert recipe is not None
        word = token(recipe)
        assert len(word) < LONGEST
        assert read_token(word) == recipe


@pytest.mark.parametrize(
    "word", ["", "x1", "x1_oa_t32_k5", "x1_oa_t32_k5_0000", "x9_oa_0000", "--", "x1_" + "k" * 500]
)
def test_no_token_is_refused_in_a_line(word: str) -> None:
    with pytest.raises(UsageError, match="--replay wants a token as `explore` prints it"):
        read_token(word)


def test_a_changed_token_is_refused() -> None:
    word = token(Recipe(SDPA, "float32", kv_len=17))
    with pytest.raises(UsageError, match="copy all of it"):
        read_token(word.replace("k17", "k18"))


def test_numbers_are_exact_in_their_dtype() -> None:
    for number in range(150):
        recipe = draw(ALL, 5, number)
        assert recipe is not None
        for array in arrays(recipe).values():
            if array.dtype.kind == "f":
                held = cast(array, recipe.dtype).astype(np.float64)
                assert np.array_equal(held, array, equal_nan=True), token(recipe)


def test_what_is_not_claimed_is_not_drawn() -> None:
    claims = Claims((SDPA,), frozenset({"mask"}), ("float32",), "small")
    for number in range(200):
        recipe = draw(claims, 1, number)
        assert recipe is None or (needs(recipe) <= {"mask"} and recipe.operation == SDPA)


def test_heads_of_entries_are_few_without_queries_too() -> None:
    claims = replace(ALL, operations=(MHA_VJP,), size="kernel")
    drawn = [recipe for number in range(4000) if (recipe := draw(claims, 2, number)) is not None]
    empty = [recipe for recipe in drawn if recipe.q_len == 0]
    assert empty
    assert all(recipe.heads == 1 or recipe.heads * recipe.entries <= PLACES for recipe in drawn)


def test_a_wanted_feature_is_in_every_case() -> None:
    claims = replace(ALL, wanted=frozenset({"window"}))
    drawn = [draw(claims, 1, number) for number in range(100)]
    assert any(drawn)
    assert all(recipe is None or recipe.window is not None for recipe in drawn)


def test_every_pair_of_options_meets_on_every_path() -> None:
    claims = replace(ALL, operations=(SDPA,))
    pairs = 1 + len(OPTIONS) + len(OPTIONS) * (len(OPTIONS) - 1) // 2
    met = set()
    for number in range(pairs * len(PATHS)):
        recipe = draw(claims, 2, number)
        assert recipe is not None
        on = set(given(recipe)) & {
            "mask",
            "attn_bias",
            "is_causal",
            "window",
            "kv_lengths",
            "softcap",
            "sinks",
        }
        path = "one" if recipe.q_len == 1 else "square" if recipe.q_len == recipe.kv_len else "other"
        met |= {(one, two, path) for one in on for two in on if one < two}
    assert len(met) == 21 * 3


def test_what_a_case_is_said_to_need_is_what_the_suite_says() -> None:
    judged = 0
    for number in range(60):
        recipe = draw(ALL, 9, number)
        assert recipe is not None
        certified = certify_recipe(recipe, "explore/needs", look=True) if recipe.work < 2**14 else None
        if certified is not None:
            judged += 1
            assert set(certified.case.features) == needs(recipe) - {"strict_masking"}, token(recipe)
    assert judged > 20


def test_a_smaller_array_has_the_numbers_of_its_places() -> None:
    whole = numbers("n0", (3, 5, 4), "float32", "query", 8)
    assert np.array_equal(numbers("n0", (2, 3, 2), "float32", "query", 8), whole[:2, :3, :2])


@pytest.mark.parametrize(("stream", "narrow"), [(1, np.float32), (3, np.float64)])
def test_numbers_of_segments_are_alike_in_floating_point(stream: int, narrow: type) -> None:
    """Two segments of a call are one where their numbers are compared as floating-point numbers."""
    _, of_keys = segments(Recipe(SDPA, "float32", kv_len=9, segments="b-v", stream=stream))
    assert np.unique(of_keys.astype(narrow)).size < np.unique(of_keys).size


def test_lengths_below_zero_and_above_all_keys_are_drawn() -> None:
    drawn = [draw(ALL, 5, number) for number in range(600)]
    found = [(n, r.kv_len) for r in drawn if r and isinstance(r.lengths, tuple) for n in r.lengths]
    assert any(n < 0 for n, _ in found)
    assert any(n > kv_len for n, kv_len in found)


def test_words_are_those_of_every_machine() -> None:
    assert key("case", 7, 3) == 6249697927901459601
    assert [int(x) for x in grid(5, (2,))] == [4517933670823692284, 12773366489153039575]
    assert Dice("x").order(range(5)) == [3, 4, 1, 0, 2]


def test_one_number_in_the_middle_is_changed() -> None:
    recipe = Recipe(SDPA, "float32", kv_len=3, again="value")
    inputs = arrays(recipe)
    before = changed(recipe, inputs)
    assert int((before["value"] != inputs["value"]).sum()) == 1
    assert before["value"][0, 0, 1, 0] != inputs["value"][0, 0, 1, 0]
    assert np.array_equal(before["key"], inputs["key"])


def test_what_must_not_be_read_is_no_number() -> None:
    recipe = Recipe(SDPA, "float32", (2,), kv_len=4, lengths=(1, 4), poison="n")
    assert np.isnan(arrays(recipe)["key"][..., 0]).tolist() == [[[False, True, True, True]], [[False] * 4]]
    hidden = Recipe(SDPA_VJP, "float32", q_len=2, kv_len=3, causal=True, offset=0, poison="s")
    assert np.isnan(arrays(hidden)["value"][..., 0]).tolist() == [[[False, False, True]]]
    assert options(hidden) == {"is_causal": True, "q_offset": 0}
