"""The script for a GPU on the CPU: the same calls, a few cases."""

import json
import re
from pathlib import Path

import matrix
import pytest
from matrix import SETTINGS, Outcome, Setting

from conformance.running.locating import implementations
from conformance.running.target import load

ROOT = Path(__file__).parents[2]
FEW = ["--device", "cpu", "-j", "1", "-k", "hand-sized", "--no-diagnose"]


def test_the_same_path_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert matrix.main([*FEW, "--only", "torch-tf32", "--reports", str(tmp_path)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert (head.split()[0], line.split()[0], line.split()[-1]) == ("run", "torch-tf32", "incomplete")
    report = json.loads((tmp_path / "torch-tf32.json").read_text())
    assert report["target"]["accuracy"] == "tf32t"
    assert {row["dtype"] for row in report["results"]} == {"float32"}


def test_a_kernel_that_is_not_there_fails_nothing(tmp_path: Path) -> None:
    found = matrix.outcome(SETTINGS[4], 2, "nothing was executed: it supports none", tmp_path / "no.json", 1)
    assert (found.status, found.wrong) == ("nothing", False)


@pytest.mark.parametrize(("number", "status"), [(-1, "absent"), (0, "broken")])
def test_a_library_of_others_may_be_absent(tmp_path: Path, number: int, status: str) -> None:
    message = "mha-conformance: cannot import backends.some_backend: no module named 'some'; install it"
    assert matrix.outcome(SETTINGS[number], 2, message, tmp_path / "no.json", 1).status == status


def test_jax_with_tf32_is_a_target() -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    hello = load(str(ROOT / "tests" / "gpu" / "tf32_jax.py")).hello
    assert (hello.accuracy, hello.dtypes) == ("tf32t", ("float32",))
    assert hello.operations == ("scaled_dot_product_attention", "multi_head_attention")


@pytest.mark.parametrize(("limit", "target", "status"), [(0, "numpy", "not run"), (60, "nunpy", "broken")])
def test_what_cannot_be_run_fails(tmp_path: Path, limit: float, target: str, status: str) -> None:
    (found,) = matrix.matrix([Setting("x", target, ("float32",))], "cpu", tmp_path, 1, limit, [])
    assert (found.status, found.wrong) == (status, True)


@pytest.mark.parametrize(
    ("counts", "must", "wrong"),
    [
        ({"pass": 3}, True, False),
        ({"pass": 3, "fail": 1}, True, True),
        ({"pass": 3, "crash": 1}, True, True),
        ({"unsupported": 3}, True, True),
        ({"pass": 3, "fail": 1}, False, False),
    ],
)
def test_only_the_project_s_own_code_must_pass(counts: dict[str, int], must: bool, wrong: bool) -> None:
    assert Outcome(Setting("x", "x", ("float32",), must), "incomplete", counts, 0.5, 1).wrong is wrong


def test_every_setting_has_a_target_and_stands_on_the_page() -> None:
    page = (ROOT / "spec" / "gpu.md").read_text("utf-8")
    assert [s.name for s in SETTINGS] == re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)
    backends = implementations()
    assert all(s.target in backends or Path(s.target).is_file() for s in SETTINGS)


def test_what_is_carried_is_pinned_and_complete() -> None:
    text = (ROOT / "tests" / "gpu" / "requirements.txt").read_text("utf-8")
    pinned = {line.partition("==")[0].lower() for line in text.splitlines() if "==" in line}
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (block,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    needed = set(re.findall(r'"([a-z0-9-]+)>=', block))
    assert len(needed) > 5
    assert needed - pinned == {"numpy", "ml-dtypes"}, "which come with torch and JAX"
