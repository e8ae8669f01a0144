"""Wrong targets, run in this process: slips of the plain modules, and the defects of the bank."""

import io
import tomllib
import types
from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.judging.verdict import Row
from conformance.running.runner import InProcess, answered
from conformance.running.select import Selection, select
from conformance.running.target import adopt
from conformance.vectors.case import Case

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Slip:
    """A plain module with one place replaced, and the defects of the bank that are the same mistake."""

    name: str
    module: str
    old: str
    new: str
    wanted: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """One at which it shows."""
        return "float64" if "float64" in self.name else "float32"

    def target(self) -> types.ModuleType:
        """The module.

        Raises:
            ValueError: the place is not there, or there twice.
        """
        source = (HERE / f"{self.module}.py").read_text("utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: the place is {source.count(self.old)} times in {self.module}")
        made = types.ModuleType(self.module)
        exec(compile(source.replace(self.old, self.new), self.name, "exec"), made.__dict__)
        return made


def read_slips() -> dict[str, Slip]:
    """Every slip by name, in the order of the file."""
    entries = tomllib.loads((HERE / "slips.toml").read_text("utf-8"))["slip"]
    return {e["name"]: Slip(**{**e, "wanted": tuple(e["wanted"])}) for e in entries}


def rows_of(target: Any, cases: Iterable[Case], dtypes: tuple[str, ...] = ("float32",)) -> list[Row]:
    """The rows of a target at some dtypes."""
    adopted = adopt(target, "target")
    asker, policy = InProcess(adopted), adopted.hello.accuracy
    questions = select(cases, adopted.hello, policy, Selection(dtypes=dtypes), "target")
    with redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
        return [answered(question, policy, asker) for question in questions]
