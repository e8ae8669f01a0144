"""The gradients of heads that passed the checks: the first way that vouches for its result.

`torch_fused_vjp` computes a whole call, `jax_blocks_vjp` one that is large where JAX compiles it. Else, where arrays
can be written to, heads are cut into units, whose gradients are computed `in_place_vjp` by NumPy or, whatever they
hold, by `exact_vjp`; else that computes all of them.
"""

from typing import Any

import array_api_compat

from mha_core.arrays import beside, cast, compute_dtype, is_traced, quiet, writes_in_place
from mha_core.exact_vjp import exact_vjp
from mha_core.head_gradients import HeadGradients
from mha_core.in_place_vjp import in_place_vjp
from mha_core.jax_blocks import jax_blocks_vjp
from mha_core.options import Options, Sizes
from mha_core.parts import Part, entries_of, place_in, units_of
from mha_core.pool import each
from mha_core.result import Array
from mha_core.torch_fused import torch_fused_vjp


def attend_vjp(
    xp: Any,
    query: Array,
    key: Array,
    value: Array,
    grad: Array,
    options: Options,
    sizes: Sizes,
    with_output: bool = False,
    grad_lse: Array | None = None,
) -> HeadGradients:
    """The gradients of heads from that of their output and lse, and that output where it is asked for."""
    dtype = compute_dtype(xp, query.dtype)
    with quiet(xp):
        grad_lse = None if grad_lse is None else cast(xp, grad_lse, dtype)
        query, key, value, grad = (cast(xp, x, dtype) for x in (query, key, value, grad))
        part = Part(query, key, value, options, sizes)
        traced = is_traced(xp, query)
        blocks = jax_blocks_vjp(xp, part, grad, with_output, grad_lse) if traced else None
        if blocks is not None:
            return blocks
        if traced or part.records or not array_api_compat.is_writeable_array(query):
            return exact_vjp(xp, part, grad, with_output, grad_lse)
        fused = torch_fused_vjp(xp, part, grad, with_output) if grad_lse is None else None
        if fused is not None:
            return fused
        units = [
            (unit, (*at, *heads), (*at, *kv_heads))
            for entry, at in entries_of(xp, part)
            for unit, heads, kv_heads in units_of(entry)
        ]

        def compute(place: tuple[Part, tuple[Any, ...], tuple[Any, ...]]) -> HeadGradients:
            unit, at, _ = place
            of_lse = None if grad_lse is None else grad_lse[(*at, ...)]
            return _first_vouched(xp, unit, grad[(*at, ...)], with_output, of_lse)

        if units[0][0] is part:
            return compute(units[0])
        whole = _Whole(xp, part, with_output)
        for place, gradients in zip(
            units, each(compute, units, sizes, writes_in_place(xp, query)), strict=True
        ):
            whole.add(*place, gradients)
        return whole.gradients


def _first_vouched(
    xp: Any, unit: Part, grad: Array, with_output: bool, grad_lse: Array | None
) -> HeadGradients:
    """The gradients of some heads by the first way that vouches for them."""
    gradients = in_place_vjp(xp, unit, grad, with_output, grad_lse)
    return exact_vjp(xp, unit, grad, with_output, grad_lse) if gradients is None else gradients


class _Whole:
    """The gradients of a call, each unit's put into its place or added to what others gave."""

    def __init__(self, xp: Any, part: Part, with_output: bool) -> None:
        def zeros(shape: tuple[int, ...]) -> Array:
            return xp.zeros(shape, dtype=part.query.dtype, **beside(part.query))

        bias, sinks = part.options.attn_bias, part.options.sinks
        self._part = part
        self.gradients = HeadGradients(
            query=zeros(part.query.shape),
            key=zeros(part.key.shape),
            value=zeros(part.value.shape),
            attn_bias=None if bias is None else zeros(bias.shape),
            sinks=None if sinks is None else zeros(sinks.shape),
            output=zeros(part.sizes.output) if with_output else None,
        )

    def add(self, unit: Part, at: tuple[Any, ...], at_key: tuple[Any, ...], given: HeadGradients) -> None:
        """Takes in the gradients of a unit, which lies there among the query heads and the key heads."""
        whole, existing = self.gradients, slice(0, unit.sizes.kv_len)
        whole.query[(*at, ...)] = given.query
        whole.key[(*at_key, ..., existing, slice(None))] = given.key
        whole.value[(*at_key, ..., existing, slice(None))] = given.value
        if whole.output is not None:
            whole.output[(*at, ...)] = given.output
        if whole.attn_bias is not None:
            place = place_in(whole.attn_bias.shape, self._part.sizes, at, existing)
            whole.attn_bias[place] = whole.attn_bias[place] + given.attn_bias
        if whole.sinks is not None:
            heads = at[len(self._part.sizes.batch) :]
            whole.sinks[(*heads, ...)] = whole.sinks[(*heads, ...)] + given.sinks
