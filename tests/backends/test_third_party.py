"""Each adapter of a library declares what the contract asks for, and imports that library alone."""

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

import backends
from conformance import names
from conformance.errors import UsageError
from conformance.running.target import implementations, load

pytestmark = pytest.mark.session("third_party")

LIBRARIES = {
    "torch_sdpa_backend": {"torch"},
    "torch_mha_backend": {"torch"},
    "jax_nn_backend": {"jax", "numpy"},
    "onnx_attention": {"onnx", "numpy"},
    "onnx_cases": {"onnx", "numpy"},
    "onnx_reference_backend": {"onnx", "backends"},
    "ort_backend": {"onnxruntime", "numpy", "backends"},
    "any_onnx_backend": {"backends"},
    "keras_backend": {"keras"},
}
STANDARD = {"collections", "dataclasses", "functools", "importlib", "os", "sys", "typing", "warnings"}
TARGETS = {
    "torch-sdpa-math": "torch",
    "torch-sdpa-flash": "torch",
    "torch-mha": "torch",
    "jax-nn": "jax",
    "onnx-reference": "onnx",
    "onnxruntime": "onnxruntime",
    "onnxruntime-contrib": "onnxruntime",
    "keras": "keras",
}


def test_every_file_is_tested():
    files = {
        path.stem: path.read_text(encoding="utf-8") for path in Path(backends.__file__).parent.glob("*.py")
    }
    assert {name for name, text in files.items() if "mha_core" not in text} == {"__init__", *LIBRARIES}


@pytest.mark.parametrize("name", LIBRARIES)
def test_it_imports_one_library(name):
    imported = set()
    for node in ast.walk(
        ast.parse((Path(backends.__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    ):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - STANDARD == LIBRARIES[name]


@pytest.mark.parametrize("target", TARGETS)
def test_what_it_declares(target):
    if (
        importlib.util.find_spec(TARGETS[target]) is None
    ):  # keras cannot be imported before its backend is chosen
        pytest.skip(f"{TARGETS[target]} is not installed")
    hello = load(target).hello
    assert hello.name == target
    assert hello.version
    assert hello.operations
    assert set(hello.dtypes) <= set(names.DTYPES)
    assert set(hello.features) <= set(names.FEATURES)


@pytest.mark.parametrize("target", TARGETS)
def test_without_its_library_it_is_refused_in_one_line(target, monkeypatch):
    module = implementations()[target].partition(":")[0]
    monkeypatch.setitem(sys.modules, TARGETS[target], None)
    for name in [name for name in sys.modules if name == module or name == "backends.onnx_attention"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=TARGETS[target]) as caught:
        load(target)
    assert "\n" not in str(caught.value)
