"""The action and the workflow to copy: both are YAML, their calls exist, and the scripts do what spec/in-ci.md says."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from conformance.cli.commands import COMMANDS, loaded

yaml: Any = pytest.importorskip("yaml", reason="of the dependency group test")

ROOT = Path(__file__).parents[1]
ACTION = ROOT / "action.yml"
PAGE = ROOT / "spec" / "in-ci.md"
OWN = ROOT / ".github" / "workflows" / "conformance-example.yml"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def calls(text: str) -> list[list[str]]:
    """The words of every call of the command in a text."""
    joined = text.replace("\\\n", " ")
    inline = [line.split("`")[0] for line in re.findall(r"`((?:mha-conformance )?run TARGET[^`]*)`", joined)]
    lines = [
        *re.findall(r"mha-conformance ([^`\n|>]*)", joined),
        *(c.removeprefix("mha-conformance ") for c in inline),
    ]
    return [shlex.split(line) for line in lines if line.split(" ")[0] in COMMANDS]


@pytest.mark.parametrize("path", [ACTION, PAGE], ids=lambda path: path.name)
def test_only_what_there_is_is_called(path: Path) -> None:
    found = calls(path.read_text("utf-8"))
    assert {words[0] for words in found} == {"run", "compare"}
    for name, *words in found:
        options = {option for p in loaded()[name].params if isinstance(p, click.Option) for option in p.opts}
        assert {word for word in words if word.startswith("-")} <= options, words


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(ACTION.read_text("utf-8"))
    return loaded


def test_the_action_is_composite_and_puts_no_input_into_a_script() -> None:
    steps = action()["runs"]["steps"]
    assert action()["runs"]["using"] == "composite"
    assert all(("run" in step) != ("uses" in step) for step in steps)
    for step in steps:
        assert "${{" not in step.get("run", ""), "what others write stays out of scripts"
        assert step.get("shell", "bash") == "bash"
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step.get("uses", f"x/y@{'0' * 40}")), step


def test_every_input_is_used_and_told() -> None:
    text, inputs = ACTION.read_text("utf-8"), set(action()["inputs"])
    used = set(re.findall(r"\binputs\.([a-z-]+)", text))
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (?:`([^`]*)`)? ?\|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert used == inputs == set(told)
    assert told == {name: str(each["default"]) for name, each in action()["inputs"].items()}


def test_the_workflow_to_copy_runs_on_its_own() -> None:
    workflow = yaml.safe_load(BLOCKS[0] + BLOCKS[1])
    assert workflow[True] == ["push", "pull_request"], "YAML reads the word `on` as true"
    assert workflow["permissions"] == {"contents": "read"}
    (step,) = (s for s in workflow["jobs"]["conformance"]["steps"] if "mha-conformance@" in s["uses"])
    assert set(step["with"]) <= set(action()["inputs"])
    name = action()["inputs"]["name"]["default"]
    assert any(s.get("with", {}).get("name") == name for s in workflow["jobs"]["badge"]["steps"])


def test_the_action_is_run_here_on_each_change() -> None:
    workflow = yaml.safe_load(OWN.read_text("utf-8"))
    assert {"push", "pull_request"} <= set(workflow[True])
    (step,) = (s for s in workflow["jobs"]["action"]["steps"] if s.get("uses") == "./")
    assert set(step["with"]) <= set(action()["inputs"])


class Step:
    """A step of the action, with a stand-in for the programs that it calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()

    def __call__(self, name: str, status: int = 0, report: str | None = None, **inputs: str) -> int:
        """Runs a step, whose calls of the command and of pip end with a status; the command leaves a report."""
        stub = f'#!/bin/sh\nprintf "%s|" "$@" >> "{self.folder}/calls"\necho >> "{self.folder}/calls"\n'
        if report is not None:
            stub += f'if [ "$1" = run ]; then cp "{self.folder}/made.json" "$FOLDER/report.json"; fi\n'
            (self.folder / "made.json").write_text(json.dumps({"status": report}))
        path = self.folder / "bin" / "mha-conformance"
        path.write_text(f"{stub}exit {status}\n")
        python = self.folder / "bin" / "python"
        python.write_text(f'#!/bin/sh\nif [ "$1" = -m ]; then exec "{path}" "$@"; fi\nexec python3 "$@"\n')
        for program in (path, python):
            program.chmod(0o755)
        for file in ("calls", "output"):
            (self.folder / file).write_text("")
        (step,) = (s for s in action()["runs"]["steps"] if s.get("name") == name)
        environment = {
            **os.environ,
            "PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            **dict.fromkeys(step["env"], ""),
            **inputs,
        }
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
        return subprocess.run(command, cwd=self.folder, env=environment, check=False, timeout=60).returncode

    @property
    def called(self) -> list[list[str]]:
        """The words of each call."""
        return [line.split("|")[:-1] for line in (self.folder / "calls").read_text().splitlines()]

    @property
    def output(self) -> dict[str, str]:
        """What the step has told the workflow."""
        return dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_it_installs_itself_and_what_is_asked_for(step: Step) -> None:
    assert step("Install", SUITE="/the action", INSTALL=". torch==2.13.0\n'my' ") == 0
    assert step.called == [["-m", "pip", "install", "/the action", ".", "torch==2.13.0", "'my'"]]
    step("Install", SUITE="/the action")
    assert step.called == [["-m", "pip", "install", "/the action"]]


