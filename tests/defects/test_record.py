"""The record of kills: one defect a line, confirmed without a search, mended without another one."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.defects import work
from conformance.defects.__main__ import main
from conformance.defects.bank import DEFECTS
from conformance.defects.confirm import confirm, orphans
from conformance.defects.defect import Defect
from conformance.defects.kill import Kill, excused, kill, shown
from conformance.defects.record import (
    RECORD,
    SEARCHED,
    THEN,
    Record,
    fingerprint,
    fingerprints,
    parsed,
    read_record,
    write_record,
    written,
)
from conformance.errors import UsageError
from conformance.names import DTYPES
from conformance.resources import PACKAGE
from conformance.running.messages import Question
from conformance.running.runner import InProcess
from conformance.running.target import adopt
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

VECTORS = load_vectors()
CASES = VECTORS.cases
BY_ID = {defect.id: defect for defect in DEFECTS}
CASE = {case.id: case for case in CASES}
ONE = "scale-by-d-k-itself"
STATEFUL = sorted(defect.id for defect in DEFECTS if defect.stateful)


@pytest.fixture
def record() -> Record:
    return read_record()


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record that may be spoilt, in place of the one that ships."""
    path = tmp_path / "kills.json"
    path.write_bytes(RECORD.read_bytes())
    monkeypatch.setattr("conformance.defects.record.RECORD", path)
    monkeypatch.setattr(work, "RECORD", path)
    return path


