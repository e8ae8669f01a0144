"""The attention weights of a case, per head, as the suite's own reference computes them."""

import numpy as np

from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.names import SERVING
from conformance.vectors.case import Array, Case


def attention_weights(case: Case) -> Array | None:
    """Weights [..., H, q_len, kv_len] in float64; none of a case that must be refused, or whose keys are gathered."""
    if case.raises or case.operation in SERVING:
        return None
    operation = case.operation.removesuffix("_vjp")
    operands = {
        name: array for name, array in case.operands("float64").items() if not name.startswith("grad_")
    }
    options = {**case.options, "return_weights": True}
    with np.errstate(all="ignore"):
        outputs = getattr(Implementation(REFERENCE), operation)(**operands, **options)
    weights: Array = outputs["weights"]
    return weights
