"""Reports made by hand, and the page over them, parsed as a browser would."""

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from conformance.judging.verdict import Got, Row
from conformance.names import SDPA
from conformance.running.events import Started
from conformance.running.messages import Hello, Question
from conformance.running.protocol import encode_array
from conformance.running.request import Request
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.telling.page import render
from conformance.telling.recorder import Recorder
from conformance.telling.report import Report
from conformance.vectors import load
from conformance.vectors.load import Vectors

VOID = {"meta", "link", "br", "input", "path", "rect"}
OPTIONAL = {"td", "tr", "p", "li", "dt", "dd", "option", "tbody"}
"""Elements whose end may be left out in HTML."""


class Page(HTMLParser):
    """The elements of a page in order, and what stands in them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.unbalanced: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1] != tag and self._open[-1] in OPTIONAL:
            self._open.pop()
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in self.raw:
            self.raw[self._open[-1]].append(data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, spaces as one."""
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """The attributes of every element of a kind with certain attributes."""
        return [a for name, a in self.elements if name == tag and wanted.items() <= a.items()]


@pytest.fixture
def parse() -> Callable[[str], Page]:
    return Page


@pytest.fixture
def vectors_are(monkeypatch: pytest.MonkeyPatch) -> Callable[[Vectors], None]:
    return lambda vectors: monkeypatch.setattr(load, "load_vectors", lambda directory=None: vectors)


@pytest.fixture
def page_over(vectors_are: Any, make_vectors: Any) -> Callable[..., Page]:
    """The page over reports, where the suite holds certain cases."""

    def make(*reports: Report, cases: tuple[Any, ...] = ()) -> Page:
        vectors_are(make_vectors(*cases))
        return Page(render(reports))

    return make


def report_of(*rows: Row, sha256: str = "0" * 64, source: str = "x.py", **said: Any) -> Report:
    """The report of rows, of a target that says certain things of itself."""
    hello = {"name": "x", "version": "1", "dtypes": ("float32",), "features": (), "operations": (SDPA,)}
    recorder = Recorder(
        Vectors((), sha256, "1.0", "1"), ["ATT-1", "ATT-2"], ["run", "x"], Request(target=source)
    )
    recorder.add(Started(Hello(**{**hello, "accuracy": "eager", **said}), source, "eager", len(rows)))
    for row in rows:
        recorder.add(row)
    return recorder.report()


@pytest.fixture
def make_report() -> Callable[..., Report]:
    return report_of


@pytest.fixture
def make_row() -> Callable[..., Row]:
    def make(verdict: Any = "pass", **fields: Any) -> Row:
        plain = {"case": "a/b", "operation": SDPA, "dtype": "float32", "covers": ("ATT-1",), "features": ()}
        return Row(**{**plain, "verdict": verdict, **fields})

    return make


@pytest.fixture
def run_row() -> Callable[..., Row]:
    """The row of a case that a function is asked."""

    def make(case: Any, function: Any, dtype: str = "float32") -> Row:
        with np.errstate(all="ignore"):
            return answered(Question(case, dtype), "eager", InProcess(adopt(function, "x")))

    return make


@pytest.fixture
def make_got() -> Callable[[str, Any], Got]:
    def make(name: str, array: Any) -> Got:
        encoded = encode_array(np.asarray(array))
        return Got(name, encoded["dtype"], tuple(encoded["shape"]), encoded["data"])

    return make
