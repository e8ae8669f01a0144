"""The verdict on a program: the share of checks that pass, a sentence on what is wrong, a token to see it again."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from conformance.errors import UsageError
from conformance.problems.problem import Problem
from conformance.verdicts.asker import TIMEOUT, Asker
from conformance.verdicts.calls import Call, inputs_of
from conformance.verdicts.checks import Check, checks
from conformance.verdicts.hearing import Hearing, Wrong

ALL = "all"
"""In place of a check: every one."""
TOKEN = "j1"
"""What every token begins with: the form and its version."""
SECONDS = 2.0
"""Of processor time: how long known mistakes are tried on the smallest failing call."""
MOST = 4000
"""Numbers of a call up to which they are."""
LONGEST = 600
NOTHING = "no answer is right, so that nothing is said of it"


@dataclass(frozen=True)
class Outcome:
    """What became of a check."""

    check: str
    asks: str
    passed: bool
    reason: str = ""
    wrong: Wrong | None = None


@dataclass(frozen=True)
class Verdict:
    """What is said of a program."""

    accepted: bool
    score: float  # share of checks passed
    reason: str  # empty where nothing is wrong
    replay: str  # token of the check that the reason is about; where there is none, of all
    outcomes: Sequence[Outcome] = field(default_factory=tuple)

    @property
    def json(self) -> dict[str, Any]:
        """The four fields of the contract."""
        return {
            "verdict": "accepted" if self.accepted else "rejected",
            "score": round(self.score, 4),
            "reason": self.reason,
            "replay": self.replay,
        }


def judge_program(
    source: str,
    problem: Problem,
    seed: int,
    *,
    own: bool = False,
    device: str | None = None,
    timeout: float = TIMEOUT,
    asker: Asker | None = None,
    only: str = "",
    told: Callable[[Outcome], None] | None = None,
    keep: bool = False,
) -> Verdict:
    """Judges a program.

    Args:
        source: path/to/file.py or package.module, with `:attribute` or without.
        problem: what is asked of it.
        seed: of the draw.
        own: whether a call of a library's attention is refused; the problem may say so too.
        device: where its arrays are made.
        timeout: seconds for a call.
        asker: a process that is ready; with `keep` one that has loaded the program.
        only: the check to make, in place of all.
        told: is given each outcome as it comes.
        keep: whether the process is left as it is.
    """
    asker = asker or Asker(problem, device, timeout)
    every = list(checks(problem, own or problem.own, device))
    made = [check for check in every if check.name == only] if only else every
    if not made:
        raise UsageError(
            f"problem {problem.name} has no check {only!r}; it has {', '.join(c.name for c in every)}"
        )
    if only and made[0].last:  # what is seen beside the numbers is seen in all calls
        made = [check for check in every if not check.last or check.name == only]
    try:
        broken = "" if keep and not asker.broken else asker.load(source)
        if broken:
            return Verdict(False, 0.0, broken[:LONGEST], token(problem, ALL, seed))
        hearing = Hearing(problem, asker, seed, device)
        outcomes = []
        for check in made:
            said = not check.last or hearing.answered
            outcomes.append(
                _made(check, hearing) if said else Outcome(check.name, check.asks, False, NOTHING)
            )
            if told is not None:
                told(outcomes[-1])
    finally:
        if not keep:
            asker.close()
    if only:
        outcomes = [each for each in outcomes if each.check == only]
    failed = [each for each in outcomes if not each.passed]
    score = (len(outcomes) - len(failed)) / len(outcomes)
    if not failed:
        return Verdict(True, score, "", token(problem, only or ALL, seed), outcomes)
    first = _telling(failed)
    reason = _reason(first, failed, hearing)
    return Verdict(False, score, reason[:LONGEST], token(problem, first.check, seed), outcomes)


def _made(check: Check, hearing: Hearing) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check.look(hearing)
    if not found:
        return Outcome(check.name, check.asks, True)
    if isinstance(found, str):
        return Outcome(check.name, check.asks, False, found)
    return Outcome(check.name, check.asks, False, found.text, found)


def _telling(failed: Sequence[Outcome]) -> Outcome:
    """The failure that says most: what was seen of its conduct, else the smallest call that is wrong."""
    numbers = [each for each in failed if each.wrong is not None]
    seen = [each for each in failed if each.wrong is None and each.reason != NOTHING]
    if seen and (len(numbers) <= 3 or seen[0].check in ("suite", "inputs")):
        return seen[0]
    if not numbers:
        return failed[0]
    read = [each for each in numbers if each.wrong is not None and each.wrong.outputs]
    most = read if 2 * len(read) >= len(numbers) else [each for each in numbers if each not in read]
    return min(most, key=lambda each: each.wrong.call.recipe.work if each.wrong else 0)


def _reason(first: Outcome, failed: Sequence[Outcome], hearing: Hearing) -> str:
    parts = []
    if first.wrong is not None and first.wrong.outputs:
        when = condition(hearing.values)
        parts += [when] if when else []
        looks = _looks(first.wrong)
        parts += [looks] if looks else []
    parts.append(first.reason)
    if first.wrong is not None and first.wrong.found is not None and not _looks(first.wrong):
        parts += _likely(first.wrong, hearing.problem.policy)
    beside = [x.reason for x in failed if x.wrong is None and x is not first and x.reason != NOTHING]
    return "; ".join([*parts, *beside[:1]])


# What the failing calls have in common


def condition(values: Sequence[tuple[Call, bool]]) -> str:
    """What tells the failing calls from those that pass, if one size or a number that divides it does."""
    good = [call.recipe for call, right in values if right and not call.recipe.gradients]
    bad = [call.recipe for call, right in values if not right and not call.recipe.gradients]
    if not good:
        return "wrong in every call" if len(bad) > 3 else ""
    if len(bad) < 2:
        return ""
    for name in ("kv_len", "q_len", "entries", "heads"):
        of_good, of_bad = ([int(getattr(r, name)) for r in some] for some in (good, bad))
        if min(of_bad) > max(of_good):
            return f"wrong only where {_word(name)} is above {max(of_good)}"
        for tile in (128, 64, 32, 16):
            if all(n % tile for n in of_bad) and not any(n % tile for n in of_good):
                return f"wrong only where {_word(name)} is no multiple of {tile}"
    return ""


def _word(name: str) -> str:
    return "batch" if name == "entries" else name


def _looks(wrong: Wrong) -> str:
    """What the answer is, where that is seen at once."""
    output = wrong.outputs.get("output")
    if output is None or output.size < 2:
        return ""
    got, inputs, r = output.astype(np.float64), inputs_of(wrong.call), wrong.call.recipe
    if not np.isfinite(got).any():
        return "the answer has no finite number"
    if (got == got.flat[0]).all():
        return f"every number of the answer is {got.flat[0]:.4g}"
    if r.layer or got.shape != (r.entries, r.heads, r.q_len, r.d_v):
        return ""
    value = np.repeat(inputs["value"], r.heads // r.groups, axis=1)
    if not np.isfinite(value).all():
        return ""
    close = (8e-3 if "16" in r.dtype else 1e-3) * (1 + np.abs(value).max())
    if r.kv_len > 1 and np.abs(got - value.mean(axis=-2, keepdims=True)).max() <= close:
        return "the answer is the mean of value, as if query and key were not read"
    for name in ("query", "value") if r.kv_len > 1 else ():
        if inputs[name].shape == got.shape and np.abs(got - inputs[name]).max() <= close:
            return f"the answer is {name} itself"
    return ""


def _likely(wrong: Wrong, policy: str) -> list[str]:
    """The known mistake that gives the same numbers."""
    found = wrong.found
    if found is None or not wrong.outputs:
        return []
    size = sum(x.size for x in found.case.inputs.values()) + sum(
        x.hi.size for x in found.case.expected.values()
    )
    if size > MOST:
        return []
    from conformance.diagnosis.search import diagnose_one

    with suppress(Exception):  # a known mistake that cannot be tried says nothing
        models = diagnose_one(
            found.case, found.dtype, wrong.outputs, found.case.policy(found.dtype, policy), SECONDS
        )
        if models:
            return [f"likely: {' '.join(defect.said for defect in models[0].defects)}"]
    return []


# Tokens


def token(problem: Problem, check: str, seed: int) -> str:
    """What makes a check again."""
    text = f"{TOKEN}_{check}_{seed}"
    return f"{text}_{crc32(f'{problem.name}{text}'.encode()) & 0xFFFF:04x}"


def read_token(text: str, problem: Problem) -> tuple[str, int]:
    """The check and the seed of a token.

    Raises:
        UsageError: it is none, was changed on its way, or is of another problem.
    """
    parts = text.strip().split("_")
    if len(parts) != 4 or parts[0] != TOKEN or not parts[2].isdigit() or len(parts[2]) > 20:
        raise UsageError(
            f"--replay wants a token as `judge` prints it, such as j1_sharp_7_0f3a, got {text[:60]!r}"
        )
    if token(problem, parts[1], int(parts[2])) != text.strip():
        raise UsageError(f"--replay: {text[:60]} is no token of problem {problem.name}: copy all of it")
    return parts[1], int(parts[2])


def as_json(verdict: Verdict, beside: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with something before it, such as the program that it is of."""
    return {**beside, **verdict.json}
