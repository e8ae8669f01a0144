"""Reads the vectors back as Cases: schema first, then hashes, then tensors.

What ships was checked when it was written: of it a tensor file is read when a case asks for one of its tensors.
The hash of a file is checked whenever it is read.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conformance.dtypes import NUMPY_DTYPES
from conformance.errors import UsageError
from conformance.garbage import no_search
from conformance.reading import TooLargeError, flaw, read_bytes, strict_json, validator
from conformance.resources import schema, vectors_directory
from conformance.vectors.case import Array, Bound, Case, Golden, Signature, lacking
from conformance.vectors.lazily import Lazily
from conformance.vectors.seeded import Inputs, seed_of
from conformance.vectors.tensors import parse_tensors

Tensors = Mapping[str, Array]

INDEX = "index.json"
CHECKED = "index.sha256"
"""Beside the index that ships: its hash when its form was checked, which takes longer than all the rest of a load."""


@dataclass(frozen=True)
class Vectors:
    """Every case, and what identifies the set."""

    cases: tuple[Case, ...]  # sorted by ID
    sha256: str  # of the index, which holds the hash of every tensor file
    spec_version: str
    vectors_version: str
    files: tuple[str, ...] = ()  # that hold the tensors


def load_vectors(directory: Path | None = None) -> Vectors:
    """Every case of a directory of vectors; the ones that ship with the suite by default.

    Raises:
        UsageError: a file is missing, damaged or not of the published form.
    """
    shipped = directory is None
    directory = directory or vectors_directory()
    with no_search():
        return _loaded(directory, shipped, _state(directory))


def _state(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes where a file of a directory does: names, sizes and times."""
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return ()  # reading says why
    return tuple(sorted((name, state.st_size, state.st_mtime_ns) for name, state in found))


@lru_cache(maxsize=1)
def _loaded(directory: Path, shipped: bool, state: tuple[tuple[str, int, int], ...]) -> Vectors:
    """Reads a directory; once for each state of its files."""
    raw = _read(directory / INDEX)
    sha256 = hashlib.sha256(raw).hexdigest()
    checked = (
        shipped and (directory / CHECKED).is_file() and _read(directory / CHECKED) == checked_text(sha256)
    )
    index = json.loads(raw) if checked else _index(directory / INDEX, raw)
    files = Lazily(index["files"], partial(_tensors, directory, index["files"]))
    cases = tuple(_case(entry, files) for entry in index["cases"])
    if not checked:
        _check(directory, index, files, cases)
    return Vectors(
        cases=tuple(sorted(cases, key=lambda case: case.id)),
        sha256=sha256,
        spec_version=index["spec_version"],
        vectors_version=index["vectors_version"],
        files=tuple(index["files"]),
    )


