"""A file that a run writes: found to be writable before the run, replaced as a whole at every write."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import IO

from conformance.errors import UsageError


class OutFile:
    """Where something goes; `what` names it in messages. A reader never sees half of a file.

    Raises:
        UsageError: it could not be written.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.what, self.given = what, path
        try:
            self._try(path)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that go round in a circle
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise UsageError(f"{what} {str(path)!r} cannot be written: {reason}") from error

    def _try(self, path: Path) -> None:
        self._path = path.resolve()  # replaces what a link points to, not the link
        if self._path.exists() and not self._path.is_file():
            raise ValueError("it exists and is not a file; give the name of a file")
        if not self._path.parent.is_dir():
            raise ValueError(f"{self._path.parent} is not a folder; create it first")
        self._sweep()
        beside, file = self._opened()
        file.close()
        beside.unlink()

    def __str__(self) -> str:
        return f"{self.what} {self.given}"

    @property
    def path(self) -> Path:
        """The file itself, links resolved."""
        return self._path

    def _opened(self) -> tuple[Path, IO[str]]:
        """The file that becomes the other one once it is whole: created again, whatever lies or points there."""
        beside = self._path.with_name(f"{self._stem}{os.getpid()}")
        beside.unlink(missing_ok=True)
        return beside, beside.open("x", encoding="utf-8", errors="backslashreplace", newline="\n")

    @property
    def _stem(self) -> str:
        return f".{self._path.name[:40]}."

    def _sweep(self) -> None:
        """Removes what runs that were killed have left half written."""
        for left in self._path.parent.glob(f"{escape(self._stem)}*"):
            number = left.name.removeprefix(self._stem)
            if re.fullmatch("[1-9][0-9]{0,8}", number) and not _runs(int(number)):
                with suppress(OSError):
                    left.unlink()

    def write(self, text: str) -> None:
        """Replaces the file.

        Raises:
            UsageError: the disk is full, say.
        """
        try:
            beside, file = self._opened()
            try:
                with file:
                    file.write(text)
                beside.replace(self._path)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise UsageError(f"{self.what} {self._path} cannot be written: {error.strerror}") from error


def check_apart(written: Iterable[OutFile], read: Iterable[tuple[str, str | os.PathLike[str]]]) -> None:
    """Sees to it that no output is written over a file that is read, each with a word for it, or another output.

    Raises:
        UsageError: a file would be lost.
    """
    taken = {os.path.realpath(path): what for what, path in read}
    for file in written:
        path = str(file.path)
        if path in taken:
            raise UsageError(
                f"{file.what} {str(file.given)!r} is the {taken[path]} as well, which would be lost: give another name"
            )
        taken[path] = file.what


def files_of(words: Iterable[str]) -> list[str]:
    """The files that targets or the words of a command name, with an attribute or without."""
    names = [name for word in words for name in (word, word.rpartition(":")[0])]
    return [name for name in names if os.path.isfile(name)]  # noqa: PTH113 -- no word is too long or odd for it


def _runs(process: int) -> bool:
    """Whether a process of this number is there; it is taken to be where nobody can tell."""
    if os.name != "posix":  # there, `kill` would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
