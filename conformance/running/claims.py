"""What the signature of an operation says: how it is called, and which options it takes."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from conformance.errors import UsageError
from conformance.names import DEFAULT_FEATURES, OPTIONS, SDPA, SDPA_VJP, WEIGHTS

ARRAYS = ("query", "key", "value")
GRADIENT = "grad_output"

Parameter = inspect.Parameter


@dataclass(frozen=True)
class Call:
    """An operation of a target, and how it wants to be called."""

    function: Callable[..., Any]
    by_keyword: bool  # else the arrays go by position
    options: frozenset[str] | None  # those that it takes; None = any

    @property
    def features(self) -> set[str]:
        """The features that the options claim."""
        taken = set(OPTIONS) if self.options is None else self.options
        cache = {"cache"} if {"past_key", "past_value"} <= taken else set()
        return (set(OPTIONS) & taken) - {"past_key", "past_value"} | cache | set(DEFAULT_FEATURES)


def inspect_call(function: Callable[..., Any], operation: str, label: str) -> Call:
    """Reads a signature.

    Raises:
        UsageError: the suite could not call it.
    """
    arrays = (*ARRAYS, GRADIENT) if operation.endswith("_vjp") else ARRAYS
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled code without a signature
        return Call(function, by_keyword=False, options=frozenset())
    kinds = {parameter.kind for parameter in parameters.values()}
    by_name = [
        n
        for n, p in parameters.items()
        if p.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]
    catches_all = Parameter.VAR_KEYWORD in kinds

    by_keyword = all(name in by_name for name in arrays) or (
        catches_all and not _positional(parameters.values())
    )
    if not by_keyword:
        _check_positions(parameters, arrays, label)
    given = {*arrays, *(() if operation in (SDPA, SDPA_VJP) else WEIGHTS)}
    positions = () if by_keyword else tuple(p.name for p in _positional(parameters.values()))[: len(arrays)]
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is Parameter.empty
        and parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        and name not in given
        and name not in positions
    ]
    if needed:
        raise UsageError(
            f"{label} needs the argument {needed[0]!r}, which the suite does not give; "
            "give it a default, or wrap it in a function of query, key, value"
        )
    return Call(function, by_keyword, None if catches_all else frozenset(by_name))


def _positional(parameters: Iterable[Parameter]) -> list[Parameter]:
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    return [parameter for parameter in parameters if parameter.kind in kinds]


def _check_positions(parameters: Any, arrays: tuple[str, ...], label: str) -> None:
    positional = _positional(parameters.values())
    any_number = any(p.kind is Parameter.VAR_POSITIONAL for p in positional)
    misplaced = [
        p.name for want, p in zip(arrays, positional, strict=False) if p.name in arrays and p.name != want
    ]
    if (len(positional) < len(arrays) and not any_number) or misplaced:
        got = ", ".join(map(str, parameters.values()))
        raise UsageError(
            f"{label} takes ({got}); it must take {', '.join(arrays)} by these names, "
            f"or {len(arrays)} arrays by position in this order"
        )
