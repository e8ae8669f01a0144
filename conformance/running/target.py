"""A target, from a string or a Python object: how it is called, and what it claims."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from conformance.errors import UsageError
from conformance.names import (
    DEFAULT_FEATURES,
    DTYPES,
    FEATURES,
    KEYWORDS,
    OPERATION_FEATURES,
    OPERATIONS,
    OPTIONS_OF,
    POLICIES,
    SDPA,
)
from conformance.running.arrays import giver, take
from conformance.running.declarations import LAYOUTS, OwnWords, environment, names_of
from conformance.running.locating import locate
from conformance.running.messages import ALIGNMENTS, TOP_LEFT, Hello
from conformance.running.protocol import in_order
from conformance.running.signature import DECLARE, Call, check_taken, inspect_call, lacking
from conformance.running.text_limits import first_line
from conformance.vectors.case import Array

LIKELY = ("attention", "sdpa", "mha", "attend", "attn", "forward")
"""Words in the name of what is meant in a file of several functions, the likeliest first."""


@dataclass(frozen=True)
class Target:
    """An implementation in this process, ready to be called."""

    hello: Hello
    calls: Mapping[str, Call]  # operation -> how to call it
    declared: bool  # features are declared, rather than read from signatures
    layout: str
    array_type: str | None  # None = its own
    give: Callable[[Array], Any]  # NumPy -> the target's arrays
    take: Callable[[Any], Array]  # and back
    own_arrays: bool  # give is the target's own: what it gives need not be readable
    device: str | None = None  # where its arrays are made; None = the library's default
    rank: int | None = None  # of the arrays that it takes; None = any
    file: str = ""  # that it is written in
    based_on: str | None = None  # the package whose answers it gives, by its own word


def load(source: str, operation: str | None = None, device: str | None = None) -> Target:
    """The target that a string names: an implementation, `module:attribute`, or `file.py:attribute`.

    Raises:
        UsageError: it cannot be found, imported, made or called.
    """
    found, name = locate(source)
    return adopt(found, source, operation, device, name)


def adopt(
    found: Any, source: str, operation: str | None = None, device: str | None = None, name: str | None = None
) -> Target:
    """The target of a Python object: a function, a class, a module or an instance.

    Raises:
        UsageError: it has no operation, or says something of itself that the suite does not know.
    """
    try:
        return _adopt(found, source, operation, device, name)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # a property of the target's that raises, say
        raise UsageError(f"{source} cannot be read as a target: {first_line(error)}") from error


def _adopt(found: Any, source: str, operation: str | None, device: str | None, name: str | None) -> Target:
    found = _instance(found, source)
    calls = {
        name: inspect_call(function, name, f"{source} ({name})")
        for name, function in _operations(found, source, operation).items()
    }
    said = OwnWords.of(found, source)
    declared = _declared(said, calls)
    features_of = _features_of(calls, declared, found, source)
    features = {feature for those in features_of.values() for feature in those}
    dtypes = said.dtypes
    array_type = said.text("array_type") or "numpy"
    layout = said.one_of("layout", LAYOUTS, "bhld")
    accuracy = said.one_of("accuracy", POLICIES, "eager")
    alignment = said.one_of("causal_alignment", ALIGNMENTS, TOP_LEFT)
    rank, lse_base, based_on = said.rank, said.lse_base, said.based_on
    own, back = getattr(found, "asarray", None), getattr(found, "to_numpy", None)
    if own is not None and device is not None:
        raise UsageError(
            f"{source} makes its arrays itself (asarray), so it cannot be given the device {device!r}"
        )
    wanted_device = device or said.text("device")
    hello = Hello(
        name=said.text("name") or name or said.name,
        version=said.version,
        dtypes=in_order(dtypes, DTYPES),
        features=in_order(tuple(features), FEATURES),
        operations=in_order(tuple(calls), OPERATIONS),
        accuracy=accuracy,
        isolate=("float64",) if array_type == "jax" else (),  # x64 changes how float32 is computed
        assumed=DEFAULT_FEATURES if declared is None else (),
        features_of={
            name: in_order(tuple(those), FEATURES) for name, those in features_of.items() if those != features
        },
        causal_alignment=alignment,
        lse_base=lse_base,
        environment={} if own else environment(array_type),
        notes=(
            *((f"{source} is based on {based_on}: its answers are not its own",) if based_on else ()),
            *said.notes,
            *_left_out(calls, declared, source),
            *_placed(alignment, features, source),
            *_of_signatures(calls, declared),
        ),
    )
    return Target(
        hello=hello,
        calls=calls,
        declared=declared is not None,
        layout=layout,
        array_type=None if own else array_type,
        give=own or giver(array_type, wanted_device),
        take=(lambda returned: take(back(returned))) if back else take,
        own_arrays=own is not None,
        device=wanted_device,
        rank=rank,
        file=said.file,
        based_on=based_on,
    )


def _instance(found: Any, source: str) -> Any:
    """A target; of a class, one that is made without arguments."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise UsageError(
            f"{source} is a class that cannot be made without arguments: {first_line(error)}"
        ) from error


