"""The reference and the suite, closed to a target in its own process (CONF-19).

A target that calls `mha_core`, or what the suite judges by, answers with what it is measured against. Importing
either is no fault, since tests stand beside code: once the target is loaded, calling it is one, and reading the
stored vectors is another. Only a process that nobody else needs can be closed, so that targets in the process of
their caller are not.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from conformance.resources import vectors_directory

REFERENCE, SUITE, BACKENDS = "mha_core", "conformance", "backends"
ADAPTING = "conformance.adapting"
"""What is there to be called by targets: it computes no attention."""
BASES = (REFERENCE, SUITE)
"""What a target may be based on, and is closed to those that are not."""
REMEDY = "compute it by code of your own, or say `based_on`, which the report then tells (CONF-19)"

_told: list[str] = []


class ClosedError(ImportError):
    """What a target meets when it calls or imports what is closed to it."""


def open_to(location: str, based_on: str | None) -> frozenset[str]:
    """The packages that a target may call: those that it is, as its user named it, or says that it is based on."""
    root = location.partition(":")[0].partition(".")[0]
    own = {REFERENCE: {REFERENCE}, BACKENDS: {REFERENCE}, SUITE: set(BASES)}.get(root, set())
    return frozenset(own | ({based_on} if based_on else set()))


class Closed:
    """Watches a process from before its target is loaded; `close` is called once it is."""

    def __init__(self) -> None:
        self._needed = frozenset(sys.modules)  # of the suite, by the process itself
        _told.clear()
        sys.addaudithook(_reads)

    def close(self, opened: Iterable[str] = ()) -> None:
        """From now on a call of what is not open is noted and raises."""
        packages = frozenset(BASES) - frozenset(opened)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in packages and name not in (ADAPTING, *self._needed):
                for function in _functions(module):
                    _shut(function)
        sys.meta_path.insert(0, _Gate(packages, self._needed))

    @staticmethod
    def noted() -> str:
        """What the target did that it may not, since it was asked last; empty if nothing."""
        told, _told[:] = _told[:1], []
        return told[0] if told else ""


class _Gate(MetaPathFinder):
    """Refuses to import what is closed, but to the process itself."""

    def __init__(self, packages: frozenset[str], needed: frozenset[str]) -> None:
        self._packages, self._needed = packages, needed

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        """No module of its own.

        Raises:
            ClosedError: a target imports what is closed to it.
        """
        closed = name.partition(".")[0] in self._packages and name != ADAPTING
        if closed and not self._own(_importer()):
            _refuse(f"imported {name} while it was called")

    def _own(self, importer: str) -> bool:
        return importer in self._needed and importer.partition(".")[0] == SUITE


def _importer() -> str:
    """The name of the module that imports something just now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("importlib", __name__)
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for value in list(vars(module).values()):
        held = list(vars(value).values()) if isinstance(value, type) else [value]
        for thing in held:
            function = getattr(thing, "__wrapped__", getattr(thing, "__func__", thing))
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


def _called(*_: Any, **__: Any) -> Any:
    import sys  # runs with the names of the function that it replaces

    frame = sys._getframe()
    name = f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"
    sys.modules["conformance.running.closed"]._refuse(f"called {name}")


def _shut(function: FunctionType) -> None:
    """Changes a function where it is, so that whoever holds it has a closed one."""
    code: CodeType = function.__code__
    if not code.co_freevars:
        function.__code__ = _called.__code__.replace(co_name=code.co_name, co_qualname=code.co_qualname)


def _refuse(what: str) -> None:
    _told.append(f"{what}, so that the answer is the suite's own: {REMEDY}")
    raise ClosedError(_told[-1])


def _reads(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes that a file of the stored vectors is opened; an audit hook, so nothing may be raised here."""
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith((".json", ".safetensors")):
        path = Path(arguments[0]).resolve()
        if path.parent == vectors_directory():
            _told.append(f"read the stored answers ({path.name}): {REMEDY}")
