"""What changed since a record was searched, so that only that is asked again: cases, and kinds of defects."""

import io
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from conformance.defects.record import Record, fingerprints
from conformance.errors import UsageError
from conformance.resources import PACKAGE
from conformance.vectors.load import load_vectors

DATA = Path("vectors", "data")
SOURCES = ("defects", "judging")
SEARCHING = ("__main__.py", "confirm.py", "lines.py", "record.py", "since.py", "work.py")
"""Files of defects/ that decide what is asked, and not which cases show a defect."""


@dataclass(frozen=True)
class Changes:
    """What is another than at a commit; all that is not asked again gives what it gave then."""

    cases: frozenset[str]  # IDs of the cases that are new or changed
    kinds: frozenset[str] | None  # of the defects whose file changed; None where all may have


def since(commit: str, record: Record) -> Changes:
    """What changed since a commit at which the record was true.

    Raises:
        UsageError: git does not know the commit, or the record was searched with other files.
    """
    with TemporaryDirectory() as folder:
        then = _extracted(commit, Path(folder)) / PACKAGE.name
        before = load_vectors(then / DATA)
        if stale := record.changed(fingerprints(before.sha256, then)):
            raise UsageError(
                f"--since {commit}: the record was not searched with {' and '.join(stale)} of that commit; "
                "give the one that wrote it"
            )
        old = {case.id: case for case in before.cases}
        cases = (case for case in load_vectors().cases if case.id not in old or not same(case, old[case.id]))
        return Changes(frozenset(case.id for case in cases), _kinds(then))


def _extracted(commit: str, folder: Path) -> Path:
    """The files of a commit that decide which cases show a defect."""
    paths = [f"{PACKAGE.name}/{part}" for part in (*SOURCES, DATA.as_posix())]
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit, "--", *paths], cwd=PACKAGE.parent, capture_output=True
    )
    if done.returncode:
        raise UsageError(f"--since {commit}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _kinds(then: Path) -> frozenset[str] | None:
    """The kinds of defects whose files changed; None where a file changed that concerns all."""
    changed = {
        path
        for root in (then, PACKAGE)
        for part in SOURCES
        for path in (each.relative_to(root) for each in (root / part).rglob("*.py"))
        if _text(then / path) != _text(PACKAGE / path)
    }
    bank = {path for path in changed if path.parent == Path("defects", "bank") and path.name != "__init__.py"}
    others = {path for path in changed - bank if path.name not in SEARCHING and path.name != "__init__.py"}
    return None if others else frozenset(path.stem for path in bank)


def _text(path: Path) -> bytes:
    """The text of a file, whatever its line ends; empty where there is none."""
    return path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b""


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, in each number of their arrays."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and _equal(one, other)
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def _equal(one: Any, other: Any) -> bool:
    return bool(one.shape == other.shape and one.tobytes() == other.tobytes())
