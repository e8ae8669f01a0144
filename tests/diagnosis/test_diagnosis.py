"""Which known mistakes are named for what fails: the right one first, none without evidence."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from wrong import FILES, Slip, read_slips, rows_of

from conformance.defects.bank import BANK, DEFECTS
from conformance.defects.defect import Defect
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.failing import evidence
from conformance.diagnosis.model import Model, collide, together
from conformance.diagnosis.search import diagnose
from conformance.judging.verdict import Known, Row
from conformance.names import OPERATIONS
from conformance.telling.diagnosis import diagnosed_rows, diagnosis_json, diagnosis_lines, finding_line
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

SETS = {which: read_slips(which) for which in FILES}
SLIPS, THIRD = SETS["first"], SETS["third"]
EVERY = tuple(slip for those in SETS.values() for slip in those.values())
PLAIN = sorted({slip.module: slip for slip in EVERY}.items())
BLOCKS = ("stream-correction-inverted", "vjp-flash-delta-of-tile")
BY_ID = {defect.id: defect for defect in DEFECTS}
SAMPLE = (
    "scale-of-model",
    "mask-inverted",
    "causal-strict",
    "window-sides-swapped",
    "heads-tiled",
    "lse-base-two",
)
CHAPTERS = ("attention", "mask", "causal", "heads", "window", "lse", "projection", "bias", "softcap")
SUSPECTS = tuple(
    d for n, d in enumerate(DEFECTS) if n % 9 == 0 or d.id in {id_ for s in SAMPLE for id_ in SLIPS[s].wanted}
)


@cache
def cases() -> tuple[Case, ...]:
    """Small ones of some chapters."""
    every = (c for c in load_vectors().cases if c.chapter in CHAPTERS or c.raises)
    return tuple(c for c in every if c.elements < 3000)


def defects(*names: str) -> list[Defect]:
    return [BY_ID[name] for name in names]


def both(*names: str) -> Implementation:
    one, other = defects(*names)
    return Implementation(replace(REFERENCE, **together(one.change, other.change)))


def say(target: Any, among: Sequence[Defect] = SUSPECTS, **given: Any) -> list[str]:
    """The names of what is found."""
    rows = rows_of(target, given.pop("cases", cases()), **given)
    return [finding.model.name for finding in diagnose(rows, cases(), "eager", among).findings]


@pytest.mark.parametrize("name", SAMPLE)
def test_slip_is_named_first(name: str) -> None:
    found = say(SLIPS[name].target())
    assert found[0] in SLIPS[name].wanted


@pytest.mark.parametrize("name", BLOCKS)
def test_size_of_blocks_is_found(name: str) -> None:
    """Of a family, the member is named; `among` has all of them."""
    among = [d for d in DEFECTS if d.id in {id_ for each in BLOCKS for id_ in THIRD[each].wanted}]
    small = [c for c in load_vectors().cases if c.elements < 700 and not c.raises]
    found = diagnose(rows_of(THIRD[name].target(), small), small, "eager", among).findings[0]
    assert found.defects[0].id in THIRD[name].wanted
    assert found.defects[0].detail == "in blocks of 4"
    assert f"({found.defects[0].detail})" in finding_line(found)


def test_every_slip_fits_its_module_and_names_defects() -> None:
    assert [len(those) for those in SETS.values()] == [111, 50, 60, 50, 50, 40, 40, 40, 40, 40]
    for slip in EVERY:
        assert any(hasattr(slip.target(), operation) for operation in OPERATIONS)
        assert slip.wanted or slip.where or slip.missed


WRONG_AS_THEY_CAME = {"outsider_layer": {"projection/no-batch-entries", "projection/no-queries"}}
"""Their author's own slip, met by cases that came later: an array without an element has no size of -1."""


AMENDED = {"causal/empty-rows-lse-is-sink", "mask/empty-row-lse-is-sink"}
"""The authors were told the rule before MASK-16, by which the lse of an empty row lost its sink."""


