"""The ledger itself: one verdict a statement, checks and cases that exist, and no check that nobody names."""

import ast
import re
from pathlib import Path

import pytest

from conformance.vectors.load import load_vectors

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "spec" / "documents.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (DOC-\d+)\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))
VERDICT = re.compile(
    r"^Verdict: \*\*(holds|holds if|does not hold|empirical, not testable here)\*\*(?=[. ])", re.MULTILINE
)
SECTIONS = 5


def named(word, entry):
    """What the `Check:` or `Case:` line of an entry names, if it has one."""
    lines = re.findall(rf"^{word}: (.+)$", entry, flags=re.MULTILINE)
    return [name.strip("` ") for line in lines for name in line.split(",")]


def defined_checks():
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.startswith("test_")
                and path.name != "test_ledger.py"
            ):
                yield f"tests/documents/{path.name}::{node.name}"


def test_ids_are_contiguous_and_unique():
    found = re.findall(r"^### (.+)$", TEXT, flags=re.MULTILINE)
    assert found == [f"DOC-{n}" for n in range(1, len(found) + 1)]
    assert len(found) == len(ENTRIES) > 50


def test_every_document_has_its_section():
    sections = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
    assert sum("### DOC-" in section for section in sections) == SECTIONS


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_has_one_verdict(name):
    assert len(VERDICT.findall(ENTRIES[name])) == ENTRIES[name].count("Verdict:") == 1


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_is_checked_unless_empirical(name):
    verdict = VERDICT.search(ENTRIES[name])[1]
    checked = named("Check", ENTRIES[name]) + named("Case", ENTRIES[name])
    assert checked or verdict == "empirical, not testable here"


def test_checks_exist_and_all_are_named():
    checks = {check for entry in ENTRIES.values() for check in named("Check", entry)}
    assert checks == set(defined_checks())


def test_cases_exist():
    known = {case.id for case in load_vectors().cases}
    cases = {case for entry in ENTRIES.values() for case in named("Case", entry)}
    assert cases
    assert cases <= known


def test_table_of_verdicts_counts_the_entries():
    for verdict in ("holds", "holds if", "does not hold", "empirical, not testable here"):
        count = sum(VERDICT.search(entry)[1] == verdict for entry in ENTRIES.values())
        assert f"| **{verdict}** | {count} |" in TEXT
