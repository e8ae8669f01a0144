"""What failing rows have in common is said first, in words: a dtype, an option, a size, or two of them at once."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from conformance.diagnosis.facts import sizes
from conformance.diagnosis.finding import Diagnosed
from conformance.diagnosis.split import splits
from conformance.judging.verdict import Row, Verdict
from conformance.resources import schema
from conformance.telling.diagnosis import diagnosis_lines
from conformance.telling.report import read_report
from conformance.vectors.case import Array, Case
from conformance.vectors.load import load_vectors

CASES = load_vectors().cases
Judge = Callable[[Case, str], Verdict]


def rows_where(verdict: Judge, dtypes: tuple[str, ...] = ("float32", "float16")) -> list[Row]:
    """A row for each forward case and dtype, each with the verdict that it is given."""
    return [
        Row(case.id, case.operation, dtype, verdict(case, dtype), case.covers, case.features)
        for case in CASES
        if not case.gradients
        for dtype in dtypes
        if dtype in case.dtypes
    ]


def fails(when: Callable[[Case, str], bool]) -> Judge:
    return lambda case, dtype: "fail" if when(case, dtype) and not case.raises else "pass"


def heads(case: Case, name: str) -> int:
    """How many heads a table has numbers for."""
    shape = case.shapes.get(name, ())
    return shape[-3] if len(shape) > 2 else 0


def product(case: Case, one: str, other: str) -> int:
    """Of two sizes."""
    return sizes(case)[one] * sizes(case)[other]


def offsets(case: Case) -> Array:
    """Those that a call is given."""
    return np.asarray(case.inputs.get("q_offset", case.options.get("q_offset", ()))).reshape(-1)


CONDITIONS = {
    "at float16": lambda case, dtype: dtype == "float16",
    "in the layer": lambda case, _: case.operation == "multi_head_attention",
    "where `softcap` is given": lambda case, _: "softcap" in case.features,
    "where `q_offset` is an array": lambda case, _: "q_offset" in case.inputs,
    "with a past": lambda case, _: "past_key" in case.inputs,
    "where several query heads share a key head": lambda case, _: "gqa" in case.features,
    "with more than 128 keys": lambda case, _: sizes(case)["kv_len"] > 128,
    "with d_k above 16": lambda case, _: sizes(case)["d_k"] > 16,
    "at float16 and where `softcap` is given": lambda c, dtype: (
        dtype == "float16" and "softcap" in c.features
    ),
    "at float16 and with more than 64 keys": lambda c, dtype: dtype == "float16" and sizes(c)["kv_len"] > 64,
    "where `window` has a left end": lambda c, _: c.options.get("window", [None])[0] is not None,
    "where `attn_bias` differs between heads": lambda c, _: heads(c, "attn_bias") > 1,
    "where several query heads share a key head and where `attn_bias` differs between heads": lambda c, _: (
        "gqa" in c.features and heads(c, "attn_bias") > 1
    ),
    "where `window` has an open side": lambda c, _: None in c.options.get("window", ()),
    "where `kv_lengths` is not in descending order": lambda c, _: bool(
        "kv_lengths" in c.inputs and (np.diff(c.inputs["kv_lengths"].reshape(-1)) > 0).any()
    ),
    "where `q_offset` is no multiple of 16": lambda c, _: bool((offsets(c) % 16 != 0).any()),
    "with batch entries times query heads above 12": lambda c, _: product(c, "batch", "heads") > 12,
    "with more than 64 keys and with fewer than 8 keys in the last 64": lambda c, _: (
        sizes(c)["kv_len"] > 64 and 0 < sizes(c)["kv_len"] % 64 < 8
    ),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_is_found(condition: str) -> None:
    rows = rows_where(fails(lambda case, dtype: not case.raises and CONDITIONS[condition](case, dtype)))
    (split,) = splits(rows, CASES)
    assert split.condition == condition
    assert split.failing == sum(row.failed for row in rows)
    assert (split.passing, split.failing_elsewhere) == (0, 0)


def test_some_rows_under_it_may_pass() -> None:
    odd = {case.id for number, case in enumerate(CASES) if number % 10 == 0}
    (split,) = splits(rows_where(fails(lambda c, _: "window" in c.features and c.id not in odd)), CASES)
    assert split.condition == "where `window` is given"
    assert 0 < split.passing < split.failing


def test_a_second_condition_is_said_where_it_leaves_out_all_that_passes() -> None:
    def few(case: Case, _: str) -> bool:
        return "softcap" in case.features and sizes(case)["q_len"] <= 8

    (split,) = splits(rows_where(fails(few)), CASES)
    assert "`softcap` is given" in split.condition
    assert "quer" in split.condition
    assert (split.passing, split.failing_elsewhere) == (0, 0)


def test_failures_of_two_kinds_are_told_apart() -> None:
    def verdict(case: Case, dtype: str) -> Verdict:
        if case.raises:
            return "pass"
        if "q_offset" in case.inputs:
            return "error"
        return "fail" if dtype == "float16" and "softcap" in case.features else "pass"

    found = {split.kind: split.condition for split in splits(rows_where(verdict), CASES)}
    assert found == {
        "error": "where `q_offset` is an array",
        "fail": "at float16 and where `softcap` is given",
    }


def test_two_conditions_of_one_kind_are_both_said() -> None:
    rows = rows_where(fails(lambda case, _: "gqa" in case.features or "sinks" in case.features))
    found = splits(rows, CASES)
    assert {split.condition for split in found} == {
        "where several query heads share a key head",
        "where `sinks` is given",
    }
    first, second = diagnosis_lines(Diagnosed((), 1, 0, splits=found))[:2]
    assert first.startswith("It is wrong mostly where ")
    assert second.startswith("Of the other rows it is wrong only where ")


def test_an_experiment_comes_before_a_condition_under_which_most_rows_pass() -> None:
    some = {
        case.id for case in CASES if "softcap" in case.features and not case.raises and not case.gradients
    }
    every = splits(rows_where(fails(lambda case, _: case.id in some)), CASES)
    few = (replace(every[0], failing=every[0].passing + 1, passing=every[0].failing + 2),)
    told = "By experiment it is wrong only with `softcap`."
    for found, place in ((every, 1), (few, 0)):
        lines = diagnosis_lines(Diagnosed((), 1, 0, splits=found, experiments=(told,)))
        assert lines.index(told) == place


def test_the_sentence_counts_both_sides() -> None:
    found = splits(rows_where(fails(CONDITIONS["at float16"]), ("float32", "float16")), CASES)
    (split,) = found
    rows = split.failing + split.passing
    line = diagnosis_lines(Diagnosed((), split.failing, 0, splits=found))[0]
    assert line == (
        f"It is wrong only at float16: {split.failing} of {rows} rows there, 0 of {split.passing_elsewhere} elsewhere."
    )


@pytest.mark.parametrize(
    "when",
    [
        lambda case, dtype: True,  # all of it
        lambda case, dtype: sizes(case)["kv_len"] > 1,  # nearly all of it
        lambda case, dtype: hash_of(case) % 3 == 0,  # by chance
        lambda case, dtype: case.id == "attention/plain",  # one case
        lambda case, dtype: False,
    ],
    ids=["all", "nearly all", "by chance", "one case", "none"],
)
def test_nothing_is_said_where_nothing_splits_them(when: Callable[[Case, str], bool]) -> None:
    assert splits(rows_where(fails(lambda case, dtype: not case.raises and when(case, dtype))), CASES) == ()


def hash_of(case: Case) -> int:
    """A number that has nothing to do with what the case is."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(case.id)) % 1009


