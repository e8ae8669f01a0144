"""Which gradients a call asks for, and in which shapes (GRAD-2)."""

from conformance.names import BIASES, WEIGHTS
from conformance.vectors.generate.normal_form import Problem

GRADIENTS = ("query", "key", "value", "attn_bias", "sinks", *WEIGHTS, *BIASES)


def has_structural_zero(problem: Problem, name: str, bias_shape: tuple[int, ...]) -> bool:
    """Whether a gradient is zero whatever the numbers: it sums the gradients of the logits of whole rows.

    Those add up to zero in each row, unless a sink or a cotangent of the lse takes part; a softcap or a past spoils
    it for b_k.
    """
    if "sinks" in problem.inputs or "grad_lse" in problem.inputs:
        return False
    if name == "attn_bias":
        return bias_shape[-1] == 1
    return name == "b_k" and problem.softcap is None and "past_key" not in problem.inputs


def sums_whole_rows(problem: Problem) -> bool:
    """Whether the gradient of b_v sums the weights of whole rows, which add up to one, or to zero where empty."""
    return "sinks" not in problem.inputs and "past_value" not in problem.inputs
