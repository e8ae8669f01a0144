"""The reference evaluator of the package onnx."""

import onnx
from onnx.reference import ReferenceEvaluator

from backends.onnx_attention import OnnxAttention

__all__ = ["target"]

target = OnnxAttention(
    lambda model, given: ReferenceEvaluator(model).run(None, dict(given)),
    name="onnx-reference",
    version=onnx.__version__,
    dtypes=("float64", "float32", "float16", "bfloat16"),
)
