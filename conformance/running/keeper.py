"""Keeps a target: starts it, and ends it with all that it has started, however that was detached. Linux only.

Runs as a process of its own, `python -I -S keeper.py PARENT COMMAND...`, and imports nothing of the suite. The kernel
gives it whatever its descendants leave behind, a daemon as well.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
AGAIN_SECONDS = 0.005
"""After which it looks again whether all have ended."""
HEARD = {signal.SIGCHLD, signal.SIGTERM}


def children(process: int) -> list[int]:
    """The processes that a process with one thread has started or was given, the oldest first."""
    try:
        with open(f"/proc/{process}/task/{process}/children") as file:  # noqa: PTH123 -- starts in a few ms
            return [int(number) for number in file.read().split()]
    except OSError:
        return [number for number, parent in parents() if parent == process]


def parents() -> Iterator[tuple[int, int]]:
    """Every process that has not ended, with its parent."""
    for name in os.listdir("/proc"):  # noqa: PTH208 -- as above
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state != b"Z":
                    yield int(name), int(parent)


def descendants(process: int) -> list[int]:
    """All that a process has started, and what they have, the nearest first."""
    under: dict[int, list[int]] = {}
    for number, parent in parents():
        under.setdefault(parent, []).append(number)
    found = list(under.get(process, ()))
    for number in found:  # which grows meanwhile
        found += under.get(number, ())
    return found


def marked(mark: bytes) -> list[int]:
    """The processes that were started with a mark in their environment, or by one that was."""
    found = []
    for number, _ in parents():
        with suppress(OSError), open(f"/proc/{number}/environ", "rb") as file:  # noqa: PTH123
            if mark in file.read():
                found.append(number)
    return found


def end(processes: Sequence[int]) -> None:
    """Ends processes, those that are stopped as well."""
    for number in processes:
        with suppress(OSError):
            os.kill(number, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(command: Sequence[str], keeper: int) -> None:
    """Turns this process into the command, which the kernel ends with its keeper, and first where memory runs out."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("1000")
    for name in ("SIGPIPE", "SIGXFSZ"):  # which Python ignores
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    try:
        os.execvp(command[0], tuple(command))
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(1)


def _let_go() -> None:
    """Closes the pipes, whose other ends shall see it when the command closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


def _reap(command: int) -> int | None:
    """Takes in those that have ended; the status of the command if it is one of them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            process, how = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process == command:
                status = how
    return status


def _end_all(command: int, status: int | None) -> int:
    """Ends everything, what is started meanwhile as well; the status of the command."""
    while children(os.getpid()):
        end(descendants(os.getpid()))
        time.sleep(AGAIN_SECONDS)
        found = _reap(command)
        status = found if status is None else status
    return 0 if status is None else status


def _end_as(status: int) -> None:
    """Ends this process as the command has ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core is enough
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
        os.kill(os.getpid(), number)
        os._exit(1)
    os._exit(os.WEXITSTATUS(status))


def main(parent: int, command: Sequence[str]) -> None:
    """Starts the command, and ends as it does; ends it where the parent ends or says so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    keeper, child = os.getpid(), os.fork()
    if child == 0:
        _become(command, keeper)
    _let_go()
    while signal.sigwait(HEARD) != signal.SIGTERM:
        status = _reap(child)
        if status is not None:
            _end_as(_end_all(child, status))
    _end_as(_end_all(child, None))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
