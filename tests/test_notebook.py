"""The notebooks of the specification: every cell runs, in order, and what it ends with shows itself."""

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "spec" / "notebooks").glob("*.ipynb"))


def shown(cell: str, names: dict[str, Any]) -> Any:
    """Runs a cell, and returns the value of the expression that it ends with; None where it ends with none."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_cell_runs_and_shows_itself(path: Path) -> None:
    page = json.loads(path.read_text("utf-8"))
    names: dict[str, Any] = {}
    results = []
    for cell in page["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "no outputs are kept: they would not be tested"
            with contextlib.redirect_stdout(io.StringIO()):
                results.append(shown("".join(cell["source"]), names))
    found = [value for value in results if value is not None]
    assert len(found) >= 5
    assert all(hasattr(value, "_repr_html_") or hasattr(value, "_repr_svg_") for value in found)
