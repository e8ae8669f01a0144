"""The import rule on the source: the suite imports no framework, and none of its own targets."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import conformance

ROOT = Path(conformance.__file__).parent
FORBIDDEN = {
    "mha_core", "backends", "torch", "jax", "jaxlib", "flax", "tensorflow", "keras", "mlx", "onnx", "onnxruntime",
    "cupy", "array_api_strict", "array_api_compat", "tinygrad", "equinox", "haiku", "transformers",
}  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_framework_is_imported(path: Path) -> None:
    assert not FORBIDDEN & set(imported(ast.parse(path.read_text())))


def test_the_rule_fires() -> None:
    assert FORBIDDEN & set(imported(ast.parse("def f():\n    from torch.nn import functional")))
    assert len(FILES) > 20


ROOMS = ("vectors", "judging", "running", "telling")


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_asks_a_later_room(room: str) -> None:
    later = {f"conformance.{name}" for name in ROOMS[ROOMS.index(room) + 1 :]}
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not any(node.module.startswith(name) for name in later), f"{path}: {node.module}"
