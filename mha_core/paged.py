"""Attention over keys and values that lie in pages."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mha_core.arrays import beside, cast, compute_dtype, integers, quiet
from mha_core.attend import attend
from mha_core.checks import check_operands, check_options
from mha_core.jax_at_once import attend_at_once
from mha_core.options import Options, Sizes
from mha_core.pages import Pages, appended
from mha_core.reductions import alike, heads_of_pages, table_in_use
from mha_core.result import Array, AttentionResult
from mha_core.serving_checks import check_offset, check_offset_given, check_values_of_table, page_sizes
from mha_core.visibility import band_of, columns_of, cut

GATHERED = 2**22
"""Elements of keys and values to gather at a time, if entries can be told apart: 16 MiB in float32."""


class PagedResult(NamedTuple):
    """The output and what was asked for in addition to it; None where it was not."""

    output: Array
    """(B, H, q_len, d_v)."""
    lse: Array | None = None
    """(B, H, q_len), the log of the softmax denominator."""
    key_pages: Array | None = None
    """(N, P, G, d_k), with what was written."""
    value_pages: Array | None = None
    """(N, P, G, d_v), with what was written."""


def paged_attention(
    query: Array,
    key_pages: Array,
    value_pages: Array,
    *,
    page_table: Array,
    kv_lengths: Array,
    mask: Array | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    q_offset: int | Array | None = None,
    window: Sequence[int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
    new_key: Array | None = None,
    new_value: Array | None = None,
    slots: Array | None = None,
) -> Array | PagedResult:
    """`scaled_dot_product_attention` with the keys and values that a table of pages names (PAGE-1).

    Key t of entry b is place `t % P` of page `page_table[b, t // P]`, if `t < kv_lengths[b]`; the options see `M * P`
    keys. Other places, pages and entries of the table are not read (PAGE-2). Entries are gathered one
    after the other, those of equal length together, and of each the pages alone that its window and causality
    leave.

    With new_key, new_value and slots these are written first, as `append_to_pages` does, and then read (PAGE-10).

    Where table or lengths cannot be read, traced by jax.jit for instance, all M pages of all entries are gathered,
    page 0 in place of those behind the length, and what table and lengths hold is not checked.

    Args:
        query: (B, H, q_len, d_k).
        key_pages: (N, P, G, d_k); query head h reads kv head h // (H // G).
        value_pages: (N, P, G, d_v).
        page_table: int32 or int64 array (B, M), numbers of pages; one page may stand in it often (PAGE-3).
        kv_lengths: int32 or int64 array (B,), how many keys each entry has, at most M * P.
        mask: see `scaled_dot_product_attention`; rank 2 or 4, broadcasting to (B, H, q_len, M * P).
        attn_bias: likewise.
        is_causal: see there, as for all that follow.
        q_offset: int, or int array () or (B,); needed for is_causal or window (PAGE-5).
        window: see there.
        scale: see there.
        softcap: see there.
        sinks: see there.
        return_lse: see there.
        new_key: (T, G, d_k), given with new_value and slots or not at all.
        new_value: (T, G, d_v).
        slots: int32 or int64 array (T,), see `append_to_pages`.

    Returns:
        The output, (B, H, q_len, d_v); with return_lse or slots a PagedResult.

    Raises:
        TypeError: something is no array, of another library, or of a wrong dtype (DTYPE-2, DTYPE-7).
        ValueError: shapes disagree, a length or a page that is read does not exist, or an option is wrong
            (PAGE-5, PAGE-6, PAGE-11, SHAPE-5).

    >>> import numpy as np
    >>> pages = np.asarray([[[[1.0]], [[np.nan]]], [[[3.0]], [[5.0]]]])  # N = 2, P = 2
    >>> table, query = np.asarray([[1, 0, -1]]), np.zeros((1, 1, 1, 1))
    >>> paged_attention(query, pages, pages, page_table=table, kv_lengths=np.asarray([3]))
    array([[[[3.]]]])
    """
    options = Options(
        mask=mask,
        attn_bias=attn_bias,
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
    new = {"new_key": new_key, "new_value": new_value}
    xp = check_operands(
        {"query": query, "key_pages": key_pages, "value_pages": value_pages}, {**new, "sinks": sinks}
    )
    sizes = page_sizes(query, key_pages, value_pages, page_table, kv_lengths, options)
    check_offset(query, options, sizes.batch[0], "DTYPE-7")
    check_offset_given(options, "keys in pages", "PAGE-5")
    check_options(query, options._replace(q_offset=0), sizes)
    missing = [name for name, x in {**new, "slots": slots}.items() if x is None]
    if 0 < len(missing) < 3:
        raise ValueError(f"{missing[0]} is None but new rows are given: all three or none (PAGE-11)")
    pages = Pages(key_pages, value_pages)
    if slots is not None:
        pages = appended(xp, key_pages, value_pages, new_key, new_value, slots)
    with quiet(xp):
        result = _attended(xp, query, pages, page_table, kv_lengths, options, sizes)
        output = cast(xp, result.output, query.dtype)
    if slots is None and not return_lse:
        return output
    written = (None, None) if slots is None else pages
    return PagedResult(output, result.lse if return_lse else None, *written)


def _attended(
    xp: Any, query: Array, pages: Pages, page_table: Array, kv_lengths: Array, options: Options, sizes: Sizes
) -> AttentionResult:
    """The output and the lse of all entries."""
    table, lengths, offsets = integers(xp, page_table), integers(xp, kv_lengths), options.q_offset
    offsets = offsets if offsets is None or isinstance(offsets, int) else integers(xp, offsets)
    if table is None or lengths is None or (offsets is None and options.q_offset is not None):
        in_use = table_in_use(xp, page_table, kv_lengths, pages.key_pages.shape[1])
        key, value = (heads_of_pages(xp, x, in_use) for x in pages)
        return attend(xp, query, key, value, options._replace(kv_lengths=kv_lengths), sizes)
    count, size = pages.key_pages.shape[:2]
    check_values_of_table(table, lengths, count, size, sizes.kv_len)
    places = [
        _place(xp, options._replace(q_offset=offset), sizes, length, size)
        for offset, length in zip(_each(offsets, sizes.batch[0]), lengths, strict=True)
    ]
    masked = options.mask is not None or options.attn_bias is not None
    kinds = [(place.kv_len, place.offset, place.first if masked else 0) for place in places]
    longest = max((place.kv_len for place in places), default=0)
    at_a_time = GATHERED // max(1, longest * sizes.num_kv_heads * (sizes.d_k + sizes.d_v))
    groups = alike(kinds, max(1, at_a_time))
    call = _Call(query, pages, page_table, options, sizes)
    results = [_of_group(xp, call, group, [places[b] for b in group]) for group in groups]
    outputs = _in_order(xp, groups, [result.output for result in results], sizes.output, query)
    if not options.return_lse:
        return AttentionResult(outputs)
    lses = _in_order(xp, groups, [result.lse for result in results], sizes.output[:-1], query)
    return AttentionResult(outputs, lse=lses)


class _Call(NamedTuple):
    """A call on pages that passed the checks."""

    query: Array
    pages: Pages
    page_table: Array
    options: Options
    sizes: Sizes


class _Place(NamedTuple):
    """The keys of an entry that some query of it may see."""

    first: int
    """The column of the table with the page of the first."""
    kv_len: int
    """How many there are from that page on."""
    offset: int | None
    """Where the first query stands among them."""


def _each(offsets: Any, count: int) -> list[Any]:
    """One offset an entry."""
    return offsets if isinstance(offsets, list) else [offsets] * count


def _place(xp: Any, options: Options, sizes: Sizes, length: int, size: int) -> _Place:
    """The place of one entry, whose offset is an int or None."""
    sizes, offset = sizes._replace(kv_len=max(0, length)), options.q_offset
    columns = columns_of(band_of(xp, options, sizes, None), sizes, slice(0, sizes.q_len))
    first = 0 if columns.start >= columns.stop else columns.start // size
    kv_len = 0 if columns.start >= columns.stop else columns.stop - first * size
    return _Place(first, kv_len, int(offset) - first * size if isinstance(offset, int) else None)


def _of_group(xp: Any, call: _Call, group: list[int], places: list[_Place]) -> AttentionResult:
    """Entries that see equally many keys, from the same place on where a mask tells places apart."""
    options, (first, kv_len, offset) = call.options, places[0]
    size = call.pages.key_pages.shape[1]
    many = -(-kv_len // size)
    table = xp.stack(
        [call.page_table[b, p.first : p.first + many] for b, p in zip(group, places, strict=True)]
    )
    key, value = (heads_of_pages(xp, x, table)[..., :kv_len, :] for x in call.pages)
    columns = slice(first * size, first * size + kv_len)

    def of_group(x: Array | None) -> Array | None:
        if x is None:
            return None
        x = x if len(x.shape) == 2 or x.shape[0] == 1 else _some(xp, x, group)
        return cut(x, slice(None), columns)

    options = options._replace(
        mask=of_group(options.mask), attn_bias=of_group(options.attn_bias), q_offset=offset
    )
    sizes = call.sizes._replace(batch=(len(group),), kv_len=kv_len)
    return attend_at_once(xp, (_some(xp, call.query, group), key, value), options, sizes)


def _some(xp: Any, x: Array, group: list[int]) -> Array:
    """Entries of (B, ...); a view where they lie side by side."""
    if group[-1] - group[0] == len(group) - 1:
        return x[group[0] : group[-1] + 1, ...]
    return xp.stack([x[b, ...] for b in group], axis=0)


def _in_order(
    xp: Any, groups: list[list[int]], results: list[Array], shape: tuple[int, ...], query: Array
) -> Array:
    """Results of groups of entries, (entries, ...), in the order of the entries."""
    if not groups:
        return xp.zeros(shape, dtype=compute_dtype(xp, query.dtype), **beside(query))
    if len(groups) == 1:
        return results[0]
    places = {b: (n, k) for n, group in enumerate(groups) for k, b in enumerate(group)}
    return xp.stack([results[n][k, ...] for n, k in (places[b] for b in range(shape[0]))], axis=0)
