"""The policies under which nothing of a problem overflows; of the others, what does."""

from collections.abc import Iterator, Mapping

import numpy as np

from conformance.names import DTYPES
from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.limits import gradient_sizes
from conformance.vectors.generate.normal_form import Problem, finite
from conformance.vectors.generate.policies import POLICY, Policy, policies


def policies_of(
    excluded: Mapping[str, str], asked: tuple[str, ...]
) -> Iterator[tuple[Policy, tuple[str, ...]]]:
    """The distinct policies of each dtype that is left in, each with the asked ones that it stands for."""
    for dtype in DTYPES:
        if dtype in excluded:
            continue
        for name, stands_for in policies(dtype).items():
            if found := tuple(alias for alias in stands_for if alias in asked):
                yield POLICY[dtype, name], found


def held_policies(
    problem: Problem, a: Approximation, excluded: dict[str, str], asked: tuple[str, ...]
) -> list[tuple[Policy, tuple[str, ...]]]:
    """The policies under which nothing overflows; `excluded` notes the others."""
    held, overflows = [], {}
    for policy, stands_for in policies_of(excluded, asked):
        if reason := overflow(problem, a, policy):
            overflows[policy.dtype, stands_for] = reason
        else:
            held.append((policy, stands_for))
    exclude(excluded, overflows, asked)
    return held


def exclude(
    excluded: dict[str, str], overflows: Mapping[tuple[str, tuple[str, ...]], str], asked: tuple[str, ...]
) -> None:
    """Notes the policies under which something overflows; where that is all of them, the dtype."""
    for dtype in {dtype: None for dtype, _ in overflows}:
        reasons = {
            alias: reason for (of, aliases), reason in overflows.items() if of == dtype for alias in aliases
        }
        if len(reasons) == sum(
            len(aliases) for policy, aliases in policies_of({}, asked) if policy.dtype == dtype
        ):
            excluded[dtype] = "; ".join(sorted(set(reasons.values())))
        else:
            excluded.update({f"{dtype}/{alias}": reason for alias, reason in reasons.items()})


def overflow(problem: Problem, a: Approximation, policy: Policy) -> str | None:
    """Why the case is left out: a pass over absolute values exceeds half of the largest number."""
    seen = problem.visible & np.isfinite(a.logits) & np.isfinite(a.lse)[..., None]
    products = np.abs(finite(a.query)) @ np.swapaxes(np.abs(finite(a.key)), -1, -2)
    scaled = products * abs(problem.multiplier)
    stored = {
        "the output": np.abs(finite(a.weights)) @ np.abs(finite(a.value)),
    }
    if problem.layer:
        for name, weight, bias in (("query", "w_q", "b_q"), ("key", "w_k", "b_k"), ("value", "w_v", "b_v")):
            x, w = np.abs(finite(problem.inputs[name])), np.abs(problem.inputs[weight])
            stored[f"the projected {name}"] = x[:, None] @ w + np.abs(
                problem.inputs.get(bias, np.zeros((1, 1)))[:, None, :]
            )
        heads = np.abs(finite(a.heads))
        stored["the layer's output"] = np.einsum(
            "bhnd,hdo->bno", heads, np.abs(problem.inputs["w_o"])
        ) + np.abs(problem.inputs.get("b_o", np.zeros(1)))
    if "grad_output" in problem.inputs:
        stored |= gradient_sizes(problem, a)
    for what, sizes in stored.items():
        if sizes.size and sizes.max() > policy.max_finite / 2:
            return f"{what} overflows {policy.dtype}"
    biased = scaled[seen] + np.abs(problem.bias[seen])
    if biased.size and biased.max() > policy.max_finite * (1 + policy.storage / 2):
        return f"a logit with its bias overflows {policy.dtype}"
    for what, sizes in (("an unscaled logit", products[seen]), ("a scaled logit", scaled[seen])):
        if sizes.size and sizes.max() > policy.max_logit / 2:
            return f"{what} may overflow {policy.dtype} where it is stored in it, as {policy.name} admits"
    return None