@pytest.mark.parametrize(("module", "slip"), [pytest.param(m, s, id=m) for m, s in PLAIN])
def test_plain_module_is_right(module: str, slip: Slip) -> None:
    rows = rows_of(replace(slip, edits=()).target(), cases())
    assert len(rows) > 5
    failed = {row.case for row in rows if row.failed}
    assert failed - AMENDED == WRONG_AS_THEY_CAME.get(module, set())


def test_nothing_is_said_of_what_is_right() -> None:
    found = diagnose(rows_of(Implementation(REFERENCE), cases()), cases(), "fused", SUSPECTS)
    assert (found.findings, found.failed, diagnosis_lines(found)) == ((), 0, [])


def test_what_no_model_reproduces_is_said_plainly() -> None:
    target = Implementation(
        replace(REFERENCE, merge=lambda c, heads: REFERENCE.merge(c, heads) + np.float32(np.pi))
    )
    found = diagnose(rows_of(target, cases()), cases(), "fused", SUSPECTS)
    assert found.findings == ()
    line = f"No diagnosis: no known mistake explains these {found.failed} failures"
    assert diagnosis_lines(found)[0] == line


def test_what_the_failures_say_themselves_is_said_and_not_that_nothing_is_known() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    written = "query was written to during the call (IND-5)"
    refused = "OverflowError: q_offset 2147483648 is too large (kernel.py:7)"
    said = [
        replace(row, verdict=verdict, message=message, got=())
        for number, row in enumerate(row for row in rows if row.failed)
        for verdict, message in [("fail", written) if number % 3 else ("error", refused)]
    ]
    found = diagnose(said, cases(), "fused", defects("scale-by-d-k-itself"))
    assert found.findings == ()
    first, second = diagnosis_lines(found)
    assert first.endswith(f"of {len(said)} failures say it themselves: {written}")
    assert second.endswith(f"of {len(said)} failures say it themselves: {refused}")


def test_what_the_failures_say_stands_beside_what_is_found() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    written = [
        replace(row, verdict="fail", message="key was written to during the call (IND-5)")
        for row in rows
        if row.passed
    ][:4]
    rest = [row for row in rows if row.failed]
    found = diagnose([*written, *rest], cases(), "fused", defects("causal-strict", "mask-inverted"))
    first, second = diagnosis_lines(found)
    assert "(MASK-6 causal mask; causal-strict)" in first
    assert (
        second
        == f"4 of {len(rest) + 4} failures say it themselves: key was written to during the call (IND-5)"
    )


def test_the_finding_that_explains_most_stands_first() -> None:
    names = ("bias-ignored", "causal-strict", "softcap-ignored")
    asked = [rows_of(BY_ID[name].implementation(), cases()) for name in names]
    merged = [max(rows, key=lambda row: row.failed) for rows in zip(*asked, strict=True)]
    found = diagnose(merged, cases(), "fused", defects(*names))
    explains = [finding.explains for finding in found.findings]
    assert len(explains) > 1
    assert explains == sorted(explains, reverse=True)


def test_two_mistakes_at_once() -> None:
    among = defects("scale-by-d-k-itself", "mask-inverted", "causal-strict", "bias-ignored", "sinks-ignored")
    found = diagnose(rows_of(both("scale-by-d-k-itself", "mask-inverted"), cases()), cases(), "fused", among)
    best = found.findings[0]
    assert [d.id for d in best.defects] == ["scale-by-d-k-itself", "mask-inverted"]
    assert (best.explains, best.of) == (found.failed, found.failed)
    assert diagnosis_lines(found)[0].startswith("Two mistakes at once: Your logits are divided by d_k, ")


def test_two_mistakes_that_do_not_meet_are_two_findings() -> None:
    found = say(both("lse-in-base-two", "causal-strict"), defects("lse-in-base-two", "causal-strict"))
    assert {name for names in found for name in names.split(" + ")} == {"lse-in-base-two", "causal-strict"}


