"""The transposed derivative of `exact`, block by block of query rows, whose weights are computed again.

With dP = grad @ value^T and Delta = sum of P * dP over the keys, the gradient of a logit is P * (dP - Delta)
(GRAD-1). A masked entry and an empty row give exactly 0, whatever lies behind them (GRAD-3, GRAD-4, GRAD-9).
Sums run in the dtype to compute in (GRAD-12).
"""

import math
from typing import Any, NamedTuple

from mha_core.arrays import is_traced, known_finite
from mha_core.head_gradients import HeadGradients
from mha_core.heads import grouped
from mha_core.options import Options, Sizes, scale_of
from mha_core.parts import Part, row_blocks
from mha_core.result import Array
from mha_core.softmax import Softmax, attended, products, weighted_sums
from mha_core.sums import Total, summed_to
from mha_core.values import Values, add_nonfinite, add_nonfinite_of_rows, split_values
from mha_core.visibility import band_of, columns_of, cut, visible_in


class Operands(NamedTuple):
    """What gradients are computed from, in the dtype to compute in."""

    query: Array
    """(..., H, rows, d_k), scaled."""
    key: Array
    """(..., G, columns, d_k)."""
    value: Array
    """(..., G, columns, d_v)."""
    grad: Array
    """(..., H, rows, d_v), the gradient of the output."""
    grad_parts: Values
    """The same in parts."""
    finite: bool
    """Whether query and key are known to be finite."""
    grad_lse: Array | None = None
    """(..., H, rows, 1), the gradient of the lse."""

    def at(self, rows: slice, columns: slice) -> "Operands":
        """Those of a block."""
        heads = (self.query[..., rows, :], self.key[..., columns, :], self.value[..., columns, :])
        grad_lse = None if self.grad_lse is None else self.grad_lse[..., rows, :]
        return Operands(*heads, self.grad[..., rows, :], self.grad_parts.at(rows), self.finite, grad_lse)


def exact_vjp(
    xp: Any, part: Part, grad: Array, with_output: bool, grad_lse: Array | None = None
) -> HeadGradients:
    """The gradients of a part, whatever it holds."""
    options, sizes = part.options, part.sizes
    query, key = part.query, part.key
    is_finite = known_finite(xp, query) and known_finite(xp, key)
    query = query * scale_of(options, sizes)
    grad_lse = None if grad_lse is None else grad_lse[..., None]
    operands = Operands(query, key, part.value, grad, split_values(xp, grad), is_finite, grad_lse)
    band = band_of(xp, options, sizes, query)
    sums = _Sums(xp, options, sizes)
    for rows in row_blocks(sizes, is_traced(xp, query)):
        columns = columns_of(band, sizes, rows)
        visible = visible_in(xp, options, sizes, band, rows, columns, query)
        block = operands.at(rows, columns)
        gradients = _attend_rows_vjp(xp, block, options, sizes, visible, rows, columns, with_output)
        sums.add(gradients, columns)
    return sums.gradients()


class _Sums:
    """Blocks of rows as they come: rows side by side, keys summed."""

    def __init__(self, xp: Any, options: Options, sizes: Sizes) -> None:
        self._xp, self._bias, self._sizes = xp, options.attn_bias, sizes
        self._queries: list[Array] = []
        self._outputs: list[Array] = []
        self._biases: list[Total] = []
        self._key, self._value = (Total(xp, -2, sizes.kv_len) for _ in range(2))
        self._sinks: Array | None = None

    def add(self, part: HeadGradients, columns: slice) -> None:
        """Takes in the gradients of some rows, which saw those keys alone."""
        self._queries.append(part.query)
        self._key.add(part.key, columns)
        self._value.add(part.value, columns)
        if self._bias is not None:
            if self._bias.shape[-2] != 1 or not self._biases:
                self._biases.append(Total(self._xp, -1, self._bias.shape[-1]))
            self._biases[-1].add(part.attn_bias, slice(0, 1) if self._bias.shape[-1] == 1 else columns)
        if part.sinks is not None:
            self._sinks = part.sinks if self._sinks is None else self._sinks + part.sinks
        if part.output is not None:
            self._outputs.append(part.output)

    def gradients(self) -> HeadGradients:
        """Those of all rows."""
        return HeadGradients(
            query=_side_by_side(self._xp, self._queries),
            key=self._key.array(),
            value=self._value.array(),
            attn_bias=_side_by_side(self._xp, [total.array() for total in self._biases]),
            sinks=self._sinks,
            output=_side_by_side(self._xp, self._outputs),
        )


