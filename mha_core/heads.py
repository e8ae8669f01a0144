"""What is done to heads around attention: the past in front, groups merged, results in the operands' dtype."""

from typing import Any

from mha_core.arrays import cast
from mha_core.options import Options, Sizes
from mha_core.result import Array, AttentionResult


def with_past(xp: Any, past: Array | None, new: Array) -> Array:
    """The past in front of the new heads, (..., G, past + new, d), in the dtype of the new ones (CACHE-1)."""
    return new if past is None else xp.concat([cast(xp, past, new.dtype), new], axis=-2)


def without_past(past: Array | None, total: Array) -> Array:
    """The new heads of what lies along the total length (GRAD-13)."""
    return total if past is None else total[..., past.shape[-2] :, :]


def grouped(xp: Any, x: Array, sizes: Sizes) -> Array:
    """(..., H, n, d) as (..., G, H // G * n, d): heads that share a key become rows of it (HEAD-2)."""
    group = sizes.num_heads // sizes.num_kv_heads
    if group == 1:
        return x
    *_, n, d = x.shape
    x = xp.reshape(x, (*sizes.batch, sizes.num_kv_heads, group, n, d))  # in two steps, for arrays in chunks
    return xp.reshape(x, (*sizes.batch, sizes.num_kv_heads, group * n, d))


def ungrouped(xp: Any, x: Array, sizes: Sizes) -> Array:
    """(..., G, H // G * n, d) as (..., H, n, d), the way back."""
    group = sizes.num_heads // sizes.num_kv_heads
    if group == 1:
        return x
    *_, rows, d = x.shape
    x = xp.reshape(x, (*sizes.batch, sizes.num_kv_heads, group, rows // group, d))
    return xp.reshape(x, (*sizes.batch, sizes.num_heads, rows // group, d))


def result_of(
    xp: Any, result: AttentionResult, key: Array, value: Array, dtype: Any, options: Options
) -> Array | AttentionResult:
    """What was asked for, in the operands' dtype; lse in the dtype computed in (DTYPE-1, DTYPE-6)."""
    output = cast(xp, result.output, dtype)
    if options.only_output:
        return output
    past = options.past_key is not None
    return AttentionResult(
        output=output,
        weights=cast(xp, result.weights, dtype) if options.return_weights else None,
        lse=result.lse if options.return_lse else None,
        present_key=cast(xp, key, dtype) if past else None,
        present_value=cast(xp, value, dtype) if past else None,
    )
