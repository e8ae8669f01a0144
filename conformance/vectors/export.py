"""The vectors in a folder of their own, with all that a reader in another language needs."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.errors import UsageError
from conformance.resources import spec_directory, vectors_directory
from conformance.vectors import load

SCHEMA = "schema.json"
"""What the JSON Schema of the index is called beside it."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    cases: int
    files: int
    size: int  # bytes
    sha256: str  # of the index, which identifies the set


def export_vectors(directory: Path, operands: bool = False) -> Exported:
    """Writes index and tensor files as they are, their JSON Schema, and the page that describes them.

    The bytes are those that ship with the suite, so that the hash of a report's vectors is that of the index.
    With `operands` seeded operands are written out as tensors like any other: another index, and another hash.

    Raises:
        UsageError: the folder holds something, or is none; or the vectors that ship are damaged.
    """
    found = load.load_vectors()
    _check_empty(directory)
    directory.mkdir(parents=True, exist_ok=True)
    source, spec = vectors_directory(), spec_directory()
    files = {name: (source / name).read_bytes() for name in (load.INDEX, *found.files)}
    files[SCHEMA] = (spec / "schema" / "vectors.json").read_bytes()
    files["vectors.md"] = (spec / "vectors.md").read_bytes()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    if operands:
        _write_out(directory, found)
    sizes = [(directory / name).stat().st_size for name in files]
    sha256 = hashlib.sha256((directory / load.INDEX).read_bytes()).hexdigest()
    return Exported(len(found.cases), len(files), sum(sizes), sha256)


def _write_out(directory: Path, found: load.Vectors) -> None:
    """Replaces index and tensor files by those of cases without seeds."""
    from conformance.vectors.generate.write import READABLE, write

    index = json.loads((directory / load.INDEX).read_bytes())
    readable = {entry["id"] for entry in index["cases"] if entry["file"] == READABLE}
    cases = [replace(case, inputs=dict(case.inputs), seeded={}) for case in found.cases]
    write(directory, [(case, case.id in readable) for case in cases])
    (directory / load.CHECKED).unlink()


def _check_empty(directory: Path) -> None:
    """Refuses to mix the vectors with anything."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a folder; give a new or an empty one")
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; give a new or an empty folder")