def _side_by_side(xp: Any, blocks: list[Array]) -> Array | None:
    """Blocks along the rows; None of none."""
    if len(blocks) < 2:
        return blocks[0] if blocks else None
    return xp.concat(blocks, axis=-2)


def _attend_rows_vjp(
    xp: Any,
    operands: Operands,
    options: Options,
    sizes: Sizes,
    visible: Array | None,
    rows: slice,
    columns: slice,
    with_output: bool,
) -> HeadGradients:
    """What a block of query rows gives to each gradient."""
    query, key, value = operands.query, operands.key, operands.value
    logits = products(xp, query, key, sizes)
    if not operands.finite:
        query, key = xp.where(xp.isfinite(query), query, 0.0), xp.where(xp.isfinite(key), key, 0.0)
        logits = logits if visible is None else xp.where(visible, logits, 0.0)  # for the slope of the softcap
    soft, tanh = attended(xp, logits, options, visible, rows, columns)
    weights, d_logits, delta = _through_softmax(xp, soft, operands, sizes, visible)
    d_products = d_logits if tanh is None else d_logits * ((1 - tanh) * (1 + tanh))  # GRAD-7
    d_query = weighted_sums(xp, d_products, key, sizes) * scale_of(options, sizes)
    d_value = _to_keys(xp, weights, operands.grad_parts.finite, sizes)
    output = None
    if with_output:
        values = split_values(xp, value)
        output = add_nonfinite(
            xp, weighted_sums(xp, soft.weights, values.finite, sizes), values, visible, sizes
        )
    return HeadGradients(
        query=d_query,
        key=_to_keys(xp, d_products, query, sizes),
        value=add_nonfinite_of_rows(xp, d_value, operands.grad_parts, visible, sizes),
        attn_bias=_of_bias(xp, d_logits, options, rows, columns),
        sinks=_of_sinks(xp, soft, delta, options, operands.grad_lse),
        output=output,
    )


def _through_softmax(
    xp: Any, soft: Softmax, operands: Operands, sizes: Sizes, visible: Array | None
) -> tuple[Array, Array, Array]:
    """Weights and gradients of the logits, (..., H, rows, columns), and Delta, (..., H, rows, 1).

    A weight is the derivative of the lse by its logit, so that the gradient of the lse comes off Delta (GRAD-16).
    """
    weights, d_weights = soft.weights, products(xp, operands.grad, operands.value, sizes)
    delta = _delta(xp, weights, d_weights, operands.grad_lse)
    hidden = visible is not None and not known_finite(
        xp, delta
    )  # 0 * finite is 0 already, and 0 * NaN is not
    if hidden:
        weights, d_weights = xp.where(visible, weights, 0.0), xp.where(visible, d_weights, 0.0)
        delta = _delta(xp, weights, d_weights, operands.grad_lse)
    d_logits = weights * (d_weights - delta)
    return weights, xp.where(visible, d_logits, 0.0) if hidden else d_logits, delta


def _delta(xp: Any, weights: Array, d_weights: Array, grad_lse: Array | None) -> Array:
    """What a row's gradients of the logits have in common."""
    delta = xp.sum(weights * d_weights, axis=-1, keepdims=True)
    return delta if grad_lse is None else delta - grad_lse


def _to_keys(xp: Any, x: Array, y: Array, sizes: Sizes) -> Array:
    """The sums of (..., H, rows, d) by (..., H, rows, columns), a group's together: (..., G, columns, d) (GRAD-6)."""
    return xp.matmul(xp.matrix_transpose(grouped(xp, x, sizes)), grouped(xp, y, sizes))


def _of_bias(xp: Any, d_logits: Array, options: Options, rows: slice, columns: slice) -> Array | None:
    """The gradient of the bias of a block, in its shape (GRAD-5)."""
    if options.attn_bias is None:
        return None
    return summed_to(xp, d_logits, tuple(cut(options.attn_bias, rows, columns).shape))


def _of_sinks(xp: Any, soft: Softmax, delta: Array, options: Options, grad_lse: Array | None) -> Array | None:
    """The gradient of the sinks, (H,) (GRAD-8); the lse of an empty row is the sink (MASK-16)."""
    if soft.sink_weights is None:
        return None
    drained = soft.sink_weights * delta
    if grad_lse is not None:
        sinks = xp.reshape(options.sinks, (-1, 1, 1))
        of_empty = xp.where(sinks != -math.inf, -grad_lse, xp.zeros_like(grad_lse))
        if soft.weights.shape[-1] == 0:
            drained = of_empty
        elif soft.occupied is not None:
            drained = xp.where(soft.occupied, drained, of_empty)
    return -xp.sum(summed_to(xp, drained, delta.shape[-3:]), axis=(-2, -1))
