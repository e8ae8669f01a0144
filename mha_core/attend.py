"""Attention of heads that passed the checks: the first way that vouches for its result.

`torch_fused` computes a whole call by a framework's own kernel, `jax_blocks` one that is large where JAX compiles it.
Else the call is cut into pieces, and each is computed `in_place` by NumPy, or by an `online_softmax`. Whatever these
do not vouch for (NaN, Inf, weights, traced arrays, those that record a gradient) is computed by `exact`, which
always does.
"""

from typing import Any

import array_api_compat

from mha_core.arrays import beside, cast, compute_dtype, is_traced, writes_in_place
from mha_core.exact import exact
from mha_core.in_place import in_place
from mha_core.jax_blocks import jax_blocks
from mha_core.online_softmax import online_softmax
from mha_core.options import Options, Sizes
from mha_core.parts import Part, Piece, is_small, pieces_of
from mha_core.pool import each
from mha_core.result import Array, AttentionResult
from mha_core.torch_fused import is_fused, torch_fused


def attend(
    xp: Any, query: Array, key: Array, value: Array, options: Options, sizes: Sizes
) -> AttentionResult:
    """Output, lse, and the weights where asked for; the caller is `quiet`."""
    traced = is_traced(xp, query)
    whole = options.return_weights or traced
    blocks = jax_blocks(xp, query, key, value, options, sizes) if traced else None
    if blocks is not None:
        return blocks
    if not whole and is_fused(query, key, value, options, sizes):
        fused = torch_fused(xp, Part(query, key, value, options, sizes))
        if fused is not None:
            return fused
    dtype = compute_dtype(xp, query.dtype)
    part = Part(cast(xp, query, dtype), cast(xp, key, dtype), cast(xp, value, dtype), options, sizes)
    if whole or part.records or not array_api_compat.is_writeable_array(part.query):
        return exact(xp, part, slice(0, sizes.q_len), whole or part.records)
    return _in_pieces(xp, part)


def _in_pieces(xp: Any, part: Part) -> AttentionResult:
    """Piece by piece, each into its place."""
    sizes = part.sizes
    if is_small(sizes):
        return _of_piece(xp, Piece(part, slice(0, sizes.q_len), (...,)), None)
    groups = pieces_of(xp, part)
    first = groups[0][0]
    if first.part is part and len(groups) == 1:
        return _of_piece(xp, first, None)
    output = xp.empty(sizes.output, dtype=part.query.dtype, **beside(part.query))
    lse = (
        xp.empty(sizes.output[:-1], dtype=part.query.dtype, **beside(part.query))
        if part.options.return_lse
        else None
    )

    def compute(pieces: list[Piece]) -> None:
        for piece in pieces:
            place = output[piece.at]
            result = _of_piece(xp, piece, place)
            if result.output is not place:
                place[...] = result.output
            if lse is not None:
                lse[piece.at] = result.lse

    for _ in each(compute, groups, sizes, writes_in_place(xp, part.query)):
        pass
    return AttentionResult(output, lse=lse)


def _of_piece(xp: Any, piece: Piece, place: Array | None) -> AttentionResult:
    """A piece by the first way that vouches for it; it may write the output into its place."""
    result = in_place(xp, piece, place)
    if result is None:
        result = online_softmax(xp, piece)
    return exact(xp, piece.part, piece.rows) if result is None else result
