"""What both operations do around attention: the past in front, the results in the operands' dtype."""

from typing import Any

from mha_core.arrays import cast
from mha_core.options import Options
from mha_core.result import Array, AttentionResult


def with_past(xp: Any, past: Array | None, new: Array) -> Array:
    """The past in front of the new heads, (..., G, past + new, d), in the dtype of the new ones (CACHE-1)."""
    return new if past is None else xp.concat([cast(xp, past, new.dtype), new], axis=-2)


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
