"""Segments: who has whose number, alone and beside everything else that masks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.case import Array
from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws, exact

# fmt: off

_SINKS = exact([0.5, -1.0, 2.0])
_APART = np.array([-(2**31), 2**31 - 1, 0, -1, 65536, 256, 7], np.int64)
"""Numbers that are alike where some of their bits are lost."""


def drafts() -> Iterator[Draft]:
    """The numbers, what else masks, sizes, the layer, gradients, and calls that are wrong."""
    yield from _numbers()
    yield from _shapes()
    yield from _nonfinite()
    yield from _beside()
    yield from _sizes()
    yield from _layers()
    yield from _gradients()
    yield from _wrong()


def numbers(*rows: Any, dtype: type = np.int32) -> Array:
    """Numbers of segments; one row alone has no batch axis."""
    return np.array(rows[0] if len(rows) == 1 else rows, dtype)


def runs(*lengths: int, first: int = 0) -> list[int]:
    """Sorted numbers, each as often as a length says."""
    return [number for number, length in enumerate(lengths, first) for _ in range(length)]


def _two(q_len: int, kv_len: int, dtype: type = np.int32) -> dict[str, Any]:
    """Unsorted numbers that differ by entry, so that every query has a key."""
    found: dict[str, Any] = {}
    for name, length in (("q_segments", q_len), ("kv_segments", kv_len)):
        place = np.arange(length)
        found[name] = np.stack([place * 5 % 3, (place * 3 + 1) // 2 % 3]).astype(dtype)
    return found


def _numbers() -> Iterator[Draft]:
    q, kv = runs(2, 2, 1), runs(3, 2, 2)
    plain: dict[str, Any] = {"q_segments": numbers(q, q[::-1]), "kv_segments": numbers(kv, kv)}
    yield attend("segments/sorted",
        "Three sequences end to end: each query attends the keys of its own number.", "MASK-17", **plain)
    order: dict[str, Any] = {"like": "segments/sorted", "return_weights": True, "return_lse": True}
    yield attend("segments/unsorted", "Numbers in no order, another one in each batch entry.",
        "MASK-17", "MASK-18", q_segments=numbers([2, 0, 1, 0, 2], [1, 1, 2, 0, 2]),
        kv_segments=numbers([1, 0, 2, 2, 0, 1, 0], [0, 2, 1, 0, 1, 2, 2]), **order)
    names = {"relabelled": [7, -3, 400], "in-reverse": [2, 1, 0], "from-five": [5, 6, 7]}
    for name, of in names.items():
        yield attend(f"segments/{name}",
            f"The numbers of three sequences are {of[0]}, {of[1]} and {of[2]}: the answer is that of 0, 1 and 2.",
            "MASK-18", like="segments/sorted", **{key: np.array(of, np.int32)[x] for key, x in plain.items()})
    yield attend("segments/extremes-of-int32",
        "Numbers at both ends of int32, and such as are alike where bits are lost.", "MASK-18",
        q_segments=_APART[[0, 1, 2, 3, 4]].astype(np.int32),
        kv_segments=_APART[[4, 3, 1, 2, 0, 5, 6]].astype(np.int32))
    wide = np.array([1, 2**32 + 1, -(2**63), 2**63 - 1, 2**33], np.int64)
    yield attend("segments/beyond-int32", "Numbers in int64 that are alike in their low 32 bits.", "MASK-18",
        q_segments=wide, kv_segments=wide[[1, 0, 4, 2, 3, 1, 0]])
    close = np.array([2**24, 2**24 + 1, 2**30, 2**30 + 1, 2**31 - 2], np.int32)
    yield attend("segments/alike-in-float32", "Numbers that are one and the same in float32.", "MASK-18",
        q_segments=close, kv_segments=close[[1, 0, 3, 2, 4, 1, 3]])
    yield attend("segments/alike-in-float64", "Numbers in int64 that are one and the same in float64.",
        "MASK-18", q_segments=np.array([2**53, 2**53 + 1, 2**62, 2**62 + 1, 0], np.int64),
        kv_segments=np.array([2**53 + 1, 2**53, 2**62 + 1, 2**62, 0, 2**53 + 1, 2**62], np.int64))
    yield attend("segments/alike-in-eight-bits",
        "Numbers that are one and the same in their low 8 or 16 bits.", "MASK-18",
        q_segments=numbers([0, 256, 65536, -256, 1]), kv_segments=numbers([256, 0, -256, 65536, 1, 257, 0]))
    yield attend("segments/two-dtypes", "Numbers of the queries in int64, of the keys in int32.", "MASK-17",
        q_segments=numbers(q, q[::-1], dtype=np.int64), kv_segments=numbers(kv, kv))
    yield attend("segments/zero-is-a-number",
        "Every token has the number 0 in one entry, and -1 in the other: all is seen.", "MASK-18",
        q_segments=numbers([0] * 5, [-1] * 5), kv_segments=numbers([0] * 7, [-1] * 7))
    yield attend("segments/zero-and-negative", "The numbers 0 and -1 are names as any other.", "MASK-18",
        q_segments=numbers([0, -1, 0, 3, -1], [-1, 3, 3, 0, 0]),
        kv_segments=numbers([-1, 0, 3, 0, -1, 3, 0], [3, 0, -1, -1, 0, 3, -1]))
    yield attend("segments/same-ends",
        "The first and the last key have the number of a query, those between have others.", "MASK-17",
        q_segments=numbers([4, 4, 6, 4, 5]), kv_segments=numbers([4, 9, 6, 5, 8, 6, 4]))


def _shapes() -> Iterator[Draft]:
    yield attend("segments/shared-by-the-batch", "One row of numbers serves every batch entry.", "MASK-17",
        batch=(3,), q_segments=numbers([1, 0, 1, 2, 0]), kv_segments=numbers([0, 1, 2, 0, 1, 1, 2]))
    yield attend("segments/keys-shared-queries-not",
        "Keys have the same numbers in every batch entry, queries have not.", "MASK-17",
        q_segments=numbers([1, 0, 1, 2, 0], [2, 2, 0, 1, 1]), kv_segments=numbers([0, 1, 2, 0, 1, 1, 2]))
    draws = Draws("segments/two-batch-axes")
    yield attend("segments/two-batch-axes", "Two batch axes, and numbers for each entry of both.",
        "MASK-17", "SHAPE-4", batch=(2, 3), heads=2, q_len=3, kv_len=6,
        q_segments=draws.integers(2, 3, 3, low=0, high=1).astype(np.int32),
        kv_segments=np.stack([np.arange(6) // n % 2 for n in (1, 2, 3, 1, 2, 3)]).reshape(2, 3, 6))
    yield attend("segments/no-batch-axis", "No batch axis: one number for each token.", "MASK-17",
        batch=(), q_segments=numbers([1, 0, 1, 2, 0]), kv_segments=numbers([0, 1, 2, 0, 1, 1, 2]))
    unmatched: dict[str, Any] = {"q_segments": numbers([1, 9, 0, 2, 0], [0, 1, 2, 9, 9]),
        "kv_segments": numbers([0, 1, 2, 0, 1, 1, 2], [1, 0, 0, 2, 2, 1, 0])}
    yield attend("segments/query-without-a-key",
        "Queries whose number no key has are empty rows, alone among rows that attend.", "MASK-20", "MASK-3",
        **unmatched)
    yield attend("segments/query-without-a-key-weights-lse",
        "Of a query whose number no key has the weights are zero and the lse is -inf.", "MASK-20", "MASK-16",
        return_weights=True, return_lse=True, **unmatched)
    yield attend("segments/query-without-a-key-sinks",
        "With sinks, the lse of a query whose number no key has is the sink.", "MASK-20", "MASK-16",
        sinks=_SINKS, return_weights=True, return_lse=True, **unmatched)
    yield attend("segments/padding-by-number",
        "Padding has a number of its own, of which queries are padding too.", "MASK-18",
        q_segments=numbers([0, 0, 1, -1, -1], [0, 1, 1, 1, -1]),
        kv_segments=numbers([0, 0, 0, 1, 1, -1, -1], [0, 1, 1, 1, 1, 1, -1]))
    yield attend("segments/no-keys", "kv_len is zero: there is no number to compare with.", "MASK-20",
        "MASK-14", kv_len=0, q_segments=numbers([0, 1, 0, 1, 2]), kv_segments=np.zeros(0, np.int32))
    yield attend("segments/no-queries", "q_len is zero, with numbers of the keys alone.", "MASK-17",
        q_len=0, q_segments=np.zeros((2, 0), np.int32), kv_segments=np.zeros((2, 7), np.int32))


def _nonfinite() -> Iterator[Draft]:
    q, kv = numbers([0, 0, 1, 2, 2]), numbers([0, 0, 1, 1, 5, 2, 5])
    draws = Draws("segments/nan")
    key, value = draws.gauss(2, 3, 7, 4), draws.gauss(2, 3, 7, 4)
    unseen = key.copy()
    unseen[:, :, [4, 6]] = np.nan
    yield attend("segments/nan-in-keys-of-no-query",
        "Keys of a number that no query has hold NaN, which reaches nothing.", "MASK-17", "MASK-4",
        key=unseen, q_segments=q, kv_segments=kv)
    other = value.copy()
    other[0, :, 2], other[1, :, 5] = np.nan, np.inf
    other[:, :, 4] = -np.inf
    yield attend("segments/nan-in-values-of-others",
        "Values of one segment hold NaN or infinity, which reach the queries of that segment and no other.",
        "MASK-17", "MASK-5", "ATT-11", needs=("strict_masking",), value=other, q_segments=q, kv_segments=kv)
    broken = key.copy()
    broken[0, :, 2] = np.nan
    broken[1, :, 5] = np.nan
    yield attend("segments/nan-in-keys-of-others",
        "Keys of one segment hold NaN: its queries are NaN, and those of the others are not.",
        "MASK-17", "MASK-4", "ATT-10", key=broken, q_segments=q, kv_segments=kv)


def _beside() -> Iterator[Draft]:
    draws = Draws("segments/beside")
    square: dict[str, Any] = {"q_len": 7, "kv_len": 7}
    mask = draws.mask(2, 3, 5, 7, share=0.8)
    bias = draws.gauss(2, 3, 5, 7, sigma=2.0)
    hiding = bias.copy()
    hiding[:, :, :, 3] = -np.inf
    many = np.tile(np.arange(3), 3)
    cases: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "causal": ("causality", ("MASK-19", "MASK-6"), {"is_causal": True, **square, **_two(7, 7)}),
        "causal-sorted": ("causality, in sorted runs", ("MASK-19", "MASK-6"),
            {"is_causal": True, **square, "q_segments": numbers(runs(3, 2, 2), runs(1, 4, 2)),
             "kv_segments": numbers(runs(3, 2, 2), runs(1, 4, 2))}),
        "causal-offset": ("causality with an offset, queries and keys in other places", ("MASK-19", "MASK-8"),
            {"is_causal": True, "q_offset": 2, **_two(5, 7)}),
        "causal-moved": ("causality, where a segment begins later among the keys than among the queries",
            ("MASK-19",),
            {"is_causal": True, **square, "q_segments": numbers(runs(2, 5)),
             "kv_segments": numbers(runs(4, 3))}),
        "causal-offsets": ("causality with an offset for each entry", ("MASK-19", "MASK-8"),
            {"is_causal": True, "q_offset": np.array([2, -1]), **_two(5, 7)}),
        "window": ("a window", ("MASK-10",), {"window": [2, 1], **square, **_two(7, 7)}),
        "window-causal-offset": ("a window, causality and an offset", ("MASK-10", "MASK-19"),
            {"window": [3, None], "is_causal": True, "q_offset": 2, **_two(5, 7)}),
        "lengths": ("lengths", ("MASK-12",), {"kv_lengths": np.array([6, 3]), **_two(5, 7)}),
        "mask": ("a mask", ("MASK-1",), {"mask": mask, **_two(5, 7)}),
        "bias": ("a bias", ("ATT-7",), {"attn_bias": bias, **_two(5, 7)}),
        "bias-hiding": ("a bias that hides a key", ("ATT-8",), {"attn_bias": hiding, **_two(5, 7)}),
        "mask-bias-lengths": ("a mask, a bias and lengths", ("MASK-2", "MASK-12"),
            {"mask": mask, "attn_bias": bias, "kv_lengths": np.array([7, 4]), **_two(5, 7)}),
        "sinks": ("sinks", ("ATT-12",), {"sinks": _SINKS, "return_lse": True, **_two(5, 7)}),
        "scale-softcap": ("a scale and a softcap", ("ATT-4", "ATT-5"),
            {"scale": 0.75, "softcap": 1.5, **_two(5, 7)}),
        "past": ("a past, whose keys have numbers too", ("CACHE-1",), {"past": 3, **_two(5, 7)}),
        "past-causal-grouped": ("a past, causality and groups", ("CACHE-3", "HEAD-2"),
            {"past": 4, "is_causal": True, "q_offset": 4, "heads": 4, "kv_heads": 2, "q_len": 3,
             "q_segments": numbers([1, 0, 1], [2, 2, 0]),
             "kv_segments": numbers([0, 1, 0, 1, 1, 0, 1], [2, 0, 1, 2, 2, 2, 0])}),
        "grouped": ("groups", ("HEAD-2",), {"heads": 6, "kv_heads": 2, **_two(5, 7)}),
        "value-dim": ("values wider than the keys", ("SHAPE-3",), {"d_v": 6, **_two(5, 7)}),
        "one-query": ("one query, as in decoding", (),
            {"q_len": 1, "kv_len": 9, "q_segments": numbers([1], [2]),
             "kv_segments": numbers(many, many[::-1])}),
        "one-query-past-lengths": ("one query, a past and lengths", ("CACHE-1", "MASK-12"),
            {"q_len": 1, "kv_len": 9, "past": 8, "kv_lengths": np.array([9, 5]),
             "q_segments": numbers([1], [2]), "kv_segments": numbers(many, many[::-1])}),
    }
    for name, (words, covers, given) in cases.items():
        yield attend(f"segments/{name}", f"Segments beside {words}.", "MASK-17", *covers, **given)


def _sizes() -> Iterator[Draft]:
    for kv_len in (63, 64, 65, 129, 257):
        place = np.arange(kv_len)
        kinds = {"sorted": place * 4 // kv_len, "unsorted": place * 7 % 5}
        for kind, held in kinds.items():
            q_len = 33 if kv_len > 65 else kv_len
            yield attend(f"segments/{kv_len}-keys-{kind}",
                f"{q_len} queries and {kv_len} keys, their numbers {kind}: parts of a tile are of other segments.",
                "MASK-17", batch=(1,), heads=2, q_len=q_len, kv_len=kv_len,
                rows=tuple(sorted({0, 1, 15, 16, 31, 32, q_len // 2, q_len - 1})),
                q_segments=held[np.arange(q_len) * kv_len // q_len].astype(np.int32),
                kv_segments=held.astype(np.int32))
    place = np.arange(130)
    yield attend("segments/whole-tiles-of-others",
        "Some blocks of 16 keys belong to other segments altogether, and such blocks stand between others.",
        "MASK-17", heads=2, q_len=4, kv_len=130, q_segments=numbers([0, 1, 2, 3], [3, 0, 0, 2]),
        kv_segments=np.stack([place // 16 % 4, place // 32 % 4]).astype(np.int32))
    lone = np.ones(129, np.int32)
    lone[[0, 64, 128]] = 2, 3, 2
    yield attend("segments/few-keys-of-129",
        "Of 129 keys one query sees those at both ends and another the one in the middle.", "MASK-17",
        batch=(1,), heads=2, q_len=3, kv_len=129, q_segments=numbers([2, 3, 1]), kv_segments=lone,
        return_lse=True)
    yield attend("segments/one-query-130-keys",
        "One query over 130 keys, with other numbers in each of three entries.", "MASK-17",
        batch=(3,), heads=2, q_len=1, kv_len=130, q_segments=numbers([0], [1], [2]),
        kv_segments=np.stack([place % 3, place // 44, place * 5 // 7 % 3]).astype(np.int32))
    causal = np.minimum(np.arange(65) // 20, 2)
    yield attend("segments/causal-65",
        "Sequences end to end under causality: 65 queries and keys, as in training.", "MASK-17", "MASK-19",
        batch=(1,), heads=2, q_len=65, kv_len=65, rows=(0, 1, 19, 20, 21, 39, 40, 63, 64), is_causal=True,
        q_segments=causal.astype(np.int32), kv_segments=causal.astype(np.int32))


def _layers() -> Iterator[Draft]:
    yield project("segments/layer", "The layer with segments.", "MASK-17", "PROJ-7", **_two(5, 7))
    yield project("segments/layer-causal-grouped-lse",
        "The layer with segments, causality and groups; weights and lse are returned.", "MASK-17", "MASK-19",
        heads=4, kv_heads=2, is_causal=True, q_offset=2, return_weights=True, return_lse=True, **_two(5, 7))
    yield project("segments/layer-past-empty-rows",
        "The layer with a past, and queries whose number no key has.", "MASK-20", "PROJ-4", past=3,
        q_segments=numbers([1, 9, 0, 2, 0], [0, 1, 2, 9, 9]), kv_segments=numbers([0, 1, 2, 0, 1, 1, 2]))


def _gradients() -> Iterator[Draft]:
    draws = Draws("segments/gradient")
    place = np.arange(65)
    unmatched: dict[str, Any] = {"q_segments": numbers([1, 9, 0, 2, 0], [0, 1, 2, 9, 9]),
        "kv_segments": numbers([0, 1, 2, 0, 1, 1, 8], [1, 0, 0, 2, 8, 1, 0])}
    cases: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "gradient": ("each sees the keys of its number", (), _two(5, 7)),
        "gradient-empty-rows": (
            "some queries have a number that no key has, and some keys one that no query has",
            ("GRAD-4", "MASK-20"), unmatched),
        "gradient-causal-bias": ("causality and a bias", ("GRAD-5", "MASK-19"),
            {"is_causal": True, "q_offset": 2, "attn_bias": draws.gauss(5, 7), **_two(5, 7)}),
        "gradient-sinks-grouped": ("sinks, groups and an empty row", ("GRAD-8", "GRAD-6"),
            {"heads": 4, "kv_heads": 2, "sinks": exact([0.5, -1.0, 2.0, 0.25]), **unmatched}),
        "gradient-window-mask-lengths": ("a window, a mask and lengths", (),
            {"window": [3, 2], "q_offset": 1, "mask": draws.mask(2, 3, 5, 7, share=0.9),
             "kv_lengths": np.array([7, 5]), **_two(5, 7)}),
        "gradient-past-softcap": ("a past and a softcap", ("GRAD-13", "GRAD-7"),
            {"past": 3, "softcap": 1.5, **_two(5, 7)}),
        "gradient-one-query": ("one query", (),
            {"q_len": 1, "q_segments": numbers([1], [2]), "kv_segments": _two(5, 7)["kv_segments"]}),
        "gradient-65-keys": ("65 keys in no order", (),
            {"batch": (1,), "heads": 2, "q_len": 5, "kv_len": 65, "q_segments": numbers([3, 0, 4, 1, 2]),
             "kv_segments": (place * 7 % 5).astype(np.int32)}),
        "gradient-65-keys-sorted": ("65 keys in sorted runs", (),
            {"batch": (1,), "heads": 2, "q_len": 5, "kv_len": 65, "q_segments": numbers([0, 0, 1, 2, 3]),
             "kv_segments": (place * 4 // 65).astype(np.int32)}),
        "gradient-extremes-of-int32": ("numbers at both ends of int32", ("MASK-18",),
            {"q_segments": _APART[[0, 1, 2, 3, 4]].astype(np.int32),
             "kv_segments": _APART[[4, 3, 1, 2, 0, 5, 6]].astype(np.int32)}),
    }
    for name, (words, covers, given) in cases.items():
        yield gradient(attend(f"segments/{name}", f"Gradients with segments: {words}.", "MASK-17", "GRAD-3",
                *covers, **given))
    yield gradient(project("segments/gradient-layer",
            "Gradients of the layer with segments, where some queries have a number that no key has.",
            "MASK-17", "GRAD-3", "GRAD-10", **unmatched))
    yield gradient(project("segments/gradient-layer-causal",
            "Gradients of the layer with segments, causality and sinks.", "MASK-17", "MASK-19", "GRAD-10",
            is_causal=True, q_offset=2, sinks=_SINKS, **_two(5, 7)))


def _wrong() -> Iterator[Draft]:
    given = _two(5, 7)
    calls: dict[str, tuple[str, str, dict[str, Any]]] = {
        "queries-alone": ("Numbers of the queries without those of the keys.", "MASK-17",
            {"kv_segments": None}),
        "keys-alone": ("Numbers of the keys without those of the queries.", "MASK-17", {"q_segments": None}),
        "floats": ("Numbers of the keys as floating-point numbers.", "DTYPE-7",
            {"kv_segments": given["kv_segments"].astype(np.float64)}),
        "too-few": ("One number less than there are keys.", "SHAPE-11",
            {"kv_segments": given["kv_segments"][:, 1:]}),
        "of-another-batch": ("Numbers of three batch entries where there are two.", "SHAPE-11",
            {"q_segments": np.zeros((3, 5), np.int32)}),
        "one-for-all": ("One number for all queries of an entry.", "SHAPE-11",
            {"q_segments": np.zeros((2, 1), np.int32)}),
    }
    for name, (note, requirement, changed) in calls.items():
        kept = {key: x for key, x in {**given, **changed}.items() if x is not None}
        yield attend(f"segments/wrong-{name}", note, requirement, raises=True, **kept)
