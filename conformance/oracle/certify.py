"""From a call to a case: expected values, W and s, found on the spot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from conformance.dtypes import cast, same_numbers
from conformance.judging.judge import judge, measured
from conformance.judging.measure import Measure, allowed
from conformance.judging.verdict import Judgement
from conformance.names import POLICIES, SERVING
from conformance.oracle.composed import Asked, compose
from conformance.oracle.least import DRAWS, SHARE, least_limits, less_sure, looks_right
from conformance.oracle.second import Second
from conformance.oracle.tiers import First
from conformance.oracle.unasked import in_doubt
from conformance.vectors.case import Array, Bound, Case, Golden, held_in
from conformance.vectors.generate.build import UnjudgedDraftError, build
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.normal_form import pose

NOTE = "A call that is judged on the spot."
AT_ONCE = 32
"""Elements that the second tier is asked for at once: those that err most."""
OF_KEYS = ("key", "value")
"""Gradients of which some rows can be judged."""
ROUNDS = 8
"""How often it is asked before the whole result is formed by it."""


class UnjudgedError(ValueError):
    """The call is right, and nothing is derived for it: it may overflow its dtype, or a gradient sees a NaN.

    `overflow` says which number overflows, where that is why.
    """

    def __init__(self, message: str, overflow: str = "") -> None:
        super().__init__(message)
        self.overflow = overflow


class WrongOracleError(RuntimeError):
    """The two tiers disagree by more than their own errors: nothing is said of the answer."""


@dataclass
class Certified:
    """A call with its expected values: a `Case` of one dtype, for the judge, the runner and the diagnosis."""

    case: Case
    dtype: str
    own_error: dict[str, Array]  # bound on the error of hi + lo of each result, same shape as Golden.hi
    policies: tuple[str, ...]  # those that have bounds here
    second: Asked
    confirmed: dict[str, Array] = field(default_factory=dict)  # bool: elements that the second tier has given

    def judge(self, outputs: Mapping[str, Array], policy: str = "eager") -> Judgement:
        """The judgement of an answer; no failure is reported that ball arithmetic does not confirm.

        Args:
            outputs: whole outputs by name, as NumPy arrays.
            policy: an accuracy policy.

        Raises:
            UnjudgedError: the policy has no bound for this call; the text says why.
            WrongOracleError: the two tiers disagree.
        """
        policy = self.case.policy(self.dtype, policy)
        if self.case.gradients:  # of some rows, or of some arguments, nobody asked for the others
            outputs = {
                key: x
                for key, x in outputs.items()
                if key in self.case.expected or key not in self.case.inputs
            }
        if not self.case.judged(self.dtype, policy):
            raise UnjudgedError(self.unjudged(policy))
        for _ in range(ROUNDS):
            judgement = judge(self.case, self.dtype, policy, outputs)
            if judgement.verdict == "pass" or judgement.worst is None:
                return judgement  # what is wrong in shape or dtype needs no expected value
            if not self._look_again(measured(self.case, self.dtype, policy, outputs)):
                return judgement
        for name in self.case.expected:
            self._confirm(name, np.flatnonzero(~self._confirmed(name)))
        return judge(self.case, self.dtype, policy, outputs)

    def passes(self, outputs: Mapping[str, Array], policy: str) -> Judgement | None:
        """The judgement of an answer that is right by a first look; None where more has to be asked.

        What it says of the error is at least what `judge` would.
        """
        policy = self.case.policy(self.dtype, policy)
        if not self.case.judged(self.dtype, policy):
            return None
        judgement = judge(self.case, self.dtype, policy, outputs)
        if judgement.verdict == "fail":
            return None
        measures = measured(self.case, self.dtype, policy, outputs)
        if not all(looks_right(m, self._bound(m.output, policy), self.own_error[m.output]) for m in measures):
            return None
        # by larger bounds the grade may be the other one
        return None if judgement.grade == "eager" and self._graded else judgement

    @property
    def _graded(self) -> bool:
        """Whether the bounds of fused are there, beside those of a policy of its own."""
        held = [of[self.dtype] for golden in self.case.expected.values() if (of := golden.bounds)]
        return all("fused" in of and "eager" in of for of in held) and bool(held)

    def _bound(self, name: str, policy: str) -> Bound:
        return self.case.expected[name].bounds[self.dtype][policy]

    def unjudged(self, policy: str) -> str:
        """Why nothing is judged under a policy."""
        keys = (f"{self.dtype}/{policy}", self.dtype)
        reason = next((self.case.excluded[key] for key in keys if key in self.case.excluded), "not asked for")
        other = [name for name in ("eager", "fused") if self.case.judged(self.dtype, name)]
        hint = f"; under {other[0]} it is" if other else ""
        return f"nothing is judged in {self.dtype} under {policy}: {reason}{hint}"

    def _look_again(self, measures: list[Measure]) -> bool:
        """Asks the second tier for the elements that the judgement rests on; whether there were any new ones."""
        found = False
        for m in measures:
            if m.misplaced.any():
                return False  # where a result is not finite is no matter of accuracy
            if m.met:
                continue
            weight = m.ratio if m.exceeds.any() else _shares(m, self.case, self.dtype)
            new = np.where(self._confirmed(m.output), -1.0, weight).ravel()
            asked = np.argsort(-new, kind="stable")[: self.second.at_once(AT_ONCE)]
            # the worst one is what is reported; the RMS rests on those that have most of it
            if m.exceeds.any() and self._confirmed(m.output).flat[int(weight.argmax())]:
                continue
            asked = asked[new[asked] > 0]
            if len(asked) and (m.exceeds.any() or not self._confirmed(m.output).any()):
                self._confirm(m.output, asked)
                found = True
        return found

    def _confirmed(self, name: str) -> Array:
        shape = self.case.expected[name].hi.shape
        return self.confirmed.setdefault(name, np.zeros(shape, dtype=bool))

    def _confirm(self, name: str, flat: Array) -> None:
        """Puts values of the second tier in place of the first's, once they agree."""
        golden = self.case.expected[name]
        flat = np.array([i for i in flat if np.isfinite(golden.hi.flat[i])], dtype=np.intp)
        hi, lo = self.second(name, golden, flat)
        off = np.abs((hi - golden.hi.flat[flat]) + (lo - golden.lo.flat[flat]))
        own = self.own_error[name].flat[flat]
        # an error that is not finite says nothing, and was not admitted
        wrong = np.isfinite(own) & ~(off <= own + 2.0**-100 * np.abs(hi))
        if wrong.any():
            worst = int(np.argmax(np.where(wrong, off, 0.0)))
            place = tuple(int(i) for i in np.unravel_index(flat[worst], golden.hi.shape))
            raise WrongOracleError(
                f"the expected value of {self.case.label(name)}{list(place)} is {golden.hi.flat[flat[worst]]:.17g} "
                f"by the first tier and {hi[worst]:.17g} by the second: "
                "this is a mistake of the suite, please report it"
            )
        self._put(name, golden, flat, hi, lo)

    def _put(self, name: str, golden: Golden, flat: Array, hi: Array, lo: Array) -> None:
        both = golden.hi.copy(), golden.lo.copy()
        both[0].flat[flat], both[1].flat[flat] = hi, lo
        expected = {**self.case.expected, name: replace(golden, hi=both[0], lo=both[1])}
        self.case = replace(self.case, expected=expected)
        error = self.own_error[name].copy()
        error.flat[flat] = 2.0**-100 * np.abs(hi)
        self.own_error = {**self.own_error, name: error}
        self._confirmed(name).flat[flat] = True