@pytest.fixture
def narrowed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A bank of two defects, whose search is done in this process; the IDs that are searched for."""
    two = tuple(BY_ID[name] for name in (ONE, "matmul-in-tf32"))
    searched: list[str] = []

    def matrix(defects, policy, enough, processes=2, dtypes=lambda d: DTYPES, only=None):
        cases = [case for case in CASES if only is None or case.id in only]
        for defect in defects:
            searched.append(defect.id)
            yield kill(defect, cases, dtypes(defect), policy, enough)

    monkeypatch.setattr(work, "matrix", matrix)
    monkeypatch.setattr(work, "load_vectors", lambda: VECTORS)
    monkeypatch.setattr(work, "DEFECTS", two)
    monkeypatch.setattr("conformance.defects.__main__.DEFECTS", two)
    return searched


def spoil(path: Path, **changed: dict[str, tuple[str, ...]] | None) -> None:
    """Changes records by ID, with _ for -; None removes one."""
    record = read_record(path)
    kills = {**record.kills, **{name.replace("_", "-"): of for name, of in changed.items()}}
    write_record(replace(record, kills={name: of for name, of in kills.items() if of is not None}), path)


def called(*words: str) -> Result:
    return CliRunner().invoke(main, words)


# Its form


def test_one_defect_a_line_and_nothing_that_stands_elsewhere(record: Record) -> None:
    lines = RECORD.read_text("utf-8").splitlines()
    assert len(lines) == len(DEFECTS) + 3
    for line, defect in zip(lines[2:-1], DEFECTS, strict=True):
        assert list(json.loads(f"{{{line.rstrip(',')}}}")) == [defect.id]
    assert not any(defect.sentence in RECORD.read_text("utf-8") for defect in DEFECTS)


def test_it_is_in_the_order_of_the_bank_and_has_what_it_must(record: Record) -> None:
    assert list(record.kills) == [defect.id for defect in DEFECTS]
    assert set(record.searched) == set(SEARCHED)
    for defect in DEFECTS:
        assert set(record.kills[defect.id]) == set(defect.observable), defect.id


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    both = dict.fromkeys(("float64", "float16"), ("x/y",))
    made = Record({"bank": "1"}, {"a-b": {"float32": ("x/y", f"x/y{THEN}x/z"), **both}, "c-d": {}})
    write_record(made, tmp_path / "kills.json")
    assert read_record(tmp_path / "kills.json") == made
    assert list(tmp_path.iterdir()) == [tmp_path / "kills.json"]
    assert '"a-b": {"float32": ["x/y", "x/y then x/z"], "float64 float16": ["x/y"]},' in written(made)
    assert parsed(written(Record()), tmp_path) == Record()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[1]",
        "{}",
        '{"searched": {}, "killed_by": []}',
        '{"killed_by": {}}',
        '{"searched": {}, "killed_by": {"a": 1}}',
    ],
)
def test_another_form_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kills.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"is no record of kills .* write it anew with `python -m"):
        read_record(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path / "none.json")


def test_bank_judge_and_vectors_have_a_fingerprint_each() -> None:
    now = fingerprints("0" * 64)
    assert list(now) == list(SEARCHED)
    assert len(set(now.values())) == len(SEARCHED)
    assert fingerprints("1" * 64) == {**now, "vectors": "1" * 16}


def test_a_fingerprint_is_of_names_and_texts_and_not_of_line_ends(
    tmp_path: Path,
) -> None:
    one = tmp_path / "a.py"
    one.write_bytes(b"x\ny\n")
    first = fingerprint([one], tmp_path)
    one.write_bytes(b"x\r\ny\r\n")
    assert fingerprint([one], tmp_path) == first
    one.write_bytes(b"x\nz\n")
    assert fingerprint([one], tmp_path) != first
    assert fingerprint([one.rename(tmp_path / "b.py")], tmp_path) != first
    assert Record({"bank": "1", "judge": "2"}).changed({"bank": "1", "judge": "3", "vectors": "4"}) == [
        "judge",
        "vectors",
    ]


# What is on record holds


@pytest.mark.session("defects")
def test_a_share_of_the_first_kills_holds(record: Record) -> None:
    """All of them: `python -m conformance.defects --recorded`."""
    chosen = [defect for number, defect in enumerate(DEFECTS) if number % 12 == 0 or defect.stateful]
    assert [problem for _, problems in confirm(chosen, record, CASES) for problem in problems] == []


def test_what_does_not_hold_is_said(record: Record) -> None:
    defect = BY_ID[ONE]
    first = record.kills[ONE]

    def problems(of: dict[str, tuple[str, ...]] | None, asked: Defect = defect) -> list[str]:
        made = Record(kills={} if of is None else {asked.id: of})
        return [problem for _, those in confirm([asked], made, CASES) for problem in those]

    assert problems(dict(first)) == []
    assert problems(None) == [
        f"{ONE} is not on record; say `python -m conformance.defects --missing --write`"
    ]
    assert "float32: no case is on record" in problems({**first, "float32": ()})[0]
    assert "x/y is on record and no longer a case" in problems({**first, "float32": ("x/y",)})[0]
    assert (
        "x/y is on record and no longer a case"
        in problems({**first, "float32": (f"x/y{THEN}{first['float32'][0]}",)})[0]
    )
    wrong = next(
        c.id for c in CASES if c.judged("float32", "fused") and not shown(defect, [c], "float32", "fused")
    )
    assert f"{wrong} is on record and no longer shows it" in problems({**first, "float32": (wrong,)})[0]
    partly = next(c.id for c in CASES if not c.judged("float16", "fused"))
    assert "is not judged at this dtype" in problems({**first, "float16": (partly,)})[0]
    spared = replace(defect, unobservable={"float32": "so it is."})
    (found,) = problems(dict(first), spared)
    assert found.endswith("shows it, but the bank says: so it is.")
    assert orphans([defect], Record(kills={ONE: {}, "gone-away": {}})) == [
        "gone-away is on record and not in the bank; say `python -m conformance.defects --missing --write`"
    ]


# Defects with state


def answers(asker: InProcess, case: Case, dtype: str) -> list[bytes]:
    found = asker.ask(Question(case, dtype))
    return [found.kind.encode(), *(name.encode() + x.tobytes() for name, x in sorted(found.outputs.items()))]


def depends(defect: Defect, cases: list[Case], dtype: str) -> bool:
    """Whether an answer is another one after other questions, or after the same."""
    used = InProcess(adopt(defect.implementation(), defect.id))
    for case in [replace(case, repeat=1) for case in cases] * 3:
        alone = answers(InProcess(adopt(defect.implementation(), defect.id)), case, dtype)
        if answers(used, case, dtype) != alone:
            return True
    return False


def asked_of(defect: Defect, dtype: str, record: Record) -> list[Case]:
    """What is on record, or of a defect that nothing shows the first case."""
    names = next(iter(record.kills[defect.id].get(dtype, ())), CASES[0].id).split(THEN)
    return [CASE[name] for name in names]


@pytest.mark.parametrize("name", STATEFUL)
def test_a_defect_said_to_have_state_has_it(name: str, record: Record) -> None:
    assert depends(BY_ID[name], asked_of(BY_ID[name], "float32", record), "float32")


def test_no_other_defect_has_state(record: Record) -> None:
    """Every one whose steps share a memory, and a share of those that have none."""
    others = [d for d in DEFECTS if not d.stateful]
    chosen = [d for number, d in enumerate(others) if callable(d.change) or number % 8 == 0]
    several = [
        CASE[name] for name in ("attention/hand-sized", "gradient/hand-sized", "independence/repeated")
    ]
    with_state = [d.id for d in chosen if depends(d, [*asked_of(d, "float32", record), *several], "float32")]
    assert with_state == []


def test_what_takes_several_questions_is_recorded_in_their_order(record: Record) -> None:
    together = {
        name for name, of in record.kills.items() if any(THEN in x for cases in of.values() for x in cases)
    }
    assert {"mask-remembered-by-shape", "triangle-remembered-by-lengths", "grad-stale-delta"} == together
    for name in together:
        for dtype, (first, *_) in record.kills[name].items():
            cases = [CASE[each] for each in first.split(THEN)]
            assert shown(BY_ID[name], cases, dtype, "fused")
            assert not shown(BY_ID[name], cases[-1:], dtype, "fused")


# The command


def test_recorded_confirms_and_fails_on_each_flaw(copied: Path, narrowed: list[str]) -> None:
    keep = {ONE, "matmul-in-tf32"}
    spoil(copied, **{name.replace("-", "_"): None for name in read_record().kills if name not in keep})
    good = called("--recorded")
    assert good.exit_code == 0, good.output
    assert "2 defects; float64: 1 of 1 shown, float32: " in good.output
    assert re.search(r"defects of the judge: (\d+) of \1 shown", good.output)
    spoil(copied, **{ONE.replace("-", "_"): None, "gone_away": {}})
    bad = called("--recorded")
    assert bad.exit_code == 1
    assert f"{ONE} is not on record" in bad.output
    assert "gone-away is on record and not in the bank" in bad.output
    assert narrowed == []


def test_stale_is_a_note_or_a_search_of_what_is_excused(copied: Path, narrowed: list[str]) -> None:
    keep = {ONE, "matmul-in-tf32"}
    record = read_record(copied)
    now = fingerprints(VECTORS.sha256)
    kills = {name: of for name, of in record.kills.items() if name in keep}
    write_record(Record(now, kills), copied)
    assert "changed since" not in called("--recorded", "--search-if-stale").output
    write_record(Record({**now, "judge": "another"}, kills), copied)
    noted = called("--recorded")
    assert noted.exit_code == 0
    assert "note: judge changed since the record was searched" in noted.output
    assert narrowed == []
    found = called("--recorded", "--search-if-stale")
    assert found.exit_code == 0, found.output
    assert "every case was asked of 1 defects at the 3 dtypes that excuse them, 0 shown" in found.output
    assert narrowed == ["matmul-in-tf32"]


def test_what_is_excused_and_shown_fails_a_stale_record(
    copied: Path, narrowed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spared = replace(BY_ID[ONE], unobservable={"float32": "nobody can see it"})
    for place in ("conformance.defects.work", "conformance.defects.__main__"):
        monkeypatch.setattr(f"{place}.DEFECTS", (spared,))
    write_record(Record({}, {ONE: {d: read_record().kills[ONE][d] for d in spared.observable}}), copied)
    assert called("--recorded").exit_code == 0
    found = called("--recorded", "--search-if-stale")
    assert found.exit_code == 1
    assert f"{ONE} is shown at float32 by" in found.output


def test_missing_searches_for_what_is_not_on_record_and_keeps_the_rest(
    copied: Path, narrowed: list[str]
) -> None:
    record = read_record(copied)
    now = fingerprints(VECTORS.sha256)
    odd = {
        d: (cases[1],) for d, cases in record.kills[ONE].items()
    }  # holds, and is not what a search finds first
    write_record(Record(now, {ONE: odd, "gone-away": {}}), copied)
    looked = called("--missing")
    assert looked.exit_code == 1
    assert "gone-away" in looked.output
    assert narrowed == ["matmul-in-tf32"]
    done = called("--missing", "--write")
    assert done.exit_code == 0, done.output
    assert "1 of 2 records written anew" in done.output
    after = read_record(copied)
    assert after.kills == {ONE: odd, "matmul-in-tf32": record.kills["matmul-in-tf32"]}
    assert after.searched == now
    narrowed.clear()
    assert called("--missing", "--write").exit_code == 0
    assert narrowed == []
    assert read_record(copied) == after


def test_a_write_of_some_keeps_the_others_and_when_all_was_searched(
    copied: Path, narrowed: list[str]
) -> None:
    before = read_record(copied)
    write_record(Record({"bank": "old"}, {ONE: {}, "matmul-in-tf32": {"float32": ("x/y",)}}), copied)
    assert called("-k", ONE, "--write").exit_code == 0
    assert narrowed == [ONE]
    assert read_record(copied) == Record(
        {"bank": "old"}, {ONE: before.kills[ONE], "matmul-in-tf32": {"float32": ("x/y",)}}
    )
    assert called("--write", "-q").exit_code == 0
    assert read_record(copied).searched == fingerprints(VECTORS.sha256)


def test_nothing_is_written_where_a_defect_escapes(
    copied: Path, narrowed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        work,
        "matrix",
        lambda defects, *rest, **more: [Kill(d, "fused", dict.fromkeys(DTYPES, ())) for d in defects],
    )
    before = copied.read_bytes()
    found = called("--write")
    assert found.exit_code == 1
    assert f"{ONE} survives at float32" in found.output
    assert copied.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-k", "nothing-like-it"], "no defect has"),
        (["--recorded", "--write"], "searches for nothing"),
        (["--search-if-stale"], "goes with --recorded"),
        (["--write", "--all"], "the policy fused"),
        (["--recorded", "--policy", "eager"], "the policy fused"),
        (["--missing", "--json"], "--json prints a search"),
    ],
)
def test_a_wrong_call_is_status_2(words: list[str], said: str) -> None:
    found = called(*words)
    assert found.exit_code == 2
    assert said in found.output


def test_a_record_that_cannot_be_read_is_status_2(copied: Path) -> None:
    copied.write_text("[]")
    found = called("--recorded")
    assert found.exit_code == 2
    assert "python -m conformance.defects --write" in found.output


def test_an_installation_writes_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.defects.__main__.checkout_project", lambda: None)
    found = called("--write")
    assert found.exit_code == 2
    assert "this is an installation" in found.output


def test_json_says_of_a_defect_what_it_always_said(narrowed: list[str]) -> None:
    found = called("--json", "-k", ONE)
    (entry,) = json.loads(found.output)
    assert narrowed == [ONE]
    assert {
        "id",
        "kind",
        "sentence",
        "violates",
        "origin",
        "policy",
        "killed_by",
        "excused",
        "problems",
    } <= set(entry)
    assert entry["sentence"] == BY_ID[ONE].sentence
    assert entry["killed_by"] == {d: list(of) for d, of in read_record().kills[ONE].items()}


def test_what_is_excused_is_where_nothing_must_be_shown() -> None:
    for defect in DEFECTS[::7]:
        assert set(excused(defect)) | set(defect.observable) == set(DTYPES)
        assert not set(excused(defect)) & set(defect.observable)
    assert RECORD.is_relative_to(PACKAGE)