def test_passing_rows_speak_against_a_model() -> None:
    """With scales given as well, the defect that ignores them is not the one that only has another default."""
    among = defects("scale-left-out", "scale-default-of-one")
    assert say(BY_ID["scale-default-of-one"].implementation(), among)[0] == "scale-default-of-one"
    assert say(BY_ID["scale-left-out"].implementation(), among)[0] == "scale-left-out"


def test_contradiction_is_told() -> None:
    target = BY_ID["scale-default-of-one"].implementation()
    found = diagnose(rows_of(target, cases()), cases(), "fused", defects("scale-left-out"))
    assert found.findings[0].contradicted > 0
    assert "Not an exact match: this mistake would also break" in diagnosis_lines(found)[0]


def test_what_most_passing_rows_refute_is_not_said() -> None:
    """Three rows are wrong as if the mask were inverted, and all others that have one are right."""
    right = rows_of(Implementation(REFERENCE), cases())
    wrong = {row.key: row for row in rows_of(BY_ID["mask-inverted"].implementation(), cases())}
    three = sorted(key for key, row in wrong.items() if row.failed)[::7][:3]
    rows = [wrong[row.key] if row.key in three else row for row in right]
    found = diagnose(rows, cases(), "fused", defects("mask-inverted"))
    assert (len(three), found.failed, found.findings) == (3, 3, ())
    assert diagnosis_lines(found)[-1] == "No diagnosis: no known mistake explains these 3 failures"


def test_what_explains_next_to_nothing_is_not_said() -> None:
    """Most rows are wrong in one way, and two in another."""
    one = rows_of(BY_ID["scale-by-d-k-itself"].implementation(), cases())
    other = {row.key: row for row in rows_of(BY_ID["mask-inverted"].implementation(), cases()) if row.failed}
    few = {key: other[key] for key in sorted(other)[:2]}
    mixed = [few.get(row.key, row) for row in one]
    assert 0.05 * sum(row.failed for row in mixed) > 2
    found = diagnose(mixed, cases(), "fused", defects("scale-by-d-k-itself", "mask-inverted"))
    assert [finding.model.name for finding in found.findings] == ["scale-by-d-k-itself"]
    assert diagnosis_lines(found)[-1].startswith("2 of ")


def test_what_looks_the_same_is_named_once_and_in_words() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    (finding,) = diagnose(rows, cases(), "fused", defects("causal-strict")).findings
    blocks = [Model((each,)) for each in BY_ID["online-output-not-rescaled"].family]
    own, other = Model((BY_ID["causal-strict"],)), Model((BY_ID["mask-inverted"],))
    line = finding_line(replace(finding, alike=(own, *blocks, other)))
    assert len(blocks) > 2
    assert line.count("online-output-not-rescaled") == 1
    assert line.count("causal-strict") == 1
    sentence = BY_ID["mask-inverted"].sentence.rstrip(".")
    assert line.endswith(f"; {sentence} (mask-inverted).")


def test_accepting_what_must_be_refused_is_explained() -> None:
    wrong = [c for c in cases() if c.raises]
    found = diagnose(
        rows_of(BY_ID["nothing-refused"].implementation(), wrong), cases(), "fused", BANK["validation"]
    )
    assert found.findings[0].model.name == "nothing-refused"
    assert found.explained == found.failed > 30


@pytest.mark.parametrize(
    "name", ["output-always-float64", "no-batch-refused", "empty-row-nan", "query-scaled-in-place"]
)
def test_dtypes_exceptions_and_nan_are_compared(name: str) -> None:
    rows = rows_of(BY_ID[name].implementation(), small())
    found = diagnose(rows, load_vectors().cases, "fused", [BY_ID[name], *SUSPECTS])
    named = found.findings[0].model if found.findings else found.single[0]
    assert named.name == name


@cache
def small() -> tuple[Case, ...]:
    return tuple(c for c in load_vectors().cases if c.elements < 1500 and c.chapter in (*CHAPTERS, "paths"))


