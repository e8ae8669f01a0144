"""What is asked of a target, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conformance.vectors.case import Array, Case

AnswerKind = Literal["outputs", "unsupported", "error", "wrong", "crash", "timeout"]


@dataclass(frozen=True)
class Question:
    """One (case, dtype) of a run."""

    case: Case
    dtype: str
    unclaimed: str = ""  # what of it the target does not claim; then it is not asked
    group: frozenset[str] = frozenset()  # questions of different groups do not share a process


@dataclass(frozen=True)
class Answer:
    """What became of one call.

    `error` is an exception of the target's; `wrong` a call that returned, but returned what cannot be judged
    or wrote to its inputs. Only the former is right for a case that must be refused.
    """

    kind: AnswerKind
    message: str = ""
    outputs: Mapping[str, Array] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Hello:
    """What a target says of itself when it starts."""

    name: str
    version: str | None
    dtypes: tuple[str, ...]
    features: tuple[str, ...]
    operations: tuple[str, ...]
    accuracy: str
    isolate: tuple[str, ...] = ()  # dtypes that need a process of their own
    assumed: tuple[str, ...] = ()  # features that it claims only because it says nothing of them
    environment: Mapping[str, str] = field(default_factory=dict)  # library -> version
