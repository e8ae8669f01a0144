"""W and s of every gradient under each policy."""

from dataclasses import replace

import numpy as np

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.backward import backward
from conformance.vectors.generate.gradients.curvature import curvature
from conformance.vectors.generate.gradients.rms import DRAWS, Responses
from conformance.vectors.generate.gradients.worst_case import worst_gradients
from conformance.vectors.generate.normal_form import Array, Limits, Problem, finite
from conformance.vectors.generate.policies import SMALLEST_NORMAL, Policy


class Sensitivity:
    """What roundings do to the gradients of one call, whatever their size; `of_query`: to that of the query alone."""

    def __init__(
        self,
        problem: Problem,
        a: Approximation,
        bias_shape: tuple[int, ...],
        seed: str,
        of_query: bool = False,
        draws: int = DRAWS,
    ) -> None:
        self._problem, self._a, self._bias_shape = problem, a, bias_shape
        self._backward = backward(problem, a)
        self._alone = of_query and not problem.layer
        self._responses = Responses(problem, a, bias_shape, seed, self._alone, draws)

    def limits(self, policy: Policy) -> dict[str, Limits]:
        """W and s by argument name, batch axes flattened."""
        call = self._problem, self._a, self._backward
        worst = worst_gradients(*call, policy, self._bias_shape)
        beyond = curvature(*call, policy, self._bias_shape)
        if beyond is None:  # nothing is predicted, so that nothing has to be drawn
            return {name: (x, x) for name, x in worst.items() if name == "query" or not self._alone}
        rms = self._responses.predicted(policy)
        level = replace(policy, underflow=0.0, accumulation_underflow=0.0)
        without = worst_gradients(*call, level, self._bias_shape)
        # what underflow may cost is no matter of chance, and stays out of the quadrature
        return {
            name: (worst[name], rms[name] + beyond.get(name, 0.0) + (worst[name] - without[name]))
            for name in rms
        }


def stored_as(dtype: str, policy: Policy, limits: Limits, exact: Array) -> Limits:
    """Limits of a gradient that is stored in a dtype of its own, with fewer bits or a smaller range than the call's."""
    unit, floor = UNIT_ROUNDOFF[dtype], SMALLEST_NORMAL[dtype]
    unit = unit if unit > policy.storage else 0.0
    floor = floor if floor > policy.underflow else 0.0
    worst, rms = limits
    size = np.abs(finite(exact))
    return worst + unit * (size + worst) + floor, np.hypot(rms, unit / np.sqrt(3) * size) + floor


def gradient_sizes(problem: Problem, a: Approximation) -> dict[str, Array]:
    """Sums of absolute values that the dtype has to hold on the way to the gradients, by what they are."""
    cotangent = np.abs(finite(problem.inputs["grad_output"]))
    w_o = np.abs(problem.inputs["w_o"]) if problem.layer else None
    head = cotangent if w_o is None else cotangent[:, None] @ w_o.swapaxes(-1, -2)
    query, key, value = (np.abs(finite(x)) for x in (a.query, a.key, a.value))
    products = np.where(problem.visible, head @ value.swapaxes(-1, -2), 0.0)
    of_lse = np.abs(finite(problem.inputs.get("grad_lse", np.zeros(a.lse.shape))))[..., None]
    logits = a.weights * (products + (a.weights * products).sum(axis=-1, keepdims=True) + of_lse)
    c = abs(problem.multiplier)
    sizes = {
        "grad_output times value": products,
        "the gradient of the logits": logits.sum(axis=(0, 1, 2, 3), keepdims=True),
        "the gradient of query": c * logits @ key,
        "the gradient of key": (logits.swapaxes(-1, -2) @ query * max(c, 1.0)).sum(
            axis=(0, 1), keepdims=True
        ),
        "the gradient of value": (a.weights.swapaxes(-1, -2) @ head).sum(axis=(0, 1), keepdims=True),
    }
    if problem.layer:
        for name in ("query", "key", "value"):
            if not sizes[f"the gradient of {name}"].size:
                continue
            x, w = np.abs(finite(problem.inputs[name])), np.abs(problem.inputs[f"w_{name[0]}"])
            size = sizes[f"the gradient of {name}"].max()
            sizes[f"the gradient of w_{name[0]}"] = size * x.sum(axis=(0, 1), keepdims=True)
            sizes[f"the gradient of the projected {name}"] = size * w.sum(axis=(0, 2), keepdims=True)
        sizes["the gradient of w_o"] = np.einsum("bhld,blo->hdo", np.abs(finite(a.heads)), cotangent)
    return sizes
