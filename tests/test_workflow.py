"""The workflow that others copy: it is YAML, its calls exist, and its scripts do what spec/in-ci.md says."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from conformance.cli.commands import cli

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "conformance-example.yml"
PAGE = ROOT / "spec" / "in-ci.md"


def calls(text: str) -> list[list[str]]:
    """The words of every call of the command in a text."""
    joined = text.replace("\\\n", " ")
    inline = [line.split("`")[0] for line in re.findall(r"`((?:mha-conformance )?run TARGET[^`]*)`", joined)]
    lines = [
        *re.findall(r"mha-conformance ([^`\n|>]*)", joined),
        *(c.removeprefix("mha-conformance ") for c in inline),
    ]
    return [shlex.split(line) for line in lines if line.split(" ")[0] in cli.commands]


@pytest.mark.parametrize("path", [WORKFLOW, PAGE], ids=lambda path: path.name)
def test_only_what_there_is_is_called(path: Path) -> None:
    found = calls(path.read_text())
    assert {words[0] for words in found} == {"run", "compare"}
    for name, *words in found:
        options = {
            option for p in cli.commands[name].params if isinstance(p, click.Option) for option in p.opts
        }
        assert {word for word in words if word.startswith("-")} <= options, words


def test_it_is_yaml() -> None:
    yaml: Any = pytest.importorskip("yaml", reason="of the dependency group test")
    document = yaml.safe_load(WORKFLOW.read_text())
    (job,) = document["jobs"].values()
    assert set(document["env"]) == set(re.findall(r"^\| `([A-Z]+)` ", PAGE.read_text(), re.MULTILINE))
    assert document["permissions"] == {"contents": "read"}
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    for step in job["steps"]:
        assert "${{" not in step.get("run", ""), "what others write stays out of scripts"


def script(name: str) -> str:
    """The lines of a step of the workflow."""
    match = re.search(
        rf"- name: {name}.*?\n.*?run: \|\n((?: {{10}}[^\n]*\n)+)", WORKFLOW.read_text(), re.DOTALL
    )
    assert match is not None
    return re.sub("^ {10}", "", match[1], flags=re.MULTILINE)


def stepped(folder: Path, name: str, status: int) -> tuple[int, list[str]]:
    """The exit status of a step, and how it called a command that ends with a status."""
    stub = folder / "bin" / "mha-conformance"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text(f'#!/bin/sh\necho "$@" >> "{folder}/calls"\nexit {status}\n')
    stub.chmod(0o755)
    (folder / "calls").write_text("")
    environment = {
        **os.environ,
        "PATH": f"{stub.parent}{os.pathsep}{os.environ['PATH']}",
        "TARGET": "my file.py:f",
        "BASELINE": "known.toml",
        "GITHUB_STEP_SUMMARY": str(folder / "summary"),
    }
    done = subprocess.run(["bash", "-e", "-c", script(name)], cwd=folder, env=environment, check=False)
    return done.returncode, (folder / "calls").read_text().splitlines()


def test_the_run_uses_a_baseline_that_is_there(tmp_path: Path) -> None:
    status, called = stepped(tmp_path, "Run", 1)
    assert status == 1
    assert called[0].startswith("run my file.py:f --report report.json")
    (tmp_path / "known.toml").touch()
    assert "run my file.py:f --baseline known.toml --report report.json" in stepped(tmp_path, "Run", 0)[1][0]


def test_a_regression_fails_and_is_told(tmp_path: Path) -> None:
    assert stepped(tmp_path, "Regressions", 1) == (0, []), "there is nothing to compare with"
    (tmp_path / "before.json").touch()
    status, called = stepped(tmp_path, "Regressions", 1)
    assert (status, called) == (
        1, ["compare before.json report.json --markdown", "compare before.json report.json"],
    )  # fmt: skip
    assert stepped(tmp_path, "Regressions", 0)[0] == 0
