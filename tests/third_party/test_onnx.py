import importlib

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed; nox -s third_party installs it")

from backends.onnx_cases import official_cases, problems
from backends.onnx_reference_backend import target as onnx_reference
from conformance.defects.bank import DEFECTS
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.errors import UsageError
from conformance.running import target

pytestmark = [
    pytest.mark.session("third_party"),
    pytest.mark.filterwarnings("ignore"),  # of the other operators' cases, which onnx makes as well
]


@pytest.fixture(scope="module")
def cases():
    return official_cases()


def test_there_are_93_official_cases(cases):
    assert len(cases) == len({case.name for case in cases}) == 93


@pytest.mark.parametrize("module", ["backends.numpy_backend", "conformance.defects.reference"])
def test_all_of_them_pass(cases, module):
    holder = importlib.import_module(module)
    attention = Implementation(REFERENCE) if module.endswith("reference") else holder
    with np.errstate(all="ignore"):
        assert problems(attention.scaled_dot_product_attention, cases) == {}


@pytest.mark.parametrize(
    "name", ["scale-argument-ignored", "softcap-after-bias", "groups-tiled", "causal-ignored"]
)
def test_a_defect_is_refused(cases, name):
    (defect,) = (defect for defect in DEFECTS if defect.id == name)
    with np.errstate(all="ignore"):
        assert problems(defect.implementation().scaled_dot_product_attention, cases)


def test_the_reference_evaluator_computes_attention():
    query, key, value = (np.random.default_rng(n).standard_normal((1, 2, 3, 4)) for n in range(3))
    wanted = Implementation(REFERENCE).scaled_dot_product_attention(query, key, value)["output"]
    got = onnx_reference.scaled_dot_product_attention(query, key, value)["output"]
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_any_backend_is_named_by_the_environment(monkeypatch):
    monkeypatch.delenv("ONNX_BACKEND", raising=False)
    with pytest.raises(UsageError, match="set ONNX_BACKEND to a module") as caught:
        target.load("onnx-backend")
    assert "\n" not in str(caught.value)


def test_any_backend_runs(monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; nox -s third_party installs it")
    monkeypatch.setenv("ONNX_BACKEND", "onnxruntime.backend")
    found = target.load("onnx-backend")
    query = np.ones((1, 1, 2, 3), np.float32)
    output = found.calls["scaled_dot_product_attention"].function(query, query, query)["output"]
    np.testing.assert_array_equal(output, query)
