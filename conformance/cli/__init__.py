"""The command `mha-conformance`: options in, exit status out; everything else is done elsewhere."""

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.cli.exit_codes import CONFORMANT, FAILED, INTERRUPTED, MISUSED, PROGRAM
from conformance.cli.interrupts import interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command, and returns its exit status.

    All that takes time to import is imported in here, so that Ctrl-C ends it without a traceback at any time.
    """
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt as error:
        return _interrupted(error)


def _main(given: list[str]) -> int:
    if sys.stderr is None:  # closed: `print` would take stdout instead
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 -- for as long as the process lives
    if sys.stdout is None:
        return _ended(MISUSED, "stdout is closed; send it to a file or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")

    import click

    from conformance.errors import UsageError

    try:
        from conformance.cli.commands import cli

        status = cli.main(args=given, prog_name=PROGRAM, standalone_mode=False, obj=given)
        sys.stdout.flush()
        return status or CONFORMANT
    except UsageError as error:
        return _ended(MISUSED, str(error))
    except click.UsageError as error:
        return _ended(MISUSED, f"{_sentence(error.format_message())} See `{_called(cli, given)} --help`.")
    except click.ClickException as error:
        return _ended(MISUSED, error.format_message())
    except click.Abort as error:  # what click makes of an interrupt
        return _interrupted(error.__cause__ or error.__context__ or error)
    except OSError as error:
        _drop_output()
        if interrupted(error):
            return _ended(INTERRUPTED, "interrupted")
        if isinstance(error, BrokenPipeError):  # the reader, `head` say, has seen enough
            return FAILED
        where = error.filename or "the output"
        return _ended(MISUSED, f"{where} cannot be read or written: {error.strerror or error}")


def _interrupted(error: BaseException) -> int:
    return _ended(INTERRUPTED, "; ".join(("interrupted", *map(str, error.args))))


def _ended(status: int, message: str) -> int:
    from conformance.resources import GONE
    from conformance.telling.terminal import MESSAGE, inert, shorten

    if status == MISUSED and "GITHUB_STEP_SUMMARY" in os.environ:
        from conformance.telling.github import misused_markdown, summarise

        with suppress(OSError):
            summarise(misused_markdown(message))

    if status == MISUSED and GONE not in message and not _has_folder():
        message = f"{message}; {GONE}"
    with suppress(OSError):  # nobody is left to read it
        print(f"{PROGRAM}: {inert(shorten(message, MESSAGE))}", file=sys.stderr)
    return status


def _has_folder() -> bool:
    """Whether the folder that this was started in is still there: without it no relative path leads anywhere."""
    try:
        os.getcwd()  # noqa: PTH109 -- before anything is imported
    except OSError:
        return False
    return True


def _called(command: Any, given: Sequence[str]) -> str:
    """The call that is meant, as `mha-conformance vectors export`: click does not always say."""
    names = [PROGRAM]
    for name in given:
        command = command.get_command(None, name) if hasattr(command, "get_command") else None
        if command is None:
            break
        names.append(name)
    return " ".join(names)


def _sentence(text: str) -> str:
    """Click's message, in the form that its later versions give it, with the full stops that it leaves out."""
    text = re.sub(r"^No such option: (\S+)", r"No such option '\1'", " ".join(text.split()))
    text = re.sub(r"\.? Did you mean '?([^'? ]+)'?\?", r"; did you mean '\1'?", text)
    return text if text[-1:] in (".", "?") else f"{text}."


def _drop_output() -> None:
    """What is left in the buffer goes nowhere, since at its end Python would try to write it again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
