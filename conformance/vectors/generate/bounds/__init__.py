"""W and s of every output, as spec/bounds.md derives them; the names follow its formulas.

W is a worst-case bound, s the predicted RMS error; both are absolute and per element.
"""

from collections.abc import Iterable

import numpy as np

from conformance.vectors.generate.bounds.average_error import head_of
from conformance.vectors.generate.bounds.output import outputs_of
from conformance.vectors.generate.bounds.projection_error import operand_of
from conformance.vectors.generate.bounds.softmax import softmax_of
from conformance.vectors.generate.bounds.weights_lse import lse_limits, weights_limits
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.normal_form import Array, Limits, Problem
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.summation_error import last_rounding

SQUARED_AWAY = 2.0**-480
"""Variances of errors below it may underflow in float64: W alone counts for them."""


def limits(
    problem: Problem, approximation: Approximation, policy: Policy, wanted: Iterable[str]
) -> dict[str, Limits]:
    """W and s of every wanted output, in the shape of the output with its rows reduced."""
    wanted = tuple(wanted)
    shown = {"output": approximation.output, "weights": approximation.weights, "lse": approximation.lse}
    found = partial_limits(problem, approximation, policy, wanted)
    return {name: completed(name, policy, found[name], shown.get(name)) for name in wanted}


def partial_limits(
    problem: Problem, approximation: Approximation, policy: Policy, wanted: tuple[str, ...]
) -> dict[str, Limits]:
    """The same for a part of a problem, without what the results of all parts have to say."""
    a = approximation
    full = {
        name: (np.zeros(x.shape), np.zeros(x.shape))
        for name, x in _shapes(problem, a).items()
        if name == "output" or name in wanted
    }
    for b in range(problem.size):
        heads = []
        for h in range(problem.num_heads):
            query = operand_of(problem, policy, b, h, "query", "w_q", "b_q", a.query[b, h])
            key = operand_of(problem, policy, b, h // problem.group, "key", "w_k", "b_k", a.key[b, h])
            value = operand_of(problem, policy, b, h // problem.group, "value", "w_v", "b_v", a.value[b, h])
            softmax = softmax_of(problem, a, policy, b, h, query, key)
            for name, operand in (("present_key", key), ("present_value", value)):
                if name not in wanted:
                    continue
                full[name][0][b, h // problem.group] = operand.worst
                full[name][1][b, h // problem.group] = np.sqrt(operand.variance)
            for name, compute in (("weights", weights_limits), ("lse", lse_limits)):
                if name in wanted:
                    full[name][0][b, h], full[name][1][b, h] = compute(softmax, policy)
            heads.append(head_of(policy, softmax, value, problem.inputs["w_o"][h] if problem.layer else None))
        for i, (worst, rms) in enumerate(outputs_of(problem, a, policy, b, heads)):
            place = b if problem.layer else (b, i)
            full["output"][0][place], full["output"][1][place] = worst, rms
    return {name: full[name] for name in wanted}


def completed(name: str, policy: Policy, limits: Limits, shown: Array | None) -> Limits:
    """W and s of a whole output, where the result itself is `shown`; it is None where all of it is finite."""
    worst, rms = limits
    if shown is None:
        return limits
    if name in ("output", "lse"):
        rms = np.hypot(rms, last_rounding(shown, policy.storage))
    worst, rms = (np.where(np.isfinite(shown), x, 0.0) for x in (worst, rms))
    return worst, np.where(worst < SQUARED_AWAY, worst, rms)


def _shapes(problem: Problem, a: Approximation) -> dict[str, Array]:
    step = problem.group
    return {
        "output": a.output,
        "weights": a.weights,
        "lse": a.lse,
        "present_key": a.key[:, ::step],
        "present_value": a.value[:, ::step],
    }
