"""No framework comes with the core, and no branch of it names one."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mha_core

SOURCES = sorted(Path(mha_core.__file__).parent.rglob("*.py"))
FRAMEWORKS = {
    "numpy",
    "torch",
    "jax",
    "array_api_strict",
    "ml_dtypes",
    "dask",
    "cupy",
    "tensorflow",
    "conformance",
}


def test_importing_the_core_loads_no_framework():
    code = "import sys, mha_core; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    path = str(Path(mha_core.__file__).parents[1])
    program = f"import sys; sys.path.insert(0, {path!r}); {code}"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "mha_core" in loaded
    assert not FRAMEWORKS & set(loaded)


FRAMEWORK_OF = {
    "torch_fused.py": "torch",
    "jax_blocks.py": "jax",
    "jax_at_once.py": "jax",
}
"""The modules that may name a framework: each takes it from sys.modules."""


def test_one_module_calls_each_framework_and_imports_none():
    code = "import sys, numpy as np, mha_core; x = np.ones((1, 2, 3)); mha_core.scaled_dot_product_attention(x, x, x)"
    check = "print(sorted({'torch', 'jax'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(mha_core.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {check}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert {path.name for path in SOURCES if "sys.modules" in path.read_text("utf-8")} == set(FRAMEWORK_OF)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_branch_names_a_framework(path):
    """Code may not single a library out: strings and attributes of the source name none, docstrings aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words = {
        str(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in docs and isinstance(node.value, str)
    } | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named = {
        w for w in words if w in FRAMEWORKS or w.startswith(("is_torch", "is_jax", "is_numpy", "is_dask"))
    }
    assert named <= {FRAMEWORK_OF.get(path.name)}


def test_typed():
    spec = importlib.util.find_spec("mha_core")
    assert (Path(spec.origin).parent / "py.typed").exists()