def test_one_failing_case_is_too_little() -> None:
    one = [c for c in cases() if c.id == "causal/square"]
    found = diagnose(
        rows_of(BY_ID["causal-strict"].implementation(), one), cases(), "fused", defects("causal-strict")
    )
    assert found.findings == ()
    assert diagnosis_lines(found)[0].startswith("one failure fits: A query does not see its own key")
    assert "(MASK-6 causal mask; causal-strict)" in diagnosis_lines(found)[0]


def test_one_case_that_raises_names_nothing() -> None:
    def compute(s: Any, c: Any) -> Any:
        raise RuntimeError

    one = [c for c in cases() if c.id == "causal/square"]
    rows = rows_of(Implementation(replace(REFERENCE, compute=compute)), one)
    found = diagnose(rows, cases(), "fused", defects("no-batch-refused", "empty-row-nan"))
    assert (found.findings, found.single) == ((), ())
    (line,) = diagnosis_lines(found)
    assert line.startswith("No diagnosis: the only failing case raised an exception")


def test_one_case_that_no_model_reproduces() -> None:
    one = [c for c in cases() if c.id == "causal/square"]
    rows = rows_of(BY_ID["causal-strict"].implementation(), one)
    found = diagnose(rows, cases(), "fused", defects("mask-inverted"))
    assert diagnosis_lines(found) == [
        "No diagnosis: no known mistake gives the numbers of the only failing case"
    ]
    crashed = replace(rows[0], case="causal/mask", verdict="crash", got=())
    found = diagnose([*rows, crashed], cases(), "fused", defects("mask-inverted"))
    assert "no known mistake gives the numbers of the only failing case" in diagnosis_lines(found)[0]


def test_rows_that_show_nothing_are_counted() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    crashed = replace(next(r for r in rows if r.failed), verdict="crash", got=())
    found = diagnose([crashed, *rows[1:]], cases(), "fused", defects("causal-strict"))
    assert found.failed - found.compared == 1
    assert "1 failure could not be analysed" in " ".join(diagnosis_lines(found))
    damaged = [replace(r, got=tuple(replace(g, data="?") for g in r.got)) for r in rows]
    assert evidence(damaged, cases()).failures == ()


def test_rows_carry_what_explains_them() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    found = diagnose(rows, cases(), "fused", defects("causal-strict", "mask-inverted"))
    told: list[Row] = diagnosed_rows(rows, found)
    failed = sum(row.failed for row in told)
    assert {(d.defect, d.explains, d.of) for row in told for d in row.diagnosis} == {
        ("causal-strict", failed, failed)
    }
    assert not any(row.diagnosis for row in told if not row.failed)
    assert diagnosis_json(found)["explained"] == failed


def test_models_that_replace_the_same_step_collide() -> None:
    one, other, third = defects("scale-by-d-model", "scale-by-d-v", "causal-strict")
    assert collide(one, other)
    assert not collide(one, third)
    assert Model((one, third)).violates == ("ATT-3", "MASK-6")


def test_what_a_baseline_knows_is_diagnosed_all_the_same() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    expected = [
        replace(row, verdict="xfail", known=Known(row.verdict, "we know", "")) if row.failed else row
        for row in rows
    ]
    plain, known = (diagnose(each, cases(), "fused", defects("causal-strict")) for each in (rows, expected))
    assert diagnosis_lines(known) == diagnosis_lines(plain)
    assert known.compared == known.failed > 1


def test_crashes_alone_are_not_said_to_be_unknown() -> None:
    rows = rows_of(BY_ID["causal-strict"].implementation(), cases())
    crashed = [replace(row, verdict="crash", got=()) if row.failed else row for row in rows]
    split, line = diagnosis_lines(diagnose(crashed, cases(), "fused", defects("causal-strict")))
    assert split.startswith("It crashes only ")
    assert "could not be analysed" in line
