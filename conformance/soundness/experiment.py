"""Runs correct implementations on cases, and keeps what the rules said of them."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.judging.judge import judge, measured
from conformance.names import REDUCED_POLICIES
from conformance.running.invoke import call
from conformance.running.target import Target, adopt, load
from conformance.soundness.baseline_tolerances import RULES, refused
from conformance.soundness.implementations import BACKWARD_STYLES, STYLES, implementation
from conformance.vectors.case import Array, Case

RATIOS = ("err / allowed", "err / W", "err / s", "RMS", "RMS / limit", "gain", "scale")
"""What is kept the largest of; the last two are |delta| / limit of rule 3."""
KINDS = ("output", "gradient")
"""What a case asks for."""
NAIVE = "all stored"
"""The style that FlashAttention's rule compares with."""


@dataclass
class Tally:
    """What was seen of outputs or of gradients at one dtype under one policy."""

    runs: int = 0
    elements: int = 0
    alarms: int = 0
    largest: dict[str, float] = field(default_factory=dict)  # by RATIOS
    fixed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))  # false alarms

    def add(self, other: "Tally") -> None:
        """Takes in what was seen elsewhere."""
        self.runs, self.elements = self.runs + other.runs, self.elements + other.elements
        self.alarms += other.alarms
        for name, ratio in other.largest.items():
            self.largest[name] = max(self.largest.get(name, 0.0), ratio)
        for name, count in other.fixed.items():
            self.fixed[name] += count


@dataclass
class Outcome:
    """What came of a number of runs."""

    tallies: dict[tuple[str, str, str], Tally] = field(default_factory=dict)  # (KINDS, dtype, policy)
    runs_of: dict[str, int] = field(default_factory=dict)  # implementation -> runs
    alarms: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # framework -> why it did not take part
    undecided: int = 0  # cases that were left out, since no ball can tell what is right

    def add(self, other: "Outcome") -> None:
        """Takes in what came of others."""
        for key, tally in other.tallies.items():
            self.tallies.setdefault(key, Tally()).add(tally)
        for name, count in other.runs_of.items():
            self.runs_of[name] = self.runs_of.get(name, 0) + count
        self.alarms += other.alarms
        self.absent |= other.absent


def styles_on(case: Case) -> Outcome:
    """Every style of what one case asks for."""
    outcome = Outcome()
    styles = BACKWARD_STYLES if case.gradients else STYLES
    targets = [(adopt(implementation(style), style.name), style.policy) for style in styles]
    _tried(outcome, targets, [case])
    return outcome


def framework_on(name: str, cases: Sequence[Case]) -> Outcome:
    """One framework's target on cases; nothing but a note where it cannot be loaded."""
    outcome = Outcome()
    try:
        target = load(name)
    except UsageError as error:
        outcome.absent[name] = str(error)
        return outcome
    _tried(outcome, [(target, target.hello.accuracy)], cases, may_refuse=True)
    return outcome


def _tried(
    outcome: Outcome,
    targets: Iterable[tuple[Target, str]],
    cases: Iterable[Case],
    may_refuse: bool = False,  # an exception is then no answer, and so nothing that a rule says
) -> None:
    targets = list(targets)
    naive = adopt(implementation(next(style for style in STYLES if style.name == NAIVE)), NAIVE)
    for case in cases:
        for dtype in case.dtypes:
            plain = _answer(naive, case, dtype)
            for target, policy in targets:
                if policy in REDUCED_POLICIES and dtype != "float32":
                    continue
                if dtype not in target.hello.dtypes or not case.judged(dtype, policy):
                    continue
                got = _answer(target, case, dtype, may_refuse)
                if got is not None:
                    _noted(outcome, target.hello.name, case, dtype, policy, got, plain)


def _answer(
    target: Target, case: Case, dtype: str, may_refuse: bool = False
) -> Mapping[str, Array] | str | None:
    """Outputs, a message in their place, or None where the target does not support the case."""
    if not set(case.features) <= set(target.hello.features) or case.operation not in target.calls:
        return None
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a framework says of the kernel that it takes is no alarm
        answer = call(target, case.operation, case.operands(dtype), case.options, case.memory, case.repeat)
    if answer.kind == "unsupported" or (may_refuse and answer.kind == "error"):
        return None
    return answer.outputs if answer.kind == "outputs" else answer.message


def _noted(outcome: Outcome, name: str, case: Case, dtype: str, policy: str, got: Any, plain: Any) -> None:
    tally = outcome.tallies.setdefault((KINDS[case.gradients], dtype, policy), Tally())
    tally.runs += 1
    outcome.runs_of[name] = outcome.runs_of.get(name, 0) + 1
    message = got if isinstance(got, str) else judge(case, dtype, policy, got).message
    if message:
        tally.alarms += 1
        outcome.alarms.append(f"{name}: {case.id} {dtype} {policy}: {message}")
        return
    tally.elements += sum(golden.hi.size for golden in case.expected.values())
    for ratio, value in _ratios(case, dtype, policy, got):
        tally.largest[ratio] = max(tally.largest.get(ratio, 0.0), value)
    if not isinstance(plain, str):
        for rule in refused(case, dtype, got, plain):
            tally.fixed[rule] += 1


def _ratios(case: Case, dtype: str, policy: str, got: Mapping[str, Array]) -> Iterator[tuple[str, float]]:
    for m in measured(case, dtype, policy, got):
        bound = m.golden.bounds[dtype][policy]
        yield "err / allowed", float(m.ratio.max(initial=0.0))
        for name, scale in (("err / W", bound.worst), ("err / s", bound.rms)):
            scored = scale > 0
            yield name, float((m.error[scored] / scale[scored].astype(np.float64)).max(initial=0.0))
        if m.rms is not None:
            yield "RMS", m.rms
            yield "RMS / limit", m.rms / m.rms_limit
        for along in m.along:
            yield along.name, abs(along.delta) / along.limit
