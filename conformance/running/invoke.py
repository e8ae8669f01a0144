"""One call of a target in this process: arrays in, call, arrays out, inputs looked over afterwards."""

import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from conformance.dtypes import dtype_name
from conformance.names import MHA, MHA_VJP, OPTIONS_OF, POSITIONAL, SDPA, SDPA_VJP, SERVING
from conformance.running.aliasing import Previous
from conformance.running.arrays import AGAIN, SHARED, UnreadableError, check_size, describe, lay_out
from conformance.running.batch import flattened, restored
from conformance.running.messages import Answer
from conformance.running.partial import apart, together
from conformance.running.poison import poison
from conformance.running.return_values import NoSuchGradientError, named
from conformance.running.signature import GRADIENT
from conformance.running.target import Target
from conformance.running.text_limits import first_line, said, shorten
from conformance.vectors.case import Array

HEADED = (
    *("query", "key", "value", "past_key", "past_value", "output", "present_key", "present_value"),
    GRADIENT,
)
"""Arrays of an attention that have a heads and a length axis, which layout `blhd` swaps; so their gradients."""
MISFITS = (
    "could not be broadcast",
    "mismatch in its core dimension",
    "must match the size of tensor",
    "Incompatible shapes",
)
"""What libraries say of shapes that do not go together."""
NO_TENSOR = ("axes don't match array", "'numpy.ndarray' object has no", "'int' object is not callable")
"""What NumPy says of `x.transpose(-1, -2)`, `x.softmax(-1)` and `x.size(-1)`."""
PLAIN = (
    "query",
    "key",
    "value",
    "scale",
    "is_causal",
    "return_lse",
    "return_weights",
    "grad_output",
    "grad_lse",
)
"""Arguments that say nothing of shapes beyond those of the operands."""
WRITABLE = ("numpy", "torch")
"""Array types whose arrays show what is written to the memory that they were made of."""
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
    previous: Previous | None = None,
) -> Answer:
    """Asks a target in this process, and reads its answer as NumPy arrays in canonical layout.

    `raised` is told of an exception of the target's, of which the answer keeps one line; `previous` holds the
    answer of the call before.
    """
    refusal = _refusal(target, operation, (*inputs, *options))
    if refusal:
        return Answer("unsupported", refusal)
    how = target.calls[operation]
    shaped = flattened(operation, inputs) if target.rank and operation not in SERVING else inputs
    arrays = {
        name: lay_out(swapped(target, operation, name, array), memory.get(name))
        for name, array in apart(operation, shaped).items()
    }
    try:
        given = _given(target, arrays, memory, previous)
    except UnreadableError as error:
        return Answer("wrong", str(error))
    if previous is not None:
        previous.keep({name: (array, given[name]) for name, array in arrays.items()})
    before = {name: _contents(target, array, given[name]) for name, array in arrays.items()}
    arguments = {**together(operation, given), **{name: _option(value) for name, value in options.items()}}
    positions = (
        [] if how.by_keyword else [arguments.pop(name) for name in POSITIONAL[operation] if name in arguments]
    )
    try:
        with _quiet():
            for _ in range(repeat):
                poison(inputs)
                returned = how.function(*positions, **arguments)
    except NotImplementedError as error:
        return Answer("unsupported", said(error) or "raises NotImplementedError")
    except KeyboardInterrupt:
        raise  # of the user, not of the target
    except BaseException as error:
        if raised is not None:
            with suppress(Exception):  # nowhere to tell it
                raised(error)
        return Answer("error", _raised(error, _hint(target, error, operation, inputs, options), target.file))
    # What was returned is read outside of the call: what cannot be read has not been refused.
    try:
        with _quiet():
            values = named(returned, operation, options, shaped)
            outputs = _read(target, operation, values, shaped, next(iter(given.values()), None))
    except NoSuchGradientError as error:
        return Answer("unsupported", str(error))
    except UnreadableError as error:
        return Answer("wrong", str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Answer("wrong", f"returned {describe(returned)} that cannot be read: {first_line(error)}")
    written = [name for name in arrays if _contents(target, arrays[name], given[name]) != before[name]]
    if written:
        return Answer("wrong", f"{', '.join(written)} was written to during the call (IND-5)")
    overwritten = "" if previous is None else _overwritten(target, operation, previous, values, outputs)
    if overwritten:
        return Answer(
            "wrong", f"the {overwritten} of the call before was written to: return new arrays (IND-7)"
        )
    if target.rank and operation not in SERVING:
        outputs = {name: restored(operation, name, array, inputs) for name, array in outputs.items()}
    return Answer("outputs", outputs=outputs)


def _given(
    target: Target, arrays: dict[str, Array], memory: Mapping[str, str], previous: Previous | None
) -> dict[str, Any]:
    """The operands as the target's arrays; one that lies in the memory of the call before replaces its array.

    Raises:
        UnreadableError: the target makes no array of one.
    """
    given: dict[str, Any] = {}
    for name, array in arrays.items():
        if memory.get(name) == SHARED:
            given[name] = given["query"]
            continue
        lies_again = memory.get(name) == AGAIN and target.array_type in WRITABLE and previous is not None
        if lies_again and previous is not None and (found := previous.again(name, array)):
            arrays[name], given[name] = found
            if target.array_type == "numpy" or _contents(target, *found)[1] == array.tobytes():
                continue
        try:
            given[name] = target.give(array)
        except Exception as error:
            raise UnreadableError(
                f"{name} could not be made an array of the target's: {first_line(error)}"
            ) from error
    return given


def _overwritten(
    target: Target,
    operation: str,
    previous: Previous,
    values: Mapping[str, Any],
    outputs: Mapping[str, Array],
) -> str:
    """The result of the call before that this one wrote to; empty if none. This one is the call before from now on."""
    found = previous.changed(target.take)
    previous.hold(values, {name: swapped(target, operation, name, x) for name, x in outputs.items()})
    return found


def _refusal(target: Target, operation: str, names: tuple[str, ...]) -> str:
    """Why a call is not made: an option that no signature takes would only raise a TypeError."""
    if operation not in target.calls:
        return f"has no {operation}"
    how = target.calls[operation]
    if how.any_option:
        return ""
    missing = [name for name in names if name in OPTIONS_OF[operation] and name not in how.options]
    return f"{operation} does not take {', '.join(missing)}" if missing else ""


def _option(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def swapped(target: Target, operation: str, name: str, array: Array) -> Array:
    """Canonical layout to the target's, and back: swapping two axes undoes itself."""
    headed = PROJECTED if operation in (MHA, MHA_VJP) else HEADED
    if target.layout == "bhld" or name.partition("[")[0] not in headed or array.ndim < 3:
        return array
    return array.swapaxes(-2, -3)  # [..., H, L, d] <-> [..., L, H, d]


@contextmanager
def _quiet() -> Iterator[None]:
    """NumPy's floating-point warnings are no news in a suite of edge cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _read(
    target: Target, operation: str, values: Mapping[str, Any], inputs: Mapping[str, Array], query: Any
) -> dict[str, Array]:
    wanted = next((x.dtype for x in inputs.values() if x.dtype.kind == "f"), None)
    outputs, total = {}, 0
    for name, value in values.items():
        if strange := _elsewhere(value, query):
            raise UnreadableError(f"{name} {strange}")
        try:
            array = target.take(value)
            total += array.nbytes
            check_size(total, array.shape, array.dtype)
        except UnreadableError as error:
            raise UnreadableError(f"{name} {error}") from error
        except Exception as error:
            raise UnreadableError(
                f"{name} is {describe(value)} that cannot be read: {first_line(error)}"
            ) from error
        if isinstance(value, list) and array.dtype != wanted:
            raise UnreadableError(
                f"{name}: returned a list, wanted an array; NumPy reads it as {dtype_name(array.dtype)} (DTYPE-1)"
            )
        outputs[name] = swapped(target, operation, name, array)
    return outputs


def _elsewhere(value: Any, query: Any) -> str:
    """That a result lies on another device than the query; empty if both are of one library and do not."""
    if type(value) is not type(query):
        return ""
    devices = [getattr(x, "device", None) for x in (value, query)]
    return "" if devices[0] == devices[1] else f"is on device {devices[0]}, its operands are on {devices[1]}"


def _contents(target: Target, array: Array, given: Any) -> tuple[bytes, bytes]:
    """The bytes of an operand and of the target's copy; none of a copy that cannot be read (any more)."""
    if target.own_arrays or given is array:
        return array.tobytes(), b""
    try:
        return array.tobytes(), target.take(given).tobytes()
    except Exception:  # such as one that a jitted function was donated
        return array.tobytes(), b""


def _raised(error: BaseException, hint: str, own: str = "") -> str:
    """Type, text and place of an exception, and what may be the matter."""
    return f"{first_line(error)}{_place(error, own)}{hint}"


def _place(error: BaseException, own: str) -> str:
    """Where an exception was raised; where that is a library, also the line of the target's file that called it."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first frame is the call itself
    if not frames:
        return ""
    last = frames[-1]
    place = shorten(f"{_name(last.filename)}:{last.lineno} in {last.name}", 120)
    if last.filename == own:
        return f" (raised in your file, {place})"
    callers = [frame for frame in frames if frame.filename == own]
    called = f", called at {_name(own)}:{callers[-1].lineno}" if callers else ""
    return f" ({place}{called})"


def _name(path: str | None) -> str:
    return (path or "").replace(chr(92), "/").rpartition("/")[2]


def _hint(
    target: Target,
    error: BaseException,
    operation: str,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
) -> str:
    """What a new user is likely to have overlooked."""
    text = first_line(error)
    tensors = "Tensor" in text or ("torch" in sys.modules and any(words in text for words in NO_TENSOR))
    if target.array_type == "numpy" and tensors:
        return '; it got NumPy arrays: for tensors say array_type = "torch"'
    if target.array_type == "numpy" and "numpy.ndarray" in text and "is not a valid JAX type" in text:
        return '; it got NumPy arrays: for arrays of JAX say array_type = "jax"'
    if not any(words in text for words in MISFITS):
        return ""
    offset: Any = inputs["q_offset"] if "q_offset" in inputs else options.get("q_offset")
    if np.ndim(offset):
        return "; q_offset is an array here: raise NotImplementedError if you take one integer only"
    heads = [inputs[name].shape[-3:-2] for name in ("query", "key") if name in inputs]
    if operation in (SDPA, SDPA_VJP) and len(heads) == 2 and heads[0] != heads[1]:
        remedy = "repeat them" if target.declared else "repeat them, or leave gqa out of `features`"
        return f"; query has {_number(heads[0])} heads, key {_number(heads[1])}: {remedy}"
    if masks := [name for name in ("mask", "attn_bias") if name in inputs]:
        return (
            f"; {masks[0]} has shape {inputs[masks[0]].shape}: broadcast it to the shape of the weights first"
        )
    if target.layout == "bhld" and not (set(inputs) | set(options)) - set(PLAIN):
        return (
            "; arrays are (batch, heads, length, width): "
            'if yours are (batch, length, heads, width), set layout = "blhd"'
        )
    return ""


def _number(axis: tuple[int, ...]) -> int:
    return axis[0] if axis else 1
