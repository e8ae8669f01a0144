"""The record of which cases show each defect: kills.json, one defect a line."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.errors import UsageError
from conformance.resources import PACKAGE

RECORD = PACKAGE / "defects" / "kills.json"
WRITE = "python -m conformance.defects --write"
UPDATE = "python -m conformance.defects --missing --write"
SEARCHED = ("bank", "judge", "vectors")
"""What decides which cases show a defect."""
THEN = " then "
"""Between cases that show a defect with state together: asked in this order, the last is answered wrongly."""


@dataclass(frozen=True)
class Record:
    """What the last search found."""

    searched: Mapping[str, str] = field(default_factory=dict)  # fingerprints of what it searched, by SEARCHED
    kills: Mapping[str, Mapping[str, tuple[str, ...]]] = field(
        default_factory=dict
    )  # defect -> dtype -> cases, one or several joined by THEN

    def changed(self, now: Mapping[str, str]) -> list[str]:
        """What is another than when it was searched."""
        return [name for name in SEARCHED if self.searched.get(name) != now[name]]


def read_record(path: Path | None = None) -> Record:
    """The record that ships with the suite, or another.

    Raises:
        UsageError: it is not there, or not of this form.
    """
    path = path or RECORD
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); write it with `{WRITE}`") from error
    return parsed(text, path)


def parsed(text: str, path: Path) -> Record:
    """A record by its text.

    Raises:
        UsageError: it is not of this form.
    """
    try:
        found = json.loads(text)
        kills = {
            str(name): {
                dtype: tuple(map(str, cases)) for dtypes, cases in of.items() for dtype in dtypes.split()
            }
            for name, of in found["killed_by"].items()
        }
        return Record({str(name): str(of) for name, of in found["searched"].items()}, kills)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no record of kills ({error!r}); write it anew with `{WRITE}`") from error


def written(record: Record) -> str:
    """The text of a record: one defect a line, so that a change of one is a line in a diff.

    Dtypes at which the same cases show it stand together, as in "float64 float32".
    """
    lines = [f"{json.dumps(name)}: {json.dumps(_together(of))}" for name, of in record.kills.items()]
    head = f'{{"searched": {json.dumps(dict(record.searched))},\n"killed_by": {{\n'
    return head + ",\n".join(lines) + "\n}}\n"


def _together(by_dtype: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    dtypes: dict[tuple[str, ...], list[str]] = {}
    for dtype, cases in by_dtype.items():
        dtypes.setdefault(tuple(cases), []).append(dtype)
    return {" ".join(names): list(cases) for cases, names in dtypes.items()}


def write_record(record: Record, path: Path | None = None) -> None:
    """Replaces the file as a whole; a reader never sees half of it."""
    path = path or RECORD
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(written(record), "utf-8", newline="\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def fingerprints(vectors_sha256: str, package: Path = PACKAGE) -> dict[str, str]:
    """What decides which cases show a defect, as it is now: the sources of bank and judge, and the vectors.

    How a target is called is left out: what breaks there shows in the kills on record, which are always confirmed.
    """
    return {
        "bank": fingerprint((package / "defects").rglob("*.py"), package),
        "judge": fingerprint((package / "judging").rglob("*.py"), package),
        "vectors": vectors_sha256[:16],
    }


def fingerprint(paths: Iterable[Path], package: Path = PACKAGE) -> str:
    """A hash of source files: of their names and texts, whatever their line ends."""
    found = hashlib.sha256()
    for path in sorted(paths):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{path.relative_to(package).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()[:16]