def shipped_sha256() -> str:
    """What identifies the vectors that ship, without loading them.

    Raises:
        UsageError: their index is missing.
    """
    return hashlib.sha256(_read(vectors_directory() / INDEX)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except TooLargeError as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise UsageError(
            f"vector file {path} cannot be read ({error.strerror}); reinstall mha-conformance, "
            "or run `python -m conformance.vectors.generate` in a checkout"
        ) from error


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(f"vector file {path} is damaged: {why}; reinstall mha-conformance or restore the file")


def checked_text(sha256: str) -> bytes:
    """What stands beside an index of this hash once its form was checked."""
    return f"{sha256}  {INDEX}\n".encode()


def _index(path: Path, raw: bytes) -> Any:
    try:
        index = strict_json(raw)
    except ValueError as error:
        raise _damaged(path, f"not JSON ({error})") from error
    if found := flaw(validator(schema("vectors")), index):
        raise _damaged(path, found)
    return index


def _tensors(directory: Path, digests: Mapping[str, str], name: str) -> Tensors:
    path = directory / name
    raw = _read(path)  # once: what is read is what has the hash
    found = hashlib.sha256(raw).hexdigest()
    if found != digests[name]:
        raise _damaged(path, f"its sha256 is {found[:12]}..., the index says {digests[name][:12]}...")
    try:
        with no_search():
            return parse_tensors(raw, path.suffix)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _case(entry: Mapping[str, Any], files: Mapping[str, Tensors]) -> Case:
    """A case of the index; its arrays are read when they are asked for."""
    name, seeds = entry["id"], entry.get("seeded", {})
    stored = Lazily((x for x in entry["inputs"] if x not in seeds), partial(_input, entry, files))
    seeded = Lazily(seeds, lambda operand: seed_of(seeds[operand])) if seeds else {}
    return Case(
        id=name,
        note=entry["note"],
        operation=entry["operation"],
        covers=tuple(entry["covers"]),
        features=tuple(entry["features"]),
        dtypes=tuple(entry["dtypes"]),
        excluded=entry["excluded"],
        options=entry["options"],
        inputs=Inputs(stored, seeded, tuple(entry["inputs"])) if seeds else stored,
        expected=Lazily(entry["expected"], partial(_golden, entry, files)),
        raises=entry["raises"],
        memory=entry["memory"],
        repeat=int(entry["repeat"]),
        dtype_of=entry["dtype_of"],
        seeded=seeded,
    )


def _input(entry: Mapping[str, Any], files: Mapping[str, Tensors], name: str) -> Array:
    return files[entry["file"]][f"{entry['id']}:input:{name}"]


def _golden(entry: Mapping[str, Any], files: Mapping[str, Tensors], output: str) -> Golden:
    prefix, tensors, golden = f"{entry['id']}:{output}", files[entry["file"]], entry["expected"][output]
    bounds = {
        dtype: {
            policy: Bound(worst=_wide(tensors[f"{prefix}:{key}:W"]), rms=_wide(tensors[f"{prefix}:{key}:s"]))
            for policy, key in policies.items()
        }
        for dtype, policies in golden["bounds"].items()
    }
    return Golden(
        shape=tuple(map(int, golden["shape"])),
        rows=None if golden["rows"] is None else tuple(map(int, golden["rows"])),  # 1.0 is an integer of JSON
        hi=tensors[f"{prefix}:hi"],
        lo=tensors[f"{prefix}:lo"],
        rms_applies=golden["rms_applies"],
        bounds=bounds,
        signatures={
            name: Signature(tensors[f"{prefix}:{name}:g"], limits)
            for name, limits in golden["signatures"].items()
        },
        finite=golden.get("elsewhere") == "finite",
    )


def _wide(limit: Array) -> Array:
    """A bound as it is computed with: stored in bfloat16, it is exact in float32."""
    return limit.astype(np.float32) if limit.dtype == ml_dtypes.bfloat16 else limit


def _check(directory: Path, index: Any, files: Mapping[str, Tensors], cases: Sequence[Case]) -> None:
    """Reads every tensor, and looks whether the index agrees with them."""
    dict(files)  # one that no case names, too
    try:
        for case in cases:
            if problem := _problem(case):
                raise ValueError(f"{case.id}{problem}")
    except KeyError as error:
        raise _damaged(directory / INDEX, f"it names {error}, which no tensor file holds") from error
    except ValueError as error:
        raise _damaged(directory, str(error)) from error
    if len({case.id for case in cases}) < len(cases):
        raise _damaged(directory / INDEX, "two of its cases have one ID")


def _problem(case: Case) -> str:
    """What is wrong with a case, to follow its ID; empty if nothing is."""
    if strange := set(case.seeded) - set(case.inputs):
        return f": {strange.pop()} is seeded and no input"
    if missing := lacking(case.operation, case.inputs):
        return f": it lacks a {' and a '.join(missing)}"
    dict(case.seeded)  # each seed is one
    stored = {str(case.inputs[name].dtype) for name in case.inputs if name not in case.seeded}
    if strange := stored - set(NUMPY_DTYPES):
        return f": an input has dtype {strange.pop()}"
    for output, golden in case.expected.items():
        if problem := _golden_problem(golden, 1 if output == "lse" else 2):
            return f":{output}: {problem}"
        if set(golden.bounds) != set(case.dtypes):
            return f":{output}: it has bounds for other dtypes than the case is about"
    return ""


def _golden_problem(golden: Golden, from_end: int) -> str:
    """What is wrong with a golden value whose axis of rows is the last or the one before it."""
    held = list(golden.shape)
    if golden.rows is not None:
        if len(held) < from_end or max(golden.rows, default=-1) >= held[-from_end]:
            return f"rows {max(golden.rows, default=0)} of shape {golden.shape} do not exist"
        held[-from_end] = len(golden.rows)
    limits = [x for of in golden.bounds.values() for bound in of.values() for x in (bound.worst, bound.rms)]
    if any(x.shape != tuple(held) for x in (golden.hi, golden.lo, *limits)):
        return f"a tensor has another shape than {tuple(held)}, which the index gives"
    directions = [signature.direction for signature in golden.signatures.values()]
    if any(g.shape != golden.hi.shape or not np.isfinite(g).all() or not g.any() for g in directions):
        return "the direction of a signature has another shape than hi, is not finite or is zero"
    if golden.hi.dtype != np.float64 or golden.lo.dtype != np.float64 or not np.isfinite(golden.lo).all():
        return "hi and lo are not float64, or lo is not finite"
    if not all(x.dtype.kind == "f" and np.isfinite(x).all() and (x >= 0).all() for x in limits):
        return "a W or s is negative or not finite"
    return ""
