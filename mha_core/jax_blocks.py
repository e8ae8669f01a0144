"""Attention where JAX compiles it: two products where all is shown to be small, block by block where it is long.

Traced values are not at hand. So the compiled program itself chooses: where operands, bias and sinks are finite
and no product of them overflows, nothing but masks hides anything; else each block is computed by the exact way.
A block holds all keys that some rows see and is computed again for its derivative, so that memory grows with the
length and not with its square. Every transformation goes through: jit, grad, jvp, vmap.

JAX is never imported: the caller's arrays have put it into `sys.modules`.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from mha_core.arrays import cast, cast_bias, compute_dtype, is_spread, without_derivative
from mha_core.exact import attend_rows
from mha_core.head_gradients import HeadGradients
from mha_core.options import Options, Sizes, scale_of
from mha_core.parts import Part
from mha_core.result import Array, AttentionResult
from mha_core.softmax import capped, products, weighted_sums
from mha_core.values import split_values
from mha_core.visibility import Band, band_of, columns_of, visible_in

LARGE = 2**16
"""Logits from which the choice is worth compiling both ways."""
LONG = 2**21
"""Logits from which they are computed in blocks."""
BLOCK_ELEMENTS = {"cpu": 2**20}
"""Logits of a block by the kind of machine: 4 MiB in float32."""
BLOCK_ELEMENTS_ELSEWHERE = 2**26
BLOCK_ROWS = 32
"""Fewest rows of a block."""
SEGMENTS = 4
"""Parts of the rows of which each reads the keys that causality or a window leaves it."""
LIMIT = 1e30
"""Largest logit, bias, sink and value that are small: nothing made of them overflows."""
ROWS = ("mask", "attn_bias")
"""Options that may have a row a query."""
VARIABLES = ("attn_bias", "sinks")
"""Options that have a gradient."""
ARRAYS = ("mask", "attn_bias", "q_offset", "kv_lengths", "q_segments", "kv_segments", "sinks")


class Heads(NamedTuple):
    """Heads in the dtype to compute in."""

    query: Array
    """(..., H, rows, d_k), scaled."""
    key: Array
    """(..., G, kv_len, d_k)."""
    value: Array
    """(..., G, kv_len, d_v)."""


def jax_blocks(
    xp: Any, query: Array, key: Array, value: Array, options: Options, sizes: Sizes
) -> AttentionResult | None:
    """Output and, where asked for, lse; None for what is small, no array of JAX, or on several devices."""
    jax = _jax_for(query, options, sizes)
    if jax is None:
        return None
    arrays, scalars = _arrays_and_scalars(options)
    return AttentionResult(**_program(jax, xp, scalars, sizes)(query, key, value, arrays))


def jax_blocks_vjp(
    xp: Any, part: Part, grad: Array, with_output: bool, grad_lse: Array | None
) -> HeadGradients | None:
    """The gradients by JAX's own derivative of the blocks; None where `jax_blocks` gives none."""
    jax = _jax_for(part.query, part.options, part.sizes)
    if jax is None:
        return None
    arrays, scalars = _arrays_and_scalars(part.options._replace(return_lse=grad_lse is not None))
    grads = {"output": grad} | ({} if grad_lse is None else {"lse": grad_lse})
    found = _program_vjp(jax, xp, scalars, part.sizes, with_output)(
        Heads(part.query, part.key, part.value), arrays, grads
    )
    return HeadGradients(**found)


def _jax_for(query: Array, options: Options, sizes: Sizes) -> Any:
    """JAX, where a call is one for blocks; else None."""
    jax: Any = sys.modules.get("jax")
    if jax is None or not isinstance(query, jax.Array) or is_spread(query) or options.return_weights:
        return None
    known = all(isinstance(n, int) for n in sizes.logits)
    return jax if known and math.prod(sizes.logits) >= LARGE else None


def _arrays_and_scalars(options: Options) -> tuple[dict[str, Array], Options]:
    """The options that are arrays, by name, and the others, which a program is compiled for."""
    arrays = {name: x for name in ARRAYS if hasattr(x := getattr(options, name), "shape")}
    window = None if options.window is None else tuple(options.window)
    nothing: dict[str, Any] = dict.fromkeys((*arrays, "past_key", "past_value"))
    return arrays, options._replace(window=window, **nothing)


