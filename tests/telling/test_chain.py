"""The chain of a requirement says which link is missing, and the command that makes it."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from conformance.cli import chaining, main
from conformance.defects.record import UPDATE, Record, read_record
from conformance.errors import UsageError
from conformance.telling.requirements import Requirement
from conformance.telling.trace import links
from conformance.telling.trace.chain import BUILD, INDEX, Chains, Link, mentioned, read_chains
from conformance.telling.trace.kills import UNGUARDED
from conformance.telling.trace.links import read_links
from conformance.telling.trace.test_markers import Mark
from conformance.vectors.generate import cases
from conformance.vectors.generate.changed import differs
from conformance.version import SPEC_VERSION

NEW = Requirement(
    "MASK-99",
    "so it is",
    "So it is.",
    ("MUST", "mask", f"since {SPEC_VERSION}"),
    "mask.md",
    line=7,
    anchor="mask-99",
    rationale="It is.",
)


@pytest.fixture(scope="module")
def real() -> Chains:
    return read_chains(read_links(), read_record())


def having(chains: Chains, **changed: Any) -> Chains:
    """The same with some of its links or parts changed."""
    parts = {name: changed.pop(name) for name in ("drafts", "record", "changes") if name in changed}
    return replace(chains, links=replace(chains.links, **changed), **parts)


def missing(chains: Chains, name: str) -> list[str]:
    return [link.name for link in chains.of(name) if link.missing]


def link(chains: Chains, name: str, which: str) -> Link:
    (found,) = (link for link in chains.of(name) if link.name == which)
    return found


def test_nothing_is_missing_here(real: Chains) -> None:
    assert {r.id: missing(real, r.id) for r in real.links.requirements if missing(real, r.id)} == {}
    assert real.unbuilt == set()
    assert [link.name for link in real.of("MASK-3")] == ["requirement", "case", "defect", "kill", "index"]
    assert [link.name for link in real.of("MASK-17")][-2:] == ["change log", "index"]
    assert "none, since" in link(real, "CONF-7", "case").found


def test_a_requirement_grows_link_by_link(real: Chains) -> None:
    assert missing(real, NEW.id) == ["requirement"]
    assert f"since {SPEC_VERSION}" in real.of(NEW.id)[0].then
    chains = having(real, requirements=[*real.links.requirements, NEW])
    assert missing(chains, NEW.id) == ["case", "defect", "change log", "index"]
    assert "covers" in link(chains, NEW.id, "case").then
    draft = replace(real.drafts[0], id="mask/new", covers=(NEW.id,))
    chains = having(chains, drafts=[*real.drafts, draft])
    assert link(chains, NEW.id, "case") == Link("case", missing="mask/new not built as declared", then=BUILD)
    assert chains.unbuilt == {"mask/new"}
    case = next(case for case in real.links.cases if case.id == real.drafts[0].id)
    chains = having(chains, cases=[*real.links.cases, replace(case, id="mask/new", covers=(NEW.id,))])
    assert missing(chains, NEW.id) == ["defect", "change log", "index"]
    defect = replace(real.links.defects[0], id="mask-new", violates=(NEW.id,))
    chains = having(chains, defects=[*real.links.defects, defect])
    assert missing(chains, NEW.id) == ["kill", "change log", "index"]
    assert link(chains, NEW.id, "kill").then == UPDATE
    assert "mask-new" in link(chains, NEW.id, "kill").missing
    on_record = {**real.record.kills, "mask-new": dict.fromkeys(defect.observable, ("mask/new",))}
    chains = having(chains, record=Record(kills=on_record))
    assert missing(chains, NEW.id) == ["change log", "index"]
    elsewhere = {**on_record, "mask-new": dict.fromkeys(defect.observable, (case.id,))}
    unguarded = having(chains, record=Record(kills=elsewhere))
    assert link(unguarded, NEW.id, "kill").missing == UNGUARDED
    told = f"### Specification {SPEC_VERSION}\n\n- MASK-98 to MASK-99.\n"
    chains = having(chains, changes=told)
    assert missing(chains, NEW.id) == ["index"]
    assert link(chains, NEW.id, "index").then == INDEX


def test_what_is_written_wrongly_comes_first(real: Chains) -> None:
    to_come = replace(NEW, notes=("MUST", "mask", "since 99.0"))
    chains = having(real, requirements=[*real.links.requirements, to_come])
    assert "the specification is" in link(chains, NEW.id, "requirement").missing
    gone = replace(NEW, notes=("Withdrawn in 1.1: see MASK-3.",))
    assert [each.missing for each in having(real, requirements=[gone]).of(NEW.id)] == [""]


def test_untested_and_lesser_levels_need_less(real: Chains) -> None:
    untested = replace(NEW, notes=(*NEW.notes, "untested: it is so"))
    chains = having(real, requirements=[*real.links.requirements, untested], changes="")
    assert missing(chains, NEW.id) == ["case", "change log", "index"]
    assert "pytest.mark.covers" in link(chains, NEW.id, "case").then
    marked = having(chains, marks=[*real.links.marks, Mark("tests/test_x.py::test_y", 1, (NEW.id,))])
    assert "tests/test_x.py::test_y" in link(marked, NEW.id, "case").found
    may = replace(NEW, notes=("MAY", "mask", "since 1.0"))
    assert missing(having(real, requirements=[*real.links.requirements, may]), NEW.id) == ["index"]


def test_a_case_is_what_is_declared_or_is_built(real: Chains) -> None:
    stored = {case.id: case for case in real.links.cases}
    draft = next(d for d in real.drafts if d.options and not d.raises)
    case = stored[draft.id]
    query = draft.inputs["query"].copy()
    query[..., 0] += 1
    assert not differs(draft, case)
    for other in (
        replace(draft, note="Another."),
        replace(draft, options={**draft.options, "scale": 0.123}),
        replace(draft, inputs={**draft.inputs, "query": query}),
        replace(draft, inputs={**draft.inputs, "query": query[..., :1, :]}),
        replace(draft, repeat=7),
    ):
        assert differs(other, case)
    assert having(real, drafts=real.drafts[1:]).unbuilt == {real.drafts[0].id}


def test_ranges_name_what_is_between() -> None:
    assert list(mentioned("- GRAD-1 to GRAD-3, NUM-7: x. IND-7 to MASK-9.")) == [
        "GRAD-1", "GRAD-2", "GRAD-3", "NUM-7", "IND-7", "MASK-9",
    ]  # fmt: skip


# The command


def test_the_command_tells_of_one_or_of_what_lacks_something(
    real: Chains, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chain", "mask-3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("MASK-3 fully masked rows\n  requirement  spec/mask.md:")
    assert out.endswith("nothing is missing\n")
    assert main(["chain"]) == 0
    assert capsys.readouterr().out.startswith("no requirement of ")
    draft = replace(real.drafts[0], id="mask/new", covers=("MASK-3",))
    lacking = having(real, drafts=[*real.drafts, draft])
    monkeypatch.setattr(chaining, "read_links", lambda reader: real.links)
    monkeypatch.setattr(chaining, "read_chains", lambda links, record: lacking)
    assert main(["chain"]) == 1
    out = capsys.readouterr().out
    assert "missing: mask/new not built as declared" in out
    assert f"next: `{BUILD}`; or `python -m conformance chain MASK-3 --run`" in out
    assert out.splitlines()[-1].startswith("1 requirement of ")
    assert main(["chain", "MASK-99"]) == 1
    assert "is in no chapter" in capsys.readouterr().out
    assert main(["chain", "MASKS"]) == 2
    assert "unknown requirement 'MASKS'" in capsys.readouterr().err


def test_a_case_that_is_not_built_is_told_of_whatever_it_covers(
    real: Chains, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = replace(real.drafts[0], id="mask/new", covers=("MASK-98",))
    lacking = having(real, drafts=[*real.drafts, draft])
    monkeypatch.setattr(chaining, "read_links", lambda reader: real.links)
    monkeypatch.setattr(chaining, "read_chains", lambda links, record: lacking)
    for arguments in (["chain"], ["chain", "CONF-7"]):
        assert main(arguments) == 1
        out = capsys.readouterr().out
        assert f"mask/new is not built as declared: {BUILD}\n" in out
        assert "mask/new covers MASK-98, which is no requirement: correct its `covers`" in out
    elsewhere = replace(real.drafts[0], covers=("MASK-3",))  # stored with what it covered before
    lacking = having(real, drafts=[elsewhere, *real.drafts[1:]])
    assert main(["chain", "CONF-7"]) == 1
    assert f"{elsewhere.id} is not built as declared" in capsys.readouterr().out
    assert main(["chain", "MASK-3"]) == 1
    assert f"missing: {elsewhere.id} not built as declared" in capsys.readouterr().out


def test_two_cases_of_one_id_are_one_line(
    real: Chains, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cases, "CHAPTERS", cases.CHAPTERS[:1] * 2)
    monkeypatch.setattr(chaining, "read_links", lambda reader: real.links)
    assert main(["chain"]) == 1
    said = f"two cases are called {real.drafts[0].id}: give the new one another ID"
    assert capsys.readouterr().err == f"mha-conformance: {said}\n"


def test_outside_a_clone_the_command_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "checkout_project", lambda: None)
    for command in ("chain", "trace"):
        with pytest.raises(UsageError, match=rf"^{command} .*`python -m conformance {command}`"):
            links.tests_directory(command)


def test_run_does_the_machine_s_part_in_order_and_stops_where_it_fails(
    real: Chains, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = replace(real.drafts[0], id="mask/new", covers=("MASK-3",))
    lacking = having(real, drafts=[*real.drafts, draft])
    asked: list[list[str]] = []
    status = {"conformance.defects": 0}

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        assert words[0] == sys.executable
        asked.append(words[2:])
        return subprocess.CompletedProcess(words, status.get(words[2], 0))

    monkeypatch.setattr(chaining.subprocess, "run", run)
    monkeypatch.setattr(chaining, "read_links", lambda reader: real.links)
    monkeypatch.setattr(chaining, "read_chains", lambda links, record: lacking)
    assert main(["chain", "MASK-3", "--run"]) == 0
    assert [" ".join(words) for words in asked] == [
        "conformance.vectors.generate --changed",
        "conformance.defects --missing --write -q",
        "conformance run numpy -q -k MASK-3",
        "conformance trace --write",
        "conformance chain MASK-3",
    ]
    asked.clear()
    status["conformance.defects"] = 1
    assert main(["chain", "--run"]) == 1
    assert len(asked) == 2
    assert "ended with 1: correct it and run this command again" in capsys.readouterr().err
    monkeypatch.setattr(chaining, "read_chains", lambda links, record: real)
    status["conformance.defects"] = 0
    asked.clear()
    assert main(["chain", "CONF-7", "--run"]) == 0
    assert [words[0] for words in asked] == ["conformance.defects", "conformance", "conformance"]
