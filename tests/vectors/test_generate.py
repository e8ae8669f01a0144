"""The command that writes the vectors builds what it is asked for, and says what it did not build."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.resources import vectors_directory
from conformance.vectors.generate import __main__ as command
from conformance.vectors.generate import cases, select
from conformance.vectors.generate.changed import differs
from conformance.vectors.generate.draft import attend
from conformance.vectors.generate.write import write
from conformance.vectors.load import load_vectors

DRAFTS = {draft.id: draft for draft in cases.drafts()}
SHIPPED = {case.id: case for case in load_vectors().cases}
READABLE = "attention/hand-sized"
FEW = ("mask/rank-2", "mask/empty-row-is-zero", "cache/past", READABLE, "validation/softcap-zero")


@pytest.fixture
def few(tmp_path, monkeypatch):
    """A folder with vectors of a few cases, and their drafts, which a test may change."""
    drafts = {name: DRAFTS[name] for name in FEW}
    folder = tmp_path / "data"
    write(folder, [(SHIPPED[name], draft.readable) for name, draft in drafts.items()])
    monkeypatch.setattr(cases, "drafts", lambda: iter(drafts.values()))
    monkeypatch.setattr(command, "vectors_directory", lambda: folder)
    monkeypatch.setattr(command, "load_vectors", lambda: load_vectors(folder))
    return folder, drafts


def run(monkeypatch, capsys, *words):
    """Exit status, what was built, and all lines."""
    built = []

    def watched(draft):
        built.append(draft.id)
        return original(draft)

    original = command._built
    monkeypatch.setattr(command, "_built", watched)
    monkeypatch.setattr("sys.argv", ["generate", "-j", "1", *words])
    try:
        status = command.main()
    except SystemExit as ended:
        status = ended.code
    monkeypatch.setattr(command, "_built", original)
    said = capsys.readouterr()
    return status, sorted(built), said.out + said.err


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_read_is_written_byte_for_byte(tmp_path):
    write(tmp_path / "data", [(case, DRAFTS[name].readable) for name, case in SHIPPED.items()])
    assert content(tmp_path / "data") == content(vectors_directory())


def test_no_declaration_changed():
    assert [name for name, draft in DRAFTS.items() if differs(draft, SHIPPED[name])] == []


CHANGES = {
    "note": {"note": "Another sentence on the same thing."},
    "covers": {"covers": ("ATT-2",)},
    "an option": {"options": {"scale": 0.25}},
    "a dtype left out": {"only": ("float64", "float32")},
    "a feature": {"needs": ("strict_masking",)},
    "memory": {"memory": {"query": "reversed"}},
    "repeat": {"repeat": 3},
    "a dtype of its own": {"dtype_of": {"value": "float32"}},
    "rows": {"rows": (1, 2)},
    "a signature": {"signatures": {"gain": ("float16",)}},
    "refused": {"raises": True},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_declaration_that_changed_is_seen(change):
    draft = DRAFTS["attention/plain"]
    assert differs(replace(draft, **CHANGES[change]), SHIPPED[draft.id])


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_an_input_that_changed_is_seen(name):
    draft = DRAFTS["attention/plain"]
    other = draft.inputs[name].copy()
    other.flat[0] *= 2
    assert differs(replace(draft, inputs={**draft.inputs, name: other}), SHIPPED[draft.id])
    more = {**draft.inputs, "sinks": np.zeros(3)}
    assert differs(replace(draft, inputs=more), SHIPPED[draft.id])


def test_one_case_is_built_and_nothing_changes(few, monkeypatch, capsys):
    folder, drafts = few
    before = content(folder)
    for words in (["cache/past"], ["cache/past", "--check"]):
        status, built, said = run(monkeypatch, capsys, *words)
        assert (status, built) == (0, ["cache/past"])
        assert f"1 of {len(drafts)} cases built" in said
        assert content(folder) == before


def test_a_chapter_is_its_cases(few, monkeypatch, capsys):
    _, drafts = few
    status, built, _ = run(monkeypatch, capsys, "mask", "--check")
    assert (status, built) == (0, sorted(name for name in drafts if name.startswith("mask/")))


def test_what_changed_is_built_and_written(few, monkeypatch, capsys):
    folder, drafts = few
    drafts["cache/past"] = replace(drafts["cache/past"], note="Another sentence on the past.")
    drafts["mask/new"] = attend("mask/new", "A mask that is new here.", "MASK-1", mask=np.ones((5, 7), bool))
    status, built, said = run(monkeypatch, capsys, "--changed", "--check")
    assert (status, built) == (1, ["cache/past", "mask/new"])
    assert "cases that differ: cache/past, mask/new" in said
    status, built, said = run(monkeypatch, capsys, "--changed")
    assert (status, built) == (0, ["cache/past", "mask/new"])
    assert "cases that changed: cache/past, mask/new" in said
    assert {case.id for case in load_vectors(folder).cases} == set(drafts)
    assert run(monkeypatch, capsys, "--changed", "--check")[:2] == (0, [])


def test_a_case_that_is_gone_is_dropped(few, monkeypatch, capsys):
    folder, drafts = few
    del drafts["cache/past"]
    assert run(monkeypatch, capsys, "--changed", "--check")[:2] == (1, [])
    assert run(monkeypatch, capsys, "--changed")[:2] == (0, [])
    assert {case.id for case in load_vectors(folder).cases} == set(drafts)
    assert not (folder / "cache.safetensors").exists()


def test_what_changed_and_was_not_asked_for_is_said(few, monkeypatch, capsys):
    _, drafts = few
    drafts["cache/past"] = replace(drafts["cache/past"], note="Another sentence on the past.")
    for words, status in ((["mask"], 0), (["mask", "--check"], 1)):
        found = run(monkeypatch, capsys, *words)
        assert found[0] == status
        assert "not built, though their declarations changed (--changed builds them): cache/past" in found[2]


def test_a_whole_build_needs_no_vectors(few, monkeypatch, capsys):
    folder, drafts = few
    before = content(folder)
    (folder / "index.json").write_text("{")
    assert run(monkeypatch, capsys, "mask")[0] == 2
    assert run(monkeypatch, capsys)[:2] == (0, sorted(drafts))
    assert content(folder) == before


def test_a_number_that_is_wrong_is_found_where_it_is_built(few, monkeypatch, capsys):
    folder, drafts = few
    golden = SHIPPED["cache/past"].expected["output"]
    wrong = replace(golden, hi=np.nextafter(golden.hi, np.inf))
    case = replace(SHIPPED["cache/past"], expected={**SHIPPED["cache/past"].expected, "output": wrong})
    shutil.rmtree(folder)
    write(folder, [({**SHIPPED, "cache/past": case}[name], draft.readable) for name, draft in drafts.items()])
    assert run(monkeypatch, capsys, "mask", "--check")[0] == 0
    status, _, said = run(monkeypatch, capsys, "cache", "--check")
    assert status == 1
    assert (
        "files that differ: cache.safetensors, index.json, index.sha256; cases that differ: cache/past"
        in said
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mask/rank2"], "no case or chapter is named 'mask/rank2'; did you mean 'mask/rank-2'?"),
        (["zzzz"], "no case or chapter is named 'zzzz'; the chapters are attention, cache, mask, validation"),
        (["--share", "0/4"], "--share is '0/4'; it is I/N with I from 1 to N, such as 2/7"),
        (["--share", "5/4"], "--share is '5/4'; it is I/N with I from 1 to N, such as 2/7"),
        (["--share", "half"], "--share is 'half'; it is I/N with I from 1 to N, such as 2/7"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(few, monkeypatch, capsys, words, message):
    folder, _ = few
    before = content(folder)
    status, built, said = run(monkeypatch, capsys, *words)
    assert (status, built) == (2, [])
    assert said == f"python -m conformance.vectors.generate: {message}\n"
    assert content(folder) == before


def test_shares_are_parts_of_the_whole_and_stay_when_cases_come():
    parts = [select.chosen([], f"{i}/7", DRAFTS) for i in range(1, 8)]
    assert sum(map(len, parts)) == len(DRAFTS)
    assert set.union(*parts) == set(DRAFTS)
    assert max(map(len, parts)) < 2 * min(map(len, parts))
    fewer = list(DRAFTS)[::2]
    assert select.chosen([], "3/7", fewer) == parts[2] & set(fewer)
    assert select.chosen(["mask"], "3/7", DRAFTS) == parts[2] | select.chosen(["mask"], None, DRAFTS)
    with pytest.raises(UsageError):
        select.chosen(["mask", "nothing-like-it"], None, DRAFTS)
