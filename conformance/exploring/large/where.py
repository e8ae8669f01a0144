"""A call of production size where the target is: made, asked and read in one process, so that nothing is copied."""

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.exploring.large import layer
from conformance.exploring.large.call import Large
from conformance.exploring.large.contents import operands
from conformance.exploring.large.judged import judged
from conformance.exploring.large.making import Maker, maker
from conformance.exploring.large.seen import options
from conformance.exploring.large.told import Told
from conformance.running.arrays import UnreadableError, take
from conformance.running.invoke import swapped
from conformance.running.return_values import NoSuchGradientError, named
from conformance.running.signature import ARRAYS, GRADIENT
from conformance.running.target import Target
from conformance.running.text_limits import first_line, said
from conformance.vectors.case import Array

FULL = (
    "out of memory", "bad_alloc", "unable to allocate", "resource_exhausted", "can't allocate", "cannot allocate",
    "not enough memory", "invalid buffer size",
)  # fmt: skip
"""What libraries say where memory is full."""


def ask(target: Target, call: Large, policy: str) -> Told:
    """Asks a target in this process, and reads the answer by the closed form of the call."""
    began = time.perf_counter()
    if refusal := _refusal(target, call):
        return Told("unsupported", refusal)
    try:
        arguments = given(target, call, maker(target, call.dtype))
    except MemoryError as error:
        return Told("memory", first_line(error))
    except Exception as error:
        kind = "memory" if _full(error) else "wrong"
        return Told(kind, f"the operands could not be made on the target's library: {first_line(error)}")
    how = target.calls[call.operation]
    names = (*ARRAYS, GRADIENT)
    positions = [] if how.by_keyword else [arguments.pop(name) for name in names if name in arguments]
    try:
        with np.errstate(all="ignore"):
            returned = how.function(*positions, **arguments)
        values = named(returned, call.operation, arguments, dict.fromkeys(names, 0))
    except NotImplementedError as error:
        return Told("unsupported", said(error) or "raises NotImplementedError")
    except (UnreadableError, NoSuchGradientError) as error:
        return Told("wrong", str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _full(error):
            return Told("memory", first_line(error))
        traceback.print_exception(error)
        return Told("error", first_line(error))
    seconds = time.perf_counter() - began
    del positions, arguments, returned
    try:
        return judged(call, policy, Answered(target, call, values)).after(seconds)
    except UnreadableError as error:
        return Told("wrong", str(error))
    except MemoryError as error:
        return Told("memory", first_line(error))
    except Exception as error:  # of this suite: nothing is said of the target
        traceback.print_exception(error)
        return Told("unjudged", f"a mistake of the suite, please report it: {first_line(error)}")


def _full(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or any(words in text for words in FULL)


def _refusal(target: Target, call: Large) -> str:
    if call.operation not in target.calls:
        return f"has no {call.operation}"
    how = target.calls[call.operation]
    if target.declared or how.any_option:
        return ""
    arrays, others = option_names(call)
    missing = [name for name in (*arrays, *others) if name not in how.options]
    return f"{call.operation} does not take {', '.join(missing)}" if missing else ""


def option_names(call: Large) -> tuple[list[str], list[str]]:
    """The options that are arrays, and the others."""
    arrays = {
        "mask": bool(call.mask) and not call.biased, "attn_bias": bool(call.mask) and call.biased,
        "kv_lengths": call.lengths, "q_offset": isinstance(call.offset, str), "sinks": call.sinks,
        "past_key": call.past > 0, "past_value": call.past > 0,
        **dict.fromkeys(("b_q", "b_k", "b_v"), call.bias),
    }  # fmt: skip
    others = {
        "is_causal": call.causal, "window": call.window is not None,
        "q_offset": isinstance(call.offset, int), "return_lse": call.lse,
        "softcap": call.softcap is not None, "scale": call.scale is not None,
    }  # fmt: skip
    return [name for name, there in arrays.items() if there], [n for n, there in others.items() if there]


def given(target: Target, call: Large, make: Maker) -> dict[str, Any]:
    """Every argument as the target takes it."""
    if call.layer:
        return _layered(target, call, make)
    lengths = {"query": (call.heads, call.q_len), "grad_output": (call.heads, call.q_len)}
    found = {}
    for name, array in operands(call, make).items():
        heads, length = lengths.get(name, (call.groups, call.kv_len))
        shape = (call.batch, heads, length, array.shape[-1])
        for part, keys in parted(call, name).items():
            found[part] = _laid(target, call, make, part, array, shape, keys)
    arrays, others = options(call)
    return {**found, **{name: target.give(array) for name, array in arrays.items()}, **others}


def _layered(target: Target, call: Large, make: Maker) -> dict[str, Any]:
    """Every argument of a layer."""
    found = {**layer.operands(call, make), **layer.weights(call, make)}
    if make.kind == "torch":
        found = {name: array.contiguous() for name, array in found.items()}
    elif make.kind == "numpy" and target.array_type != "numpy":
        found = {name: target.give(np.ascontiguousarray(array)) for name, array in found.items()}
    arrays, others = options(call)
    return {**found, **{name: target.give(array) for name, array in arrays.items()}, **others}


def parted(call: Large, name: str) -> dict[str, slice]:
    """An operand as it is handed over: the first keys as the past."""
    if not call.past or name not in ("key", "value"):
        return {name: slice(None)}
    return {name: slice(call.past, None), f"past_{name}": slice(0, call.past)}


def _laid(
    target: Target, call: Large, make: Maker, name: str, array: Any, shape: tuple[int, ...], keys: slice
) -> Any:
    """[rows, width] as heads in the target's layout, in C order; some of the rows of each head."""
    if make.kind == "array-api-strict":
        array = make.module.reshape(array, shape)[:, :, keys, :]
        if target.layout == "blhd":
            array = make.module.permute_dims(array, (0, 2, 1, 3))
        return array
    array = swapped(target, call.operation, name, array.reshape(shape)[:, :, keys])
    if make.kind == "torch":
        return array.contiguous()
    if make.kind == "numpy":
        array = np.ascontiguousarray(array)
        return array if target.array_type == "numpy" else target.give(array)
    return array


class Answered:
    """What a target returned, read piece by piece."""

    def __init__(self, target: Target, call: Large, values: Mapping[str, Any]) -> None:
        self._target, self._call = target, call
        self._values = {name: x if hasattr(x, "shape") else take(x, np.inf) for name, x in values.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Which results there are."""
        return tuple(self._values)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a result, in canonical layout."""
        found = tuple(int(n) for n in self._values[name].shape)
        if self._turned(name) and len(found) > 2:
            return (*found[:-3], found[-2], found[-3], found[-1])
        return found

    def piece(self, name: str, index: tuple[slice, ...]) -> Array:
        """A part of a result, in canonical layout."""
        turned = self._turned(name)
        if turned:
            index = (index[0], index[2], index[1], *index[3:])
        value: Any = self._values[name]
        reader: Callable[[Any], Array] = (
            self._target.take if not isinstance(value, np.ndarray) else np.asarray
        )
        try:
            array = reader(value[index])
        except UnreadableError:
            raise
        except Exception as error:
            raise UnreadableError(f"{name} cannot be read: {first_line(error)}") from error
        return array.swapaxes(1, 2) if turned else array

    def _turned(self, name: str) -> bool:
        return self._target.layout == "blhd" and name != "lse" and not self._call.layer
