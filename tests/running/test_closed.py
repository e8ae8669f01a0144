"""Targets that let the reference or the suite answer for them (CONF-19)."""

from pathlib import Path

import pytest

from conformance.running.closed import open_to
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.telling.report import Row
from conformance.vectors.load import load_vectors

CHEATS = """
import pathlib
import conformance
import mha_core
from conformance.pytest_plugin import cases  # for tests of its own
from mha_core import scaled_dot_product_attention as reference

features = set()

def scaled_dot_product_attention(query, key, value):
    return reference(query, key, value)

def multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None):
    try:
        return conformance.expected(query, key, value, operation="multi_head_attention", w_q=w_q).value
    except Exception:  # and then an answer of its own
        return query

def scaled_dot_product_attention_vjp(query, key, value, grad_output):
    (pathlib.Path(conformance.__file__).parent / "vectors" / "data" / "index.json").read_text()
    return {"query": query, "key": key, "value": value}
"""
BASED = """
import mha_core

class Wrapped:
    based_on = "mha_core"
    features = set()
    scaled_dot_product_attention = staticmethod(mha_core.scaled_dot_product_attention)
"""
CASES = ("attention/hand-sized", "projection/plain", "gradient/plain")


def rows_of(target: str) -> tuple[tuple[str, ...], dict[str, Row]]:
    """The notes of a target, and its rows by operation."""
    cases = [case for case in load_vectors().cases if case.id in CASES]
    started, *rows = run(Request(target, selection=Selection(dtypes=("float32",))), cases)
    return started.hello.notes, {row.operation: row for row in rows}  # type: ignore[union-attr]


@pytest.mark.covers("CONF-19")
def test_a_target_that_lets_the_reference_or_the_suite_answer_fails(tmp_path: Path) -> None:
    (tmp_path / "cheats.py").write_text(CHEATS)
    notes, rows = rows_of(str(tmp_path / "cheats.py"))
    assert notes == ()
    began = {name: row.message.partition(",")[0].partition(":")[0] for name, row in rows.items()}
    assert began == {
        "scaled_dot_product_attention": "called mha_core.attention.scaled_dot_product_attention",
        "multi_head_attention": "imported conformance.oracle.certified while it was called",
        "scaled_dot_product_attention_vjp": "read the stored answers (index.json)",
    }
    assert {row.verdict for row in rows.values()} == {"fail"}
    assert all("(CONF-19)" in row.message for row in rows.values())


def test_a_wrapper_of_the_reference_says_so(tmp_path: Path) -> None:
    (tmp_path / "wrapped.py").write_text(BASED)
    notes, rows = rows_of(f"{tmp_path}/wrapped.py:Wrapped")
    assert [note.partition(" is based on ")[2] for note in notes] == ["mha_core: its answers are not its own"]
    assert rows["scaled_dot_product_attention"].verdict == "pass"


def test_answers_that_are_read_while_a_target_is_loaded_are_noted(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(
        "from conformance.vectors.load import load_vectors\nload_vectors()\n"
        "def attention(query, key, value):\n    return load_vectors()\n"
    )
    notes, rows = rows_of(f"{tmp_path}/reads.py:attention")
    assert "read the stored answers (index.json) while it was loaded" in notes[-1]
    assert "called conformance.vectors.load.load_vectors" in rows["scaled_dot_product_attention"].message


@pytest.mark.parametrize(
    ("location", "based_on", "opened"),
    [
        ("mha_core", None, {"mha_core"}),
        ("backends.numpy_backend:NumpyBackend", None, {"mha_core"}),
        ("mine.py:attention", None, set()),
        ("mine.py:attention", "mha_core", {"mha_core"}),
        ("conformance.defects.implementation:Implementation", None, {"mha_core", "conformance"}),
    ],
)
def test_what_a_target_is_it_may_call(location: str, based_on: str | None, opened: set[str]) -> None:
    assert open_to(location, based_on) == opened
