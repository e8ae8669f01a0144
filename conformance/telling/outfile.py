"""A file that a run writes: found to be writable before the run, replaced as a whole at every write."""

import os
from contextlib import suppress
from pathlib import Path

from conformance.errors import UsageError


class OutFile:
    """Where something goes; `what` names it in messages. A reader never sees half of a file.

    Raises:
        UsageError: it could not be written.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._what = what
        try:
            self._try(path)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that go round in a circle
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise UsageError(f"{what} {str(path)!r} cannot be written: {reason}") from error

    def _try(self, path: Path) -> None:
        self._path = path.resolve()  # replaces what a link points to, not the link
        if self._path.exists() and not self._path.is_file():
            raise ValueError("it is there, and no file; give the name of a file")
        if not self._path.parent.is_dir():
            raise ValueError(f"{self._path.parent} is no folder; make it first")
        beside = self._beside()
        beside.touch()
        beside.unlink()

    @property
    def path(self) -> Path:
        """The file itself, links resolved."""
        return self._path

    def _beside(self) -> Path:
        """The file that becomes the other one once it is whole."""
        return self._path.with_name(f".{self._path.name[:40]}.{os.getpid()}")

    def write(self, text: str) -> None:
        """Replaces the file.

        Raises:
            UsageError: the disk is full, say.
        """
        beside = self._beside()
        try:
            beside.write_text(text, "utf-8")
            beside.replace(self._path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise UsageError(f"{self._what} {self._path} cannot be written: {error.strerror}") from error
