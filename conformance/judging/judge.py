"""An answer against its golden values: shape, dtype, non-finite, error, RMS, signatures, in this order."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from conformance.dtypes import cast, dtype_name
from conformance.judging.measure import Measure, measure
from conformance.judging.verdict import Grade, Judgement, Worst
from conformance.names import SDPA_VJP
from conformance.vectors.case import Array, Case
from conformance.vectors.generate.normal_form import pose

PAGES = ("key_pages", "value_pages")
"""Results whose bits are those of an operand."""
DIGITS = {"float64": 17, "float32": 9, "float16": 5, "bfloat16": 4}
"""Decimal digits that tell every two numbers of a dtype apart."""


def judge(case: Case, dtype: str, policy: str, outputs: Mapping[str, Array]) -> Judgement:
    """Says whether the outputs of a call are right, and how close they are.

    Args:
        case: what was asked.
        dtype: the dtype under test.
        policy: what the target may round; `case.judged(dtype, policy)` holds.
        outputs: what the call returned, by output name.

    Follows NUM-1, NUM-2, NUM-6, NUM-7, SHAPE-2, DTYPE-1, DTYPE-6 and GRAD-2.
    """
    if case.raises:
        return Judgement("fail", f"accepted what must be refused ({', '.join(case.covers)})")
    message = names_problem(case, outputs) or shape_problem(case, outputs)
    if message:
        return Judgement("fail", message)
    message = dtype_problem(case, dtype, outputs)
    if message:
        right = _right_when_cast(case, dtype, policy, outputs)
        return Judgement("fail", f"{message}; its numbers are right" if right else message)

    policy = case.policy(dtype, policy)
    measures = measured(case, dtype, policy, outputs)
    rms = [m.rms for m in measures if m.rms is not None]
    message = (
        misplaced_problem(measures, dtype)
        or copied_problem(measures)
        or elsewhere_problem(case, outputs)
        or error_problem(measures, dtype)
        or rms_problem(measures)
        or signature_problem(measures)
    )
    return Judgement(
        verdict="fail" if message else "pass",
        message=message,
        error_over_bound=max((float(m.ratio.max()) for m in measures if m.error.size), default=None),
        rms_over_sigma=max(rms, default=None),
        grade=None if message else grade(case, dtype, policy, outputs),
        worst=worst(measures),
    )


def _right_when_cast(case: Case, dtype: str, policy: str, outputs: Mapping[str, Array]) -> bool:
    """Whether outputs of another dtype would pass in that which is wanted."""
    if any(outputs[name].dtype.kind not in "fV" for name in case.expected):
        return False
    own = {name: case.dtype_of.get(name, dtype) if case.gradients else dtype for name in case.expected}
    fit = {name: cast(outputs[name], own[name]) for name in case.expected}
    return judge(case, dtype, policy, fit).verdict == "pass"


def measured(case: Case, dtype: str, policy: str, outputs: Mapping[str, Array]) -> list[Measure]:
    """Every expected output, measured under a policy."""
    return [
        measure(
            name, golden, dtype, policy, outputs[name], case.label(name), _tokens(case, name), free(case, name)
        )
        for name, golden in case.expected.items()
    ]  # fmt: skip


def _tokens(case: Case, name: str) -> int | None:
    """Over how many tokens a gradient is summed that has rows of its own; None for what is no such gradient."""
    shapes = case.shapes
    if case.operation == SDPA_VJP and name in ("key", "value") and shapes.get("key", (0, 0, 0))[-3]:
        return shapes["query"][-2] * shapes["query"][-3] // shapes["key"][-3]
    projected = {"w_q": "query", "w_k": "key", "w_v": "value"}.get(name)
    return None if projected is None else math.prod(case.expected[projected].shape[:-1])


def free(case: Case, name: str) -> Array | None:
    """Where nothing is required of a result: weights of a NaN row at its masked keys (ATT-10); None for nowhere.

    The array is bool, in the shape of `Golden.hi`.
    """
    golden = case.expected[name]
    if name != "weights" or not (nan := np.isnan(golden.hi)).any():
        return None
    visible = pose(case.operation, case.inputs, case.options, golden.rows).visible
    return np.asarray(nan & ~visible.reshape(nan.shape))


def names_problem(case: Case, outputs: Mapping[str, Array]) -> str:
    """An output that is missing, or that nobody asked for."""
    got, rule = ", ".join(outputs) or "nothing", "GRAD-2" if case.gradients else "SHAPE-2"
    for name in case.expected:
        if name not in outputs:
            return f"{case.label(name)} is missing: got {got} ({rule})"
    unasked = [name for name in outputs if name not in case.expected and name not in asked(case)]
    return f"{unasked[0]} was returned but not asked for: got {got} ({rule})" if unasked else ""


def asked(case: Case) -> set[str]:
    """The outputs that the options of a case ask for; of gradients each that is asked for is expected."""
    if case.gradients:
        return set()
    flags = {
        "output": True,
        "weights": case.options.get("return_weights"),
        "lse": case.options.get("return_lse"),
        "present_key": "past_key" in case.inputs,
        "present_value": "past_value" in case.inputs,
    }
    return {name for name, wanted in flags.items() if wanted}


def shape_problem(case: Case, outputs: Mapping[str, Array]) -> str:
    """The first output of another shape than the golden's."""
    for name, golden in case.expected.items():
        if outputs[name].shape != golden.shape:
            rule = "GRAD-2" if case.gradients else "SHAPE-2"
            return f"{case.label(name)} has shape {outputs[name].shape}, wanted {golden.shape} ({rule})"
    return ""


