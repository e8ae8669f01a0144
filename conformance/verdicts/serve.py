"""Many programs, one after another: a folder of them, or JSON lines from a training loop.

The next process starts, and loads its array library, while a program is judged.
"""

import json
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from conformance.errors import UsageError
from conformance.problems.problem import Problem, find
from conformance.reading import strict_json
from conformance.verdicts.asker import TIMEOUT, Asker
from conformance.verdicts.verdict import Verdict, judge_program

FIELDS = {"id", "program", "source", "problem", "seed", "own"}
MOST_SOURCE = 2**20


class Bench:
    """Judges programs with a process in reserve."""

    def __init__(
        self, seed: int, *, own: bool = False, device: str | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._seed, self._own, self._device, self._timeout = seed, own, device, timeout
        self._spare: tuple[Asker, threading.Thread] | None = None

    def judge(self, source: str, problem: Problem, seed: int | None = None, own: bool = False) -> Verdict:
        """The verdict on a program; see `judge_program`."""
        asker = self._taken(problem)
        self._spare = self._prepared(problem)
        chosen = self._seed if seed is None else seed
        return judge_program(source, problem, chosen, own=own or self._own, device=self._device, asker=asker)

    def _prepared(self, problem: Problem) -> tuple[Asker, threading.Thread]:
        asker = Asker(problem, self._device, self._timeout)
        asker.prepare()
        thread = threading.Thread(target=asker.warm, daemon=True)
        thread.start()
        return asker, thread

    def _taken(self, problem: Problem) -> Asker:
        if self._spare is None or self._spare[0].problem != problem:
            self.close()
            self._spare = self._prepared(problem)
        asker, thread = self._spare
        self._spare = None
        thread.join()
        return asker

    def close(self) -> None:
        """Ends the process in reserve."""
        if self._spare is not None:
            asker, thread = self._spare
            asker.close()
            thread.join()
            self._spare = None


def programs(folder: Path) -> list[Path]:
    """The programs of a folder, in the order of their names.

    Raises:
        UsageError: it has none.
    """
    found = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not found:
        raise UsageError(f"{folder} has no file that ends in .py: give a program, or a folder of them")
    return found


def batch(bench: Bench, paths: Iterable[Path], problem: Problem) -> Iterator[tuple[Path, Verdict]]:
    """The verdict on each program."""
    for path in paths:
        yield path, bench.judge(str(path), problem)


def answers(bench: Bench, lines: Iterable[str], problem: str | None) -> Iterator[dict[str, Any]]:
    """One reply for each line that is not empty.

    A line is `{"id", "program" or "source", "problem", "seed", "own"}`, of which the program or its source is
    needed, and the problem unless the command names one; a reply is the verdict with the id and the seconds.
    """
    for line in lines:
        if not line.strip():
            continue
        began = time.perf_counter()
        beside: dict[str, Any] = {}
        try:
            asked = _read(line)
            beside = {name: asked[name] for name in ("id",) if name in asked}
            _check(asked)
            named = asked.get("problem", problem)
            if named is None:
                raise UsageError("problem is missing: name one in the line, or by --problem")
            reply = _judged(bench, asked, find(named)).json
        except UsageError as error:
            reply = {"error": str(error)}
        yield {**beside, **reply, "seconds": round(time.perf_counter() - began, 3)}


def _read(line: str) -> dict[str, Any]:
    try:
        asked = strict_json(line.encode())
    except ValueError as error:
        raise UsageError(f"the line is no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise UsageError(f"a line is an object with {', '.join(sorted(FIELDS))}")
    return asked


def _check(asked: dict[str, Any]) -> None:
    if unknown := sorted(asked.keys() - FIELDS):
        raise UsageError(f"a line is an object with {', '.join(sorted(FIELDS))}; got {', '.join(unknown)}")
    if ("program" in asked) == ("source" in asked):
        raise UsageError("give program, a path, or source, the text of a program")
    for name, kind in (("program", str), ("source", str), ("problem", str), ("seed", int), ("own", bool)):
        if name in asked and type(asked[name]) is not kind:
            raise UsageError(f"{name} is {json.dumps(asked[name])[:60]}, wanted {kind.__name__}")
    if asked.get("seed", 0) < 0:
        raise UsageError("seed is negative")


def _judged(bench: Bench, asked: dict[str, Any], problem: Problem) -> Verdict:
    seed, own = asked.get("seed"), asked.get("own", False)
    if "program" in asked:
        if not Path(asked["program"].partition(":")[0]).is_file():
            raise UsageError(f"no file {asked['program']!r}")
        return bench.judge(asked["program"], problem, seed, own)
    if len(asked["source"]) > MOST_SOURCE:
        raise UsageError(f"source has more than {MOST_SOURCE} characters")
    with tempfile.TemporaryDirectory(prefix="mha-judge-") as folder:
        path = Path(folder, "program.py")
        path.write_text(asked["source"], "utf-8")
        return bench.judge(str(path), problem, seed, own)
