"""The vectors in a folder of their own, with all that a reader in another language needs."""

from dataclasses import dataclass
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


def export_vectors(directory: Path) -> Exported:
    """Writes index and tensor files as they are, their JSON Schema, and the page that describes them.

    The bytes are those that ship with the suite, so that the hash of a report's vectors is that of the index.

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
    return Exported(len(found.cases), len(files), sum(map(len, files.values())), found.sha256)


def _check_empty(directory: Path) -> None:
    """Refuses to mix the vectors with anything."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is not a folder; give a new or an empty one")
    if directory.is_dir() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; give a new or an empty folder")
