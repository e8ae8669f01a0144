"""Which questions a run asks, in which order, and which of them the target does not support."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.errors import UsageError
from conformance.names import DTYPES, FEATURES, LATENT, OPERATIONS, PACKED, PAGED, PROFILES
from conformance.running.expression import parse
from conformance.running.messages import TOP_LEFT, Hello, Question
from conformance.running.quick import QUICK, quick
from conformance.running.suggestions import known
from conformance.vectors.case import Case


@dataclass(frozen=True)
class Selection:
    """The part of the suite that is wanted; everything by default.

    Raises:
        UsageError: a name is unknown, or the shard is none.
    """

    profile: str | None = None
    operation: str | None = None
    dtypes: tuple[str, ...] = ()
    expression: str | None = None
    features: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None  # (I, N), 1 <= I <= N
    files: tuple[str, ...] = ()  # of calls that are asked instead of the stored cases
    quick: bool = False  # only few cases of few shapes

    def __post_init__(self) -> None:
        if self.profile is not None:
            known("profile", self.profile, PROFILES)
        if self.operation is not None:
            known("operation", self.operation, OPERATIONS)
        for dtype in self.dtypes:
            known("dtype", dtype, DTYPES)
        for feature in self.features:
            known("feature", feature, FEATURES)
        if self.expression is not None:
            parse(self.expression)
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            raise UsageError(
                f"there is no shard {self.shard[0]}/{self.shard[1]}; wanted I/N with 1 <= I <= N"
            )

    @property
    def narrowed(self) -> str:
        """Which options leave out a part of the suite that a target must pass to be conformant; as typed."""
        return self._typed("-k", "--feature", "--shard", "--case", *(["--profile"] if self.quick else []))

    @property
    def words(self) -> str:
        """The selection as it is typed, for messages."""
        return self._typed("--profile", "--op", "--dtype", "-k", "--feature", "--shard", "--case")

    def _typed(self, *wanted: str) -> str:
        options = {
            "--profile": QUICK if self.quick else self.profile,
            "--op": self.operation,
            "--dtype": " ".join(self.dtypes),
            "-k": self.expression,
            "--feature": " ".join(self.features),
            "--shard": self.shard and "/".join(map(str, self.shard)),
            "--case": " ".join(self.files),
        }
        return ", ".join(f"{option} {options[option]}" for option in wanted if options[option])


def by_profile(name: str | None) -> dict[str, Any]:
    """What `--profile NAME` chooses: a profile of the specification, or `quick`, which is none.

    Raises:
        UsageError: it is neither.
    """
    if name is not None:
        known("profile", name, (*PROFILES, QUICK))
    return {"quick": True} if name == QUICK else {"profile": name}


def parse_shard(text: str) -> tuple[int, int]:
    """`I/N` as two numbers."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if not match:
        raise UsageError(f"shard {text[:40]!r} is not of the form I/N, such as 1/4")
    return int(match[1]), int(match[2])


def select(
    cases: Iterable[Case], hello: Hello, accuracy: str, selection: Selection, source: str
) -> list[Question]:
    """The questions of a run, those that share a process together.

    Raises:
        UsageError: a dtype is asked for that the target does not support, or nothing is left to ask.
    """
    for dtype in selection.dtypes:
        if dtype not in hello.dtypes:
            raise UsageError(
                f"{source} does not support {dtype}; it supports {', '.join(hello.dtypes) or 'no dtype'}: "
                f"its attribute `dtypes` says which"
            )
    dtypes = selection.dtypes or hello.dtypes
    if selection.quick:
        cases = list(cases)
        chosen = quick(cases, hello)
        cases = [case for case in cases if case.id in chosen]
    questions = [
        Question(aligned(case, hello), dtype, unclaimed(case, hello), group(case, dtype, hello))
        for case in cases
        for dtype in DTYPES
        if dtype in dtypes
        and wanted(case, dtype, selection)
        and holds(hello, case)
        and case.judged(dtype, accuracy)  # last: it reads the case's tensors
    ]
    questions.sort(key=lambda question: sorted(question.group))  # stable: by case and dtype within a group
    if selection.shard is not None:
        part, parts = selection.shard
        questions = questions[part - 1 :: parts]
    if not questions:
        raise UsageError(f"no case is left to run{' by ' + selection.words if selection.words else ''}")
    return questions


