"""One call of a target in this process: arrays in, call, arrays out, inputs looked over afterwards."""

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from conformance.names import MHA, MHA_VJP, OPTIONS, OUTPUTS
from conformance.running.answer import Answer
from conformance.running.arrays import UnreadableError, describe, first_line, lay_out
from conformance.running.claims import ARRAYS, GRADIENT
from conformance.running.target import Target
from conformance.vectors.case import Array

HEADED = ("query", "key", "value", "past_key", "past_value", "output", "present_key", "present_value")
"""Arrays of an attention that have a heads and a length axis, which layout `blhd` swaps."""
PROJECTED = ("past_key", "past_value", "present_key", "present_value")
"""The same of a layer: its other operands have no heads axis."""


def call(
    target: Target,
    operation: str,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    memory: Mapping[str, str],
    repeat: int = 1,
    raised: Callable[[BaseException], None] | None = None,
) -> Answer:
    """Asks a target in this process, and reads its answer as NumPy arrays in canonical layout.

    `raised` is told of an exception of the target's, of which the answer keeps one line.
    """
    refusal = _refusal(target, operation, (*inputs, *options))
    if refusal:
        return Answer("unsupported", refusal)
    how = target.calls[operation]
    arrays = {
        name: lay_out(_swapped(target, operation, name, array), memory.get(name))
        for name, array in inputs.items()
    }
    given: dict[str, Any] = {}
    for name, array in arrays.items():
        try:
            given[name] = target.give(array)
        except Exception as error:
            return Answer("wrong", f"{name} could not be made an array of the target's: {first_line(error)}")

    before = {name: _contents(target, array, given[name]) for name, array in arrays.items()}
    named = {**given, **{name: _option(value) for name, value in options.items()}}
    positions = [] if how.by_keyword else [named.pop(name) for name in (*ARRAYS, GRADIENT) if name in named]
    try:
        with _quiet():
            for _ in range(repeat):
                returned = how.function(*positions, **named)
            outputs = _read(target, operation, returned, options)
    except NotImplementedError as error:
        return Answer("unsupported", " ".join(str(error).split()) or "raises NotImplementedError")
    except UnreadableError as error:
        return Answer("wrong", str(error))
    except (Exception, SystemExit) as error:
        if raised is not None:
            raised(error)
        return Answer("error", _raised(error))
    written = [name for name in arrays if _contents(target, arrays[name], given[name]) != before[name]]
    if written:
        return Answer("wrong", f"{', '.join(written)} was written to during the call (IND-5)")
    return Answer("outputs", outputs=outputs)


def _refusal(target: Target, operation: str, names: tuple[str, ...]) -> str:
    """Why a call is not made: an option that no signature takes would only raise a TypeError."""
    if operation not in target.calls:
        return f"has no {operation}"
    taken = target.calls[operation].options
    if target.declared or taken is None:
        return ""
    missing = [name for name in names if name in OPTIONS and name not in taken]
    return f"{operation} does not take {', '.join(missing)}" if missing else ""


def _option(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _swapped(target: Target, operation: str, name: str, array: Array) -> Array:
    """Canonical layout to the target's, and back: swapping two axes undoes itself."""
    headed = PROJECTED if operation in (MHA, MHA_VJP) else HEADED
    if target.layout == "bhld" or name not in headed or array.ndim < 3:
        return array
    return array.swapaxes(-2, -3)  # [..., H, L, d] <-> [..., L, H, d]


@contextmanager
def _quiet() -> Iterator[None]:
    """NumPy's floating-point warnings are no news in a suite of edge cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _read(target: Target, operation: str, returned: Any, options: Mapping[str, Any]) -> dict[str, Array]:
    outputs = {}
    for name, value in _named(returned, options).items():
        try:
            array = target.take(value)
        except UnreadableError as error:
            raise UnreadableError(f"{name} {error}") from error
        outputs[name] = _swapped(target, operation, name, array)
    return outputs


def _named(returned: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name, from each form that a target may return."""
    if returned is None:
        raise UnreadableError("returned None, wanted an array")
    if isinstance(returned, Mapping):
        outputs = dict(returned)
    elif isinstance(returned, tuple):
        outputs = _of_tuple(returned, options)
    else:
        outputs = {"output": returned}
    return {str(name): value for name, value in outputs.items() if value is not None}


def _of_tuple(returned: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    fields: tuple[str, ...] | None = getattr(returned, "_fields", None)
    if fields is not None:
        return dict(zip(fields, returned, strict=True))
    if len(returned) == 2 and options.get("return_weights") and not options.get("return_lse"):
        return dict(zip(("output", "weights"), returned, strict=True))
    holding = ", ".join(describe(value) for value in returned[:5])
    raise UnreadableError(
        f"returned a tuple of {len(returned)} ({holding}), wanted an array, or a mapping or named tuple of "
        f"{', '.join(OUTPUTS)}"
    )


def _contents(target: Target, array: Array, given: Any) -> tuple[bytes, bytes]:
    """The bytes of an operand and of the target's copy; none of a copy that cannot be read (any more)."""
    if target.own_arrays or given is array:
        return array.tobytes(), b""
    try:
        return array.tobytes(), target.take(given).tobytes()
    except Exception:  # such as one that a jitted function was donated
        return array.tobytes(), b""


def _raised(error: BaseException) -> str:
    """Type, text and place of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    own = len(frames) > 1  # the first frame is the call itself
    place = (
        f" ({last.filename.replace(chr(92), '/').rpartition('/')[2]}:{last.lineno} in {last.name})"
        if own
        else ""
    )
    return f"{first_line(error)}{place}"
