"""Which options meet which size, path and dtype, and each other: the part of the coverage that kernels need."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from conformance.names import DENSE, DTYPES, FEATURES, MHA, MHA_VJP, OPERATION_FEATURES, SDPA, SDPA_VJP
from conformance.vectors.case import Case

_NONE = ("validation", "strict_masking", "segments", "grad_lse", *OPERATION_FEATURES.values())
MEETING = tuple(name for name in FEATURES if name not in _NONE)
"""The features that are options, or shapes and masks that act like one; segments and grad_lse have chapters."""
BACKWARD = tuple(name for name in MEETING if name not in ("return_weights", "return_lse"))
WORDS: Mapping[str, str] = {
    SDPA: "attention",
    SDPA_VJP: "its gradients",
    MHA: "the layer",
    MHA_VJP: "the layer's gradients",
}
PATHS: Mapping[str, tuple[str, ...]] = {
    SDPA: ("one query", "few queries", "many queries"),
    SDPA_VJP: ("one query", "few queries", "many queries"),
    MHA: ("one query", "many queries"),
    MHA_VJP: ("many queries",),
}
"""Operation -> the paths on which every option, and every pair of them, has to be met."""
TILE = 64
FEW_QUERIES = 16
TILES: Mapping[int, str] = {0: "a whole tile", TILE - 1: "one key less", 1: "one key more"}
MOST = 8
"""Features of a case in which a pair or a triple counts as met: a failure can then be told."""

Name = tuple[str, str]
"""Part of the table, and cell."""


def wanted() -> Iterator[Name]:
    """Every cell."""
    for operation, paths in PATHS.items():
        options = MEETING if operation in (SDPA, MHA) else BACKWARD
        for option, tile, path, dtype in itertools.product(options, TILES.values(), paths, DTYPES):
            yield "paths", _cell(operation, option, tile, path, dtype)
        for path, pair in itertools.product(paths, itertools.combinations(options, 2)):
            yield "pairs on paths", _cell(operation, " and ".join(pair), path)
        for triple in itertools.combinations(options, 3):
            yield "triples", _cell(operation, ", ".join(triple))


def held(cases: Iterable[Case]) -> dict[Name, list[str]]:
    """The cells that cases hold, with their IDs."""
    found: dict[Name, list[str]] = defaultdict(list)
    for case in (case for case in cases if case.operation in DENSE):
        for name in _of(case):
            found[name].append(case.id)
    return found


def _cell(operation: str, *words: str) -> str:
    return f"{', '.join(words)}: {WORDS[operation]}"


def _of(case: Case) -> Iterator[Name]:
    options = [name for name in MEETING if name in case.features]
    shapes = case.shapes
    path = _path(shapes["query"][-2])
    kv_len = shapes["key"][-2] + (shapes["past_key"][-2] if "past_key" in shapes else 0)
    if path and kv_len >= TILE - 1 and kv_len % TILE in TILES:
        for option, dtype in itertools.product(options, case.dtypes):
            yield "paths", _cell(case.operation, option, TILES[kv_len % TILE], path, dtype)
    if len(options) > MOST:
        return
    for pair in itertools.combinations(options, 2):
        yield "pairs on paths", _cell(case.operation, " and ".join(pair), path)
    for triple in itertools.combinations(options, 3):
        yield "triples", _cell(case.operation, ", ".join(triple))


def _path(q_len: int) -> str:
    """What a kernel makes of a number of queries."""
    if q_len == 1:
        return "one query"
    if q_len <= FEW_QUERIES:
        return "few queries"
    return "many queries" if q_len >= TILE - 1 else ""
