"""Trace finds no hole here, and names each kind of hole that is made in a copy."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import main
from conformance.defects.defect import Defect
from conformance.defects.record import THEN, UPDATE, WRITE, Record, read_record, write_record
from conformance.errors import UsageError
from conformance.resources import spec_directory
from conformance.telling.inventory import read_defects
from conformance.telling.trace import kills, links, test_markers
from conformance.telling.trace.chain import BUILD
from conformance.telling.trace.holes import holes
from conformance.telling.trace.index import index, write_index
from conformance.telling.trace.links import Links, links_json, read_links
from conformance.telling.trace.test_markers import Mark, marks_of
from conformance.vectors.case import Case


@pytest.fixture(scope="module")
def real() -> Links:
    return read_links()


@pytest.fixture(scope="module")
def known(real: Links) -> set[str]:
    """The holes that are there before a fault is made."""
    return set(map(str, holes(real)))


@dataclass
class Copy:
    """What can be spoilt."""

    spec: Path
    cases: list[Case]
    defects: list[Defect]
    marks: Sequence[Mark]

    def edit(self, file: str, old: str, new: str) -> int:
        """Replaces the one occurrence of a text, and returns its line."""
        path = self.spec / file
        text = path.read_text("utf-8")
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new), "utf-8")
        return text[: text.index(old)].count("\n") + 1

    def append(self, file: str, text: str) -> None:
        path = self.spec / file
        path.write_text(path.read_text("utf-8") + text, "utf-8")

    def case(self, **fields: Any) -> None:
        self.cases[0] = replace(self.cases[0], **fields)

    def defect(self, **fields: Any) -> None:
        self.defects[0] = replace(self.defects[0], **fields)

    def mark(self, *ids: str, literal: bool = True) -> None:
        self.marks = [*self.marks, Mark("tests/test_x.py::test_y", 7, ids, literal)]

    def holes(self) -> set[str]:
        return set(map(str, holes(read_links(self.spec, self.cases, self.defects, self.marks))))


@pytest.fixture
def copy(real: Links, tmp_path: Path) -> Copy:
    spec = tmp_path / "spec"
    shutil.copytree(spec_directory(), spec)
    for name in ("README.md", "CONTRIBUTING.md"):  # to which pages of the specification link
        shutil.copy(spec_directory().parent / name, tmp_path)
    return Copy(spec, list(real.cases), list(real.defects), real.marks)


def without(cases: list[Case], requirement: str) -> list[Case]:
    return [replace(c, covers=tuple(r for r in c.covers if r != requirement)) for c in cases]


TITLE = "**A query that may attend nothing yields zeros, in the output and in its weights.**"
NOTES = f"{TITLE} *MUST · empty · since 1.0*"
NEW = '\n### MASK-99 so it is <a id="mask-99"></a>\n\n**So it is.** *MUST · mask · since 1.1*\n'
MASK_3 = "### MASK-3"
WHY = "\n> **Rationale.** It is.\n"


def withdraw(copy: Copy) -> None:
    copy.edit("mask.md", NOTES, f"{TITLE} *Withdrawn in 1.1: see MASK-14.*")


def no_case(copy: Copy) -> None:
    copy.cases = without(copy.cases, "MASK-7")


def no_defect(copy: Copy) -> None:
    copy.defects = [d for d in copy.defects if "MASK-7" not in d.violates]


def only_equivalent_defects(copy: Copy) -> None:
    copy.defects = [replace(d, equivalent="so") if "MASK-7" in d.violates else d for d in copy.defects]


def no_test(copy: Copy) -> None:
    copy.marks = [mark for mark in copy.marks if "CONF-7" not in mark.ids]


def no_rationale(copy: Copy) -> None:
    copy.append("mask.md", NEW)


def unlinked_record(copy: Copy) -> None:
    copy.spec.joinpath("decisions", "0099-x.md").write_text("# 0099 X\n\n**Decision.** So.\n")


def empty_record(copy: Copy) -> None:
    copy.edit("decisions/0009-empty-rows.md", "**Decision.** Output", "Output")


def no_index(copy: Copy) -> None:
    (copy.spec / "INDEX.md").unlink(missing_ok=True)


def stale_index(copy: Copy) -> None:
    (copy.spec / "INDEX.md").write_text("# Index\n")


Fault = Callable[[Copy], object]

FAULTS: list[tuple[str, Fault, str]] = [
    ("unknown ID in a case", lambda c: c.case(covers=("MASK-33",)), "case {case}: names MASK-33, which is no req"),
    ("unknown ID in a defect", lambda c: c.defect(violates=("ATTT-3",)), "defect {defect}: names ATTT-3, which is"),
    ("unknown ID in a test", lambda c: c.mark("ATT-333"), "tests/test_x.py:7 test_y: names ATT-333, which is"),
    ("unknown ID in a text", lambda c: c.append("mask.md", "\nSee MASK-88.\n"), "names MASK-88, which is no req"),
    ("IDs of a test that cannot be read", lambda c: c.mark(literal=False), "tests/test_x.py:7 test_y: covers does not"),
    ("withdrawn ID in a case", withdraw, "case mask/empty-row-is-zero: names MASK-3, which is withdrawn"),
    ("withdrawn ID in a defect", withdraw, "defect empty-row-nan: names MASK-3, which is withdrawn"),
    ("withdrawn ID in a test", lambda c: (withdraw(c), c.mark("MASK-3")), "test_y: names MASK-3, which is withdrawn"),
    ("duplicate ID", lambda c: c.append("mask.md", f"\n### ATT-1\n{WHY}"), "ATT-1 is a duplicate of spec/attention"),
    ("duplicate case", lambda c: c.cases.append(c.cases[0]), "case {case}: is the name of several cases"),
    ("duplicate defect", lambda c: c.defects.append(c.defects[0]), "defect {defect}: is the name of several defects"),
    ("MUST without a case", no_case, "spec/mask.md:{MASK-7}: MASK-7 has no case"),
    ("requirement without a defect", no_defect, "spec/mask.md:{MASK-7}: MASK-7 has no defect that violates it"),
    ("defects that nobody can see", only_equivalent_defects, "MASK-7 has no defect that violates it"),
    ("untested and no test", no_test, "CONF-7 is untested by cases and has no test either"),
    ("no rationale", no_rationale, "MASK-99 has no rationale"),
    ("no short name", lambda c: c.edit("mask.md", f"{MASK_3} fully masked rows", MASK_3), "MASK-3 needs a short name"),
    ("five words", lambda c: c.edit("mask.md", MASK_3, f"{MASK_3} zeros for"), "needs a short name of 1 to 4 words"),
    ("doubled short name", lambda c: c.edit("mask.md", "sliding window", "Causal mask"), "the short name of MASK-6"),
    ("no anchor", lambda c: c.edit("mask.md", ' <a id="mask-3"></a>', ""), "MASK-3 needs ` <a id=\"mask-3\"></a>`"),
    ("anchor of another", lambda c: c.edit("mask.md", '<a id="mask-3">', '<a id="mask-30">'), "MASK-3 needs ` <a id"),
    ("no sentence", lambda c: c.edit("mask.md", TITLE, ""), "spec/mask.md:{MASK-3}: MASK-3 has no sentence in bold"),
    ("unknown level", lambda c: c.edit("mask.md", NOTES, NOTES.replace("MUST", "OUGHT")), "has the level 'OUGHT'"),
    ("no version", lambda c: c.edit("mask.md", NOTES, NOTES.replace(" · since 1.0", "")), "since when it holds"),
    ("no version that is one", lambda c: c.edit("mask.md", NOTES, NOTES.replace("1.0", "next")), "since when it holds"),
    ("later version", lambda c: c.edit("mask.md", NOTES, NOTES.replace("1.0", "9.0")), "MASK-3 holds since 9.0, and"),
    ("untested, no why", lambda c: c.edit("mask.md", NOTES, NOTES[:-1] + " · untested*"), "does not say why"),
    ("MUST in prose", lambda c: c.edit("mask.md", "## Visibility\n", "## V\n\nA key MUST be.\n"), "says MUST outside"),
    ("MAY in a record", lambda c: c.append("decisions/0009-empty-rows.md", "It MAY.\n"), "empty-rows.md:24: says MAY"),
    ("SHOULD in the glossary", lambda c: c.append("glossary.md", "It SHOULD.\n"), "says SHOULD outside a requirement"),
    ("link to no file", lambda c: c.append("mask.md", "[x](no.md)\n"), "links no.md, which is not there"),
    ("link to no anchor", lambda c: c.append("heads.md", "[x](mask.md#mask-33)\n"), "mask.md has no heading of that"),
    ("link to no anchor here", lambda c: c.append("heads.md", "[x](#no)\n"), "links #no, and heads.md has no heading"),
    ("link of a record to nothing", lambda c: c.append("decisions/0009-empty-rows.md", "[x](../m.md)\n"), "../m.md,"),
    ("record that nobody links", unlinked_record, "spec/decisions/0099-x.md: no requirement links this record"),
    ("record that decides nothing", empty_record, "0009-empty-rows.md: has no paragraph **Decision.**"),
    ("no index", no_index, "spec/INDEX.md: is missing"),
    ("stale index", stale_index, "spec/INDEX.md: is stale"),
    ("unknown feature of a case", lambda c: c.case(features=("maks",)), "case {case}: names the feature maks, which"),
    ("unknown feature of a defect", lambda c: c.defect(features=("maks",)), "defect {defect}: names the feature maks"),
    ("unknown feature of a requirement", lambda c: c.edit("mask.md", NOTES, NOTES.replace("empty", "x")), "feature x"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "hole"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
@pytest.mark.covers("CONF-1", "CONF-9")
def test_a_fault_is_named(copy: Copy, real: Links, known: set[str], fault: Fault, hole: str) -> None:
    lines = {f"{{{r.id}}}": str(r.line) for r in real.requirements}
    for old, new in {"{case}": copy.cases[0].id, "{defect}": copy.defects[0].id, **lines}.items():
        hole = hole.replace(old, new)
    fault(copy)
    found = copy.holes() - {line for line in known if "INDEX" not in line}
    assert any(hole in line for line in found), "\n".join(sorted(found))
    assert all("\n" not in line for line in found)


def test_here_is_no_hole(real: Links, known: set[str]) -> None:
    assert not known, "\n".join(sorted(known))


def test_a_copy_is_like_the_original(copy: Copy, known: set[str]) -> None:
    assert copy.holes() == known


def test_what_is_no_fault(copy: Copy, known: set[str]) -> None:
    """Keywords and links in code, links elsewhere, a keyword in a requirement, IDs of other worlds."""
    copy.append(
        "mask.md",
        "\n```\nIt MUST be [x](no.md) in MASK-88\n```\n`MUST` [x](https://example.org/#y) SHA-256\n",
    )
    assert copy.holes() <= known


# Kills


def test_kills_on_record(real: Links) -> None:
    first = next(d for d in real.defects if len(d.observable) > 1)
    dtype, *others = first.observable
    one, case = replace(real, defects=[first]), real.cases[0].id

    def found(killed_by: dict[str, tuple[str, ...]]) -> list[str]:
        return [str(hole) for hole in kills.recorded(one, Record(kills={first.id: killed_by}))]

    survives = [f"defect {first.id}: no case on record kills it at {dtype}; say `{UPDATE}`"]
    assert found(dict.fromkeys(first.observable, (case,))) == []
    assert found(dict.fromkeys(others, (case,))) == survives
    assert found(dict.fromkeys(others, (case,)) | {dtype: ()}) == survives
    assert found(dict.fromkeys(others, (case,)) | {dtype: ("mask/gone",)}) == survives
    assert found(dict.fromkeys(others, (case,)) | {dtype: (f"mask/gone{THEN}{case}",)}) == survives
    assert found(dict.fromkeys(others, (case,)) | {dtype: (f"{case}{THEN}{case}",)}) == []
    assert "is not on record" in str(next(kills.recorded(one, Record())))
    (stale,) = kills.recorded(replace(real, defects=[]), Record(kills={"gone": {}}))
    assert str(stale) == (
        f"defect gone: is on record in conformance/defects/kills.json and not in the bank; say `{UPDATE}`"
    )


def test_a_requirement_is_guarded_by_a_case_that_covers_it(
    real: Links, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert list(kills.holes(real, run=False)) == []
    other = next(case.id for case in real.cases if "MASK-7" not in case.covers)
    record = read_record()
    moved = {name: dict.fromkeys(record.kills[name], (other,)) for name in real.defects_of["MASK-7"]}
    monkeypatch.setattr(kills, "RECORD", tmp_path / "kills.json")
    write_record(replace(record, kills={**record.kills, **moved}), kills.RECORD)
    found = [str(hole) for hole in kills.holes(real, run=False)]
    (line,) = (r.line for r in real.requirements if r.id == "MASK-7")
    assert f"spec/mask.md:{line}: MASK-7 is covered by {kills.UNGUARDED}" in found


def test_the_record_is_read_if_there_is_one(
    real: Links, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kills, "RECORD", tmp_path / "kills.json")
    assert [str(hole) for hole in kills.holes(real, run=False)] == [
        f"conformance/defects/kills.json: is missing; say `{WRITE}`"
    ]
    write_record(Record(), kills.RECORD)
    assert len(list(kills.holes(real, run=False))) == len(real.defects)
    kills.RECORD.write_text("[]")
    with pytest.raises(UsageError, match="is no record of kills"):
        list(kills.holes(real, run=False))


def test_contributors_are_told_the_commands_that_a_hole_names() -> None:
    text = (spec_directory().parent / "CONTRIBUTING.md").read_text("utf-8")
    for command in (WRITE, UPDATE, BUILD, "python -m conformance chain"):
        assert f"{command}`" in text or f"{command} " in text, command


def test_kills_on_demand(real: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.defects.kill import Kill

    survivor = next(d for d in real.defects if d.observable)

    def matrix(defects: Sequence[Defect]) -> list[Kill]:
        return [Kill(d, "fused", {survivor.observable[0]: ()}) for d in defects]

    monkeypatch.setattr("conformance.defects.kill.matrix", matrix)
    (hole,) = kills.holes(replace(real, defects=[survivor]), run=True)
    assert str(hole).startswith(f"defect {survivor.id}: ")
    assert "survives" in hole.what


# Marks


def test_marks_are_read_wherever_they_stand() -> None:
    source = """
