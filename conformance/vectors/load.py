"""Reads the vectors back as Cases: schema first, then hashes, then tensors."""

import gc
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from conformance.dtypes import NUMPY_DTYPES
from conformance.errors import UsageError
from conformance.reading import TooLargeError, Validator, flaw, read_bytes, strict_json
from conformance.resources import schema, vectors_directory
from conformance.vectors.case import Array, Bound, Case, Golden, Signature, lacking
from conformance.vectors.seeded import Inputs, seed_of
from conformance.vectors.tensors import parse_tensors

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
    collects = gc.isenabled()
    gc.disable()  # a hundred thousand objects that stay: looking for garbage among them is a fifth of the time
    try:
        return _loaded(directory, shipped, _state(directory))
    finally:
        if collects:
            gc.enable()


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
    index = _index(directory / INDEX, raw, checked)
    tensors = {name: _tensors(directory / name, digest) for name, digest in index["files"].items()}
    try:
        cases = tuple(_case(entry, tensors[entry["file"]], checked) for entry in index["cases"])
    except KeyError as error:
        raise _damaged(directory / INDEX, f"it names {error}, which no tensor file holds") from error
    except ValueError as error:
        raise _damaged(directory, str(error)) from error
    if len({case.id for case in cases}) < len(cases):
        raise _damaged(directory / INDEX, "two of its cases have one ID")
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


def _index(path: Path, raw: bytes, checked: bool) -> Any:
    try:
        index = strict_json(raw)
    except ValueError as error:
        raise _damaged(path, f"not JSON ({error})") from error
    if not checked and (found := flaw(Validator(schema("vectors")), index)):
        raise _damaged(path, found)
    return index


def _tensors(path: Path, digest: str) -> dict[str, Array]:
    raw = _read(path)  # once: what is read is what has the hash
    found = hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise _damaged(path, f"its sha256 is {found[:12]}..., the index says {digest[:12]}...")
    try:
        return parse_tensors(raw, path.suffix)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _case(entry: Mapping[str, Any], tensors: Mapping[str, Array], checked: bool) -> Case:
    name = entry["id"]
    seeded = {operand: seed_of(seed) for operand, seed in entry.get("seeded", {}).items()}
    if strange := seeded.keys() - set(entry["inputs"]):
        raise ValueError(f"{name}: {strange.pop()} is seeded and no input")
    stored = {x: tensors[f"{name}:input:{x}"] for x in entry["inputs"] if x not in seeded}
    inputs = Inputs(stored, seeded, tuple(entry["inputs"])) if seeded else stored
    expected = {
        output: _golden(f"{name}:{output}", golden, tensors, checked)
        for output, golden in entry["expected"].items()
    }
    if missing := lacking(entry["operation"], inputs):
        raise ValueError(f"{name}: it lacks a {' and a '.join(missing)}")
    if strange := {str(x.dtype) for x in stored.values()} - set(NUMPY_DTYPES):
        raise ValueError(f"{name}: an input has dtype {strange.pop()}")
    for output, golden in expected.items():
        if set(golden.bounds) != set(entry["dtypes"]):
            raise ValueError(f"{name}:{output}: it has bounds for other dtypes than the case is about")
    return Case(
        id=name,
        note=entry["note"],
        operation=entry["operation"],
        covers=tuple(entry["covers"]),
        features=tuple(entry["features"]),
        dtypes=tuple(entry["dtypes"]),
        excluded=entry["excluded"],
        options=entry["options"],
        inputs=inputs,
        expected=expected,
        raises=entry["raises"],
        memory=entry["memory"],
        repeat=int(entry["repeat"]),
        dtype_of=entry["dtype_of"],
        seeded=seeded,
    )


def _golden(prefix: str, entry: Mapping[str, Any], tensors: Mapping[str, Array], checked: bool) -> Golden:
    rows = None if entry["rows"] is None else tuple(map(int, entry["rows"]))  # 1.0 is an integer of JSON, too
    bounds = {
        dtype: {
            policy: Bound(worst=_wide(tensors[f"{prefix}:{key}:W"]), rms=_wide(tensors[f"{prefix}:{key}:s"]))
            for policy, key in policies.items()
        }
        for dtype, policies in entry["bounds"].items()
    }
    golden = Golden(
        shape=tuple(map(int, entry["shape"])),
        rows=rows,
        hi=tensors[f"{prefix}:hi"],
        lo=tensors[f"{prefix}:lo"],
        rms_applies=entry["rms_applies"],
        bounds=bounds,
        signatures={
            name: Signature(tensors[f"{prefix}:{name}:g"], limits)
            for name, limits in entry["signatures"].items()
        },
        finite=entry.get("elsewhere") == "finite",
    )
    if not checked and (problem := _golden_problem(golden, 1 if prefix.endswith(":lse") else 2)):
        raise ValueError(f"{prefix}: {problem}")
    return golden


def _wide(limit: Array) -> Array:
    """A bound as it is computed with: stored in bfloat16, it is exact in float32."""
    return limit.astype(np.float32) if limit.dtype == ml_dtypes.bfloat16 else limit


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
