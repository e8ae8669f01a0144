"""What the options of a row hold: ends of a window, offsets, lengths, axes of a table; as conditions in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.names import DENSE, MHA, MHA_VJP
from conformance.vectors.case import Array, Case

TABLES = ("mask", "attn_bias")
TILES = (16, 32, 64)
"""Keys or queries of a tile, in the midst of which an offset or a length may lie."""


def values(cases: Sequence[Case], of: Sequence[Mapping[str, int]]) -> Iterator[tuple[str, Array]]:
    """Conditions, each with the rows (n,) that it holds for; `of` are the sizes of each case."""
    found = [_of(case, size) for case, size in zip(cases, of, strict=True)]
    for words in dict.fromkeys(words for each in found for words in each):
        yield words, np.fromiter((words in each for each in found), dtype=bool)


def _of(case: Case, size: Mapping[str, int]) -> set[str]:
    shaped = _shaped(case, size) if case.operation in DENSE else ()
    return {*shaped, *_given(case, size)}


def _shaped(case: Case, size: Mapping[str, int]) -> Iterator[str]:
    """What holds of the operands of a call."""
    shapes = case.shapes
    rank = len(shapes["query"]) - (2 if case.operation in (MHA, MHA_VJP) else 3)
    if rank > 1:
        yield "with several batch axes"
    groups = shapes["w_k"][0] if case.operation in (MHA, MHA_VJP) else shapes["key"][-3]
    if 1 < groups < size["heads"]:
        yield "where several key heads are shared by several query heads each"
    if size["d_v"] > size["d_k"]:
        yield "where d_v is above d_k"
    if size["kv_len"] > size["q_len"]:
        yield "with more keys than queries"


def _given(case: Case, size: Mapping[str, int]) -> Iterator[str]:
    """What holds of its options."""
    yield from _window(case.options.get("window"))
    offset = _numbers(case, "q_offset")
    if offset.size:
        yield from _signs("q_offset", offset)
    lengths = _numbers(case, "kv_lengths")
    if lengths.size:
        if case.operation in DENSE and (lengths < size["kv_len"]).any():  # pages hold more slots than keys
            yield "where `kv_lengths` is below the number of keys"
        yield from _signs("kv_lengths", lengths)
    if "scale" in case.options and not case.options["scale"] > 0:
        yield "where `scale` is not above 0"
    for name in TABLES:
        if name in case.shapes:
            yield from _table(name, case.shapes[name], size)


def _numbers(case: Case, name: str) -> Array:
    given = case.inputs[name] if name in case.inputs else case.options.get(name, ())
    return np.asarray(given).reshape(-1)


def _signs(name: str, numbers: Array) -> Iterator[str]:
    if (numbers > 0).any() and name == "q_offset":
        yield f"where `{name}` is above 0"
    if (numbers < 0).any():
        yield f"where `{name}` is below 0"
    if (numbers == 0).any() and name == "kv_lengths":
        yield f"where `{name}` has a 0"
    for tile in TILES:
        if (numbers % tile != 0).any():
            yield f"where `{name}` is no multiple of {tile}"
    if (np.diff(numbers) > 0).any():
        yield f"where `{name}` is not in descending order"
    if (np.diff(numbers) < 0).any():
        yield f"where `{name}` is not in ascending order"
    if len(set(numbers.tolist())) > 1:
        yield f"where `{name}` differs between batch entries"


def _window(window: Any) -> Iterator[str]:
    if window is None:
        return
    left, right = window
    if left is not None:
        yield "where `window` has a left end"
    if right is not None:
        yield "where `window` has a right end"
    if left is not None and right is not None:
        yield "where `window` has both ends"
    else:
        yield "where `window` has an open side"
    if (left is None) != (right is None):
        yield "where `window` has one open side"
    if left is None:
        yield "where the left side of `window` is open"
    if right is None:
        yield "where the right side of `window` is open"
    if 0 in (left, right):
        yield "where a side of `window` is 0"


def _table(name: str, shape: Sequence[int], size: Mapping[str, int]) -> Iterator[str]:
    if len(shape) > 2 and shape[-3] > 1:
        yield f"where `{name}` differs between heads"
    if len(shape) > 3 and max(shape[:-3]) > 1:
        yield f"where `{name}` differs between batch entries"
    if shape and shape[-1] == 1 < size["kv_len"]:
        yield f"where the last axis of `{name}` is 1"
    if len(shape) > 1 and shape[-2] == 1 < size["q_len"]:
        yield f"where `{name}` has one row for all queries"
    if len(shape) < 4:
        yield f"where `{name}` has fewer axes than the logits"
    elif 1 not in shape[:-2]:
        yield f"where `{name}` has an axis for each of the logits"