import pytest
from pytest import mark
pytestmark = [pytest.mark.covers("A-1")]

@pytest.mark.covers("A-2", "A-3")
class TestOne:
    @mark.covers("A-4")
    def test_two(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.covers("A-5")), 2])
async def test_three(x): ...

@pytest.mark.covers(*IDS)
def test_four(): ...

@pytest.mark.covers()
def test_five(): ...

def test_six(): other.covers("A-6")
"""
    assert [(m.test, m.ids, m.literal) for m in marks_of("tests/test_a.py", source)] == [
        ("tests/test_a.py", ("A-1",), True),
        ("tests/test_a.py::TestOne", ("A-2", "A-3"), True),
        ("tests/test_a.py::TestOne::test_two", ("A-4",), True),
        ("tests/test_a.py::test_three", ("A-5",), True),
        ("tests/test_a.py::test_four", (), False),
        ("tests/test_a.py::test_five", (), False),
    ]


# Both ways, and the index


def test_every_link_is_found_from_both_ends(real: Links) -> None:
    data = links_json(real)
    for ends in ("cases", "defects", "tests"):
        forth = {(end, r) for end, ids in data[ends].items() for r in ids}
        back = {(end, r) for r, entry in data["requirements"].items() for end in entry[ends]}
        hidden = {d.id for d in real.defects if d.equivalent is not None}
        assert {(end, r) for end, r in forth if end not in hidden} == back
        assert back


def test_the_index_names_and_counts(copy: Copy, real: Links) -> None:
    text = index(real)
    assert "mha-conformance trace --write" in text
    assert all(f"[{r.id} {r.name}]({r.file}#{r.id.lower()})" in text for r in real.requirements)
    (row,) = (line for line in text.splitlines() if "[MASK-3 fully masked rows]" in line)
    assert "| MUST | empty |" in row
    assert f"and {len(real.cases_of['MASK-3']) - 3} more" in row
    write_index(replace(real, spec=copy.spec))
    assert not any("INDEX" in hole for hole in copy.holes())


# The command


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], copy: Copy) -> None:
    monkeypatch.setattr(links, "spec_directory", lambda: copy.spec)
    copy.append("glossary.md", "\nIt MUST be.\n")
    assert main(["trace", "--write"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert any(": says MUST outside a requirement" in line for line in out)
    assert not any("INDEX" in line for line in out)
    assert re.match(r"\d+ holes? in \d+ requirements", out[-1])
    assert main(["trace", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert set(data) == {"requirements", "cases", "defects", "tests", "holes"}
    assert set(data["holes"][0]) == {"where", "what"}


def test_no_hole_is_status_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("conformance.cli.tracing.holes", lambda found: iter(()))
    monkeypatch.setattr(kills, "holes", lambda links, run: iter(()))
    assert main(["trace"]) == 0
    assert capsys.readouterr().out.startswith("no hole in ")


def test_an_installation_has_no_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(links, "checkout_project", lambda: None)
    monkeypatch.chdir(tmp_path)
    for text in ("", "[", "[project]\nname = 'other'", "project = 1"):
        tmp_path.joinpath("pyproject.toml").write_text(text)
        assert main(["trace"]) == 2
        assert "trace needs a checkout" in capsys.readouterr().err
    tmp_path.joinpath("pyproject.toml").write_text("[project]\nname = 'mha-conformance'")
    assert main(["trace"]) == 2
    assert "`pip install -e .`" in capsys.readouterr().err


def test_the_bank_is_read_once_it_is_asked_for() -> None:
    assert len(read_defects()) > 100
    assert test_markers.read_marks(Path(__file__).parents[1])
