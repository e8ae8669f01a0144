"""That one run at a time writes a file: a lock next to it, which the system releases however its run ends."""

import os
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO

from conformance.errors import UsageError
from conformance.telling.atomic_file import OutFile

NAMED = 40
"""Characters of a file's name in that of its lock."""
TRIES = 100
"""How often a lock is opened that another run removes at the same time."""


class Held:
    """Files that this run alone writes until it lets go of them.

    Raises:
        UsageError: another run writes one of them.
    """

    def __init__(self, files: list[OutFile]) -> None:
        self._locks: list[tuple[Path, IO[bytes]]] = []
        try:
            for file in files:
                self._hold(file)
        except BaseException:
            self.release()
            raise

    def _hold(self, file: OutFile) -> None:
        path = beside(file.path)
        for _ in range(TRIES):
            lock = _opened(path)
            if lock is None:
                return
            if not _locked(lock):
                lock.close()
                break
            if _same(lock, path):
                self._locks.append((path, lock))
                return
            lock.close()  # whoever had it has just removed it
        raise UsageError(
            f"{file.what} {str(file.given)!r} is being written by another run: wait for its end, or give another name"
        )

    def release(self) -> None:
        """Lets others write the files."""
        while self._locks:
            path, lock = self._locks.pop()
            with suppress(OSError):  # Windows removes nothing that is open; there the empty file stays
                path.unlink()
            lock.close()


def beside(path: Path) -> Path:
    """Where the lock of a file lies."""
    name = path.name
    if len(name) > NAMED:
        name = f"{name[:NAMED]}-{sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    return path.with_name(f".{name}.lock")


def _opened(path: Path) -> IO[bytes] | None:
    """The lock's file, through no link and waiting for nobody; None where another user's killed run has left it.

    Raises:
        UsageError: something else lies there.
    """
    try:
        file = open(path, "ab", opener=_carefully)  # noqa: SIM115 -- it is held open
    except PermissionError:
        return None
    except OSError as error:
        raise UsageError(f"{path}, the lock, cannot be opened ({error.strerror}): remove it") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError(f"{path}, the lock, is not a regular file: remove it")
    return file


def _carefully(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def _locked(file: IO[bytes]) -> bool:
    """Whether nobody else had the lock; also where the file system has none to give."""
    try:
        import fcntl
    except ImportError:
        return _locked_on_windows(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _locked_on_windows(file: IO[bytes]) -> bool:
    import importlib

    system = importlib.import_module("msvcrt")
    try:
        system.locking(file.fileno(), system.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def _same(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one that has the name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
