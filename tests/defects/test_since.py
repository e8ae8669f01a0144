"""Of a stale record only what changed since a commit is asked again, and what changed is found."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.defects import since as module
from conformance.defects import work
from conformance.defects.__main__ import main
from conformance.defects.bank import DEFECTS
from conformance.defects.record import Record, fingerprints
from conformance.defects.since import Changes, same, since
from conformance.defects.work import Wanted, escaped
from conformance.errors import UsageError
from conformance.vectors.load import load_vectors

VECTORS = load_vectors()
BY_ID = {defect.id: defect for defect in DEFECTS}
EXCUSED = BY_ID["matmul-in-tf32"]


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@e")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in a repository of its own, whose one commit is the first."""
    package = tmp_path / "conformance"
    (package / "defects" / "bank").mkdir(parents=True)
    (package / "judging").mkdir()
    (package / "defects" / "bank" / "scale.py").write_text("a = 1\n")
    (package / "defects" / "call.py").write_text("b = 1\n")
    (package / "judging" / "judge.py").write_text("c = 1\n")
    data = package / "vectors" / "data"
    data.mkdir(parents=True)
    shutil.copy(Path(module.PACKAGE) / "vectors" / "data" / "index.sha256", data)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.setattr(module, "PACKAGE", package)
    changed = replace(VECTORS.cases[0], note="another")
    monkeypatch.setattr(
        module,
        "load_vectors",
        lambda directory=None: (
            VECTORS if directory else replace(VECTORS, cases=(changed, *VECTORS.cases[1:]))
        ),
    )
    return package


@pytest.fixture
def record(package: Path) -> Record:
    return Record(fingerprints(VECTORS.sha256, package), {})


def test_the_cases_that_changed_are_found(package: Path, record: Record) -> None:
    assert since("HEAD", record) == Changes(frozenset({VECTORS.cases[0].id}), frozenset())


def test_a_changed_kind_is_asked_in_full_and_any_other_file_concerns_all(
    package: Path, record: Record
) -> None:
    (package / "defects" / "work.py").write_text("decides nothing\n")
    assert since("HEAD", record).kinds == frozenset()
    (package / "defects" / "bank" / "scale.py").write_text("a = 2\n")
    (package / "defects" / "bank" / "fresh.py").write_text("")
    (package / "defects" / "bank" / "fresh.py").write_text("d = 1\n")
    assert since("HEAD", record).kinds == {"scale", "fresh"}
    (package / "defects" / "call.py").write_text("b = 2\n")
    assert since("HEAD", record).kinds is None


def test_a_commit_that_the_record_is_not_of_is_refused(package: Path, record: Record) -> None:
    with pytest.raises(UsageError, match="was not searched with judge of that commit"):
        since("HEAD", replace(record, searched={**record.searched, "judge": "another"}))
    with pytest.raises(UsageError, match="--since nowhere: "):
        since("nowhere", record)


def test_cases_are_compared_in_each_number() -> None:
    case = VECTORS.cases[0]
    inputs = {name: x.copy() for name, x in case.inputs.items()}
    assert same(case, replace(case, inputs=inputs))
    inputs["query"].flat[-1] *= -1
    assert not same(case, replace(case, inputs=inputs))
    assert not same(case, replace(case, covers=()))


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        (Changes(frozenset({"a/b"}), frozenset()), [(["matmul-in-tf32"], frozenset({"a/b"}))]),
        (Changes(frozenset({"a/b"}), None), [(["matmul-in-tf32"], None)]),
        (Changes(frozenset(), frozenset()), []),
    ],
)
def test_only_that_is_asked(changes: Changes, asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def matrix(defects, policy, enough, dtypes, only):
        seen.append(([defect.id for defect in defects], only))
        return []

    monkeypatch.setattr(work, "matrix", matrix)
    monkeypatch.setattr(work, "since", lambda commit, record: changes)
    monkeypatch.setattr(work, "read_record", Record)
    wanted = Wanted("", "fused", False, False, True, False, "HEAD")
    assert escaped(wanted, [EXCUSED], ["vectors"]) == []
    assert seen == asked


def test_it_goes_with_a_search_for_what_is_excused() -> None:
    done = CliRunner().invoke(main, ["--since", "HEAD"])
    assert done.exit_code == 2
    assert "--since goes with --missing or --search-if-stale" in done.output
