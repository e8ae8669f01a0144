"""What the signature of an operation says: how it is called, and which options it takes."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.errors import UsageError
from conformance.names import (
    BIASES,
    DEFAULT_FEATURES,
    KEYWORDS,
    MHA,
    MHA_VJP,
    OPERATION_FEATURES,
    OPTION_FEATURES,
    OPTIONS,
    OPTIONS_OF,
    PAGED,
    POSITIONAL,
    REQUIRED,
    SDPA,
    WEIGHTS,
)
from conformance.running.elsewhere import renamed
from conformance.running.suggestions import nearest_of

ARRAYS = ("query", "key", "value")
GRADIENT = "grad_output"
DECLARE = "name the options that it knows, or declare features"
"""How a note ends that concerns only those who declare nothing."""

Parameter = inspect.Parameter


@dataclass(frozen=True)
class Call:
    """An operation of a target, and how it wants to be called."""

    function: Callable[..., Any]
    by_keyword: bool  # else the arrays go by position
    options: frozenset[str]  # those that it takes by name
    any_option: bool = False  # it takes others as well, of which it may know nothing
    notes: tuple[str, ...] = ()  # what of its signature claims nothing
    operation: str = SDPA

    @property
    def features(self) -> set[str]:
        """The features that the options claim; `**options` names none, so it claims none."""
        taken = self.options - set(REQUIRED.get(self.operation, ()))
        keywords = {feature: self.keywords(feature) for feature in (*OPTION_FEATURES, "append")}
        claimed = {feature for feature, names in keywords.items() if names and taken.issuperset(names)}
        own = {OPERATION_FEATURES[self.operation]} if self.operation in OPERATION_FEATURES else set()
        return claimed | own | set(DEFAULT_FEATURES)

    def keywords(self, feature: str) -> tuple[str, ...]:
        """The keywords of a feature that is an option, of this operation or of attention; none of any other."""
        names = KEYWORDS.get(feature, (feature,))
        return names if {*OPTIONS, *OPTIONS_OF[self.operation]}.issuperset(names) else ()


def inspect_call(function: Callable[..., Any], operation: str, label: str) -> Call:
    """Reads a signature.

    Raises:
        UsageError: the suite could not call it.
    """
    arrays = POSITIONAL[operation]
    layer = list(WEIGHTS) if operation in (MHA, MHA_VJP) else []
    always = [*layer, *REQUIRED.get(operation, ())]
    try:
        parameters = _parameters(function)
    except (TypeError, ValueError):  # compiled code without a signature
        return Call(function, False, frozenset(), any_option=True, operation=operation)
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
    given = {*arrays, *always}
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
            f"{label}: the parameter {needed[0]!r} needs a default value, because the suite does not pass it; "
            + (renamed(parameters) or f"or wrap it in a function of {', '.join(arrays)}")
        )
    lacking = [] if catches_all else [name for name in always if name not in by_name]
    if lacking:
        raise UsageError(
            f"{label} lacks the parameters {', '.join(lacking)}, so it is not a {operation}; "
            f"it needs {', '.join((*arrays, *always))} by these names{_looks(parameters)}"
        )
    passed = {*given, *positions, *OPTIONS, *OPTIONS_OF[operation], *(BIASES if layer else ())}
    strange = [name for name in by_name if name not in passed and not name.startswith("_")]
    notes = _notes(label, strange, parameters)
    return Call(function, by_keyword, frozenset(by_name), catches_all, notes, operation)


def _looks(parameters: Iterable[str]) -> str:
    """The hint that the names of other libraries give, at the end of a message."""
    return f"; {hint}" if (hint := renamed(parameters)) else ""


def lacking(features: Iterable[str], call: Call) -> set[str]:
    """Features whose first keyword an operation has no parameter for."""
    if call.any_option:
        return set()
    wanted = {feature: call.keywords(feature) for feature in features}
    return {feature for feature, names in wanted.items() if names and names[0] not in call.options}


def check_taken(features: Iterable[str], calls: Collection[Call], source: str) -> None:
    """Sees to it that some operation takes the argument of each feature that is declared.

    Raises:
        UsageError: one could only raise a TypeError.
    """
    functions = {feature: operation for operation, feature in OPERATION_FEATURES.items()}
    for feature in features:
        if feature in functions and not any(_serves(call, feature) for call in calls):
            raise UsageError(
                f"{source} has {feature!r} in its features, and no function {functions[feature]}; "
                "add it, or leave the feature out"
            )
        if all(lacking((feature,), call) for call in calls):
            name = next(call.keywords(feature)[0] for call in calls)
            raise UsageError(
                f"{source} has {feature!r} in its features, and no parameter {name}; "
                "add it, or leave the feature out"
            )


def _serves(call: Call, feature: str) -> bool:
    """Whether an operation is that of a feature, or pages that it writes to."""
    writes = feature == "append" and call.operation == PAGED and not lacking((feature,), call)
    return OPERATION_FEATURES.get(call.operation) == feature or writes


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Those of a call; of a module, which takes anything and hands it on, those of its `forward`."""
    parameters = inspect.signature(function).parameters
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    forward = getattr(function, "forward", None)
    if callable(forward) and all(parameter.kind in variadic for parameter in parameters.values()):
        return inspect.signature(forward).parameters
    return parameters


MEANT = {
    "segment_ids": "q_segments and kv_segments",
    "q_segment_ids": "q_segments",
    "kv_segment_ids": "kv_segments",
    "attn_mask": "mask or attn_bias",
    "attention_mask": "mask or attn_bias",
    "key_padding_mask": "mask or kv_lengths",
    "bias": "attn_bias",
    "causal": "is_causal",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "logits_soft_cap": "softcap",
    "window_size": "window",
    "need_weights": "return_weights",
}
"""What other libraries call the options."""


def _notes(label: str, strange: list[str], parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    """What a signature has that the suite makes nothing of."""
    notes = []
    for name in strange:
        meant = MEANT.get(name) or nearest_of(name, OPTIONS)
        hint = f"; rename it to {meant}" if meant else ""
        notes.append(f"{label}: {name} is not a parameter that the suite knows, so it is not tested{hint}")
    notes += [
        f"{label} takes **{name}, which says nothing of what it supports; {DECLARE}"
        for name, parameter in parameters.items()
        if parameter.kind is Parameter.VAR_KEYWORD
    ]
    return tuple(notes)


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
            f"or {len(arrays)} arrays by position in this order{_looks(parameters)}"
        )
