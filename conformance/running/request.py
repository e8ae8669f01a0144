"""What is to be run, and how: one request, whether it comes from the command line, from Python or from pytest."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from conformance.errors import UsageError
from conformance.names import POLICIES
from conformance.running.baseline import Baseline
from conformance.running.process import split_command
from conformance.running.quick import QUICK
from conformance.running.select import Selection, by_profile, parse_shard
from conformance.running.suggestions import known
from conformance.running.text_limits import shorten

TIMEOUT = 60.0
"""Seconds a case may take."""
LONGEST = threading.TIMEOUT_MAX / 2
"""Seconds that the system can wait, with room for what is allowed beyond; more is taken as this."""


@dataclass(frozen=True)
class Request:
    """What is to be run, and how.

    `target` is a string, or a Python object, which is called in this process; else `command` is a program's
    words.
    """

    target: Any = None
    command: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)
    device: str | None = None
    accuracy: str | None = None  # replaces what the target says
    timeout: float = TIMEOUT
    in_process: bool = False
    stop_at_failure: bool = False
    workers: int = 1  # processes at once
    path: tuple[str, ...] = ()  # folders that the target may import from, in addition to its own
    fresh: int | None = None  # what variants of some of the cases are drawn from; None = no variants
    baseline: Baseline | None = None
    done: frozenset[tuple[str, str]] = frozenset()  # rows (case ID, dtype) that an earlier run has judged

    def __post_init__(self) -> None:
        if (self.target is None) == (not self.command):
            both = (
                f" and not both: is it --command '{' '.join(self.command)} {self.target}'?"
                if self.command
                else ""
            )
            raise UsageError(
                f"give either a TARGET or --command PROGRAM{both or '; see `mha-conformance list backends`'}"
            )
        if self.command and self.in_process:
            raise UsageError("--in-process runs Python targets only, not a --command")
        if self.command and self.device:
            raise UsageError("--device is for Python targets; a --command chooses its device itself")
        if self.accuracy is not None:
            known("accuracy", self.accuracy, POLICIES)
        if self.workers < 1:
            raise UsageError(f"-j must be 1 or more workers, got {self.workers}")
        if self.workers > 1 and (self.in_process or not (self.command or isinstance(self.target, str))):
            raise UsageError(
                "-j N gives each worker a process of its own: it goes neither with --in-process "
                "nor with a Python object; name the target instead"
            )
        if not self.timeout > 0:
            raise UsageError(f"--timeout must be more than 0 seconds, got {self.timeout:g}")

    @property
    def source(self) -> str:
        """Where the target comes from, in words."""
        if self.command:
            return " ".join(self.command)
        if isinstance(self.target, str):
            return self.target
        names = (getattr(self.target, attribute, None) for attribute in ("__qualname__", "__name__"))
        return str(next(filter(None, names), type(self.target).__qualname__))

    @property
    def options(self) -> dict[str, Any]:
        """What decides which rows there are and how they are judged: runs that agree in it can be joined."""
        selection = self.selection
        return {
            "profile": QUICK if selection.quick else selection.profile,
            "op": selection.operation,
            "dtype": sorted(set(selection.dtypes)),
            "device": self.device,
            "accuracy": self.accuracy,
            "k": selection.expression,
            "feature": sorted(set(selection.features)),
            "shard": selection.shard and "/".join(map(str, selection.shard)),
            "fresh": self.fresh,
        }

    @classmethod
    def of(
        cls,
        target: Any = None,
        *,
        command: str | Iterable[str] | None = None,
        profile: str | None = None,
        op: str | None = None,
        dtype: str | Iterable[str] = (),
        device: str | None = None,
        accuracy: str | None = None,
        k: str | None = None,
        feature: str | Iterable[str] = (),
        timeout: float = TIMEOUT,
        shard: str | tuple[int, int] | None = None,
        in_process: bool = False,
        x: bool = False,
        j: int = 1,
        path: Iterable[str] = (),
    ) -> "Request":
        """The request in the words of the command line, of `conformance.run` and of pytest, which are the same.

        Raises:
            UsageError: a name is unknown, or there is no target.
        """
        if target is not None and not isinstance(target, str) and _is_plain(target):
            raise UsageError(
                f"conformance.run wants a function, an object with the operations as methods, or the name of a "
                f"target, not {type(target).__name__} {shorten(repr(target))}"
            )
        return cls(
            target=target,
            command=split_command(command),
            selection=Selection(
                **by_profile(profile),
                operation=op,
                dtypes=_several(dtype),
                expression=k,
                features=_several(feature),
                shard=parse_shard(shard) if isinstance(shard, str) else shard,
            ),
            device=device,
            accuracy=accuracy,
            timeout=min(timeout, LONGEST),
            in_process=in_process,
            stop_at_failure=x,
            workers=j,
            path=tuple(path),
        )


def _is_plain(target: Any) -> bool:
    """Whether it is data, which can be no implementation."""
    return type(target).__module__ == "builtins" and not callable(target) and not hasattr(target, "__dict__")


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
