"""Finds a target by name, and reads what it says of itself."""

import importlib
import importlib.util
import math
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
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
from conformance.resources import checkout_project, current_folder
from conformance.running.answer import ALIGNMENTS, TOP_LEFT, Hello
from conformance.running.arrays import giver, library, take
from conformance.running.base import BINARY, NATURAL
from conformance.running.batch import RANK
from conformance.running.claims import (
    DECLARE,
    Call,
    check_taken,
    head_note,
    head_of,
    inspect_call,
    lacking,
    unread,
)
from conformance.running.closed import BASES
from conformance.running.nearest import known, nearest
from conformance.running.protocol import in_order
from conformance.running.words import first_line
from conformance.vectors.case import Array

GROUP = "mha_conformance.implementations"
LAYOUTS = ("bhld", "blhd")
LIKELY = ("attention", "sdpa", "mha", "attend", "attn", "forward")
"""Words in the name of what is meant in a file of several functions, the likeliest first."""
PACKAGES = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "array_api_strict": "array-api-strict",
    "onnx": "onnx onnxruntime",
    "onnxruntime": "onnx onnxruntime",
    "keras": "keras torch",
}
"""Library -> what pip installs for the backends that need it."""


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


def implementations() -> dict[str, str]:
    """Names of the built-in backends and of installed plug-ins, with what each name stands for."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    project = checkout_project()
    if project is not None:  # a checkout that is not installed has no entry points
        with project.open("rb") as file:
            found = {**tomllib.load(file)["project"]["entry-points"][GROUP], **found}
    return dict(sorted(found.items()))


def load(source: str, operation: str | None = None, device: str | None = None) -> Target:
    """The target that a string names: an implementation, `module:attribute`, or `file.py:attribute`.

    Raises:
        UsageError: it cannot be found, imported, made or called.
    """
    if not source.strip(" :"):
        raise UsageError(f"TARGET {source!r} names nothing; see `mha-conformance list backends`")
    backends = implementations()
    location, name = backends.get(source, source), source if source in backends else None
    module_name, attribute = _split(location)
    module = _import_file(module_name) if module_name.endswith(".py") else _import(module_name, source, name)
    found: Any = module
    for part in attribute.split(".") if attribute else ():
        found = _attribute(found, part, source)
    return adopt(found, source, operation, device, name)


def _split(location: str) -> tuple[str, str]:
    """Where the module is, and the attribute in it; a drive letter is no attribute."""
    module, colon, attribute = location.rpartition(":")
    if not colon or location.endswith(".py"):
        return location, ""
    if not attribute:
        raise UsageError(
            f"{location!r} names no attribute after the colon; give {module}:NAME, or {module} alone"
        )
    if not module:
        raise UsageError(
            f"{location!r} names nothing before the colon; "
            "give package.module:attribute or path/to/file.py:attribute"
        )
    return module, attribute


def reachable(folder: Path) -> None:
    """Lets a target import its neighbours, which do not hide modules of the same name from anyone else."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import(name: str, source: str, backend: str | None) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        what = "a folder" if Path(name).is_dir() else "not the name of a module"
        raise UsageError(
            f"{name!r} is {what}; give a backend, package.module:attribute or path/to/file.py:attribute"
            f"{nearest(source, implementations())}"
        )
    reachable(current_folder())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = (
                _colon(name) or nearest(source, implementations()) or "; see `mha-conformance list backends`"
            )
            raise UsageError(f"no backend, module or file named {name!r}{hint}") from error
        raise UsageError(f"cannot import {name}: {_missing(error, backend)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot import {name}: {first_line(error)}") from error


def _colon(name: str) -> str:
    """A hint where the last part of a dotted name is no module but stands in one."""
    module, _, attribute = name.rpartition(".")
    return f"; did you mean {module}:{attribute}?" if hasattr(sys.modules.get(module), attribute) else ""


def _missing(error: ModuleNotFoundError, backend: str | None) -> str:
    """What a target imports in vain, and how that is installed."""
    library = (error.name or "").partition(".")[0]
    missing = f"no module named {error.name!r}"
    packages = PACKAGES.get(library)
    if backend is None or packages is None:
        return f"{missing}; install it for {sys.executable}, which runs this, or put it next to the file"
    return f"{missing}; install it with: pip install {packages}"