def test_it_runs_what_is_asked_for_and_tells_the_status(step: Step, tmp_path: Path) -> None:
    asked = {
        "TARGET": "my file.py:f",
        "BASELINE": "known.toml",
        "PROFILE": "core",
        "ARGUMENTS": "--dtype float32",
    }
    folder = str(tmp_path / "out folder")
    assert step("Run", 1, "non-conformant", FOLDER=folder, **asked) == 1
    (words,) = step.called
    assert words[:8] == [
        "run", "my file.py:f", "--profile", "core", "--baseline", "known.toml", "--dtype", "float32",
    ]  # fmt: skip
    files = {"report": "report.json", "junit": "report.xml", "html": "report.html", "badge": "badge.svg"}
    assert words[8:] == [word for name, file in files.items() for word in (f"--{name}", f"{folder}/{file}")]
    assert step.output == {"folder": folder, "status": "non-conformant"}


def test_a_wrong_call_fails_and_has_no_status(step: Step, tmp_path: Path) -> None:
    assert step("Run", 2, COMMAND="node $(x).js", FOLDER=str(tmp_path / "out")) == 2
    assert step.called[0][:3] == ["run", "--command", "node $(x).js"]
    assert step.output == {"folder": str(tmp_path / "out")}


def test_a_regression_fails_and_is_told(step: Step, tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    after.write_text("new")
    files = {"BEFORE": str(before), "AFTER": str(after)}
    assert (step("Compare", 1, **files), step.called) == (0, []), "there is nothing to compare with"
    assert before.read_text() == "new", "which is kept for the next run"
    assert step("Compare", 1, **files) == 1
    both = ["compare", str(before), str(after)]
    assert step.called == [[*both, "--markdown"], both]
    assert step("Compare", 0, **files) == 0


def test_the_badge_is_kept_on_a_branch_of_its_own(tmp_path: Path) -> None:
    """The job to copy, with a repository in a folder in place of GitHub's."""
    (script,) = (s["run"] for s in yaml.safe_load(BLOCKS[1])["badge"]["steps"] if "run" in s)
    remote, work = tmp_path / "remote.git", tmp_path / "work"
    told = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words]
        return subprocess.run(command, env=told, check=True, capture_output=True, text=True).stdout

    git("init", "-q", "--bare", "-b", "main", str(remote))
    git("clone", "-q", str(remote), str(work))
    (work / "code.py").write_text("x = 1\n")
    git("-C", str(work), "add", ".")
    git("-C", str(work), "commit", "-qm", "code")
    for badge in ("<svg>1</svg>", "<svg>2</svg>"):
        git("-C", str(work), "push", "-q", "origin", "HEAD:main")
        (work / "badge").mkdir(exist_ok=True)
        (work / "badge" / "badge.svg").write_text(badge)
        subprocess.run(["bash", "-e", "-c", script], cwd=work, env=told, check=True, capture_output=True)
        assert git("-C", str(remote), "show", "badges:attention.svg") == badge
        assert git("-C", str(remote), "ls-tree", "--name-only", "badges").split() == ["attention.svg"]
        work = tmp_path / "second"
        if not work.exists():
            git("clone", "-q", str(remote), str(work))
