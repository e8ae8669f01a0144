"""Ways in for what the suite does not know: other array libraries, modules of torch, devices that are not there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import UsageError
from conformance.names import SDPA
from conformance.running.invoke import call
from conformance.running.target import adopt, load
from conformance.vectors.case import Case

LIBRARY = """
import ml_dtypes
import numpy as np

class Array:  # that NumPy knows nothing of
    def __init__(self, x):
        self.x = x
    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)
    def __dlpack_device__(self):
        return self.x.__dlpack_device__()
"""
BY_DLPACK = """
def from_dlpack(x, **options):
    if x.dtype == ml_dtypes.bfloat16:
        raise BufferError("no bfloat16")
    return Array(np.from_dlpack(x))
"""
BY_ASARRAY = """
def asarray(x, **options):
    return Array(np.array(x))
"""
TARGET = """
import numpy as np
import LIBRARY

array_type = "LIBRARY"
dtypes = ("float32", "bfloat16")

def scaled_dot_product_attention(query, key, value):
    q, k, v = (x.x.astype("f8") for x in (query, key, value))
    logits = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    output = (weights / weights.sum(-1, keepdims=True) @ v).astype(query.x.dtype)
    return LIBRARY.Array(output) if output.dtype == "f4" else output
"""


@pytest.mark.parametrize("way", ["dlpack", "asarray", "either"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_library_by_dlpack_or_asarray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_case: Callable[..., Case], way: str, dtype: str
) -> None:
    name = f"arrays_by_{way}"
    parts = {"dlpack": (BY_DLPACK,), "asarray": (BY_ASARRAY,), "either": (BY_DLPACK, BY_ASARRAY)}[way]
    (tmp_path / f"{name}.py").write_text(LIBRARY + "".join(parts))
    (tmp_path / f"by_{way}.py").write_text(TARGET.replace("LIBRARY", name))
    monkeypatch.syspath_prepend(str(tmp_path))
    target = load(str(tmp_path / f"by_{way}.py"))
    case = make_case()
    answer = call(target, SDPA, case.operands(dtype), {}, {})
    if way == "dlpack" and dtype == "bfloat16":
        assert answer.kind == "wrong", "neither way is there for it"
        assert "could not be made an array of the target's" in answer.message
        return
    assert answer.kind == "outputs", answer.message
    assert answer.outputs["output"].dtype.name == dtype
    assert answer.outputs["output"].shape == case.expected["output"].shape


def test_a_module_of_torch_is_called(make_case: Callable[..., Case]) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
        array_type = "torch"

        def forward(self, query: Any, key: Any, value: Any, *, scale: float | None = None) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    for found in (Attention, Attention().eval()):
        target = adopt(found, "x")
        assert target.hello.operations == (SDPA,)
        answer = call(target, SDPA, make_case().operands("float32"), {}, {})
        assert answer.kind == "outputs", answer.message


def test_an_optional_scale_of_a_module_is_claimed() -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
        array_type = "torch"

        def forward(self, query: Any, key: Any, value: Any, *, scale: float | None = None) -> Any: ...

    assert "scale" in adopt(Attention(), "x").hello.features


@pytest.mark.parametrize(
    ("library", "device"),
    [("torch", "cuda"), ("torch", "nowhere"), ("jax", "tpu"), ("array_api_strict", "cuda")],
)
def test_a_device_that_is_not_there_is_one_line(library: str, device: str) -> None:
    module = pytest.importorskip(library)
    if library == "torch" and device == "cuda" and module.cuda.is_available():
        pytest.skip("this machine has a CUDA device: only its absence is tested here")
    array_type = library.replace("_", "-")
    attributes = {"array_type": array_type, SDPA: lambda self, query, key, value: query}
    with pytest.raises(
        UsageError, match=re.escape(f"{array_type} makes no array on device {device!r}")
    ) as caught:
        adopt(type("T", (), attributes), "x", device=device)
    assert "\n" not in str(caught.value)
