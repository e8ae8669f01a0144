"""One program heard on one problem: asks calls, judges the answers, keeps what was seen beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.dtypes import cast
from conformance.judging.judge import judge
from conformance.judging.verdict import Judgement
from conformance.oracle import Certified, UnjudgedError
from conformance.oracle.certified import WrongOracleError
from conformance.problems.problem import Problem
from conformance.vectors.case import Array, Golden
from conformance.verdicts import address
from conformance.verdicts.asker import Answer, Asker
from conformance.verdicts.calls import Call, Draw, certified, inputs_of
from conformance.verdicts.forms import WrongFormError, given, results


@dataclass(frozen=True)
class Wrong:
    """Why an answer is wrong, with what is needed to look at it more closely."""

    text: str
    call: Call
    outputs: Mapping[str, Array] = field(default_factory=dict)
    found: Certified | None = None


class Hearing:
    """What is asked of a program, and what is known of it so far."""

    def __init__(self, problem: Problem, asker: Asker, seed: int, device: str | None = None) -> None:
        self.problem, self.draw, self.device = problem, Draw(problem, seed), device
        self._asker = asker
        self.seen: dict[str, str] = {}  # check -> the first thing that is against it
        self.values: list[
            tuple[Call, bool]
        ] = []  # calls whose numbers were judged, and whether they are right
        self.answered = False  # whether some answer is right

    def ask(self, call: Call, **beside: Any) -> Answer:
        """Makes a call, whatever comes of it."""
        answer = self._asker.ask(given(self.problem, call), **beside)
        for check, text in answer.seen:
            self.seen.setdefault(
                check, f"{text} ({call.said})" if check in ("inputs", "storage", "plain") else text
            )
        return answer

    def wrong(self, call: Call, **beside: Any) -> Wrong | None:
        """What is wrong with the answer to a call; None if nothing is."""
        gradients = call.recipe.gradients
        if gradients:
            beside["cotangent"] = self._cotangent(call)
        answer = self.ask(call, **beside)
        found = self._judged(call, answer)
        self.answered |= found is None
        if not found or found.outputs:
            self.values.append((call, found is None))
        return found

    def shapes(self, call: Call) -> list[tuple[int, ...]]:
        """Shapes that results of a call, and steps to them, are likely to have."""
        r = call.recipe
        rows = (r.entries, r.heads, r.q_len)
        return [(*rows, r.d_v), (*rows, r.kv_len), rows]

    def _cotangent(self, call: Call) -> Array:
        array = cast(inputs_of(call)["grad_output"], call.recipe.dtype)
        return np.ascontiguousarray(array.swapaxes(1, 2)) if self.problem.call.layout == "blhd" else array

    def _judged(self, call: Call, answer: Answer) -> Wrong | None:
        if answer.error:
            return Wrong(f"{answer.error} ({call.said})", call)
        if call.address:
            return self._addressed(call, answer)
        found = certified(call, self.problem.policy)
        if found is None:
            return None  # nothing is derived for it
        fill = (
            {name: whole(golden, name) for name, golden in found.case.expected.items()} if call.q_lens else {}
        )
        try:
            outputs = self._outputs(call, answer, fill)
        except WrongFormError as error:
            return Wrong(f"{error} ({call.said})", call)
        judgement = confirmed(found, outputs, self.problem.policy)
        if judgement.verdict == "pass":
            return None
        return Wrong(f"{judgement.message} ({call.said})", call, outputs, found)

    def _outputs(self, call: Call, answer: Answer, fill: Mapping[str, Array]) -> dict[str, Array]:
        if not call.recipe.gradients:
            return results(self.problem, call, answer.results, fill)
        swap = self.problem.call.layout == "blhd"
        names = ("query", "key", "value")
        return {n: x.swapaxes(1, 2) if swap else x for n, x in zip(names, answer.results, strict=True)}

    def _addressed(self, call: Call, answer: Answer) -> Wrong | None:
        r, inputs = call.recipe, inputs_of(call)
        right = address.expected(r, inputs)
        fill = {"output": right, "lse": np.zeros(right.shape[:-1])} if call.q_lens else {}
        try:
            outputs = results(self.problem, call, answer.results, fill)
        except WrongFormError as error:
            return Wrong(f"{error} ({call.said})", call)
        text = address.wrong(r, inputs, outputs["output"])
        return Wrong(f"{text} ({call.said})", call, outputs) if text else None


def whole(golden: Golden, name: str) -> Array:
    """The expected output as a whole; rows that are not judged are zeros."""
    if golden.rows is None:
        return golden.hi
    made = np.zeros(golden.shape)
    made[(..., list(golden.rows), slice(None)) if name == "output" else (..., list(golden.rows))] = golden.hi
    return made


def confirmed(found: Certified, outputs: Mapping[str, Array], policy: str) -> Judgement:
    """The judgement, by the second tier of the oracle where the first one's own error could matter.

    What is farther off than the tolerance and that error together is wrong by the first tier alone, which is
    proven and far faster.
    """
    first = judge(found.case, found.dtype, found.case.policy(found.dtype, policy), outputs)
    worst = first.worst
    if first.verdict == "pass" or worst is None or worst.output not in found.own_error:
        return first
    own = float(np.max(found.own_error[worst.output], initial=0.0))
    if not abs(worst.got - worst.expected) <= 2 * worst.allowed + own:
        return first
    try:
        return found.judge(outputs, policy)
    except (UnjudgedError, WrongOracleError):
        return Judgement("pass")  # nothing is known of it
