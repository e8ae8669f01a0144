"""Which requirements the tests say that they are about, read from their source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mark:
    """One `pytest.mark.covers(...)`."""

    test: str  # path from the checkout's root, ::class, ::function
    line: int
    ids: tuple[str, ...]
    literal: bool = True  # whether every ID is written out, so that the source tells all

    @property
    def where(self) -> str:
        """For messages."""
        path, _, name = self.test.partition("::")
        return f"{path}:{self.line}" + (f" {name}" if name else "")


def read_marks(tests: Path) -> list[Mark]:
    """The marks of every test file of a folder."""
    return [
        mark
        for path in sorted(tests.rglob("test_*.py"))
        for mark in marks_of(path.relative_to(tests.parent).as_posix(), path.read_text("utf-8"))
    ]


def marks_of(path: str, source: str) -> list[Mark]:
    """The marks of one file, wherever they stand: on tests, classes, parameters or the whole file."""
    if "covers" not in source:
        return []
    return sorted(_walk(ast.parse(source), path), key=lambda mark: mark.line)


def _walk(node: ast.AST, name: str) -> Iterator[Mark]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = f"{name}::{node.name}"
    if isinstance(node, ast.Call) and _is_covers(node.func):
        ids = tuple(a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
        yield Mark(name, node.lineno, ids, literal=0 < len(ids) == len(node.args) + len(node.keywords))
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, name)


def _is_covers(function: ast.expr) -> bool:
    """Whether it is `pytest.mark.covers` or `mark.covers`."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "covers"
        and (
            (isinstance(function.value, ast.Attribute) and function.value.attr == "mark")
            or (isinstance(function.value, ast.Name) and function.value.id == "mark")
        )
    )
