"""`mha-conformance vectors export`: the same bytes, with what describes them, and nothing overwritten."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from conformance.cli import main
from conformance.resources import vectors_directory
from conformance.vectors.case import Case, Golden
from conformance.vectors.load import INDEX, load_vectors


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outer") / "new" / "vectors"
    assert main(["vectors", "export", str(directory)]) == 0
    return directory


def test_the_bytes_are_those_of_the_suite(exported: Path) -> None:
    index = json.loads((exported / INDEX).read_bytes())
    assert (exported / INDEX).read_bytes() == (vectors_directory() / INDEX).read_bytes()
    for name, digest in index["files"].items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == digest
    assert load_vectors(exported).sha256 == load_vectors().sha256


def test_schema_and_page_lie_beside_them(exported: Path) -> None:
    index = json.loads((exported / INDEX).read_bytes())
    Draft202012Validator(json.loads((exported / "schema.json").read_bytes())).validate(index)
    assert (exported / "vectors.md").read_text("utf-8").startswith("# The vectors\n")
    assert {path.name for path in exported.iterdir()} == {
        INDEX, "schema.json", "vectors.md", "selftest.json", *index["files"]
    }  # fmt: skip


def test_an_empty_folder_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "export", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"sha256 of index.json: {load_vectors().sha256}" in out
    assert f"{len(load_vectors().cases)} cases in " in out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for directory, why in ((tmp_path, "is not empty"), (mine, "is not a folder")):
        assert main(["vectors", "export", str(directory)]) == 2
        assert f"{directory} {why}; give a new or an" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "mine"


def test_the_group_alone_is_no_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors"]) == 2
    assert "export" in capsys.readouterr().out


def test_a_judge_of_its_own_agrees_with_the_self_test(exported: Path) -> None:
    """The judge is that of the page: written here from its text, for what the answers show."""
    told = json.loads((exported / "selftest.json").read_text("utf-8"))
    cases = {case.id: case for case in load_vectors(exported).cases}
    verdicts = set()
    for answer in told["answers"]:
        case, dtype = cases[answer["case"]], answer["dtype"]
        outputs = {
            name: (np.array([float(x) for x in each["data"]]).reshape(each["shape"]), each["dtype"])
            for name, each in answer["outputs"].items()
        }
        assert passes(case, dtype, told["policy"], outputs) == (answer["verdict"] == "pass"), answer["about"]
        assert bool(answer["message"]) == (answer["verdict"] == "fail")
        verdicts.add((answer["case"], answer["verdict"]))
    assert len(verdicts) == 2 * len({case for case, _ in verdicts}), "each case has right and wrong answers"


def passes(case: Case, dtype: str, policy: str, outputs: dict[str, tuple[Any, str]]) -> bool:
    """Rules of shape, dtype, places, 1, 2 and 3."""
    if set(outputs) != set(case.expected):
        return False
    return all(
        y.shape == case.expected[name].shape
        and own in ({dtype, "float32"} if name == "lse" and dtype == "bfloat16" else {dtype})
        and near(case.expected[name], dtype, policy, y)
        for name, (y, own) in outputs.items()
    )


def near(golden: Golden, dtype: str, policy: str, y: Any) -> bool:
    bounds, hi = golden.bounds[dtype][policy], golden.hi
    for kind in (np.isnan, np.isposinf, np.isneginf):
        if not np.array_equal(kind(y), kind(hi)):
            return False
    finite = np.isfinite(hi)
    with np.errstate(invalid="ignore"):
        error = np.where(finite, (y - hi) - golden.lo, 0)
    limit = np.where(bounds.rms > 0, np.minimum(bounds.worst, 6 * bounds.rms), bounds.worst)
    if (np.abs(error) > limit)[finite].any():
        return False
    held = finite & (bounds.rms > 0)
    rows = int(held.sum()) if y.ndim < 3 else int(held.any(-1).sum())
    if golden.rms_applies and held.sum() >= 8:
        worst = 1.25 if held.sum() >= 100 and rows >= 16 else 2.0 if rows >= 4 else 2.5
        if np.sqrt(np.mean((error / np.where(held, bounds.rms, 1))[held] ** 2)) > worst:
            return False
    return True
