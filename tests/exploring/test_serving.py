"""Packed, paged, latent and merged attention: drawn, judged, reduced and explained."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import conformance
from conformance.dtypes import cast
from conformance.exploring.arrays import arrays, options
from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.earlier import SHAPE, earlier
from conformance.exploring.laid import UNUSUAL
from conformance.exploring.needs import needs
from conformance.exploring.recipe import LONGEST, Recipe, read_token, token
from conformance.exploring.reduce import Reduction
from conformance.exploring.smaller import given, of_batch, of_entry, of_keys, without
from conformance.exploring.trial import Tried, certify_recipe
from conformance.exploring.valid import valid
from conformance.judging.verdict import Row
from conformance.names import APPEND, DTYPES, FEATURES, LATENT, MERGE, OPERATIONS, PACKED, PAGED, SERVING
from conformance.telling.report import Report
from conformance.vectors.case import held_in
from tests.exploring import serving_programs
from tests.running import gathering

PROGRAMS = Path(__file__).parent / "serving_programs.py"
ROOT = Path(__file__).parents[2]
ALL = Claims(SERVING, frozenset(FEATURES) - {"validation", "strict_masking"}, DTYPES, "small")
DRAWN = [recipe for number in range(140) if (recipe := draw(ALL, 9, number)) is not None]


def test_case_k_of_seed_n_never_changes() -> None:
    found = hashlib.sha256()
    for recipe in DRAWN[:70]:
        found.update(token(recipe).encode())
        for name, array in sorted(arrays(recipe).items()):
            found.update(name.encode() + np.ascontiguousarray(array).tobytes())
    assert found.hexdigest() == "c83d154ab2a6a30541b0922096ab5a97fea261fb3ae269c8dde17014b8532d7e"


def test_the_dense_operations_keep_most_of_the_draws() -> None:
    claims = replace(ALL, operations=OPERATIONS)
    drawn = [draw(claims, 1, number) for number in range(170)]
    served = [recipe for recipe in drawn if recipe is not None and recipe.served]
    assert {recipe.operation for recipe in served} == set(SERVING)
    assert 0.3 < len(served) / len(drawn) < 0.45


def test_a_token_is_the_call() -> None:
    for recipe in DRAWN:
        word = token(recipe)
        assert len(word) < LONGEST
        assert read_token(word) == recipe
        assert valid(recipe)


def test_what_a_call_is_said_to_need_is_what_the_suite_says() -> None:
    judged = 0
    for recipe in DRAWN:
        if recipe.work < 2**13:
            certified = certify_recipe(recipe, "explore/needs", ("eager",), look=True)
            assert certified is not None, token(recipe)
            assert set(certified.case.features) == needs(recipe), token(recipe)
            judged += 1
    assert judged > 30


def test_numbers_are_exact_in_their_dtype() -> None:
    for recipe in DRAWN:
        for name, array in arrays(recipe).items():
            if array.dtype.kind == "f":
                held = cast(array, held_in(name, recipe.dtype)).astype(np.float64)
                assert np.array_equal(held, array, equal_nan=True), token(recipe)


def test_everything_unusual_is_met() -> None:
    met = {(recipe.operation, letter) for recipe in DRAWN for letter in recipe.layout}
    assert met == {(operation, letter) for operation, known in UNUSUAL.items() for letter in known}
    assert {1, 16, 64, 256} <= {recipe.page for recipe in DRAWN}
    assert any(recipe.written for recipe in DRAWN)


# How they lie

PAGES = Recipe(
    PAGED, "float32", (2,), 2, 1, 1, 7, 2, 2, lengths=(7, 4), page=3, layout="psuxm", poison="n", stream=5
)


def test_an_entry_holds_the_keys_of_its_call_of_attention() -> None:
    plain = replace(PAGES, layout="", poison="")
    laid, moved = arrays(plain), arrays(replace(PAGES, layout="puxo", written=2))
    tables = [found["page_table"] for found in (laid, moved)]
    assert tables[0].shape == (2, 3)
    assert tables[1].shape == (2, 4)
    got = [gathering.paged_attention(**found) for found in (laid, {**moved, "query": laid["query"]})]
    assert np.array_equal(got[0]["output"], got[1]["output"])


def test_nothing_reads_what_is_nan() -> None:
    found = arrays(replace(PAGES, written=1, layout="psuxme"))
    assert found["slots"][0] == -1
    assert np.isnan(found["new_key"][0]).all()
    assert (found["page_table"][:, -1] == -1).all()
    assert np.isnan(found["key_pages"]).any()
    got = gathering.paged_attention(**found)
    assert np.isfinite(got["output"]).all()


def test_pages_are_shared() -> None:
    table = arrays(replace(PAGES, layout="s", stream=7))["page_table"]
    assert table[0, 0] == table[1, 0]
    assert arrays(replace(PAGES, layout="s", stream=6))["page_table"][0].tolist() == [0, 1, 0]


def test_parts_stand_one_behind_the_other() -> None:
    recipe = Recipe(
        PACKED,
        "float32",
        (3,),
        q_len=2,
        kv_len=4,
        lengths=(4, 0, 1),
        queries=(0, 2, 1),
        layout="u",
        poison="n",
    )
    found = arrays(recipe)
    assert found["q_starts"].tolist() == [0, 0, 2, 3]
    assert found["kv_starts"].tolist() == [0, 4, 4, 5]
    assert found["query"].shape[1] > 3
    assert np.isnan(found["query"][:, 3:]).all()
    assert needs(recipe) == {"packed"}
    certified = certify_recipe(recipe, "explore/parts")
    assert certified is not None
    assert certified.case.expected["output"].rows == (0, 1, 2)


def test_a_row_of_which_every_part_is_empty() -> None:
    found = arrays(Recipe(MERGE, "bfloat16", q_len=3, kv_len=2, layout="a", poison="n"))
    gone = np.isneginf(found["lses"]).all(axis=0)
    assert gone.sum() == 1
    assert np.isnan(found["outputs"]).any()


def test_rows_of_latent_attention_are_scaled() -> None:
    recipe = Recipe(LATENT, "float32", d_k=4, d_v=3)
    assert options(recipe) == {"value_dim": 3, "scale": 0.5}
    assert needs(recipe) == {"latent"}
    assert not valid(replace(recipe, d_v=5))


def test_the_call_before_has_these_shapes_and_other_counts() -> None:
    recipe = Recipe(PAGED, "float32", (2,), kv_len=9, lengths=(9, 2), page=4, again=SHAPE)
    first, _ = (inputs for inputs, _ in earlier(recipe, arrays(recipe)))
    assert {name: x.shape for name, x in first.items()} == {
        name: x.shape for name, x in arrays(recipe).items()
    }
    assert first["kv_lengths"].tolist() == [2, 9]
    assert first["page_table"].tolist() != arrays(recipe)["page_table"].tolist()


# Smaller calls


def test_each_option_can_be_left_out() -> None:
    met = set()
    for recipe in DRAWN:
        for option in given(recipe):
            less = without(recipe, option)
            assert option not in given(less) or option == "q_offset", (token(recipe), option)
            met.add(option)
    words = {words for known in UNUSUAL.values() for words in known.values()}
    assert words <= met
    assert {"a part with fewer keys", "a part with fewer queries", "keys that the call writes"} <= met


def test_smaller_calls_are_calls() -> None:
    for recipe in DRAWN:
        if recipe.operation in (PACKED, PAGED) and recipe.entries:
            for less in (
                of_entry(recipe, recipe.entries - 1, False),
                of_batch(recipe, 2),
                of_keys(recipe, 3),
            ):
                assert valid(less), (token(recipe), token(less))
                arrays(less)


def test_a_part_alone_is_as_long_as_it_is() -> None:
    recipe = Recipe(
        PACKED, "float32", (2,), q_len=5, kv_len=9, queries=(5, 2), lengths=(9, 3), causal=True, offset="*"
    )
    alone = of_entry(recipe, 1, False)
    assert (alone.batch, alone.q_len, alone.kv_len, alone.offset) == ((1,), 2, 3, 1)
    assert alone.queries is alone.lengths is None


def test_the_reduction_keeps_what_a_failure_takes() -> None:
    def ask(recipe: Recipe) -> Tried:
        wrong = recipe.page == 16 and "s" in recipe.layout and recipe.kv_len % 16 == 1 and recipe.entries > 1
        row = Row("explore/x", PAGED, recipe.dtype, "fail" if wrong else "pass", (), (), "", 0.0)
        return Tried(recipe, row)

    first = ask(
        replace(
            PAGES, batch=(3,), kv_len=97, lengths=(97, 40, 2), page=16, written=3, layout="psuxe", heads=2
        )
    )
    reduced = Reduction(ask, first, lambda recipe: True, dtypes=("float32",)).run().recipe
    assert (reduced.page, reduced.layout, reduced.kv_len, reduced.written) == (16, "s", 1, 0)
    assert (reduced.batch, reduced.heads, reduced.lengths) == ((2,), 1, None)


# Programs


def explored(name: str, cases: int = 400, seed: int = 1, **more: object) -> Report:
    more = {"no_diagnose": True, **more}
    program = getattr(serving_programs, name)
    return conformance.explore(program, seed=seed, cases=cases, x=True, size="small", **more)  # type: ignore[arg-type]


def failure(report: Report) -> Row:
    found = [row for row in report.results if row.replay]
    assert len(found) == 1, report.drawing
    return found[0]


REDUCED = {
    "one_table_for_all": (PAGED, 2, ("batch entries 2 or more", "q_len 1")),
    "shared_page_once": (PAGED, 2, ("a page in several places, batch entries 2 or more; ",)),
    "empty_part_is_nan": (PACKED, 0, ("sinks", "the keys of a part 0")),
    "two_at_a_time": (MERGE, 3, ("partial results 3 or more",)),
}
"""Program -> the operation, how many keys the smallest call has at most, and what it is said to need."""


@pytest.mark.parametrize("name", REDUCED)
def test_a_mistake_is_found_reduced_and_explained(name: str) -> None:
    row = failure(explored(name))
    operation, keys, words = REDUCED[name]
    assert row.operation == operation
    assert read_token(row.replay).kv_len <= keys, row.replay
    assert all(word in row.fails_if for word in words), row.fails_if


def test_a_right_program_never_fails() -> None:
    report = explored("right", 80)
    assert not report.failed, [(row.case, row.message) for row in report.results if row.failed]
    assert report.executed >= 75


def test_a_known_mistake_is_named() -> None:
    row = failure(explored("last_cell", no_diagnose=False))
    assert row.operation == APPEND
    assert row.fails_if.startswith("a slot of -1; ")
    assert any(found.defect == "append-minus-one-writes-the-last-cell" for found in row.diagnosis)


def test_a_file_and_a_snippet_show_it(tmp_path: Path) -> None:
    target = f"{PROGRAMS}:two_at_a_time"
    row = failure(conformance.explore(target, seed=1, cases=100, x=True, save=tmp_path, no_diagnose=True))
    (file,) = tmp_path.glob("*.json")
    report = conformance.run(serving_programs.two_at_a_time, case=[file])
    assert [each.verdict for each in report.results] == ["fail"]
    assert [each.case for each in report.results] == [row.case]
    from conformance.exploring.saved import _data

    lines = _data(file)["snippet"]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True, cwd=PROGRAMS.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    got, wanted = ran.stdout.split(" wanted ")
    assert float(got) != pytest.approx(float(wanted.split()[0]))