def _shares(m: Measure, case: Case, dtype: str) -> Array:
    """What each element adds to the RMS."""
    bounds = case.expected[m.output].bounds[dtype]
    rms = np.max([bound.rms for bound in bounds.values()], axis=0).astype(np.float64)
    with np.errstate(all="ignore"):
        return np.where(rms > 0, m.error / rms, 0.0)


def certify(
    operation: str,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    dtype: str,
    *,
    rows: tuple[int, ...] | None = None,
    keys: tuple[int, ...] = (),
    policies: tuple[str, ...] = POLICIES,
    dtype_of: Mapping[str, str] | None = None,
    name: str = "call/certified",
    first: Callable[[str], First] = First,
    look: bool = False,
) -> Certified:
    """The call as a case, with expected values, W and s of every policy of the dtype that is asked for.

    Args:
        operation: one of the four operations.
        inputs: every array by the name of its argument, mask, lengths and grad_output among them; canonical layout.
            Floating-point arrays hold numbers that the dtype holds exactly; what dtype they have is no matter.
        options: what is no array, by name, as a case holds it (`is_causal`, `scale`, `window`, ...).
        dtype: the dtype of the call.
        rows: the query rows to judge; None for all. Where gradients are asked for, only rows of that of the query
            are judged then: the others are sums over every row.
        keys: rows of the gradients of key and value to judge, and nothing else; of gradients without projections.
        policies: the accuracy policies that bounds are wanted of; fewer are faster.
        dtype_of: the dtype of an operand that has another one, which attn_bias may.
        name: the case's ID, which seeds the drawn roundings of gradients.
        first: makes the first tier of a dtype.
        look: for a first look, with bounds that are quickly found and no larger than those of the specification:
            `Certified.passes` says whether an answer is right for certain, and nothing else is to be asked of it.

    Raises:
        TypeError, ValueError: the call is wrong (spec/errors.md).
        UnjudgedError: the call is right, and nothing is derived for it.
    """
    widened = {
        key: array if array.dtype.kind in "biuf" else np.asarray(array, dtype=np.float32)
        for key, array in inputs.items()
    }
    draft = Draft(
        name, NOTE, (), operation, widened, dict(options), rows=rows, only=(dtype,), dtype_of=dtype_of or {},
        sampled=dict.fromkeys(OF_KEYS, keys) if keys else {},
    )  # fmt: skip
    tier = first(dtype)
    values = replace(tier.values, limits=least_limits, draws=DRAWS) if look else tier.values
    inexact = [
        key
        for key, array in widened.items()
        if _changes(array, (dtype_of or {}).get(key) or held_in(key, dtype))
    ]
    if inexact:
        raise ValueError(
            f"{', '.join(inexact)} has numbers that {dtype} does not hold: round first, "
            "since what is expected is the result of the numbers that are given"
        )
    if operation in SERVING:
        return _composed(draft, dtype, policies, look)
    with np.errstate(all="ignore"):
        try:
            case = build(draft, values, policies)
        except UnjudgedDraftError as error:
            reason = str(error).removeprefix(name).lstrip(": ")
            overflow = error.excluded.get(
                dtype, ""
            )  # numbers that the dtype does not hold were refused above
            raise UnjudgedError(f"nothing is judged of this call: {reason}", overflow) from error
    problem = pose(operation, widened, options, rows)
    if not case.gradients and in_doubt(problem):
        raise UnjudgedError(
            "nothing is judged of this call: a visible value is not finite, and weighs next to nothing (ATT-11)"
        )
    whole = rows is None and "attn_bias" in widened
    bias_shape = widened["attn_bias"].shape if whole else (1, 1)
    second = Second(problem, bias_shape, tuple(case.expected), case.gradients, keys)
    held = {key: (golden.shape if keys else golden.hi.shape) for key, golden in case.expected.items()}
    errors = {key: tier.error(problem, key, shape) for key, shape in held.items()}
    if keys:
        case = replace(case, expected={name: case.expected[name] for name in OF_KEYS})
        errors = {name: errors[name][..., list(keys), :] for name in OF_KEYS}
    if look and case.gradients:
        case = replace(case, expected={key: less_sure(golden) for key, golden in case.expected.items()})
    found = Certified(case, dtype, errors, policies, second)
    if not look:
        _admit(found)
    return found