def _import_file(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        if file.exists():
            raise UsageError(f"{path!r} is not a regular file; give a Python file")
        siblings = [str(p) for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UsageError(f"no file {path!r}{nearest(path, siblings)}")
    name = file.stem if _free(file) else f"{file.stem}_target"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot import {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    reachable(current_folder())
    reachable(file.resolve().parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"cannot import {path}: {_missing(error, None)}") from error
    except ImportError as error:
        relative = "relative import" in str(error)
        remedy = "; a file has no package: name it as package.module:attribute" if relative else ""
        raise UsageError(f"cannot import {path}: {first_line(error)}{remedy}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot import {path}: {first_line(error)}") from error
    return module


def _free(file: Path) -> bool:
    """Whether a file can be imported by its own name: one called struct.py must not replace the library's."""
    if file.stem in sys.modules or file.stem in sys.stdlib_module_names or not file.stem.isidentifier():
        return False
    try:
        spec = importlib.util.find_spec(file.stem)
    except (ImportError, ValueError):
        return False
    return spec is None or spec.origin is None or Path(spec.origin).resolve() == file.resolve()


def _attribute(holder: Any, name: str, source: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError as error:
        names = [n for n in dir(holder) if not n.startswith("_")]
        raise UsageError(f"cannot find {name!r} in {source}{nearest(name, names)}") from error


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
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise UsageError(
                f"{source} is a class that cannot be made without arguments: {first_line(error)}"
            ) from error
    calls = {
        name: inspect_call(function, name, f"{source} ({name})")
        for name, function in _operations(found, source, operation).items()
    }
    head = head_of(found)

    def own_word(attribute: str) -> Any:
        return getattr(found, attribute, head.get(attribute))

    given = own_word("features")
    declared = None if given is None else set(_names(given, "feature", FEATURES, source))
    if declared is not None and "features" in head:  # which may be meant for its neighbours too
        declared -= lacking(declared, next(iter(calls.values())))
    elif declared is not None:
        check_taken(declared, calls.values(), source)
    features_of = _features_of(calls, declared, found, source)
    features = {feature for those in features_of.values() for feature in those}
    dtypes = _names(own_word("dtypes") or ("float32",), "dtype", DTYPES, source)
    array_type = _word(own_word("array_type"), "array_type", source) or "numpy"
    layout = known(f"layout of {source}:", _word(own_word("layout"), "layout", source) or "bhld", LAYOUTS)
    accuracy = known(
        f"accuracy of {source}:", _word(own_word("accuracy"), "accuracy", source) or "eager", POLICIES
    )
    alignment = known(
        f"causal_alignment of {source}:",
        _word(own_word("causal_alignment"), "causal_alignment", source) or TOP_LEFT,
        ALIGNMENTS,
    )
    rank = own_word("rank")
    if rank not in (None, RANK):
        raise UsageError(
            f"{source}: rank must be {RANK}, or left out for a target of any rank, got {rank!r:.80}"
        )
    lse_base = own_word("lse_base")
    if not (lse_base is None or lse_base in (2, math.e, NATURAL, BINARY)) or isinstance(lse_base, bool):
        raise UsageError(
            f"{source}: lse_base must be 2, or 'e' for natural logarithms, got {lse_base!r:.80}; "
            "it is what the returned log-sum-exp is the logarithm to"
        )
    based_on = _word(own_word("based_on"), "based_on", source)
    if based_on is not None:
        known(f"based_on of {source}:", based_on, BASES)
    own, back = getattr(found, "asarray", None), getattr(found, "to_numpy", None)
    if own is not None and device is not None:
        raise UsageError(
            f"{source} makes its arrays itself (asarray), so it cannot be given the device {device!r}"
        )
    wanted_device = device or _text(found, "device", source)
    return Target(
        hello=Hello(
            name=_text(found, "name", source) or name or _name(found),
            version=_version(found, source),
            dtypes=in_order(dtypes, DTYPES),
            features=in_order(tuple(features), FEATURES),
            operations=in_order(tuple(calls), OPERATIONS),
            accuracy=accuracy,
            isolate=("float64",) if array_type == "jax" else (),  # x64 changes how float32 is computed
            assumed=DEFAULT_FEATURES if declared is None else (),
            features_of={
                name: in_order(tuple(those), FEATURES)
                for name, those in features_of.items()
                if those != features
            },
            causal_alignment=alignment,
            lse_base=BINARY if lse_base in (2, BINARY) else NATURAL,
            environment={} if own else _environment(array_type),
            notes=(
                *((f"{source} is based on {based_on}: its answers are not its own",) if based_on else ()),
                *unread(found, source),
                *head_note(head, source),
                *_left_out(calls, declared, source),
                *_placed(alignment, features, source),
                *(
                    note
                    for call in calls.values()
                    for note in call.notes
                    if declared is None or not note.endswith(DECLARE)
                ),
            ),
        ),
        calls=calls,
        declared=declared is not None,
        layout=layout,
        array_type=None if own else array_type,
        give=own or giver(array_type, wanted_device),
        take=(lambda returned: take(back(returned))) if back else take,
        own_arrays=own is not None,
        device=wanted_device,
        rank=rank,
        file=_file(found),
        based_on=based_on,
    )


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
            features[operation] = set(_names(own, "feature", FEATURES, source))
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


def _placed(alignment: str, features: Iterable[str], source: str) -> Iterable[str]:
    """That a target says where its queries are, and is told as well."""
    if alignment != TOP_LEFT and "q_offset" in features:
        yield f"{source} takes q_offset, so its causal_alignment is not used"


def _file(found: Any) -> str:
    """The file that a target is written in; empty if it has none."""
    module = (
        found if isinstance(found, ModuleType) else sys.modules.get(getattr(found, "__module__", None) or "")
    )
    return getattr(module, "__file__", None) or ""


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


def _names(given: Any, kind: str, names: Iterable[str], source: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        example = ", ".join(map(repr, list(names)[:2]))
        raise UsageError(
            f"{source}: {kind}s must be a set of names, such as {{{example}}}, got {given!r:.80}"
        )
    return tuple(known(f"{kind} of {source}:", str(name), names) for name in given)


def _text(found: Any, attribute: str, source: str) -> str | None:
    return _word(getattr(found, attribute, None), attribute, source)


def _word(value: Any, attribute: str, source: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{source}: {attribute} must be a string, got {value!r:.80}")
    return value


def _name(found: Any) -> str:
    return str(getattr(found, "__name__", None) or type(found).__name__)


def _version(found: Any, source: str) -> str | None:
    module = sys.modules.get(getattr(found, "__module__", None) or "")
    version = (
        _text(found, "version", source)
        or getattr(found, "__version__", None)
        or getattr(module, "__version__", None)
    )
    return None if version is None else str(version)


BEHIND = ("torch", "jax", "keras", "onnx", "onnxruntime")
"""Libraries that may stand behind a target, whatever arrays it takes."""


def _environment(array_type: str) -> dict[str, str]:
    behind = {name: sys.modules[name] for name in BEHIND if name in sys.modules}
    modules = {array_type: library(array_type), **behind}
    return {name: str(getattr(module, "__version__", "unknown")) for name, module in modules.items()}
