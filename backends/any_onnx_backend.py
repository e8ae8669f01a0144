"""Any implementation of onnx.backend.base.Backend: the environment variable ONNX_BACKEND names its module.

ONNX_BACKEND=onnxruntime.backend mha-conformance run onnx-backend
"""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from backends.onnx_attention import OnnxAttention

__all__ = ["target"]

chosen = os.environ.get("ONNX_BACKEND", "")
if not chosen:
    raise ImportError("set ONNX_BACKEND to a module with prepare(model), such as onnxruntime.backend")
backend = importlib.import_module(chosen)
package = importlib.import_module(chosen.partition(".")[0])


def _run(model: Any, given: Mapping[str, Any]) -> list[Any]:
    return list(backend.prepare(model).run(list(given.values())))


target = OnnxAttention(
    _run,
    name=f"onnx-backend {chosen}",
    version=str(getattr(package, "__version__", "unknown")),
    dtypes=os.environ.get("ONNX_BACKEND_DTYPES", "float32").split(),
)