def dtype_problem(case: Case, dtype: str, outputs: Mapping[str, Array]) -> str:
    """The first output of another dtype than its argument's; lse of 16-bit operands may have float32."""
    for name in case.expected:
        got = dtype_name(outputs[name].dtype)
        own = case.dtype_of.get(name, dtype) if case.gradients else dtype
        wider = name == "lse" and dtype in ("float16", "bfloat16")
        if got != own and not (wider and got == "float32"):
            wanted = f"{own} or float32" if wider else own
            rule = "GRAD-2" if case.gradients else "DTYPE-6" if name == "lse" else "DTYPE-1"
            return f"{case.label(name)} has dtype {got}, wanted {wanted} ({rule})"
    return ""


def misplaced_problem(measures: Iterable[Measure], dtype: str) -> str:
    """A NaN or an infinity where the golden has none, or the other way round."""
    for m in measures:
        if m.misplaced.any():
            flat = int(m.misplaced.argmax())
            got, wanted = (number(a.flat[flat], dtype) for a in (m.got, m.golden.hi))
            return f"{element(m, flat)} is {got}, wanted {wanted} (NUM-6); {share(m.misplaced)}"
    return ""


def copied_problem(measures: Iterable[Measure]) -> str:
    """A zero of the other sign in a result that is copied and not computed."""
    for m in measures:
        if m.output in PAGES:
            zeros = (m.got == 0) & (m.golden.hi == 0)
            wrong = zeros & (np.signbit(m.got) != np.signbit(m.golden.hi))
            if wrong.any():
                flat = int(wrong.argmax())
                got, wanted = m.got.flat[flat], m.golden.hi.flat[flat]
                return f"{element(m, flat)} is {got:g}, wanted exactly {wanted:g} (PAGE-9); {share(wrong)}"
    return ""


def elsewhere_problem(case: Case, outputs: Mapping[str, Array]) -> str:
    """A NaN or an infinity outside of the rows that are stored, where every number is finite."""
    for name, golden in case.expected.items():
        if golden.finite and (wrong := ~np.isfinite(outputs[name])).any():
            flat = int(wrong.argmax())
            place = ", ".join(str(int(i)) for i in np.unravel_index(flat, wrong.shape))
            got = f"{float(outputs[name].flat[flat]):g}"
            return f"{case.label(name)}[{place}] is {got}, wanted a finite number (NUM-6); {share(wrong)}"
    return ""


def error_problem(measures: Iterable[Measure], dtype: str) -> str:
    """The element that breaks rule 1 by most."""
    broken = [m for m in measures if m.exceeds.any()]
    if not broken:
        return ""
    m = max(broken, key=lambda m: float(m.ratio.max()))
    flat = int(m.ratio.argmax())
    got, wanted = (number(a.flat[flat], dtype) for a in (m.got, m.golden.hi))
    limit, ratio = m.allowed.flat[flat], m.ratio.flat[flat]
    if limit == 0:
        return f"{element(m, flat)} is {got}, wanted exactly {wanted} (NUM-1); {share(m.exceeds)}"
    times = f"{ratio:.2g} times what is allowed"
    return f"{element(m, flat)} is {got}, wanted {wanted} +- {limit:.2g}: {times} (NUM-1); {share(m.exceeds)}"


def rms_problem(measures: Iterable[Measure]) -> str:
    """An output whose elements err too much together, though none alone."""
    for m in measures:
        if m.rms_exceeds:
            return (
                f"{m.label} has an RMS error of {m.rms:.3g} times the predicted one, "
                f"at most {m.rms_limit:g} is allowed over {m.rms_count} elements (NUM-2)"
            )
    return ""


def signature_problem(measures: Iterable[Measure]) -> str:
    """An output that lies too far along a signature, though no element shows it."""
    for m in measures:
        for along in m.along:
            if along.exceeds:
                what = f"errors like those of a {along.name} that is off by {along.delta:+.2g}"
                return f"{m.label} has {what}; at most {along.limit:.2g} is allowed (NUM-7)"
    return ""


def grade(case: Case, dtype: str, policy: str, outputs: Mapping[str, Array]) -> Grade | None:
    """`fused` for a passing answer that meets the fused bounds too; None under a reduced policy."""
    if policy not in ("eager", "fused"):
        return None
    strict = all("fused" in golden.bounds[dtype] for golden in case.expected.values())
    return "fused" if strict and all(m.met for m in measured(case, dtype, "fused", outputs)) else "eager"


def worst(measures: Iterable[Measure]) -> Worst | None:
    """The misplaced element, or else the one with the largest |err| / allowed."""
    filled = [m for m in measures if m.error.size]
    if not filled:
        return None
    m = max(filled, key=lambda m: (bool(m.misplaced.any()), float(m.ratio.max())))
    flat = int((m.misplaced if m.misplaced.any() else m.ratio).argmax())
    return Worst(
        output=m.output,
        index=m.place(flat),
        got=float(m.got.flat[flat]),
        expected=float(m.golden.hi.flat[flat]),
        allowed=float(m.allowed.flat[flat]),
    )


def element(m: Measure, flat: int) -> str:
    """An element as users index it: `output[0, 1, 3]`."""
    return f"{m.label}[{', '.join(map(str, m.place(flat)))}]"


def number(value: np.float64, dtype: str) -> str:
    """A number in as many digits as its dtype has."""
    return f"{value:.{DIGITS[dtype]}g}"


def share(where: Array) -> str:
    """How many elements of an output are concerned."""
    return f"{int(where.sum())} of {where.size} elements"
