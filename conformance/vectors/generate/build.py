"""From a draft to a Case: features, dtypes, golden values and bounds."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.checks import CHECKS
from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import SERVING_CHECKS
from conformance.dtypes import cast, dtype_name, same_numbers
from conformance.names import DTYPES, FEATURES, MHA_VJP, OPTION_FEATURES, POLICIES, SDPA_VJP, SERVING
from conformance.vectors.case import Array, Bound, Case, Golden, held_in
from conformance.vectors.generate import serving
from conformance.vectors.generate.approximate import Approximation, approximate
from conformance.vectors.generate.bounds import completed, partial_limits
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.gradients.limits import Sensitivity, gradient_sizes, stored_as
from conformance.vectors.generate.gradients.names import GRADIENTS
from conformance.vectors.generate.gradients.oracle import golden_gradients
from conformance.vectors.generate.gradients.predicted import DRAWS
from conformance.vectors.generate.oracle import Pair, golden
from conformance.vectors.generate.part import stored
from conformance.vectors.generate.policies import POLICY, Policy, policies
from conformance.vectors.generate.problem import AT_ONCE, Limits, Problem, finite, once, parts, pose
from conformance.vectors.generate.signatures import signatures
from conformance.vectors.generate.sums import FINEST, last_rounding
from conformance.vectors.seeded import Inputs, narrowest


class UnjudgedDraftError(ValueError):
    """The call is right, and nothing is derived for it; `excluded` says why of each dtype that is left out."""

    def __init__(self, message: str, excluded: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.excluded = excluded or {}


@dataclass(frozen=True)
class Values:
    """What finds the exact value of every output, or gradient, of a problem, as hi + lo, and its bounds."""

    outputs: Callable[[Problem, Approximation, tuple[str, ...], tuple[slice, slice]], dict[str, Pair]]
    gradients: Callable[[Problem, Approximation, tuple[int, ...], tuple[str, ...]], dict[str, Pair]]
    limits: Callable[[Problem, Approximation, Policy, tuple[str, ...]], dict[str, Limits]] = partial_limits
    draws: int = DRAWS  # of roundings, from which s of a gradient is found


BALLS = Values(lambda problem, a, wanted, _: golden(problem, a, wanted)[0], golden_gradients)
"""In ball arithmetic: what the vectors hold."""

AT_FIRST = 64
"""Keys that are looked at before all of them."""
KEPT_BITS = 8
"""Significant bits of a stored W or s: enough for a tolerance, few enough to be the same on every machine."""


def build(draft: Draft, values: Values = BALLS, asked: tuple[str, ...] = POLICIES) -> Case:
    """The case of a draft.

    `values` finds what is exact, and bounds are those of the policies that are asked for.

    Raises:
        ValueError: the call is wrong and not said to be, or the other way round; the golden value cannot be
            decided, or no dtype can hold the case.
    """
    excluded = _inexact(draft)
    _check(draft)
    if draft.raises:
        return _case(draft, _features(draft, None), excluded, {})
    if draft.operation in SERVING:
        return _serving(draft, excluded, lambda part: build(part, values, asked), asked)
    problem = pose(draft.operation, draft.inputs, draft.options, draft.rows)
    if draft.operation in (SDPA_VJP, MHA_VJP):
        gradients = _gradients(draft, problem, excluded, values, asked)
        return _case(draft, _features(draft, problem), excluded, stored(draft, gradients))
    apart, which = once(problem) if values is BALLS else (problem, None)
    found = _outputs(apart, list(_policies(excluded, asked)), _wanted(draft), values)
    if which is not None:
        found = found.repeated(which)
    _exclude(excluded, found.overflows, asked)
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
    return _case(draft, _features(draft, problem), excluded, stored(draft, expected))


def build_served(draft: Draft, made: Callable[[Draft], Case], asked: tuple[str, ...] = POLICIES) -> Case:
    """The case of an operation that is defined by reduction; `made` gives those of its calls, one after another.

    Raises:
        ValueError: the call is wrong.
    """
    excluded = _inexact(draft)
    _check(draft)
    return _serving(draft, excluded, made, asked)


def declared(draft: Draft) -> Case:
    """The case of a draft without what takes long: expected values and their bounds."""
    excluded = _inexact(draft)
    if draft.raises:
        return _case(draft, _features(draft, None), excluded, {})
    if draft.operation in SERVING:
        return _serving(draft, excluded, declared, POLICIES)
    problem = pose(draft.operation, draft.inputs, draft.options, draft.rows)
    _held(problem, approximate(problem), excluded, POLICIES)
    return _case(draft, _features(draft, problem), excluded, {})


def _serving(
    draft: Draft, excluded: dict[str, str], made: Callable[[Draft], Case], asked: tuple[str, ...]
) -> Case:
    """The case of an operation that is defined by reduction, from the cases of the calls that it stands for."""
    parts = [(share, made(share.draft)) for share in serving.shares(draft)]
    for _, case in parts:
        excluded |= case.excluded
    every = {
        dtype: tuple(
            name for policy, names in _policies(excluded, asked) for name in names if policy.dtype == dtype
        )
        for dtype in DTYPES
        if dtype not in excluded
    }
    needed = {*_features(draft, None), *_serving_features(draft, [case for _, case in parts])}
    features = tuple(name for name in FEATURES if name in serving.features(draft, needed))
    whole = all(case.expected for _, case in parts)  # not where it is only declared
    return _case(draft, features, excluded, serving.joined(draft, parts, every) if whole else {})


def _serving_features(draft: Draft, cases: Iterable[Case]) -> set[str]:
    """What the calls need; `empty` where an operand has no element, or a row sees none of the keys that are there."""
    found = {name for case in cases for name in case.features if name in ("gqa", "value_dim", "broadcast")}
    empty = any(array.size == 0 for array in draft.inputs.values())
    for share in serving.shares(draft):
        problem = pose(share.draft.operation, share.draft.inputs, share.draft.options, None)
        lengths = share.draft.inputs.get("kv_lengths", np.int64(problem.kv_len))
        there: Any = np.broadcast_to(np.ravel(lengths > 0), problem.size)  # entries that have any key
        some: Any = problem.visible.any(axis=-1)
        empty |= not some[there].all()
    return found | ({"empty"} if empty else set())


@dataclass
class _Found:
    """What the parts of a problem come to, whole."""

    exact: dict[str, Pair]
    shown: dict[str, Array]  # as float64 shows it: what is not finite, and where
    bounds: dict[tuple[Policy, tuple[str, ...]], dict[str, Limits]]
    overflows: dict[tuple[str, tuple[str, ...]], str]  # dtype and policies -> why there are no bounds
    rms_applies: bool

    def repeated(self, which: Array) -> "_Found":
        """The same of a batch whose entries repeat these: entry -> which of them it is."""

        def every(pairs: Mapping[str, tuple[Array, ...]]) -> dict[str, Any]:
            return {name: tuple(array[which] for array in pair) for name, pair in pairs.items()}

        return replace(
            self,
            exact=every(self.exact),
            shown={name: array[which] for name, array in self.shown.items()},
            bounds={key: every(limits) for key, limits in self.bounds.items()},
        )

    @property
    def held(self) -> list[tuple[Policy, tuple[str, ...]]]:
        """The policies under which nothing overflows."""
        return [key for key in self.bounds if (key[0].dtype, key[1]) not in self.overflows]

    def limits(self, policy: Policy) -> dict[str, Limits]:
        """W and s of each output under a policy."""
        of_parts = next(limits for (key, _), limits in self.bounds.items() if key == policy)
        return {
            name: completed(name, policy, found, self.shown.get(name)) for name, found in of_parts.items()
        }


def place_of(problem: Problem, name: str, entries: slice, rows: slice) -> tuple[slice, ...]:
    """Where some entries and judged rows lie in an output whose batch axes are flattened."""
    if name.startswith("present"):
        return (entries,)
    return (entries, rows) if name == "output" and problem.layer else (entries, slice(None), rows)


def _outputs(
    problem: Problem,
    todo: list[tuple[Policy, tuple[str, ...]]],
    wanted: tuple[str, ...],
    values: Values,
) -> _Found:
    """Exact values and bounds of every wanted output, part by part."""
    whole = _Found({}, {}, {key: {} for key in todo}, {}, False)

    def fill(target: dict[str, Any], name: str, pair: tuple[Array, ...], entries: slice, rows: slice) -> None:
        if part is problem:
            target[name] = pair
            return
        place = place_of(problem, name, entries, rows)
        if name not in target:
            shape = (problem.size, *pair[0].shape[1:])
            if len(place) > 1:
                shape = (*shape[: len(place) - 1], len(problem.rows), *shape[len(place) :])
            target[name] = tuple(np.zeros(shape) for _ in pair)
        for array, of_part in zip(target[name], pair, strict=True):
            array[place] = of_part

    shown: dict[str, Any] = {}
    for entries, rows, part in parts(problem):
        a = approximate(part)
        whole.rms_applies |= _rms_applies(part, a)
        for name, pair in values.outputs(part, a, wanted, (entries, rows)).items():
            fill(whole.exact, name, pair, entries, rows)
        for name, array in (("output", a.output), ("weights", a.weights), ("lse", a.lse)):
            if name in wanted:
                fill(shown, name, (array,), entries, rows)
        for (policy, stands_for), bounds in whole.bounds.items():
            if reason := _overflow(part, a, policy):
                whole.overflows.setdefault((policy.dtype, stands_for), reason)
            else:
                for name, pair in values.limits(part, a, policy, wanted).items():
                    fill(bounds, name, pair, entries, rows)
    whole.shown = {name: array for name, (array,) in shown.items()}
    return whole


def _check(draft: Draft) -> None:
    """Whether the call is refused is what the draft says (spec/errors.md)."""
    try:
        _refuse(draft)
    except (TypeError, ValueError) as error:
        if not draft.raises:
            raise ValueError(f"{draft.id} is a wrong call: {error}") from error
    else:
        if draft.raises:
            raise ValueError(f"{draft.id} is to be refused, and nothing in it is wrong")


def _refuse(draft: Draft) -> None:
    """Makes every check of a call.

    Raises:
        ValueError, TypeError: it is wrong.
    """
    dtype = (draft.only or DTYPES)[0]
    arrays = {}
    for name, array in draft.inputs.items():
        own = dtype if array.dtype.kind == "f" else dtype_name(array.dtype)
        arrays[name] = cast(array, draft.dtype_of.get(name) or held_in(name, own))
    if draft.operation in SERVING:
        served = Served(draft.operation, **arrays, **draft.options)
        for check in SERVING_CHECKS:
            check(served)
        for share in serving.shares(draft):
            _refuse(share.draft)
        return
    call = Call(draft.operation, **arrays, **draft.options)
    for check in CHECKS:
        check(call)


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

    held = _held(problem, approximation, excluded, asked)
    bounds = _bounds(shapes, held, limits_of)
    return {
        name: Golden(
            shape=whole[name],
            rows=draft.rows,
            hi=exact[name][0].reshape(shape),
            lo=exact[name][1].reshape(shape),
            rms_applies=_rms_applies(problem, approximation),
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


def _inexact(draft: Draft) -> dict[str, str]:
    """The dtypes that the draft leaves out, or that do not hold its inputs exactly, with the reason."""
    excluded = {}
    for dtype in DTYPES:
        if draft.only is not None and dtype not in draft.only:
            excluded[dtype] = f"the case is about {' and '.join(draft.only)}"
            continue
        for name, array in draft.inputs.items():
            own = draft.dtype_of.get(name) or held_in(name, dtype)
            held = cast(array, own) if array.dtype.kind == "f" else array
            if array.dtype.kind == "f" and not same_numbers(held.astype(np.float64), array):
                excluded[dtype] = f"{name} is not exact in {dtype}"
                break
    return excluded


def _policies(
    excluded: Mapping[str, str], asked: tuple[str, ...]
) -> Iterator[tuple[Policy, tuple[str, ...]]]:
    """The distinct policies of each dtype that is left in, each with the asked ones that it stands for."""
    for dtype in DTYPES:
        if dtype in excluded:
            continue
        for name, stands_for in policies(dtype).items():
            if found := tuple(alias for alias in stands_for if alias in asked):
                yield POLICY[dtype, name], found


def _held(
    problem: Problem, a: Approximation, excluded: dict[str, str], asked: tuple[str, ...]
) -> list[tuple[Policy, tuple[str, ...]]]:
    """The policies under which nothing overflows; `excluded` notes the others."""
    held, overflows = [], {}
    for policy, stands_for in _policies(excluded, asked):
        if reason := _overflow(problem, a, policy):
            overflows[policy.dtype, stands_for] = reason
        else:
            held.append((policy, stands_for))
    _exclude(excluded, overflows, asked)
    return held


def _exclude(
    excluded: dict[str, str], overflows: Mapping[tuple[str, tuple[str, ...]], str], asked: tuple[str, ...]
) -> None:
    """Notes the policies under which something overflows; where that is all of them, the dtype."""
    for dtype in {dtype: None for dtype, _ in overflows}:
        reasons = {
            alias: reason for (of, aliases), reason in overflows.items() if of == dtype for alias in aliases
        }
        if len(reasons) == sum(
            len(aliases) for policy, aliases in _policies({}, asked) if policy.dtype == dtype
        ):
            excluded[dtype] = "; ".join(sorted(set(reasons.values())))
        else:
            excluded.update({f"{dtype}/{alias}": reason for alias, reason in reasons.items()})


def _overflow(problem: Problem, a: Approximation, policy: Policy) -> str | None:
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


def _rms_applies(problem: Problem, a: Approximation) -> bool:
    """Rule 2 is not asked where no row sees two keys, or where all keys are equal: errors are then coherent.

    Projected keys that are equal may differ in a last bit of a matrix product.
    """
    several = bool((problem.visible.sum(axis=-1) > 1).any())
    key = finite(a.key)
    least = FINEST * np.abs(key).max(initial=0.0)
    varied = any(  # the first few tell, as a rule
        bool((np.abs(part - key[..., :1, :]) > least).any()) for part in (key[..., :AT_FIRST, :], key)
    )
    return several and varied


def _kept(x: Array) -> Array:
    """Few significant bits, rounded up, in float32 where that holds them.

    The nudge keeps values that lie exactly between two such numbers from falling either way by the last bit
    of a matrix product.
    """
    mantissa, exponent = np.frexp(x * (1 + 2.0**-30))
    kept = np.ldexp(np.ceil(np.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)
    narrow = kept.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), kept) else kept


def _features(draft: Draft, problem: Problem | None) -> tuple[str, ...]:
    """What a target must claim: each option given, and what the shapes and masks need."""
    given = {**draft.inputs, **draft.options}
    found = {name for name in OPTION_FEATURES if given.get(name) is not None}
    found |= set(draft.needs)
    if "past_key" in given or "past_value" in given:
        found.add("cache")
    if "q_segments" in given or "kv_segments" in given:
        found.add("segments")
    if draft.raises:
        found.add("validation")
    if problem is not None:
        found |= _shape_features(draft, problem)
    if draft.operation in SERVING:
        found = serving.features(draft, found)
    return tuple(name for name in FEATURES if name in found)


def _shape_features(draft: Draft, problem: Problem) -> set[str]:
    found = set()
    if problem.num_kv_heads < problem.num_heads:
        found.add("gqa")
    if problem.d_v != problem.d_k:
        found.add("value_dim")
    full = (*problem.batch, problem.num_heads, problem.q_len, problem.kv_len)
    for name in ("mask", "attn_bias"):
        if name in draft.inputs:
            shape = draft.inputs[name].shape
            if any(
                size == 1 != whole for size, whole in zip(shape, full[len(full) - len(shape) :], strict=True)
            ):
                found.add("broadcast")
    # of a call with more pairs, the rows that are judged have to tell
    whole = problem if math.prod(full) > AT_ONCE else pose(draft.operation, draft.inputs, draft.options, None)
    empty = any(array.size == 0 for array in draft.inputs.values())  # of a past, say
    if empty or math.prod(full) == 0 or not whole.visible.any(axis=-1).all():
        found.add("empty")
    return found
