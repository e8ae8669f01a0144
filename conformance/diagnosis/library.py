"""A library that is wrapped as it is: its rows fail where its baseline says that the library deviates."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.finding import Note

PURE = 0.8
"""The share of the failing rows that the baseline of a library has to know."""
WHOLE = 0.6
"""The share of what the baseline knows, of the rows that were executed, that has to fail."""
FEWEST = 3
"""Cases that have to fail as the baseline says."""
NAMES: Mapping[str, tuple[str, str]] = {
    "torch-sdpa-flash": ("torch", "torch.nn.functional.scaled_dot_product_attention"),
    "torch-sdpa-math": ("torch", "torch.nn.functional.scaled_dot_product_attention"),
    "torch-mha": ("torch", "torch.nn.MultiheadAttention"),
    "jax-nn": ("jax", "jax.nn.dot_product_attention"),
    "keras": ("keras", "keras.layers.MultiHeadAttention"),
    "onnx-reference": ("onnx", "the reference evaluator of ONNX"),
    "onnxruntime": ("onnxruntime", "the Attention operator of ONNX Runtime"),
    "onnxruntime-contrib": ("onnxruntime", "the MultiHeadAttention operator of ONNX Runtime"),
}
"""Baselines by name: the library that has to be there, and what of it was called, in words."""


@dataclass(frozen=True)
class Library:
    """What a library is known to do otherwise."""

    package: str
    called: str
    known: Mapping[tuple[str, str], str]  # case and dtype -> why


def by_library(failures: Sequence[Failure], passes: Iterable[Asked], packages: Iterable[str]) -> list[Note]:
    """The library whose known deviations are those of a run, if that is there."""
    there = set(packages)
    failing = {(f.case.id, f.dtype): f for f in failures}
    executed = {*failing, *((f.case.id, f.dtype) for f in passes)}
    best: tuple[int, Library] | None = None
    for library in libraries():
        known = set(library.known) & executed
        met = known & set(failing)
        if library.package not in there or len({case for case, _ in met}) < FEWEST:
            continue
        if len(met) >= PURE * len(failing) and len(met) >= WHOLE * len(known):
            best = max(best or (0, library), (len(met), library), key=lambda each: each[0])
    if best is None:
        return []
    library = best[1]
    those = tuple(f for key, f in failing.items() if key in library.known)
    reasons = dict.fromkeys(library.known[f.case.id, f.dtype] for f in those)
    said = "; ".join(reason.rstrip(".") for reason in list(reasons)[:3])
    return [
        Note(
            "library",
            f"This is what {library.called} does by itself, and known of it (spec/found.md): {said}",
            tuple(dict.fromkeys(name for f in those for name in f.case.covers))[:3],
            those,
            first=True,
        )
    ]


@cache
def libraries() -> tuple[Library, ...]:
    """Those whose baselines are installed with the suite."""
    return tuple(_read())


def _read() -> Iterator[Library]:
    found = find_spec("backends")  # which does not import it
    for folder in (found.submodule_search_locations if found else None) or ():
        for path in sorted((Path(folder) / "known").glob("*.toml")):
            if path.stem in NAMES:
                entries = tomllib.loads(path.read_text("utf-8"))["known"]
                known = {(e["case"], dtype): e["reason"] for e in entries for dtype in e["dtypes"]}
                yield Library(*NAMES[path.stem], known)
