"""From a draft to a Case: features, dtypes, golden values and bounds."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from conformance.names import DTYPES, FEATURES, MHA_VJP, POLICIES, SDPA_VJP, SERVING
from conformance.vectors.case import Array, Bound, Case, Golden
from conformance.vectors.generate import serving
from conformance.vectors.generate.checking import check, inexact
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.float64_model import Approximation, approximate
from conformance.vectors.generate.gradients.limits import Sensitivity, stored_as
from conformance.vectors.generate.gradients.names import GRADIENTS
from conformance.vectors.generate.needed import features_of, serving_features
from conformance.vectors.generate.normal_form import Limits, Problem, once, pose
from conformance.vectors.generate.overflow import exclude, held_policies, policies_of
from conformance.vectors.generate.part import stored
from conformance.vectors.generate.policies import Policy
from conformance.vectors.generate.signatures import signatures
from conformance.vectors.generate.summation_error import last_rounding
from conformance.vectors.generate.whole import BALLS, Values, outputs_of, rms_applies
from conformance.vectors.seeded import Inputs, narrowest


class UnjudgedDraftError(ValueError):
    """The call is right, and nothing is derived for it; `excluded` says why of each dtype that is left out."""

    def __init__(self, message: str, excluded: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.excluded = excluded or {}


KEPT_BITS = 8
"""Significant bits of a stored W or s: enough for a tolerance, few enough to be the same on every machine."""


def build(draft: Draft, values: Values = BALLS, asked: tuple[str, ...] = POLICIES) -> Case:
    """The case of a draft.

    `values` finds what is exact, and bounds are those of the policies that are asked for.

    Raises:
        ValueError: the call is wrong and not said to be, or the other way round; the golden value cannot be
            decided, or no dtype can hold the case.
    """
    excluded = inexact(draft)
    check(draft)
    if draft.raises:
        return _case(draft, features_of(draft, None), excluded, {})
    if draft.operation in SERVING:
        return _serving(draft, excluded, lambda part: build(part, values, asked), asked)
    problem = pose(draft.operation, draft.inputs, draft.options, draft.rows)
    if draft.operation in (SDPA_VJP, MHA_VJP):
        gradients = _gradients(draft, problem, excluded, values, asked)
        return _case(draft, features_of(draft, problem), excluded, stored(draft, gradients))
    apart, which = once(problem) if values is BALLS else (problem, None)
    found = outputs_of(apart, list(policies_of(excluded, asked)), _wanted(draft), values)
    if which is not None:
        found = found.repeated(which)
    exclude(excluded, found.overflows, asked)
    shapes = {name: _shape(problem, name, hi) for name, (hi, _) in found.exact.items()}
    rows = {name: draft.rows if name in ("output", "weights", "lse") else None for name in shapes}
    reduced = {name: _reduced(shapes[name], name, rows[name]) for name in shapes}
    bounds = _bounds(reduced, found.held, lambda policy: found.limits(policy))
    expected = {
        name: Golden(
            shape=shapes[name],
            rows=rows[name],
            hi=hi.reshape(reduced[name]),
            lo=lo.reshape(reduced[name]),
            rms_applies=found.rms_applies,
            bounds=bounds[name],
            signatures=signatures(problem, draft.signatures, hi.reshape(reduced[name]))
            if name == "output"
            else {},
        )
        for name, (hi, lo) in found.exact.items()
    }
    return _case(draft, features_of(draft, problem), excluded, stored(draft, expected))


def build_served(draft: Draft, made: Callable[[Draft], Case], asked: tuple[str, ...] = POLICIES) -> Case:
    """The case of an operation that is defined by reduction; `made` gives those of its calls, one after another.

    Raises:
        ValueError: the call is wrong.
    """
    excluded = inexact(draft)
    check(draft)
    return _serving(draft, excluded, made, asked)


def declared(draft: Draft) -> Case:
    """The case of a draft without what takes long: expected values and their bounds."""
    excluded = inexact(draft)
    if draft.raises:
        return _case(draft, features_of(draft, None), excluded, {})
    if draft.operation in SERVING:
        return _serving(draft, excluded, declared, POLICIES)
    problem = pose(draft.operation, draft.inputs, draft.options, draft.rows)
    held_policies(problem, approximate(problem), excluded, POLICIES)
    return _case(draft, features_of(draft, problem), excluded, {})


def _serving(
    draft: Draft, excluded: dict[str, str], made: Callable[[Draft], Case], asked: tuple[str, ...]
) -> Case:
    """The case of an operation that is defined by reduction, from the cases of the calls that it stands for."""
    parts = [(share, made(share.draft)) for share in serving.shares(draft)]
    for _, case in parts:
        excluded |= case.excluded
    every = {
        dtype: tuple(
            name for policy, names in policies_of(excluded, asked) for name in names if policy.dtype == dtype
        )
        for dtype in DTYPES
        if dtype not in excluded
    }
    needed = {*features_of(draft, None), *serving_features(draft, [case for _, case in parts])}
    features = tuple(name for name in FEATURES if name in serving.features(draft, needed))
    whole = all(case.expected for _, case in parts)  # not where it is only declared
    return _case(draft, features, excluded, serving.joined(draft, parts, every) if whole else {})


def _gradients(
    draft: Draft, problem: Problem, excluded: dict[str, str], values: Values, asked: tuple[str, ...]
) -> dict[str, Golden]:
    """The golden gradients of a draft; each has the shape of its argument.

    Raises:
        ValueError: a number that is not finite can be seen, of which no gradient is derived.
    """
    approximation = approximate(problem)
    if _sees_more_than_numbers(problem, approximation):
        raise UnjudgedDraftError(
            f"{draft.id} asks for gradients, and a NaN or an infinity in it is not hidden"
        )
    shapes = {name: draft.inputs[name].shape for name in GRADIENTS if name in draft.inputs}
    bias_shape = shapes.get("attn_bias", (1, 1))
    whole = shapes
    if draft.rows is not None:  # all others are sums over every row
        whole, bias_shape = {"query": shapes["query"]}, (1, 1)
        shapes = {name: _reduced(shape, name, draft.rows) for name, shape in whole.items()}
    exact = values.gradients(problem, approximation, bias_shape, tuple(shapes))
    sensitivity = Sensitivity(
        problem, approximation, bias_shape, draft.id, draft.rows is not None, values.draws
    )

    def limits_of(policy: Policy) -> dict[str, Limits]:
        limits = {name: x for name, x in sensitivity.limits(policy).items() if name in shapes}
        for name, (worst, rms) in limits.items():
            numbers = exact[name][0].reshape(worst.shape)
            limits[name] = worst, np.hypot(rms, last_rounding(numbers, policy.storage))
            if name in draft.dtype_of:
                limits[name] = stored_as(draft.dtype_of[name], policy, limits[name], numbers)
        return limits

    held = held_policies(problem, approximation, excluded, asked)
    bounds = _bounds(shapes, held, limits_of)
    return {
        name: Golden(
            shape=whole[name],
            rows=draft.rows,
            hi=exact[name][0].reshape(shape),
            lo=exact[name][1].reshape(shape),
            rms_applies=rms_applies(problem, approximation),
            bounds=bounds[name],
        )
        for name, shape in shapes.items()
    }


def _sees_more_than_numbers(problem: Problem, a: Approximation) -> bool:
    """Whether what takes part in a visible pair, or a sink, is not finite; a sink of -inf takes no part."""
    if a.sinks is not None and not (a.sinks < np.inf).all():
        return True
    cotangent = problem.inputs["grad_output"]
    rows = (a.query, cotangent[:, None] if problem.layer else cotangent)
    if "grad_lse" in problem.inputs and not np.isfinite(problem.inputs["grad_lse"][np.isfinite(a.lse)]).all():
        return True
    wrong = ~np.isfinite(problem.bias)  # -inf, which hides, is none of it
    for of_row in rows:
        wrong |= ~np.isfinite(of_row.sum(axis=-1))[..., :, None]
    for of_key in (a.key, a.value):
        wrong |= ~np.isfinite(of_key.sum(axis=-1))[..., None, :]
    return bool((problem.visible & wrong).any())


def _bounds(
    shapes: Mapping[str, tuple[int, ...]],
    held: Iterable[tuple[Policy, tuple[str, ...]]],
    limits_of: Callable[[Policy], Mapping[str, Limits]],
) -> dict[str, dict[str, dict[str, Bound]]]:
    """W and s as they are stored: result -> dtype -> policy."""
    bounds: dict[str, dict[str, dict[str, Bound]]] = {name: {} for name in shapes}
    for policy, stands_for in held:
        for name, (worst, rms) in limits_of(policy).items():
            sizes = (worst, np.minimum(worst, rms))  # nothing is expected beyond the worst case
            bound = Bound(*(_kept(x).reshape(shapes[name]) for x in sizes))
            bounds[name].setdefault(policy.dtype, {}).update(dict.fromkeys(stands_for, bound))
    return bounds


def _case(
    draft: Draft, features: tuple[str, ...], excluded: dict[str, str], expected: dict[str, Golden]
) -> Case:
    dtypes = tuple(dtype for dtype in DTYPES if dtype not in excluded)
    if not dtypes:
        reasons = "; ".join(f"{dtype}: {excluded[dtype]}" for dtype in draft.only or DTYPES)
        raise UnjudgedDraftError(f"{draft.id}: no dtype can hold it: {reasons}", excluded)
    return Case(
        id=draft.id,
        note=draft.note,
        operation=draft.operation,
        covers=draft.covers,
        features=features,
        dtypes=dtypes,
        excluded=excluded,
        options=draft.options,
        inputs=_inputs(draft),
        expected=expected,
        raises=draft.raises,
        memory=draft.memory,
        repeat=draft.repeat,
        dtype_of=draft.dtype_of,
        seeded=draft.seeded,
    )


def _inputs(draft: Draft) -> Mapping[str, Array]:
    """The operands as they are stored; seeded ones are made anew each time."""
    kept = {name: narrowest(draft.inputs[name]) for name in draft.inputs if name not in draft.seeded}
    return Inputs(kept, draft.seeded, tuple(draft.inputs)) if draft.seeded else kept


def _wanted(draft: Draft) -> tuple[str, ...]:
    wanted = ["output"]
    wanted += [name for name in ("weights", "lse") if draft.options.get(f"return_{name}")]
    if "past_key" in draft.inputs:
        wanted += ["present_key", "present_value"]
    return tuple(wanted)


def _shape(problem: Problem, name: str, hi: Array) -> tuple[int, ...]:
    """The shape of a whole output, with its batch axes and all its rows."""
    if name == "lse":
        return (*problem.batch, problem.num_heads, problem.q_len)
    if name == "weights":
        return (*problem.batch, problem.num_heads, problem.q_len, problem.kv_len)
    if name == "output" and problem.layer:
        return (*problem.batch, problem.q_len, hi.shape[-1])
    if name == "output":
        return (*problem.batch, problem.num_heads, problem.q_len, hi.shape[-1])
    return (*problem.batch, *hi.shape[1:])


def _reduced(shape: tuple[int, ...], name: str, rows: tuple[int, ...] | None) -> tuple[int, ...]:
    if rows is None:
        return shape
    axis = len(shape) - (1 if name == "lse" else 2)
    return (*shape[:axis], len(rows), *shape[axis + 1 :])


def _kept(x: Array) -> Array:
    """Few significant bits, rounded up, in float32 where that holds them.

    The nudge keeps values that lie exactly between two such numbers from falling either way by the last bit
    of a matrix product.
    """
    mantissa, exponent = np.frexp(x * (1 + 2.0**-30))
    kept = np.ldexp(np.ceil(np.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)
    narrow = kept.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), kept) else kept