TARGET = """
import numpy as np

def attention(query, key, value, *, softcap=None):
    key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    logits = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1], dtype=query.dtype)
    weights = np.exp(logits - logits.max(-1, keepdims=True))  # the softcap is forgotten
    return weights / weights.sum(-1, keepdims=True) @ value
attention.features = {"gqa", "value_dim", "softcap"}
"""


def test_run_says_it_first_and_the_report_keeps_it(
    command: Callable[..., tuple[int, str, str]], target: Path, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    few = ["-k", "softcap or attention", "--in-process", "--fresh", "off"]
    status, out, _ = command("run", f"{target}:attention", *few, "--report", path)
    told = [line for line in out.splitlines() if line.startswith("diagnosis: ")]
    assert status == 1
    assert told[0].startswith("diagnosis: It is wrong only where `softcap` is given: ")
    assert len(told) > 1
    Draft202012Validator(schema("report")).validate(json.loads(path.read_text()))
    report = read_report(path)
    assert [split["condition"] for split in report.splits] == ["where `softcap` is given"]
    assert json.loads(command("diagnose", f"{target}:attention", *few[:3], "--json")[1])["splits"] == list(
        report.splits
    )


def test_cases_that_are_alike_have_nothing_to_tell_them_apart() -> None:
    case = next(case for case in CASES if not case.gradients)
    alike = [replace(case, id=f"alike/{n}") for n in range(24)]
    rows = [
        Row(each.id, each.operation, "float32", "fail" if n % 2 else "pass", each.covers, each.features)
        for n, each in enumerate(alike)
    ]
    assert not splits(rows, alike)


def test_more_dtypes_do_not_make_another_condition() -> None:
    def odd(case: Case, _: str) -> bool:
        return "softcap" in case.features and sizes(case)["q_len"] <= 8

    one, four = (
        splits(rows_where(fails(odd), dtypes), CASES) for dtypes in (("float32",), ("float32", "float64"))
    )
    assert [each.condition for each in one] == [each.condition for each in four]


@pytest.mark.parametrize("limit", [24, 100, 128])
def test_the_sizes_between_which_a_limit_lies_are_known(limit: int) -> None:
    right = [case for case in CASES if not case.raises]
    rows = rows_where(fails(lambda case, _: not case.raises and sizes(case)["kv_len"] > limit))
    (split,) = splits(rows, CASES)
    (gap,) = split.gaps
    passing = [sizes(case)["kv_len"] for case in right if sizes(case)["kv_len"] <= limit]
    assert (gap.size, gap.said) == ("kv_len", split.condition)
    assert gap.low <= max(passing) <= limit <= gap.high
