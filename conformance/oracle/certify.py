"""From a call to a case: expected values, W and s, found on the spot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conformance.judging.judge import judge
from conformance.judging.verdict import Judgement
from conformance.vectors.case import Array, Case
from conformance.vectors.generate.build import build
from conformance.vectors.generate.draft import Draft

NOTE = "A call that is judged on the spot."


class UnjudgedError(ValueError):
    """The call is right, and nothing is derived for it: it may overflow its dtype, or a gradient sees a NaN."""


@dataclass(frozen=True)
class Certified:
    """A call with its expected values: a `Case` of one dtype, for the judge, the runner and the diagnosis."""

    case: Case
    dtype: str
    own_error: Mapping[str, Array]  # bound on the error of hi + lo of each output, same shape as Golden.hi

    def judge(self, outputs: Mapping[str, Array], policy: str = "eager") -> Judgement:
        """The judgement of an answer; no failure is reported that ball arithmetic does not confirm.

        Args:
            outputs: whole outputs by name, as NumPy arrays.
            policy: an accuracy policy.

        Raises:
            UnjudgedError: the policy has no bound for this call; the text says why.
        """
        if not self.case.judged(self.dtype, policy):
            reason = self.case.excluded.get(f"{self.dtype}/{self.case.policy(self.dtype, policy)}", "")
            raise UnjudgedError(f"nothing is judged in {self.dtype} under {policy}: {reason}")
        return judge(self.case, self.dtype, policy, outputs)


def certify(
    operation: str,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    dtype: str,
    *,
    rows: tuple[int, ...] | None = None,
    name: str = "call/certified",
) -> Certified:
    """The call as a case, with expected values, W and s of every policy of the dtype.

    Args:
        operation: one of the four operations.
        inputs: every array by the name of its argument, mask, lengths and grad_output among them; canonical layout.
            Floating-point arrays hold numbers that the dtype holds exactly; what dtype they have is no matter.
        options: what is no array, by name, as a case holds it (`is_causal`, `scale`, `window`, ...).
        dtype: the dtype of the call.
        rows: the query rows to judge; None for all. Of a gradient, the rows of the gradient of query alone.
        name: the case's ID, which seeds the drawn roundings of gradients.

    Raises:
        TypeError, ValueError: the call is wrong (spec/errors.md).
        UnjudgedError: the call is right, and nothing is derived for it.
    """
    draft = Draft(name, NOTE, (), operation, inputs, options, rows=rows, only=(dtype,))
    return Certified(build(draft), dtype, {})
