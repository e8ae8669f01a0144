"""Wrong targets, run in this process: slips of the plain modules, and the defects of the bank."""

import io
import tomllib
import types
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conformance.judging.verdict import Row
from conformance.running.again import Again
from conformance.running.runner import InProcess, answered
from conformance.running.select import Selection, select
from conformance.running.target import adopt
from conformance.vectors.case import Case

CORPUS = Path(__file__).parents[1] / "corpus" / "diagnosis"
FILES = {
    "first": ("slips.toml",),
    "second": ("outsider.toml",),
    "third": ("third_blocks.toml", "third_forward.toml", "third_backward.toml"),
    "fourth": ("fourth.toml",),
    "fifth": ("fifth.toml",),
    "sixth": ("sixth.toml",),
    "seventh": ("seventh.toml",),
    "eighth": ("eighth.toml",),
    "ninth": ("ninth.toml",),
    "tenth": ("tenth.toml",),
}
"""The sets of slips, each by somebody else; the bank was mended after each, so that only the next one measures it."""


@dataclass(frozen=True)
class Slip:
    """A right module with one mistake put in, and the defects of the bank that are the same mistake."""

    name: str
    module: str
    edits: tuple[tuple[str, str], ...]  # what stands there, what stands there by mistake
    wanted: tuple[str, ...]
    missed: str | None = None  # what was said in its place when it was first diagnosed
    given: tuple[str, ...] = ()  # dtypes that it is asked at
    where: tuple[str, ...] = ()  # patterns of a condition that is as right as the mistake itself

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those at which it is asked: one at which it shows, unless it says which."""
        one = "float64" if "float64" in self.name else "float16" if "16-bits" in self.name else "float32"
        return self.given or (one,)

    def target(self) -> types.ModuleType:
        """The module.

        Raises:
            ValueError: a place is not there, or there twice.
        """
        source = edited(CORPUS / f"{self.module}.py", self.edits, self.name)
        made = types.ModuleType(self.module)
        exec(compile(source, self.name, "exec"), made.__dict__)
        return made


def edits_of(entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The edits of an entry of a table: `edits`, or `old` and `new` where there is one."""
    return tuple((old, new) for old, new in entry.get("edits") or [(entry["old"], entry["new"])])


def edited(path: Path, edits: Iterable[tuple[str, str]], name: str) -> str:
    """The text of a right program with a mistake put in.

    Raises:
        ValueError: a place is not there, or there twice.
    """
    source = path.read_text("utf-8")
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"{name}: a place is {source.count(old)} times in {path.stem}: {old}")
        source = source.replace(old, new)
    return source


def read_slips(which: str = "first") -> dict[str, Slip]:
    """The slips of a set by name, in the order of its files."""
    texts = [(CORPUS / file).read_text("utf-8") for file in FILES[which]]
    return {e["name"]: _slip(e) for text in texts for e in tomllib.loads(text)["slip"]}


def _slip(e: dict[str, Any]) -> Slip:
    more = tuple(e.get("dtypes", ())), tuple(e.get("where", ()))
    return Slip(e["name"], e["module"], edits_of(e), tuple(e["wanted"]), e.get("missed"), *more)


def rows_of(target: Any, cases: Iterable[Case], dtypes: tuple[str, ...] = ("float32",)) -> list[Row]:
    """The rows of a target at some dtypes."""
    adopted = adopt(target, "target")
    asker, policy = InProcess(adopted), adopted.hello.accuracy
    questions = select(cases, adopted.hello, policy, Selection(dtypes=dtypes), "target")
    with redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
        again = Again()
        return [answered(question, policy, asker, again) for question in questions]
