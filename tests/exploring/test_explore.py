"""Wrong programs are found, reduced and explained; right ones are not blamed."""

import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance.api.found import row_of
from conformance.defects.bank import DEFECTS
from conformance.exploring.recipe import Recipe, read_token
from conformance.exploring.recipe import token as token_of
from conformance.exploring.search import Budget, Found, Tally, explore
from conformance.exploring.smaller import given
from conformance.judging.verdict import Row
from conformance.names import SDPA
from conformance.telling.report import Report
from tests.exploring.measure import Gate, Gated, asked

pytestmark = pytest.mark.turns(3, whole=True)

PROGRAMS = Path(__file__).parent / "programs.py"


def explored(name: str, seed: int = 1, cases: int = 400, **more: object) -> Report:
    return conformance.explore(f"{PROGRAMS}:{name}", seed=seed, cases=cases, x=True, no_diagnose=True, **more)  # type: ignore[arg-type]


def failure(report: Report) -> Row:
    found = [row for row in report.results if row.replay]
    assert len(found) == 1, report.drawing
    return found[0]


REDUCED = {
    "whole_tiles": (16, ("a multiple of 16",)),
    "finite_sentinel": (2, ("mask", "logits far below zero")),
    "longest_entry": (32, ("kv_lengths", "window", "batch entries 2 or more")),
    "fingerprint": (3, ("a call before it",)),
    "group_of_24": (1, ("heads to a key head", "key heads 2 or more")),
    "parts_averaged": (80, ("kv_len 6", "q_len 1")),
    "last_part_dropped": (80, ("kv_len",)),
    "width_96_as_128": (2, ("d_k 96",)),
    "columns_from_256": (1, ("257",)),
    "entries_from_32": (1, ("batch entries 33",)),
    "float64_in_name": (8, ("float64",)),
    "float16_in_name": (8, ("float16",)),
    "length_at_a_tile": (17, ("kv_lengths", "kv_len 17 or more")),
    "window_up_to_127": (129, ("window",)),
    "merged_without_maximum": (80, ("logits far ",)),
    "lengths_beside_mask": (8, ("mask and kv_lengths",)),
    "empty_rows_unwritten": (2, ("mask",)),
    "mask_remembered": (64, ("a call before it", "mask")),
    "strides_ignored": (4, ("the layout of an operand in memory",)),
}
"""Program -> how many keys the smallest call has at most, and what it is said to need."""


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", REDUCED)
def test_a_mistake_is_found_reduced_and_explained(name: str) -> None:
    report = explored(name)
    row = failure(report)
    keys, words = REDUCED[name]
    assert read_token(row.replay).kv_len <= keys, row.replay
    assert all(word in row.fails_if for word in words), row.fails_if
    assert report.status == "non-conformant"
    assert report.drawing is not None
    assert report.drawing.seed == 1


def test_a_call_that_is_answered_otherwise_the_second_time() -> None:
    row = failure(explored("other_each_time"))
    assert row.verdict == "fail"
    assert row.message.startswith("not the same twice: ")


def test_an_entry_beyond_16_bits() -> None:
    token = token_of(Recipe(SDPA, "float32", (65_537,)))
    row = failure(conformance.explore(f"{PROGRAMS}:entries_from_65536", replay=token, no_diagnose=True))
    assert "output[65536, 0, 0, 0]" in row.message
    assert read_token(row.replay).batch == (65_537,)
    assert "batch entries 65537" in row.fails_if
    assert not conformance.explore(f"{PROGRAMS}:right", replay=token).failed


def test_the_backward_pass_alone_is_wrong() -> None:
    row = failure(explored("BackwardCausal"))
    assert row.operation == "scaled_dot_product_attention_vjp"
    assert read_token(row.replay).kv_len <= 3


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("name", ["right", "tiled"])
def test_a_right_program_never_fails(name: str, seed: int) -> None:
    report = explored(name, seed, 100)
    assert not report.failed, [(row.case, row.message) for row in report.results if row.failed]
    assert report.executed >= 90
    assert report.status == "incomplete"


@pytest.mark.parametrize("seed", [5, 6])
def test_the_numpy_backend_never_fails(seed: int) -> None:
    report = conformance.explore("numpy", seed=seed, cases=100, size="small", no_diagnose=True)
    assert not report.failed, [(row.case, row.message) for row in report.results if row.failed]


def test_the_same_seed_gives_the_same_reduction() -> None:
    first, again = (failure(explored("whole_tiles")) for _ in range(2))
    assert (first.case, first.replay, first.fails_if) == (again.case, again.replay, again.fails_if)


def test_a_token_asks_the_smallest_call_again() -> None:
    token = failure(explored("whole_tiles")).replay
    report = conformance.explore(f"{PROGRAMS}:whole_tiles", replay=token, no_diagnose=True)
    assert failure(report).replay == token
    report = conformance.explore(f"{PROGRAMS}:right", replay=token)
    assert not report.failed
    assert report.executed == 1


def test_a_python_object_is_explored_in_this_process() -> None:
    def attention(query: object, key: object, value: object) -> object:
        return value

    report = conformance.explore(attention, seed=1, cases=30, no_diagnose=True)
    assert report.failed


def test_a_diagnosis_stands_with_the_smallest_call() -> None:
    report = conformance.explore(f"{PROGRAMS}:whole_tiles", seed=1, cases=100, x=True)
    assert failure(report).diagnosis


def test_a_snippet_needs_no_suite(tmp_path: Path) -> None:
    report = explored("whole_tiles", save=tmp_path)
    from conformance.exploring.saved import _data

    (file,) = tmp_path.glob("*.json")
    data = _data(file)
    assert data["replay"] == failure(report).replay
    lines = data["snippet"]
    assert 3 < len(lines) < 15
    assert not any("conformance" in line for line in lines)
    assert not any(str(PROGRAMS.parent) in line for line in lines), (
        "whoever gets it learns of no private folder"
    )
    assert "run from the folder of programs.py" in lines[1]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROGRAMS.parent,
    )
    got, wanted = ran.stdout.split(" wanted ")
    assert float(got) != pytest.approx(float(wanted.split()[0]))


def test_what_passes_without_an_option_speaks_against_a_mistake() -> None:
    gate = Gate("window and softcap", lambda c: c.window is not None and c.softcap is not None, lambda r: r)
    (defect,) = (each for each in DEFECTS if each.id == "mask-after-softmax")
    trials, claims = asked(Gated(defect, gate))
    found = next(
        each for each in explore(trials, claims, 1, Budget(100.0), Tally()) if isinstance(each, Found)
    )
    assert set(found.needs.options) == {"window", "softcap"}
    right = [
        each.recipe
        for each in found.evidence
        if not each.failed and min(each.recipe.kv_len, each.recipe.q_len) > 2
    ]
    for option in found.needs.options:
        assert any(option not in given(recipe) for recipe in right)
    assert "mask-after-softmax" not in row_of(found, True, "fused").diagnosis
