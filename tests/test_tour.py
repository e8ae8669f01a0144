"""spec/tour.md in order: its files are written, its commands are run, and they print what it shows."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shown import assert_shows

PAGE = Path(__file__).parents[1] / "spec" / "tour.md"
STEP = re.compile(
    r"<!-- (?P<file>\S+\.py) -->\n```python\n(?P<text>.*?)^```"
    r"|<!-- replace in (?P<edited>\S+): (?P<old>.*?) -> (?P<new>.*?) -->"
    r"|^```console\n(?P<session>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
Called = Callable[..., tuple[int, str, str]]


def sessions(text: str) -> list[tuple[str, list[str]]]:
    """Commands, and the lines that are shown below each."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.splitlines()[0], part.splitlines()[1:]) for part in parts]


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Called) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    steps = [found.groupdict() for found in STEP.finditer(PAGE.read_text("utf-8"))]
    assert sum(step["file"] is not None for step in steps) == 3
    for step in steps:
        if step["file"]:
            Path(step["file"]).write_text(step["text"], "utf-8")
        elif step["edited"]:
            source = Path(step["edited"]).read_text("utf-8")
            assert source.count(step["old"]) == 1
            Path(step["edited"]).write_text(source.replace(step["old"], step["new"]), "utf-8")
        for call, shown in sessions(step["session"] or ""):
            program, *words = shlex.split(call)
            if program == "python":
                done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
                assert_shows(PAGE, shown, done.stdout)
                continue
            assert program == "mha-conformance"
            status, out, err = command(*words)
            fails = any(line.startswith("non-conformant") for line in shown)
            assert status == (1 if fails else 0), out + err
            assert_shows(PAGE, shown, err + out)


PAGES = sorted((PAGE.parent).glob("*.md"))


def test_readme_lists_every_page() -> None:
    listed = set(
        re.findall(r"^\| \[[^]]+\]\(([a-zA-Z-]+\.md)\)", (PAGE.parent / "README.md").read_text("utf-8"), re.M)
    )
    assert listed == {path.name for path in PAGES} - {"README.md"}
