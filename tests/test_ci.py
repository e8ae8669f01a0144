"""What runs on each change and what weekly: .ci/run, the workflows, the markers and spec/ci.md say the same."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.running.process import environment

yaml: Any = pytest.importorskip("yaml", reason="of the dependency group test")

TESTS = Path(__file__).parent
ROOT = TESTS.parent
RUN = ROOT / ".ci" / "run"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGE = (ROOT / "spec" / "ci.md").read_text("utf-8")
pytestmark = pytest.mark.skipif(not RUN.exists(), reason="an sdist comes without .ci and .github")


def run_sessions() -> set[str]:
    """The sessions of .ci/run, without their parameters."""
    text = RUN.read_text("utf-8")
    array = re.search(r"^sessions=\((.*?)^\)", text, re.DOTALL | re.MULTILINE)
    assert array is not None
    words = {word.strip('"').partition("(")[0] for word in array[1].split()}
    return words | set(re.findall(r"nox -s ([a-z]+)", text))


def weekly_sessions() -> set[str]:
    """The sessions of the weekly workflow."""
    weekly = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text("utf-8"))
    return set(weekly["jobs"]["session"]["strategy"]["matrix"]["session"]) | {"conformance"}


def marked() -> set[str]:
    """The names in markers `session(NAME)`."""
    files = {path: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}
    return {name for text in files.values() for name in re.findall(r'mark\.session\("(\w+)"\)', text)}


def noxfile_sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}


def test_every_session_that_is_run_exists() -> None:
    assert run_sessions() | weekly_sessions() | marked() <= noxfile_sessions()


def test_the_page_has_a_row_for_each() -> None:
    rows = "\n".join(re.findall(r"^\| .*$", PAGE, re.MULTILINE))
    for name in (run_sessions() | weekly_sessions()) - {"environment"}:
        assert f"`{name}`" in rows, name


def test_what_is_done_in_part_is_done_whole_every_week() -> None:
    text = (ROOT / ".github" / "workflows" / "weekly.yml").read_text("utf-8")
    assert yaml.safe_load(text)["env"] == {"WEEKLY": "1"}
    assert {"conformance", "vectors", "defects", "soundness", "tests"} <= weekly_sessions()
    assert marked() <= weekly_sessions()


def test_only_what_has_run_is_left_out() -> None:
    file = str(TESTS / "third_party" / "test_known.py")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", file]
    for run, left_out in (("third_party lint", True), ("vectors lint", False), ("", False)):
        told = {**os.environ, "SESSIONS_RUN": run}
        done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=120)
        assert ("deselected" in done.stdout) == left_out, done.stdout + done.stderr


def test_what_is_marked_by_its_place_is_there() -> None:
    places = re.search(
        r"^PROCESSES = (\(.*?^\))", (TESTS / "conftest.py").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert places is not None
    names = ast.literal_eval(places[1])
    assert len(names) > 10
    assert [name for name in names if not (TESTS / name).exists()] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_an_action_is_pinned_to_a_commit(path: Path) -> None:
    text = path.read_text("utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in filter(lambda name: name != "./", used):  # this repository itself
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert "concurrency" in yaml.safe_load(text)


def test_versions_are_exact_and_torch_is_the_small_one() -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text("utf-8").splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), lines
    torch = re.search(r'TORCH = \["(.*?)"\]', (ROOT / "noxfile.py").read_text("utf-8"))
    assert torch is not None
    assert torch[1] in lines


def test_a_worker_keeps_compilations_where_its_user_says() -> None:
    name = "JAX_COMPILATION_CACHE_DIR"
    assert environment({name: "here"})[name] == "here"
    assert name not in environment({})
    for package in ("conformance", "backends", "mha_core"):
        for path in (ROOT / package).rglob("*.py"):
            assert "compilation_cache" not in path.read_text("utf-8").lower(), path
