"""What a target says of itself by its attributes, and what the head of its file says for it."""

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from conformance.errors import UsageError
from conformance.names import DTYPES, FEATURES, POLICIES
from conformance.running.arrays import library
from conformance.running.batch import RANK
from conformance.running.closed import BASES
from conformance.running.log_base import BINARY, NATURAL
from conformance.running.messages import ALIGNMENTS
from conformance.running.suggestions import known, nearest_of

LAYOUTS = ("bhld", "blhd")
ATTRIBUTES = (
    *("features", "dtypes", "layout", "accuracy", "causal_alignment", "rank", "array_type", "device"),
    "lse_base",
    *("asarray", "to_numpy", "name", "version", "based_on"),
)
"""What a target says of itself."""


SAID: dict[str, Collection[Any]] = {
    "dtypes": DTYPES,
    "features": FEATURES,
    "layout": LAYOUTS,
    "accuracy": POLICIES,
    "causal_alignment": ALIGNMENTS,
    "rank": (RANK,),
    "lse_base": (2, "e"),
    "array_type": ("numpy", "torch", "jax", "array-api-strict"),
}
"""Those that a file may say for each function and class in it, and the words of the suite."""
BEHIND = ("torch", "jax", "keras", "onnx", "onnxruntime")
"""Libraries that may stand behind a target, whatever arrays it takes."""


@dataclass(frozen=True)
class OwnWords:
    """The attributes of a target; those that a function or class lacks are read from the head of its file."""

    found: Any
    source: str
    head: Mapping[str, Any]

    @classmethod
    def of(cls, found: Any, source: str) -> "OwnWords":
        """Those of a target."""
        return cls(found, source, head_of(found))

    def raw(self, attribute: str) -> Any:
        """An attribute as it stands; None if there is none."""
        return getattr(self.found, attribute, self.head.get(attribute))

    def text(self, attribute: str) -> str | None:
        """An attribute that is a string.

        Raises:
            UsageError: it is something else.
        """
        value = self.raw(attribute)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{self.source}: {attribute} must be a string, got {value!r:.80}")
        return value

    def one_of(self, attribute: str, names: Collection[str], default: str) -> str:
        """An attribute that is one of some words.

        Raises:
            UsageError: it is none of them.
        """
        return known(f"{attribute} of {self.source}:", self.text(attribute) or default, names)

    @property
    def features(self) -> set[str] | None:
        """The features that are declared; None if none is.

        Raises:
            UsageError: one is unknown.
        """
        given = self.raw("features")
        return None if given is None else set(names_of(given, "feature", FEATURES, self.source))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those that are supported.

        Raises:
            UsageError: one is unknown.
        """
        return names_of(self.raw("dtypes") or ("float32",), "dtype", DTYPES, self.source)

    @property
    def rank(self) -> int | None:
        """How many axes its arrays have; None if any number.

        Raises:
            UsageError: it is neither.
        """
        rank: int | None = self.raw("rank")
        if rank not in (None, RANK):
            raise UsageError(
                f"{self.source}: rank must be {RANK}, or left out for a target of any rank, got {rank!r:.80}"
            )
        return rank

    @property
    def lse_base(self) -> str:
        """What its log-sum-exp is the logarithm to.

        Raises:
            UsageError: it is neither 2 nor e.
        """
        base = self.raw("lse_base")
        if not (base is None or base in (2, math.e, NATURAL, BINARY)) or isinstance(base, bool):
            raise UsageError(
                f"{self.source}: lse_base must be 2, or 'e' for natural logarithms, got {base!r:.80}; "
                "it is what the returned log-sum-exp is the logarithm to"
            )
        return BINARY if base in (2, BINARY) else NATURAL

    @property
    def based_on(self) -> str | None:
        """The package whose answers it gives.

        Raises:
            UsageError: it is no package that the suite knows.
        """
        package = self.text("based_on")
        if package is not None:
            known(f"based_on of {self.source}:", package, BASES)
        return package

    @property
    def name(self) -> str:
        """What it is called where it says nothing."""
        return str(getattr(self.found, "__name__", None) or type(self.found).__name__)

    @property
    def version(self) -> str | None:
        """Its own version, or that of its module."""
        module = sys.modules.get(getattr(self.found, "__module__", None) or "")
        version = (
            self.text("version")
            or getattr(self.found, "__version__", None)
            or getattr(module, "__version__", None)
        )
        return None if version is None else str(version)

    @property
    def file(self) -> str:
        """The file that it is written in; empty if it has none."""
        is_module = isinstance(self.found, ModuleType)
        module = self.found if is_module else sys.modules.get(getattr(self.found, "__module__", None) or "")
        return getattr(module, "__file__", None) or ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What its user should know of how the attributes were understood."""
        return (*unread(self.found, self.source), *head_note(self.head, self.source))


def names_of(given: Any, kind: str, names: Iterable[str], source: str) -> tuple[str, ...]:
    """Names of a kind, as a target gives them.

    Raises:
        UsageError: they are no set of names, or one is unknown.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        example = ", ".join(map(repr, list(names)[:2]))
        raise UsageError(
            f"{source}: {kind}s must be a set of names, such as {{{example}}}, got {given!r:.80}"
        )
    return tuple(known(f"{kind} of {source}:", str(name), names) for name in given)


def environment(array_type: str) -> dict[str, str]:
    """Versions of the library of the arrays, and of those that may stand behind."""
    behind = {name: sys.modules[name] for name in BEHIND if name in sys.modules}
    modules = {array_type: library(array_type), **behind}
    return {name: str(getattr(module, "__version__", "unknown")) for name, module in modules.items()}


def unread(target: Any, label: str) -> tuple[str, ...]:
    """Attributes of a function that are none of those, though they look like one."""
    if not isinstance(target, FunctionType):  # others have attributes of their own
        return ()
    meant = {name: nearest_of(name.lower(), ATTRIBUTES, 0.75) for name in vars(target)}
    return tuple(
        f"{label} has {name}, which is not read (did you mean {close}?)"
        for name, close in meant.items()
        if close and name not in ATTRIBUTES
    )


def head_of(target: Any) -> dict[str, Any]:
    """What the file of a function or class says at its head, and it does not say itself: it is read for it too."""
    module = sys.modules.get(getattr(target, "__module__", None) or "")
    if isinstance(target, ModuleType) or module is None:
        return {}
    return {
        name: value
        for name, words in SAID.items()
        if not hasattr(target, name) and _of(value := getattr(module, name, None), words)
    }


def head_note(head: Collection[str], label: str) -> tuple[str, ...]:
    """That something is read from the head of a file."""
    if not head:
        return ()
    return (f"{label} says nothing of {', '.join(head)}: taken from the head of its file",)


def _of(value: Any, words: Collection[Any]) -> bool:
    """Whether a value is such a word, or holds nothing else."""
    if isinstance(value, str | int):
        return value in words
    return (
        isinstance(value, (list, tuple, set, frozenset))
        and bool(value)
        and all(isinstance(each, str) and each in words for each in value)
    )
