"""Partial results over disjoint keys, joined into the result over all of them."""

import math
from collections.abc import Sequence
from typing import Any

from mha_core.arrays import cast, compute_dtype, dtype_name, finite, quiet, without_derivative
from mha_core.checks import check_agree, check_array, check_operands, shape_of
from mha_core.result import Array, AttentionResult
from mha_core.softmax import of_empty_rows


def merge_attention(
    outputs: Sequence[Array], lses: Sequence[Array], sinks: Array | None = None
) -> AttentionResult:
    """The attention over all keys from that over parts of them, computed without sinks (MERGE-1, MERGE-3).

    Each part is weighted by exp(lse); one that holds no visible key (lse -inf) counts for nothing, and a row
    without any is an empty row, whose lse is the sink or -inf (MERGE-4, MASK-16). The result is a part itself, to
    be merged further, until sinks have been given.

    Args:
        outputs: one or more of (..., H, q_len, d_v), of one dtype.
        lses: as many of (..., H, q_len), of that dtype or, for 16-bit outputs, float32 (MERGE-2).
        sinks: (H,), of the outputs' dtype (MERGE-3).

    Returns:
        An AttentionResult with output, (..., H, q_len, d_v) in the outputs' dtype, and lse, (..., H, q_len),
        float32 for 16-bit outputs.

    Raises:
        TypeError: something is no array, of another library, or of the wrong dtype (DTYPE-2, MERGE-2).
        ValueError: no part, or parts that disagree (MERGE-6).

    >>> import numpy as np
    >>> ones = np.ones((1, 1, 1))
    >>> merged = merge_attention([ones, 3 * ones], [np.zeros((1, 1)), np.zeros((1, 1))])
    >>> merged.output
    array([[[2.]]])
    """
    xp = _check_parts(outputs, lses, sinks)
    dtype = compute_dtype(xp, outputs[0].dtype)
    with quiet(xp):
        terms = [xp.expand_dims(cast(xp, lse, dtype), axis=-1) for lse in lses]  # (..., H, q_len, 1)
        occupied = terms[0] != -math.inf
        for term in terms[1:]:
            occupied = xp.logical_or(occupied, term != -math.inf)
        empty: Any = -math.inf
        if sinks is not None:
            terms.append(xp.reshape(cast(xp, sinks, dtype), (-1, 1, 1)))
            empty = of_empty_rows(xp, terms[-1])
        highest = terms[0]
        for term in terms[1:]:
            highest = xp.maximum(highest, term)
        highest = without_derivative(xp, xp.where(occupied, highest, 0.0))
        shares = [xp.exp(term - highest) for term in terms]
        total = xp.where(occupied, sum(shares[1:], shares[0]), 1.0)
        output = sum(
            _contribution(xp, cast(xp, part, dtype), share / total, term)
            for part, share, term in zip(outputs, shares, terms, strict=False)  # the sinks have no output
        )
        lse = xp.where(occupied, highest + xp.log(total), empty)  # MASK-16
    return AttentionResult(cast(xp, output, outputs[0].dtype), lse=lse[..., 0])


def _contribution(xp: Any, part: Array, weight: Array, lse: Array) -> Array:
    """A part's share of the output, where NaN and Inf survive any weight and an empty part gives nothing."""
    share = xp.where(xp.isfinite(part), finite(xp, part) * weight, part)
    return xp.where(lse == -math.inf, 0.0, share)


def _check_parts(outputs: Sequence[Array], lses: Sequence[Array], sinks: Array | None) -> Any:
    """The namespace of parts that agree."""
    for name, x in (("outputs", outputs), ("lses", lses)):
        if not isinstance(x, Sequence):
            raise TypeError(f"{name} is a {type(x).__name__} but needs a list of arrays (MERGE-6)")
    if not outputs or len(outputs) != len(lses):
        raise ValueError(
            f"{len(outputs)} outputs and {len(lses)} lses but as many, at least 1, are needed (MERGE-6)"
        )
    xp = check_operands({f"outputs[{i}]": x for i, x in enumerate(outputs)}, {"sinks": sinks})
    first = outputs[0]
    if len(first.shape) < 3:
        raise ValueError(
            f"outputs[0] has shape {shape_of(first)} but needs heads, length and width (MERGE-6)"
        )
    for i, (output, lse) in enumerate(zip(outputs, lses, strict=True)):
        check_array(f"lses[{i}]", lse, first, "MERGE-2")
        if lse.dtype not in (first.dtype, compute_dtype(xp, first.dtype)):
            given, wanted = dtype_name(lse.dtype), dtype_name(first.dtype)
            raise TypeError(f"lses[{i}] has dtype {given} but outputs have {wanted} (MERGE-2)")
        check_agree("shape", f"outputs[{i}]", shape_of(output), "outputs[0]", shape_of(first), "MERGE-6")
        check_agree("shape", f"lses[{i}]", shape_of(lse), "a row of outputs", shape_of(first)[:-1], "MERGE-6")
    if sinks is not None:
        check_agree("shape", "sinks", shape_of(sinks), "a head of outputs", first.shape[-3:-2], "MERGE-6")
    return xp
