"""Writes the vectors: one index, and tensor files by chapter."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from conformance.dtypes import cast
from conformance.resources import schema
from conformance.vectors.case import Array, Case, Golden
from conformance.vectors.load import CHECKED, INDEX, checked_text
from conformance.vectors.seeded import seed_json
from conformance.vectors.tensors import write_tensors
from conformance.version import SPEC_VERSION, VECTORS_VERSION

READABLE = "readable.json"


def write(directory: Path, cases: Iterable[tuple[Case, bool]]) -> None:
    """Writes every case, with whether it is to be readable, and the index over them."""
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Array]] = {}
    entries = []
    for case, readable in sorted(cases, key=lambda pair: pair[0].id):
        file = READABLE if readable else f"{case.chapter}.safetensors"
        tensors, entry = encoded(case)
        files.setdefault(file, {}).update(tensors)
        entries.append({**entry, "file": file})
    for name, tensors in files.items():
        write_tensors(directory / name, tensors)
    index = {
        "vectors_version": VECTORS_VERSION,
        "spec_version": SPEC_VERSION,
        "files": {
            name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in sorted(files)
        },
        "cases": entries,
    }
    jsonschema.validate(index, schema("vectors"))
    raw = _lines(index)
    (directory / INDEX).write_bytes(raw)
    (directory / CHECKED).write_bytes(checked_text(hashlib.sha256(raw).hexdigest()))


def same(one: Case, other: Case) -> bool:
    """Whether two cases are written alike."""
    tensors, entry = encoded(one)
    others, its = encoded(other)
    return (
        json.dumps(entry) == json.dumps(its)
        and list(tensors) == list(others)
        and all(
            x.dtype == others[key].dtype
            and x.shape == others[key].shape
            and x.tobytes() == others[key].tobytes()
            for key, x in tensors.items()
        )
    )


def _lines(index: dict[str, Any]) -> bytes:
    """The index as JSON with one file and one case a line, so that a change shows as the lines of its cases."""

    def compact(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    head = [f"{compact(name)}: {compact(index[name])}," for name in ("vectors_version", "spec_version")]
    files = ",\n".join(f"{compact(name)}: {compact(digest)}" for name, digest in index["files"].items())
    cases = ",\n".join(map(compact, index["cases"]))
    return "\n".join(["{", *head, '"files": {', files, "},", '"cases": [', cases, "]", "}", ""]).encode()


def encoded(case: Case) -> tuple[dict[str, Array], dict[str, Any]]:
    """The tensors of a case by key, and its entry in the index but for the file."""
    stored = [name for name in case.inputs if name not in case.seeded]
    tensors = {f"{case.id}:input:{name}": case.inputs[name] for name in stored}
    expected = {}
    for name, golden in case.expected.items():
        more, expected[name] = _golden(f"{case.id}:{name}", golden)
        tensors |= more
    entry = {
        **case.described,
        "memory": dict(case.memory),
        "repeat": case.repeat,
        "dtype_of": dict(case.dtype_of),
        "raises": case.raises,
        "inputs": list(case.inputs),
        "expected": expected,
    }
    if case.seeded:
        entry["seeded"] = {name: seed_json(seed) for name, seed in case.seeded.items()}
    return tensors, entry


def _narrow(limit: Array) -> Array:
    """A bound has eight significant bits: bfloat16 holds them, unless they are too small for it."""
    narrow = cast(limit, "bfloat16")
    return narrow if np.array_equal(narrow.astype(limit.dtype), limit) else limit


def _golden(prefix: str, golden: Golden) -> tuple[dict[str, Array], dict[str, Any]]:
    tensors = {f"{prefix}:hi": golden.hi, f"{prefix}:lo": golden.lo}
    bounds: dict[str, dict[str, str]] = {}
    named: dict[bytes, str] = {}  # what has the same bound shares its tensors
    for dtype, of in golden.bounds.items():
        for policy, bound in of.items():
            key = named.setdefault(bound.worst.tobytes() + bound.rms.tobytes(), f"{dtype}.{policy}")
            bounds.setdefault(dtype, {})[policy] = key
            tensors[f"{prefix}:{key}:W"] = _narrow(bound.worst)
            tensors[f"{prefix}:{key}:s"] = _narrow(bound.rms)
    for name, signature in golden.signatures.items():
        tensors[f"{prefix}:{name}:g"] = signature.direction
    entry: dict[str, Any] = {
        "shape": list(golden.shape),
        "rows": None if golden.rows is None else list(golden.rows),
        "rms_applies": golden.rms_applies,
        "bounds": bounds,
        "signatures": {name: signature.limits for name, signature in golden.signatures.items()},
    }
    if golden.finite:
        entry["elsewhere"] = "finite"
    return tensors, entry