@functools.lru_cache(maxsize=256)
def _program(jax: Any, xp: Any, scalars: Options, sizes: Sizes) -> Callable[..., dict[str, Array]]:
    """What JAX compiles for arrays of some sizes."""

    def attend(query: Array, key: Array, value: Array, arrays: dict[str, Array]) -> dict[str, Array]:
        heads, arrays = _prepared(xp, scalars, sizes, Heads(query, key, value), arrays)

        def way(rows_of: Callable[..., AttentionResult], segments: int) -> Callable[..., dict[str, Array]]:
            def chosen(heads: Heads, arrays: dict[str, Array]) -> dict[str, Array]:
                return _by_segments(jax, xp, heads, scalars._replace(**arrays), sizes, rows_of, segments)

            return chosen

        is_small = _is_small(xp, heads, scalars._replace(**arrays))
        return jax.lax.cond(is_small, way(_small_rows, SEGMENTS), way(_exact_rows, 1), heads, arrays)

    return jax.jit(attend)


@functools.lru_cache(maxsize=256)
def _program_vjp(
    jax: Any, xp: Any, scalars: Options, sizes: Sizes, with_output: bool
) -> Callable[..., dict[str, Array | None]]:
    """What JAX compiles for the gradients of arrays of some sizes."""
    attend = _program(jax, xp, scalars, sizes)

    def gradients(heads: Heads, arrays: dict[str, Array], grads: dict[str, Array]) -> dict[str, Array | None]:
        variables = {name: x for name, x in arrays.items() if name in VARIABLES}
        constant = {name: x for name, x in arrays.items() if name not in VARIABLES}
        result, back = jax.vjp(lambda heads, some: attend(*heads, constant | some), heads, variables)
        d_heads, d_variables = back(grads)
        d_value = jax.lax.cond(
            xp.all(xp.isfinite(grads["output"])),
            lambda d_value, *_: d_value,
            lambda _, *given: _values_of_rows(jax, xp, scalars, sizes, *given),
            d_heads.value,
            heads,
            arrays,
            grads["output"],
        )
        given = {name: d_variables.get(name) for name in VARIABLES}
        output = result["output"] if with_output else None
        return d_heads._asdict() | given | {"value": d_value, "output": output}

    return jax.jit(gradients)


def _values_of_rows(
    jax: Any, xp: Any, scalars: Options, sizes: Sizes, heads: Heads, arrays: dict[str, Array], grad: Array
) -> Array:
    """The gradient of the values, (..., G, kv_len, d_v), where that of a row is not finite: it hits what it sees."""
    heads, arrays = _prepared(xp, scalars, sizes, heads, arrays)
    options = scalars._replace(**arrays, return_lse=False)
    grads = split_values(xp, grad)

    def back(rows_of: Callable[..., AttentionResult]) -> Callable[[Array], tuple[Array]]:
        def attend(value: Array) -> Array:
            given = heads._replace(value=value)
            return _by_segments(jax, xp, given, options, sizes, rows_of, 1)["output"]

        found: Callable[[Array], tuple[Array]] = jax.vjp(attend, heads.value)[1]
        return found

    (d_value,), seen = back(_exact_rows)(grads.finite), back(_sums_of_seen)
    for marks, number in ((grads.raising, math.inf), (grads.lowering, -math.inf)):
        d_value = xp.where(seen(marks)[0] > 0, d_value + number, d_value)
    return d_value


def _prepared(
    xp: Any, scalars: Options, sizes: Sizes, heads: Heads, arrays: dict[str, Array]
) -> tuple[Heads, dict[str, Array]]:
    """Heads and bias in the dtype to compute in, the query scaled."""
    dtype = compute_dtype(xp, heads.query.dtype)
    query, key, value = (cast(xp, x, dtype) for x in heads)
    if "attn_bias" in arrays:
        arrays = arrays | {"attn_bias": cast_bias(xp, arrays["attn_bias"], dtype)}
    return Heads(query * scale_of(scalars, sizes), key, value), arrays


