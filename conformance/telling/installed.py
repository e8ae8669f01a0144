"""What a backend is and which library it needs, read off its file without importing it."""

import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from conformance.running.locating import installed

OWN = {"mha_core", "backends", *sys.stdlib_module_names}
"""Modules that say nothing of the library that a backend is about."""
MISSING = "not installed"


def described(location: str) -> tuple[str, str]:
    """The first sentence of a backend's module, and its libraries with their versions; empty where it has no file.

    Args:
        location: `package.module` or `package.module:attribute`.
    """
    try:
        spec = importlib.util.find_spec(location.partition(":")[0])
    except (ImportError, ValueError):
        return "", ""
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return "", ""
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    about = (ast.get_docstring(tree) or "").partition("\n")[0]
    libraries = sorted({name.partition(".")[0] for name in _imported(tree)} - OWN)
    return about, ", ".join(f"{name} {_version(name)}" for name in libraries)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _version(module: str) -> str:
    """The version of the package that a module comes in."""
    if not installed(module):
        return MISSING
    names = [name for name in (module, module.replace("_", "-")) if _known(name)]
    return importlib.metadata.version(names[0]) if names else ""


def _known(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