def _composed(draft: Draft, dtype: str, policies: tuple[str, ...], look: bool) -> Certified:
    """An operation that is defined by reduction, by the calls that it stands for."""

    def part(of: Draft) -> Certified:
        return certify(
            of.operation, of.inputs, of.options, dtype, rows=of.rows, policies=policies, dtype_of=of.dtype_of,
            name=of.id, look=look,
        )  # fmt: skip

    found = compose(draft, policies, part)
    return Certified(found.case, dtype, found.own_error, policies, found, found.confirmed)


def _changes(array: Array, dtype: str) -> bool:
    """Whether some number is another one in a dtype."""
    return array.dtype.kind == "f" and not same_numbers(cast(array, dtype).astype(np.float64), array)


def _admit(found: Certified) -> None:
    """Has the second tier give what the first may be too far off for."""
    for name, golden in found.case.expected.items():
        bounds = list(golden.bounds.get(found.dtype, {}).values())
        if not bounds:
            continue
        tolerance = np.min([allowed(bound) for bound in bounds], axis=0)
        near = (found.own_error[name] <= tolerance / SHARE) | ~np.isfinite(golden.hi)
        flat = np.flatnonzero(~near)
        if len(flat):
            hi, lo = found.second(name, golden, flat)
            found._put(name, golden, flat, hi, lo)