def _is_small(xp: Any, heads: Heads, options: Options) -> Array:
    """Whether nothing is NaN or Inf, nor can become so: bool, (). All are compared: a maximum of XLA leaves NaN out."""
    norms = [xp.sqrt(xp.sum(x * x, axis=-1)) for x in (heads.query, heads.key)]
    sizes = [*norms, xp.abs(heads.value)]
    if options.attn_bias is not None:
        bias = options.attn_bias
        sizes.append(xp.abs(xp.where(bias == -math.inf, 0.0, bias)))
    if options.sinks is not None:
        sizes.append(cast(xp, xp.abs(options.sinks), heads.query.dtype))
    small = [xp.max(norms[0]) * xp.max(norms[1]) <= LIMIT, *(xp.all(x <= LIMIT) for x in sizes)]
    return functools.reduce(xp.logical_and, small)


def _by_segments(
    jax: Any,
    xp: Any,
    heads: Heads,
    options: Options,
    sizes: Sizes,
    rows_of: Callable[..., AttentionResult],
    segments: int,
) -> dict[str, Array]:
    """The result by name, segment by segment of the rows."""
    step = _block_rows(jax, sizes)
    band = band_of(xp, options, sizes, heads.query)
    if not any(isinstance(side, int) for side in band):
        segments = 1
    blocks = sizes.q_len // step
    edges = sorted({step * (blocks * n // segments) for n in range(segments)} | {sizes.q_len})
    results = [
        _by_blocks(jax, xp, heads, options, sizes, rows_of, slice(start, stop), step, band)
        for start, stop in itertools.pairwise(edges)
    ]
    output = _side_by_side(xp, [result.output for result in results], -2)
    return {"output": output} | (
        {"lse": _side_by_side(xp, [result.lse for result in results], -1)} if options.return_lse else {}
    )


def _block_rows(jax: Any, sizes: Sizes) -> int:
    """The rows of a block: all, or as many as share them evenly."""
    logits = math.prod(sizes.logits)
    if logits < LONG:
        return sizes.q_len
    elements = BLOCK_ELEMENTS.get(jax.default_backend(), BLOCK_ELEMENTS_ELSEWHERE)
    rows = max(BLOCK_ROWS, elements * sizes.q_len // logits)
    return -(-sizes.q_len // -(-sizes.q_len // rows))


def _by_blocks(
    jax: Any,
    xp: Any,
    heads: Heads,
    options: Options,
    sizes: Sizes,
    rows_of: Callable[..., AttentionResult],
    rows: slice,
    step: int,
    band: Band,
) -> AttentionResult:
    """Some rows, as many at a time; those that are left over after the others."""
    columns = columns_of(band, sizes, rows)
    named = {"query": heads.query} | {name: x for name in ROWS if (x := getattr(options, name)) is not None}
    of_rows = {name: x for name, x in named.items() if x.shape[-2] != 1 or name == "query"}
    if options.q_segments is not None:
        of_rows["q_segments"] = options.q_segments[..., None]

    def compute(start: int | Array, given: dict[str, Array]) -> AttentionResult:
        query = given["query"]
        some = {name: x for name, x in given.items() if name != "query"}
        if "q_segments" in some:
            some["q_segments"] = some["q_segments"][..., 0]
        moved = Band(*(None if side is None else side + start for side in band))
        number = query.shape[-2]
        part = Part(query, heads.key, heads.value, options._replace(**some), sizes.with_rows(number))
        return rows_of(xp, part, slice(0, number), columns, moved)

    def cut(start: int, stop: int) -> dict[str, Array]:
        return {name: x[..., start:stop, :] for name, x in of_rows.items()}

    again = jax.checkpoint(lambda at: compute(*at), prevent_cse=False)
    count = (rows.stop - rows.start) // step
    if count < 2:
        return again((rows.start, cut(rows.start, rows.stop)))
    stop = rows.start + count * step
    xs = {name: _stacked(xp, x, count) for name, x in cut(rows.start, stop).items()}
    starts = rows.start + step * xp.arange(count)
    _, stacks = jax.lax.scan(lambda carry, at: (carry, again(at)), None, (starts, xs))
    output, lse = _unstacked(xp, stacks.output), _unstacked(xp, stacks.lse[..., None])[..., 0]
    if stop == rows.stop:
        return AttentionResult(output, lse=lse)
    rest = again((stop, cut(stop, rows.stop)))
    return AttentionResult(
        _side_by_side(xp, [output, rest.output], -2), lse=_side_by_side(xp, [lse, rest.lse], -1)
    )


def _small_rows(xp: Any, part: Part, rows: slice, columns: slice, band: Band) -> AttentionResult:
    """A block of rows where all is small; the sums are divided, not the weights."""
    options, sizes = part.options, part.sizes
    visible = visible_in(xp, options, sizes, band, rows, columns, part.query)
    key, value = part.key[..., columns, :], part.value[..., columns, :]
    if columns.start == columns.stop:
        return _exact_rows(xp, part, rows, columns, band)
    logits, _ = capped(xp, products(xp, part.query, key, sizes), options)
    if options.attn_bias is not None:
        bias = options.attn_bias
        logits = logits + (bias if bias.shape[-1] == 1 else bias[..., columns])
    return _divided(xp, logits, value, options, sizes, visible)


def _divided(
    xp: Any, logits: Array, value: Array, options: Options, sizes: Sizes, visible: Array | None
) -> AttentionResult:
    """The sums of the values over the denominators, and the logs of these."""
    if visible is not None:
        logits = xp.where(visible, logits, -math.inf)
    highest = xp.max(logits, axis=-1, keepdims=True)  # -Inf where a row sees nothing: all else is small
    occupied = None if visible is None else highest != -math.inf
    empty = -math.inf
    if options.sinks is not None:
        empty = xp.reshape(cast(xp, options.sinks, logits.dtype), (-1, 1, 1))
        highest = xp.maximum(highest, empty)  # ATT-12
    elif occupied is not None:
        highest = xp.where(occupied, highest, 0.0)
    highest = without_derivative(xp, highest)
    exponentials = xp.exp(logits - highest)
    total = xp.sum(exponentials, axis=-1, keepdims=True)
    if options.sinks is not None:
        total = total + xp.exp(empty - highest)
    if occupied is not None:
        total = xp.where(occupied, total, 1.0)  # MASK-3
    output = weighted_sums(xp, exponentials, value, sizes) / total
    lse = highest + xp.log(total)
    if occupied is not None:
        output = xp.where(occupied, output, 0.0)  # it is 0 already, and so is its derivative (GRAD-4)
        lse = xp.where(occupied, lse, empty)  # MASK-16
    return AttentionResult(output, lse=lse[..., 0])


def _exact_rows(xp: Any, part: Part, rows: slice, columns: slice, band: Band) -> AttentionResult:
    """A block of rows, whatever it holds."""
    return attend_rows(xp, part.query, split_values(xp, part.value), part, rows, band)


def _sums_of_seen(xp: Any, part: Part, rows: slice, columns: slice, band: Band) -> AttentionResult:
    """The sums of the values that a block of rows sees; as lse, 0."""
    options, sizes = part.options, part.sizes
    visible = visible_in(xp, options, sizes, band, rows, columns, part.query)
    dtype = part.value.dtype
    ones = xp.ones((*sizes.logits[:-1], columns.stop - columns.start), dtype=dtype)
    seen = ones if visible is None else xp.where(visible, ones, 0.0)
    sums = weighted_sums(xp, seen, part.value[..., columns, :], sizes)
    return AttentionResult(sums, lse=xp.zeros(sizes.logits[:-1], dtype=dtype))


def _stacked(xp: Any, x: Array, count: int) -> Array:
    """(..., count * rows, n) as (count, ..., rows, n)."""
    return xp.moveaxis(xp.reshape(x, (*x.shape[:-2], count, -1, x.shape[-1])), -3, 0)


def _unstacked(xp: Any, x: Array) -> Array:
    """The way back."""
    x = xp.moveaxis(x, 0, -3)
    return xp.reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))


def _side_by_side(xp: Any, xs: list[Array], axis: int) -> Array:
    """Arrays along an axis."""
    return xs[0] if len(xs) == 1 else xp.concat(xs, axis=axis)