def holds(hello: Hello, case: Case) -> bool:
    """Whether the target's dtypes hold what has a dtype of its own; what is to be refused may be anything."""
    return case.raises or not hello.without(case)


def wanted(case: Case, dtype: str, selection: Selection) -> bool:
    """Whether the selection, its shard aside, holds a question."""
    return (
        (selection.operation is None or case.operation == selection.operation)
        and (not selection.features or bool(set(selection.features) & set(case.features)))
        and (selection.profile is None or in_profile(case.operation, case.features, selection.profile))
        and (selection.expression is None or matches(case, dtype, selection.expression))
    )


def in_profile(operation: str, features: Sequence[str], profile: str) -> bool:
    """Whether a case belongs to a profile; gradients belong to `training` and `full` alone."""
    if operation.endswith("_vjp") and profile not in ("training", "full"):
        return False
    if operation.endswith("_vjp") and profile == "training":
        return True
    return set(features) <= set(PROFILES[profile])


def matches(case: Case, dtype: str, expression: str) -> bool:
    """Whether a -k expression is true of a question.

    A word is true if it is part of the case ID or the dtype, or a requirement that the case covers.
    """
    texts = (case.id.lower(), dtype)
    ids = {requirement.lower() for requirement in case.covers}
    return parse(expression)(lambda word: word.lower() in ids or any(word.lower() in text for text in texts))


DECLARED = "left out by what the target declares: "
"""How the message of a case begins that needs no feature which the target lacks, and is not supported all the same."""


def unclaimed(case: Case, hello: Hello) -> str:
    """What of a case the target does not support, in words; empty if it supports all."""
    fits = _fits(case, hello)
    needed = [f for f in case.features if not (fits and f == "q_offset")]
    missing = [feature for feature in needed if feature not in hello.features]
    if case.operation not in hello.operations:
        missing.insert(0, case.operation)
    if missing:
        return f"does not support {', '.join(missing)}"
    own = hello.features_of.get(case.operation, hello.features)
    lacking = [feature for feature in needed if feature not in own]
    if lacking:
        return f"{DECLARED}{case.operation} does not support {', '.join(lacking)}"
    if fits is False:
        return f"{DECLARED}its causal mask is aligned to the last key"
    if beyond := hello.without(case):
        return f"{DECLARED}it does not support {', '.join(beyond)}"
    return ""


def aligned(case: Case, hello: Hello) -> Case:
    """The case as it is asked: a target that is aligned to the last key is not given the offset that says so."""
    if not _fits(case, hello):
        return case
    options, inputs = (
        {name: value for name, value in given.items() if name != "q_offset"}
        for given in (case.options, case.inputs)
    )
    return replace(case, options=options, inputs=inputs if "q_offset" in case.inputs else case.inputs)


def _fits(case: Case, hello: Hello) -> bool | None:
    """Whether a call has its last query at its last key; None where that does not matter to the target."""
    if hello.causal_alignment == TOP_LEFT or "q_offset" in hello.features:
        return None
    if not (case.options.get("is_causal") or "window" in case.options):
        return None
    if case.raises:
        return False  # for it may not refuse a missing offset (MASK-7)
    offset: Any = case.inputs["q_offset"] if "q_offset" in case.inputs else case.options.get("q_offset", 0)
    if case.operation in (PACKED, PAGED):
        return bool((np.asarray(offset) == _lasts(case)).all())
    past = case.inputs["past_key"].shape[-2] if "past_key" in case.inputs else 0
    keys = case.inputs["latent" if case.operation == LATENT else "key"]
    return bool(
        np.ndim(offset) == 0 and int(offset) == past + keys.shape[-2] - case.inputs["query"].shape[-2]
    )


def _lasts(case: Case) -> Any:
    """The offset of each part or entry that puts its last query at its last key."""
    if case.operation == PACKED:
        return np.diff(case.inputs["kv_starts"]) - np.diff(case.inputs["q_starts"])
    return case.inputs["kv_lengths"] - case.inputs["query"].shape[-2]


def group(case: Case, dtype: str, hello: Hello) -> frozenset[str]:
    """The isolated dtypes that a question holds: questions that differ in them do not share a process."""
    floating = {case.dtype_of.get(name, dtype) for name in case.floating}
    return frozenset(floating & set(hello.isolate))
