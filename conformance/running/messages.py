"""What is asked of a target, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conformance.names import DTYPES
from conformance.running.text_limits import shorten
from conformance.vectors.case import Array, Case

TOP_LEFT, BOTTOM_RIGHT = ALIGNMENTS = ("top-left", "bottom-right")
"""Where queries are without a `q_offset`: from the first key on, or up to the last one."""
MOST_ENTRIES = 32
"""How many outputs, notes or entries of the environment a target may have."""

AnswerKind = Literal["outputs", "unsupported", "error", "wrong", "crash", "timeout"]


@dataclass(frozen=True)
class Question:
    """One (case, dtype) of a run."""

    case: Case
    dtype: str
    unclaimed: str = ""  # what of it the target does not support; then it is not asked
    group: frozenset[str] = frozenset()  # questions of different groups do not share a process
    seed: str = ""  # what a variant of it is drawn from, which is asked as well; empty = none
    changed: str = ""  # the operand of the variant that is changed before it, and back; empty = none


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shorten(self.message, 1000))
        object.__setattr__(self, "outputs", {_name(n): array for n, array in self.outputs.items()})


def _name(name: str) -> str:
    """An output's name; one that would be cut or cleaned is quoted, so that it becomes no other one."""
    short = shorten(name, 60)
    return short if short == name else shorten(repr(name[:240]), 60)


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
    notes: tuple[str, ...] = ()  # what its user should know of how it was understood
    features_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Operation -> its features, of an operation that supports fewer than `features`."""
    causal_alignment: str = TOP_LEFT  # where it puts the queries of a call without `q_offset`
    lse_base: str = "e"  # what its log-sum-exp is the logarithm to; or "2"

    def without(self, case: Case) -> tuple[str, ...]:
        """Dtypes of operands of a case that are none of the target's: it may have no arrays of them."""
        own = set(case.dtype_of.values()) & set(DTYPES)
        return tuple(sorted(own.difference(self.dtypes)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shorten(self.name))
        object.__setattr__(self, "version", None if self.version is None else shorten(self.version))
        told = list(self.environment.items())[:MOST_ENTRIES]
        object.__setattr__(self, "environment", {shorten(name): shorten(text) for name, text in told})
        object.__setattr__(self, "notes", tuple(shorten(note) for note in self.notes[:MOST_ENTRIES]))
