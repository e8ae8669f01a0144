"""Each adapter of a library declares what the contract asks for, and says so where its library is missing."""

import importlib
import importlib.util
import sys

import pytest

from conformance import names
from conformance.errors import UsageError
from conformance.running.locating import implementations
from conformance.running.target import load

pytestmark = pytest.mark.session("third_party")

TARGETS = {
    "torch-sdpa-math": "torch",
    "torch-sdpa-flash": "torch",
    "torch-mha": "torch",
    "jax-nn": "jax",
    "onnx-reference": "onnx",
    "onnxruntime": "onnxruntime",
    "onnxruntime-contrib": "onnxruntime",
    "onnxruntime-gqa": "onnxruntime",
    "keras": "keras",
    "ggml": "pywhispercpp",
}


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
