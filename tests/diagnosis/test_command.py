"""`diagnose`, and the diagnosis at the end of `run` and in its report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import conformance
from conformance.resources import schema

pytestmark = pytest.mark.turns(2, whole=True)

TARGET = """
import numpy as np

def attention(query, key, value, divide=np.sqrt):
    logits = query @ key.swapaxes(-1, -2) / divide(np.float32(query.shape[-1]))
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value

def unrooted(query, key, value):
    return attention(query, key, value, lambda x: x)

attention.features = unrooted.features = {"value_dim"}

def refusing(query, key, value):
    raise NotImplementedError
"""
SENTENCE = "Your logits are divided by d_k, not by its square root. This explains"
FEW = ["-k", "attention", "--in-process"]
Called = Callable[..., tuple[int, str, str]]


def test_diagnose_says_it_in_a_sentence(command: Called, target: Path) -> None:
    status, out, _ = command("diagnose", f"{target}:unrooted", *FEW)
    assert status == 1
    assert out.startswith(SENTENCE)
    assert "(ATT-3 default scale; scale-by-d-k-itself)." in out


def test_diagnose_for_machines(command: Called, target: Path) -> None:
    status, out, _ = command("diagnose", f"{target}:unrooted", *FEW, "--json")
    found = json.loads(out)
    assert status == 1
    first = found["findings"][0]
    assert first["defects"][0]["violates"] == ["ATT-3"]
    assert first["explains"] == len(first["rows"]) <= first["of"] == found["failed"]


def test_diagnose_of_what_is_right_and_of_what_answers_nothing(command: Called, target: Path) -> None:
    status, out, _ = command("diagnose", f"{target}:attention", *FEW)
    assert (status, out[:14]) == (0, "nothing failed")
    assert command("diagnose", f"{target}:refusing", *FEW)[0] == 2
    assert command("diagnose", f"{target}:missing", *FEW)[0] == 2
    assert command("diagnose", f"{target}:attention", "--report", "x.json")[0] == 2


def test_run_ends_with_it_and_reports_it(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    status, out, _ = command("run", f"{target}:unrooted", *FEW, "--report", path)
    report = json.loads(path.read_text())
    assert status == 1
    assert f"diagnosis: {SENTENCE}" in out
    Draft202012Validator(schema("report")).validate(report)
    failing = [row for row in report["results"] if row["verdict"] == "fail"]
    assert {row["diagnosis"][0]["defect"] for row in failing} == {"scale-by-d-k-itself"}
    assert command("run", f"{target}:unrooted", *FEW, "-q", "--report", path)[1].count("diagnosis") == 0
    assert any(row["diagnosis"] for row in json.loads(path.read_text())["results"])


def test_run_leaves_it_out_on_demand(command: Called, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    _, out, _ = command("run", f"{target}:unrooted", *FEW, "--report", path, "--no-diagnose")
    assert "diagnosis" not in out
    assert not any(row["diagnosis"] for row in json.loads(path.read_text())["results"])


def test_from_python(target: Path) -> None:
    def named(**given: bool) -> set[str]:
        report = conformance.run(f"{target}:unrooted", k="attention", in_process=True, **given)
        assert report.failed
        return {each.defect for row in report.results for each in row.diagnosis}

    assert named() == {"scale-by-d-k-itself"}
    assert named(no_diagnose=True) == set()
