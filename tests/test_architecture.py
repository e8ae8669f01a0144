"""spec/architecture.md is true: its table of folders is complete, and its rules hold on the source."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "spec" / "architecture.md").read_text("utf-8")
PACKAGES = ("mha_core", "backends", "conformance")
DETAILS = {"conformance/vectors/generate/bounds", "conformance/vectors/generate/cases"} | {
    "conformance/vectors/generate/gradients"
}
"""Folders that one row for the folder above covers."""


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            yield str(node.module)


def foreign(path: Path) -> set[str]:
    """What of that is neither the standard library's nor the file's own package."""
    own = path.relative_to(ROOT).parts[0]
    return {name.partition(".")[0] for name in imported(path)} - set(sys.stdlib_module_names) - {own}


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


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


def test_the_core() -> None:
    for path in sources("mha_core"):
        assert foreign(path) <= {"array_api_compat"}, path


def test_backends_never_import_the_suite() -> None:
    for path in sources("backends"):
        assert "conformance" not in foreign(path), path


def test_a_backend_has_one_framework() -> None:
    frameworks = {"torch", "jax", "keras", "dask", "mlx", "array_api_strict"}
    for path in sources("backends"):
        used = frameworks & foreign(path)
        assert len(used - ({"torch"} if "keras" in used else set())) <= 1, f"{path}: {used}"


def test_the_suite_imports_its_dependencies_and_the_oracle_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = [*project["project"]["dependencies"], *project["dependency-groups"]["oracle"], "pytest", "flint"]
    declared = {re.match(r"[a-z0-9-]+", line)[0].replace("-", "_") for line in lines}  # type: ignore[index]
    used = set().union(*map(foreign, sources("conformance")))
    assert used <= declared - {"array_api_compat", "python_flint"}, used - declared
    assert not used & set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_says_the_rule(package: str) -> None:
    assert re.search(rf"^\| `{package}` \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
