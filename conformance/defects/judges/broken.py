"""Planted defects of the judge, each against the table of answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from conformance.defects.judges.answers import INF, TABLE
from conformance.judging import judge as judging
from conformance.judging import measure as measuring
from conformance.vectors.case import Case

MEASURED, DTYPE_PROBLEM = judging.measured, judging.dtype_problem
Judge = Callable[..., Any]

# what is broken: (module, name, what replaces it)
BROKEN: dict[str, tuple[Any, str, Any]] = {
    "names are not looked at": (judging, "names_problem", lambda case, outputs: "" if outputs else "nothing"),
    "nothing is asked for": (judging, "asked", lambda case: {"output", "weights", "lse"}),
    "shape is not looked at": (judging, "shape_problem", lambda case, outputs: ""),
    "dtype is not looked at": (judging, "dtype_problem", lambda case, dtype, outputs: ""),
    "non-finite is not looked at": (judging, "misplaced_problem", lambda measures, dtype: ""),
    "masked keys of a NaN row are looked at": (judging, "free", lambda case, name: None),
    "no weight of a NaN row is looked at": (judging, "free",
        lambda case, name: np.isnan(case.expected[name].hi).all(axis=-1, keepdims=True)),
    "the sign of a copied zero is not looked at": (judging, "copied_problem", lambda measures: ""),
    "the sign of every zero is looked at": (judging, "PAGES", ("output", "key_pages", "value_pages")),
    "rule 1 is not looked at": (judging, "error_problem", lambda measures, dtype: ""),
    "rule 2 is not looked at": (judging, "rms_problem", lambda measures: ""),
    "rule 3 is not looked at": (judging, "signature_problem", lambda measures: ""),
    "a signature is looked along in size": (measuring, "matched_filter",
        lambda got, golden, direction, bound: float(np.nanmax(np.abs(got - golden.hi)))),
    "s is left out of the filter": (measuring, "matched_filter",
        lambda got, golden, g, bound: float(np.nansum((got - golden.hi) * g) / np.sum(g))),
    "kinds are not told apart": (measuring, "kinds", lambda array: ~np.isfinite(array)),
    "infinities are not told apart": (measuring, "kinds",
        lambda array: np.select([np.isnan(array), np.isinf(array)], [1, 2], 0)),
    "a NaN passes": (measuring, "exceeds", lambda error, limit: error > limit),
    "errors are signed": (measuring, "distance", lambda got, golden: (got - golden.hi) - golden.lo),
    "lo is forgotten": (measuring, "distance", lambda got, golden: np.abs(got - golden.hi)),
    "W alone": (measuring, "allowed", lambda bound: bound.worst),
    "6 s alone": (measuring, "allowed", lambda bound: 6 * bound.rms),
    "s of 0 means exact": (measuring, "allowed", lambda bound: np.minimum(bound.worst, 6 * bound.rms)),
    "W of 0 means anything": (measuring, "allowed",
        lambda bound: np.where(bound.worst == 0, INF, np.minimum(bound.worst, 6 * bound.rms))),
    "one RMS limit, tight": (measuring, "rms_limit", lambda count, rows, policy: 1.25),
    "rows are not counted": (measuring, "rows_of", lambda output, scored, tokens: int(scored.sum())),
    "tokens are not counted": (measuring, "rows_of", lambda output, scored, tokens: int(scored.any(axis=-1).sum())),
    "few rows are not counted": (measuring, "RMS_SOME_ROWS", 0),
    "one RMS limit, loose": (measuring, "rms_limit", lambda count, rows, policy: 2.0),
    "the first rows are taken": (measuring, "held_rows",
        lambda output, golden, array: array if golden.rows is None else array[..., : len(golden.rows), :]),
    "rows are taken from the last axis": (measuring, "query_axis", lambda output, rank: rank - 1),
    "RMS of an all-zero s": (measuring, "RMS_SOME", 0),
    "RMS tight from 8 on": (measuring, "RMS_MANY", 8),
    "the mean error counts": (measuring, "distance",
        lambda got, golden: np.full_like(golden.hi, np.nanmean(np.abs(got - golden.hi))) if golden.hi.size
            else np.zeros_like(golden.hi)),
    "errors are relative to the largest element": (measuring, "allowed",
        lambda bound: np.full(bound.worst.shape, bound.worst.max(initial=0) * 10)),
    "only the first element is compared": (measuring, "exceeds",
        lambda error, limit: ~(error <= limit) & (np.arange(error.size).reshape(error.shape) == 0)),
    "only the first output is compared": (judging, "measured",
        lambda case, dtype, policy, outputs: MEASURED(case, dtype, policy, outputs)[:1]),
    "shapes that broadcast are equal": (judging, "shape_problem",
        lambda case, outputs: "" if all(outputs[n].size in (1, g.hi.size) for n, g in case.expected.items())
            else "no"),
    "every float dtype will do": (judging, "dtype_problem",
        lambda case, dtype, outputs: "" if all(x.dtype.kind in "fV" for x in outputs.values()) else "no"),
    "the dtype of the call for every gradient": (judging, "dtype_problem",
        lambda case, dtype, outputs: DTYPE_PROBLEM(replace(case, dtype_of={}), dtype, outputs)),
}  # fmt: skip


def _forgets_raises(case: Case, *rest: Any) -> Any:
    return judging.judge(replace(case, raises=False), *rest)


def _forgets_policy(case: Case, dtype: str, policy: str, outputs: Any) -> Any:
    return judging.judge(case, dtype, "eager", outputs)


WRAPPED: dict[str, Judge] = {
    "that a call must be refused is forgotten": _forgets_raises,
    "the policy is forgotten": _forgets_policy,
}

JUDGES = (*BROKEN, *WRAPPED)
"""What is wrong with each broken judge."""


def surprises(judge: Judge) -> list[str]:
    """The entries of the table that a judge gets wrong; an exception is wrong too."""
    wrong = []
    for name, (asked, dtype, policy, outputs, deserved) in TABLE.items():
        try:
            verdict = judge(asked, dtype, policy, outputs).verdict
        except Exception:
            verdict = "raised"
        if verdict != deserved:
            wrong.append(name)
    return wrong


def caught_by(name: str) -> list[str]:
    """The entries of the table that show a broken judge."""
    if name in WRAPPED:
        return surprises(WRAPPED[name])
    module, function, replacement = BROKEN[name]
    with patch.object(module, function, replacement), np.errstate(all="ignore"):
        return surprises(judging.judge)


def caught() -> Iterator[tuple[str, list[str]]]:
    """Every broken judge with what shows it."""
    for name in JUDGES:
        yield name, caught_by(name)
