"""Attention of parts of different lengths, packed one behind the other without padding."""

import math
from collections.abc import Sequence
from typing import Any

from mha_core.arrays import integers, quiet
from mha_core.attend import attend
from mha_core.checks import check_operands, check_options
from mha_core.heads import result_of
from mha_core.jax_at_once import attend_at_once
from mha_core.options import Options, Sizes
from mha_core.reductions import Parts, alike, mask_of_parts, rows_of_parts
from mha_core.result import Array, AttentionResult
from mha_core.serving_checks import (
    check_offset,
    check_offset_given,
    check_starts,
    check_values_of_starts,
    packed_sizes,
)


def packed_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    q_starts: Array,
    kv_starts: Array,
    is_causal: bool = False,
    q_offset: int | Array | None = None,
    window: Sequence[int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
) -> Array | AttentionResult:
    """`scaled_dot_product_attention` of each part on its own slices (PACK-1).

    Part i has the query rows `q_starts[i]` to `q_starts[i + 1]` and the keys `kv_starts[i]` to `kv_starts[i + 1]`;
    places, window and offset count inside it (PACK-2). Parts of equal sizes are computed together, and nothing is
    held that no part sees. Rows that belong to no part are not read; the output is 0 there, and the lse -inf (PACK-5).

    Where the starts cannot be read, traced by jax.jit for instance, the parts become a mask of all rows by all keys;
    what the starts hold is not checked then, and is_causal and window need q_offset.

    Args:
        query: (H, T_q, d_k), the rows of all parts one behind the other.
        key: (G, T_k, d_k).
        value: (G, T_k, d_v).
        q_starts: int32 or int64 array (n + 1,), first 0, never falling, last at most T_q.
        kv_starts: likewise, last at most T_k.
        is_causal: see `scaled_dot_product_attention`, as for all that follow.
        q_offset: int, or int array () or (n,), one a part; needed for is_causal or window where the lengths of a
            part differ, else 0 (PACK-3).
        window: see there.
        scale: see there.
        softcap: see there.
        sinks: see there.
        return_lse: see there.

    Returns:
        The output, (H, T_q, d_v); with return_lse an AttentionResult, its lse (H, T_q).

    Raises:
        TypeError: something is no array, of another library, or of a wrong dtype (DTYPE-2, DTYPE-7).
        ValueError: shapes disagree, starts do not fit the rows, or an option is wrong (PACK-6, SHAPE-5, MASK-7).

    >>> import numpy as np
    >>> query, key, value = np.zeros((1, 3, 1)), np.zeros((1, 4, 1)), np.asarray([[[1.0], [3.0], [5.0], [9.0]]])
    >>> packed_attention(query, key, value, q_starts=np.asarray([0, 1, 3]), kv_starts=np.asarray([0, 2, 4]))
    array([[[2.],
            [7.],
            [7.]]])
    """
    options = _options(is_causal, q_offset, window, scale, softcap, sinks, return_lse)
    xp = check_operands({"query": query, "key": key, "value": value}, {"sinks": sinks})
    sizes = packed_sizes(query, key, value, options)
    count = check_starts(query, {"q_starts": q_starts, "kv_starts": kv_starts})
    check_offset(query, options, count, "DTYPE-7")
    check_options(query, options._replace(q_offset=0), sizes)
    q_read = integers(xp, q_starts)
    kv_read = q_read if kv_starts is q_starts else integers(xp, kv_starts)
    with quiet(xp):
        if q_read is None or kv_read is None:
            if q_starts is not kv_starts:
                check_offset_given(options, "starts that cannot be read", "MASK-7")
            mask = mask_of_parts(xp, q_starts, kv_starts, options, sizes.q_len, sizes.kv_len)
            masked = options._replace(mask=mask, is_causal=False, window=None, q_offset=None)
            result = attend(xp, query, key, value, masked, sizes)
        else:
            check_values_of_starts("q_starts", q_read, sizes.q_len)
            check_values_of_starts("kv_starts", kv_read, sizes.kv_len)
            result = _by_part(xp, (query, key, value), (Parts(q_read), Parts(kv_read)), options, sizes)
        return result_of(xp, result, key, value, query.dtype, options)


def _options(
    is_causal: bool,
    q_offset: int | Array | None,
    window: Sequence[int | None] | None,
    scale: float | None,
    softcap: float | None,
    sinks: Array | None,
    return_lse: bool,
) -> Options:
    """The options of a part."""
    return Options(
        mask=None,
        attn_bias=None,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        kv_lengths=None,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        past_key=None,
        past_value=None,
        return_lse=return_lse,
    )


def _by_part(
    xp: Any, heads: tuple[Array, Array, Array], parts: tuple[Parts, Parts], options: Options, sizes: Sizes
) -> AttentionResult:
    """Each part as a call of its own, those of equal sizes and offsets as one."""
    queries, keys = parts
    offsets = _offsets(xp, options.q_offset, len(queries))
    for i in range(len(queries)):
        q_len, kv_len = queries.length(i), keys.length(i)
        if q_len != kv_len:
            check_offset_given(options, f"part {i} of q_len={q_len} and kv_len={kv_len}", "MASK-7")
    kinds = [(queries.length(i), keys.length(i), _kind(offset)) for i, offset in enumerate(offsets)]
    groups = alike(kinds, len(kinds))
    results = []
    for group in groups:
        query, key, value = (
            of.stacked(xp, x, group) for of, x in zip((queries, keys, keys), heads, strict=True)
        )
        some = sizes._replace(batch=(len(group),), q_len=query.shape[-2], kv_len=key.shape[-2])
        of_group = options._replace(q_offset=_together(xp, [offsets[i] for i in group]))
        results.append(attend_at_once(xp, (query, key, value), of_group, some))
    if not groups:  # no part: as one of no rows
        query, key, value = (x[None, :, :0, :] for x in heads)
        none = sizes._replace(batch=(1,), q_len=0, kv_len=0)
        groups, results = [[]], [attend(xp, query, key, value, options._replace(q_offset=0), none)]
    outputs = [result.output for result in results]
    output = rows_of_parts(xp, queries, groups, outputs, sizes.q_len, 0.0)
    if not options.return_lse:
        return AttentionResult(output)
    lses = [result.lse for result in results]
    return AttentionResult(output, lse=rows_of_parts(xp, queries, groups, lses, sizes.q_len, -math.inf))


def _offsets(xp: Any, offset: Any, count: int) -> list[Any]:
    """One offset a part, as Python's where it can be read."""
    if offset is None or isinstance(offset, int):
        return [offset] * count
    read = integers(xp, offset)
    if isinstance(read, int):
        return [read] * count
    if read is not None:
        return list(read)
    return [offset if offset.shape == () else offset[i, ...] for i in range(count)]


def _kind(offset: Any) -> Any:
    """What parts of one call have in common: an offset that is known, or that it is not."""
    return offset if offset is None or isinstance(offset, int) else "array"


def _together(xp: Any, offsets: list[Any]) -> Any:
    """The offsets of a group as one option."""
    return offsets[0] if _kind(offsets[0]) != "array" else xp.stack(offsets, axis=0)
