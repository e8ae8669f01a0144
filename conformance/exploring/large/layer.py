"""Attention with projections at production size: each weight moves a column and scales it by a power of two.

So the heads of a layer are those of the same call without projections, exactly, and what is known of these is known
of the layer. For sampled rows all weights are dense.
"""

import math
from typing import Any

import numpy as np

from conformance.exploring.counter import key as stream_key
from conformance.exploring.large import contents
from conformance.exploring.large.call import Large
from conformance.exploring.large.making import Maker
from conformance.exploring.large.told import Pieces
from conformance.vectors.case import Array

POWERS = 3
"""Heads are scaled by 1, 2 and 4 in turn, and so many kinds of biases there are: -1, 0 and 1."""
INTO = {"query": "w_q", "key": "w_k", "value": "w_v", "grad_output": "w_o"}
"""The weight that stands between a tensor and its heads."""


def sizes(call: Large, name: str) -> tuple[int, int]:
    """Heads of an operand or result, and the width of each."""
    heads = call.groups if name in ("key", "value") else call.heads
    return heads, call.d_k if name in ("query", "key") else call.d_v


def columns(call: Large, name: str) -> Array:
    """Where each column of each head stands in the tensor, [heads, width]: a permutation of all its columns."""
    heads, width = sizes(call, name)
    count = heads * width
    drawn = stream_key("large", f"columns of {INTO.get(name, 'w_o')}", call.stream)
    step = round(count * 0.618) + drawn % 16
    while math.gcd(step, count) > 1:
        step += 1
    return ((np.arange(count) * step + drawn // 16 % count) % count).reshape(heads, width)


def powers(heads: int) -> Array:
    """What the weights of each head scale by, [heads]."""
    found: Array = 2.0 ** (np.arange(heads) % POWERS)
    return found


def added(call: Large, name: str) -> Array:
    """The bias of each head, [heads, width]; zero without one."""
    heads, width = sizes(call, name)
    if not call.bias or name == "grad_output":
        return np.zeros((heads, width))
    found: Array = (np.arange(heads)[:, None] + np.arange(width)) % POWERS - 1.0
    return found


def operands(call: Large, make: Maker) -> dict[str, Any]:
    """The tensors of a layer, [B, length, width], in the target's library."""
    if call.family == "sampled":
        lengths = {"query": call.q_len, "key": call.kv_len, "value": call.kv_len}
        found = {name: scattered(call, make, name, 0, call.batch * n) for name, n in lengths.items()}
        return {name: make.shaped(x, (call.batch, lengths[name], x.shape[-1])) for name, x in found.items()}
    found = {}
    for name, rows in contents.operands(call, make).items():
        heads, width = sizes(call, name)
        length = call.kv_len if name in ("key", "value") else call.q_len
        array = make.shaped(rows, (call.batch, heads, length, width))
        if call.bias and name != "grad_output":
            array = array - _in(make, added(call, name)[:, None])
        array = array * _in(make, 1 / powers(heads)[:, None, None])
        array = make.turned(array, (0, 2, 1, 3))
        array = make.shaped(array, (call.batch, length, heads * width))
        found[name] = make.picked(array, np.argsort(columns(call, name).ravel()).astype(np.int32))
    return found


def _in(make: Maker, x: Array) -> Any:
    """Multiples of a quarter in the library."""
    return make.parted(make.taken((4 * x).astype(np.int32)), 4)


def scattered(call: Large, make: Maker, name: str, first: int, count: int) -> Any:
    """Some rows of ordinary numbers of variance one, counted through entries, [count, width]."""
    width = math.prod(sizes(call, name))

    def block(start: int, stop: int) -> Any:
        rows = make.count(first + start, first + stop)
        return make.parted(contents.scattered(call, make, name, rows, width), 32)

    return make.filled(count, width, block)


def weights(call: Large, make: Maker) -> dict[str, Any]:
    """The weights, and the biases where there are any."""
    found: dict[str, Any] = {}
    for name, weight in INTO.items():
        heads, width = sizes(call, name)
        whole = heads * width
        shape = (heads, width, whole) if weight == "w_o" else (heads, whole, width)
        if call.family == "sampled":
            found[weight] = _dense(call, make, weight, shape)
            continue
        array = np.zeros(shape, np.int32)
        head, column = np.indices((heads, width))
        place = columns(call, name)
        index = (head, column, place) if weight == "w_o" else (head, place, column)
        array[index] = powers(heads)[:, None].astype(np.int32)
        found[weight] = make.floating(make.taken(array))
    if call.bias:
        found |= {f"b_{name[0]}": _in(make, added(call, name)) for name in ("query", "key", "value")}
    return found


def _dense(call: Large, make: Maker, name: str, shape: tuple[int, ...]) -> Any:
    """Ordinary numbers that keep the variance of what they are multiplied with at about one."""
    terms = shape[1] if name != "w_o" else shape[0] * shape[1]
    parts = 32 * 2 ** round(math.log2(terms) / 2)

    def block(start: int, stop: int) -> Any:
        return make.parted(contents.scattered(call, make, name, make.count(start, stop), shape[2]), parts)

    return make.shaped(make.filled(shape[0] * shape[1], shape[2], block), shape)


class Headed:
    """What a layer gave, as its heads: without the output projection, or the gradients without those of operands."""

    def __init__(self, call: Large, answer: Pieces) -> None:
        self._call, self._answer = call, answer

    @property
    def names(self) -> tuple[str, ...]:
        """Which there are."""
        return self._answer.names

    def shape(self, name: str) -> tuple[int, ...]:
        """That of the layer."""
        return self._answer.shape(name)

    def piece(self, name: str, index: tuple[slice, ...]) -> Array:
        """A part of [B, heads, length, width], or of the lse."""
        if name == "lse":
            return self._answer.piece(name, index)
        entries, which, rows = index[:3]
        found = self._answer.piece(name, (entries, rows, slice(None)))  # [B, length, columns]
        places, scales = columns(self._call, name)[which], powers(sizes(self._call, name)[0])[which]
        heads = found[:, :, places].astype(np.float64) / scales[:, None]  # [B, length, heads, width]
        return heads.swapaxes(1, 2)
