"""spec/architecture.md is true: its table of folders is complete; that its rules hold is in test_imports.py."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "spec" / "architecture.md").read_text("utf-8")
PACKAGES = ("mha_core", "backends", "conformance")
DETAILS = {"conformance/vectors/generate/bounds", "conformance/vectors/generate/cases"} | {
    "conformance/vectors/generate/gradients"
}
"""Folders that one row for the folder above covers."""


def test_every_folder_has_a_row() -> None:
    folders = {"spec", "tests"} | {
        str(path.parent.relative_to(ROOT))
        for package in (*PACKAGES, "spec")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    rows = re.findall(r"^\| `([a-z_/]+)` \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == folders - DETAILS
    assert folders >= DETAILS


def test_one_screen() -> None:
    assert len(PAGE.splitlines()) <= 70


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_says_the_rule(package: str) -> None:
    assert re.search(rf"^\| `{package}` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
