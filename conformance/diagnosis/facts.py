"""What may be said of a row before it is asked: its dtype, what it is given, its sizes; as conditions in words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from math import prod

import numpy as np

from conformance.diagnosis.failing import Asked
from conformance.diagnosis.values import values
from conformance.names import (
    APPEND,
    LATENT,
    MERGE,
    MHA,
    MHA_VJP,
    OPTION_FEATURES,
    PAGED,
    SDPA,
    SDPA_VJP,
    SERVING,
)
from conformance.vectors.case import Array, Case

FEATURES = {
    "gqa": "where several query heads share a key head",
    "value_dim": "where d_v is not d_k",
    "broadcast": "where a mask or bias broadcasts",
    "empty": "where a query sees no key, or a size is 0",
    "strict_masking": "where NaN or infinity is hidden",
    "cache": "with a past",
    "segments": "with segments",
}
"""Features that are no option of their own, in words."""
SIZES = {
    "q_len": ("query", "queries"),
    "kv_len": ("key", "keys"),
    "d_k": ("d_k", "d_k"),
    "d_v": ("d_v", "d_v"),
    "heads": ("query head", "query heads"),
    "batch": ("batch entry", "batch entries"),
}
PRODUCTS = {
    "q_len times query heads of a key head": ("q_len", "group"),
    "batch entries times query heads": ("batch", "heads"),
    "batch entries times key heads": ("batch", "kv_heads"),
    "batch entries times queries": ("batch", "q_len"),
    "batch entries times keys": ("batch", "kv_len"),
    "query heads times queries": ("heads", "q_len"),
    "queries times keys": ("q_len", "kv_len"),
    "heads times d_k": ("heads", "d_k"),
    "batch entries times heads times queries": ("batch", "heads", "q_len"),
}
"""Sizes that kernels count together, such as packed rows, blocks of a grid, slots of a pool."""
TILES = (4, 8, 16, 32, 64, 128)
"""Numbers of keys or queries that kernels take at once."""
WIDTHS = (8, 16, 32, 64)
"""Numbers of channels that kernels take at once."""
FEW = (2, 8)
"""Keys or queries in the last tile below which it may be treated in another way."""


def conditions(asked: Sequence[Asked], failing: Array) -> Iterator[tuple[str, Array, int]]:
    """Conditions in words, each with the rows (n,) that it holds for; no two hold for the same rows.

    `failing` says of each row whether it fails: the limit of a size lies where the failing ones begin or end.
    The last says how rare a condition is: one on what an option holds more than that it is given, one on sizes most.
    """
    cases = [each.case for each in asked]
    of = [sizes(case) for case in cases]
    seen = set()
    kinds = (0, _usual(asked, cases, of, failing)), (1, values(cases, of)), (3, _products(of, failing))
    for rare, some in kinds:
        for words, rows in some:
            if rows.any() and not rows.all() and rows.tobytes() not in seen:
                seen.add(rows.tobytes())
                yield words, rows, rare


def _usual(
    asked: Sequence[Asked], cases: Sequence[Case], of: Sequence[Mapping[str, int]], failing: Array
) -> Iterator[tuple[str, Array]]:
    dtypes = np.array([each.dtype for each in asked])
    for number in (1, 2):
        for some in combinations(dict.fromkeys(dtypes.tolist()), number):
            yield f"at {' and '.join(some)}", np.isin(dtypes, some)
    yield "in gradients", _where(case.gradients for case in cases)
    yield "in the layer", _where(case.operation in (MHA, MHA_VJP) for case in cases)
    yield "in scaled_dot_product_attention", _where(case.operation in (SDPA, SDPA_VJP) for case in cases)
    for operation in SERVING:
        yield f"in {operation}", _where(case.operation == operation for case in cases)
    yield from _given(cases)
    yield from _sizes(of, failing)


def _given(cases: Sequence[Case]) -> Iterator[tuple[str, Array]]:
    """Options and features, and whether they come as an array."""
    for name in OPTION_FEATURES:
        given = _where(name in case.features for case in cases)
        yield FEATURES.get(name, f"where `{name}` is given"), given
        yield (
            {"cache": "without a past", "segments": "without segments"}.get(
                name, f"where no `{name}` is given"
            ),
            ~given,
        )
        yield f"where `{name}` is an array", _where(name in case.inputs for case in cases)
        yield f"where `{name}` is no array", _where(name in case.options for case in cases)
    for name, words in FEATURES.items():
        yield words, _where(name in case.features for case in cases)
    yield "where an operand is NaN or infinite", _where(_special(case) for case in cases)
    yield "where an operand is not contiguous", _where(bool(case.memory) for case in cases)


def _special(case: Case) -> bool:
    return any(
        not np.isfinite(case.inputs[name]).all() for name in ("query", "key", "value") if name in case.inputs
    )


def sizes(case: Case) -> Mapping[str, int]:
    """The sizes of a call that is right in itself."""
    shapes = case.shapes
    if case.operation in (PAGED, APPEND, LATENT, MERGE):
        return _served(case.operation, shapes)
    query, key, value = (shapes[name] for name in ("query", "key", "value"))
    past = shapes["past_key"][-2] if "past_key" in shapes else 0
    if case.operation in (MHA, MHA_VJP):
        w_q, w_v = shapes["w_q"], shapes["w_v"]
        heads, kv_heads, d_k, d_v, batch = w_q[0], shapes["w_k"][0], w_q[2], w_v[2], query[:-2]
    else:
        heads, kv_heads, d_k, d_v, batch = query[-3], key[-3], query[-1], value[-1], query[:-3]
    return {
        "q_len": query[-2],
        "kv_len": key[-2] + past,
        "d_k": d_k,
        "d_v": d_v,
        "heads": heads,
        "batch": int(np.prod(batch)),
        "kv_heads": kv_heads,
        "group": heads // kv_heads if kv_heads else 0,
    }


def _served(operation: str, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, int]:
    """The same where keys are slots of pages, latent rows or the parts of a merge."""
    if operation in (PAGED, APPEND):
        pages, slots, groups, d_k = shapes["key_pages"]
        batch, heads, q_len = shapes["query"][:3] if operation == PAGED else (1, groups, shapes["slots"][0])
        kv_len, d_v = (
            (shapes["page_table"][1] if operation == PAGED else pages) * slots,
            shapes["value_pages"][3],
        )
    elif operation == LATENT:
        (*axes, heads, q_len, d_k), kv_len = shapes["query"], shapes["latent"][-2]
        batch, d_v = int(np.prod(axes)), d_k
    else:
        kv_len, *axes, heads, q_len, d_v = shapes["outputs"]
        batch, d_k = int(np.prod(axes)), d_v
    return {"q_len": q_len, "kv_len": kv_len, "d_k": d_k, "d_v": d_v, "heads": heads, "batch": batch}


def _sizes(of: Sequence[Mapping[str, int]], failing: Array) -> Iterator[tuple[str, Array]]:
    for name, (one, many) in SIZES.items():
        size = np.array([each[name] for each in of])
        bad = size[failing]
        for low, high in pairwise(np.unique(size).tolist()):
            if high == bad.min():
                yield more(name, rounded(low)), size > rounded(low)
            if low == bad.max():
                yield _most(low, one, many), size <= low
        if name in ("q_len", "kv_len"):
            for tile in TILES[1:]:
                yield more(name, tile), size > tile
            yield f"with 1 {one}", size == 1
            for tile in TILES:
                yield f"where the number of {many} is no multiple of {tile}", size % tile != 0
                yield f"where the number of {many} is a multiple of {tile}", size % tile == 0
                for few in (few for few in FEW if few < tile // 2):
                    last = size % tile
                    less = "1" if few == 2 else f"fewer than {few}"
                    yield (
                        f"with {less} {one if few == 2 else many} in the last {tile}",
                        (last > 0) & (last < few),
                    )
        if name in ("d_k", "d_v"):
            for tile in WIDTHS:
                yield f"where {name} is no multiple of {tile}", size % tile != 0
    q_len, kv_len = (np.array([each[name] for each in of]) for name in ("q_len", "kv_len"))
    yield "where there are as many queries as keys", q_len == kv_len
    yield "where there are not as many queries as keys", q_len != kv_len
    yield "with more queries than keys", q_len > kv_len


def _products(of: Sequence[Mapping[str, int]], failing: Array) -> Iterator[tuple[str, Array]]:
    """Limits of products of sizes, where each call has them."""
    for name, factors in PRODUCTS.items():
        if not all(factor in each for each in of for factor in factors):
            continue
        size = np.array([prod(each[factor] for factor in factors) for each in of])
        for low, high in pairwise(np.unique(size).tolist()):
            if high == size[failing].min():
                yield more(name, rounded(low)), size > rounded(low)


def rounded(low: int) -> int:
    """A limit below which nothing fails; the tile that it exceeds by one: cases stand on both sides of each tile."""
    return low - 1 if low > TILES[1] and (low - 1) % WIDTHS[0] == 0 else low


def more(name: str, low: int) -> str:
    """That a size is above a number, in words: `with more than 32 queries`."""
    one, many = SIZES.get(name, (name, name))
    return f"with {many} above {low}" if one == many else f"with more than {low} {one if low == 1 else many}"


def _most(high: int, one: str, many: str) -> str:
    return f"with {many} up to {high}" if one == many else f"with at most {high} {one if high == 1 else many}"


def _where(each: Iterable[bool]) -> Array:
    return np.fromiter(each, dtype=bool)