def _declared(said: OwnWords, calls: Mapping[str, Call]) -> set[str] | None:
    """The features that are declared, some operation of which takes their arguments; None if none is."""
    declared = said.features
    if declared is not None and "features" in said.head:  # which may be meant for its neighbours too
        declared -= lacking(declared, next(iter(calls.values())))
    elif declared is not None:
        check_taken(declared, calls.values(), said.source)
    return declared


def _features_of(
    calls: Mapping[str, Call], declared: set[str] | None, found: Any, source: str
) -> dict[str, set[str]]:
    """Operation -> its features: what it says itself, else what the target says and it has a parameter for."""
    signed = {feature for call in calls.values() for feature in call.features}
    served = {OPERATION_FEATURES[operation] for operation in calls if operation in OPERATION_FEATURES}
    features = {}
    for operation, call in calls.items():
        own = None if call.function is found else getattr(call.function, "features", None)
        if own is not None:
            features[operation] = set(names_of(own, "feature", FEATURES, source))
            check_taken(features[operation], [call], f"{source} ({operation})")
        elif declared is not None:
            features[operation] = declared - lacking(declared, call)
        else:
            features[operation] = signed if call.any_option else call.features
        features[operation] |= served - lacking(served, call)
    return features


def _left_out(calls: Mapping[str, Call], declared: set[str] | None, source: str) -> Iterable[str]:
    """That an operation is not tested with some of the features that are declared for all of them."""
    for operation, call in calls.items():
        own = getattr(call.function, "features", None)
        known = {f for f in declared or () if {*OPTIONS_OF[operation]}.issuperset(KEYWORDS.get(f, (f,)))}
        if known and own is None and not operation.endswith("_vjp") and (names := lacking(known, call)):
            listed = ", ".join(in_order(tuple(names), FEATURES))
            yield f"{source} ({operation}) has no parameter for {listed}, which is not tested there"


def _of_signatures(calls: Mapping[str, Call], declared: set[str] | None) -> Iterable[str]:
    """What signatures claim nothing by; of a target that declares its features, only what it can mend."""
    for call in calls.values():
        yield from (note for note in call.notes if declared is None or not note.endswith(DECLARE))


def _placed(alignment: str, features: Iterable[str], source: str) -> Iterable[str]:
    """That a target says where its queries are, and is told as well."""
    if alignment != TOP_LEFT and "q_offset" in features:
        yield f"{source} takes q_offset, so its causal_alignment is not used"


def _operations(found: Any, source: str, operation: str | None) -> dict[str, Callable[..., Any]]:
    methods = {name: getattr(found, name) for name in OPERATIONS if callable(getattr(found, name, None))}
    if methods:
        return methods
    if callable(found):
        own_name = getattr(found, "__name__", "")
        return {own_name if own_name in OPERATIONS else operation or SDPA: found}
    own = vars(found).items() if isinstance(found, ModuleType) else ()
    functions = [
        name
        for name, value in own
        if callable(value) and not name.startswith("_") and value.__module__ == found.__name__
    ]
    named = ":" in source  # a second attribute is no target
    likely = min(functions, key=_unlikely, default="")
    remedy = f"; name what to call, as in {source}:{likely}" if functions and not named else ""
    raise UsageError(
        f"{source} has none of the operations {', '.join(OPERATIONS[:2])}, and cannot be called{remedy}"
    )


def _unlikely(name: str) -> int:
    """How unlikely a function is to be the attention of its file, by its name."""
    words = [number for number, word in enumerate(LIKELY) if word in name.lower()]
    return words[0] if words else len(LIKELY)
