"""A call with its expected values, and the judgement of answers to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from conformance.judging.judge import judge, measured
from conformance.judging.measure import Measure, allowed
from conformance.judging.verdict import Judgement
from conformance.oracle.composed import Asked
from conformance.oracle.least import SHARE, looks_right
from conformance.vectors.case import Array, Bound, Case, Golden

AT_ONCE = 32
"""Elements that the second tier is asked for at once: those that err most."""
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

    def beyond(self, outputs: Mapping[str, Array], policy: str) -> bool:
        """Whether an answer is wrong for certain by a first look: by W, which needs no draws, and the own error.

        Of gradients alone: W of other results is less than it by a first look.
        """
        policy = self.case.policy(self.dtype, policy)
        if not self.case.gradients or not self.case.judged(self.dtype, policy):
            return False
        judgement = judge(self.case, self.dtype, policy, outputs)
        if judgement.verdict == "pass" or judgement.worst is None:
            return judgement.verdict == "fail"  # what is wrong in names, shape or dtype needs no bound
        measures = measured(self.case, self.dtype, policy, outputs)
        return any(
            bool((m.error > self._bound(m.output, policy).worst + 2 * self.own_error[m.output]).any())
            for m in measures
        )

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

    def admit(self) -> None:
        """Has the second tier give what the first may be too far off for."""
        for name, golden in self.case.expected.items():
            bounds = list(golden.bounds.get(self.dtype, {}).values())
            if not bounds:
                continue
            tolerance = np.min([allowed(bound) for bound in bounds], axis=0)
            near = (self.own_error[name] <= tolerance / SHARE) | ~np.isfinite(golden.hi)
            flat = np.flatnonzero(~near)
            if len(flat):
                hi, lo = self.second(name, golden, flat)
                self._put(name, golden, flat, hi, lo)


def _shares(m: Measure, case: Case, dtype: str) -> Array:
    """What each element adds to the RMS."""
    bounds = case.expected[m.output].bounds[dtype]
    rms = np.max([bound.rms for bound in bounds.values()], axis=0).astype(np.float64)
    with np.errstate(all="ignore"):
        return np.where(rms > 0, m.error / rms, 0.0)
