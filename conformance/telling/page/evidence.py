"""The pictures of one failing row: what was asked, what was wanted, what came."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from conformance.dtypes import NUMPY_DTYPES
from conformance.judging.judge import measured
from conformance.judging.measure import Measure
from conformance.judging.verdict import Got, Row
from conformance.running.protocol import ProtocolError, decode_array
from conformance.telling.page.pictures import Picture, largest, picture
from conformance.telling.page.weights import attention_weights
from conformance.telling.terminal import shorten
from conformance.vectors.case import Array, Case, Golden, query_axis

INPUTS = 4
"""Matrices that are shown of an input."""


@dataclass(frozen=True)
class Evidence:
    """Pictures of one row."""

    dtype: str
    notes: tuple[str, ...]  # what is not shown, and why
    answers: tuple[tuple[Picture, ...], ...]  # for each output: expected, got, error ÷ tolerance
    weights: Picture | None
    inputs: tuple[Picture, ...]

    @property
    def size(self) -> int:
        """Characters of SVG."""
        every = [
            *(p for of in self.answers for p in of),
            *self.inputs,
            *([self.weights] if self.weights else []),
        ]
        return sum(len(matrix.svg) for p in every for matrix in p.matrices)


def evidence(row: Row, case: Case | None, accuracy: str) -> Evidence:
    """The pictures of a failing row; without its case only of what came."""
    notes = []
    got, problem = _decoded(row.got)
    if not row.got:
        kept = "the report does not hold it" if row.verdict == "fail" else "nothing came back"
        problem = row.got_left_out or kept
    if problem:
        notes.append(f"The answer is not shown: {problem}.")
    if case is None:
        notes.append(
            "Inputs and expected values are not shown: the run used other vectors than this suite has."
        )
        came = [(picture(f"got {shorten(name)}", array, "signed"),) for name, array in got.items()]
        return Evidence(row.dtype, tuple(notes), tuple(came), None, ())
    measures = _measures(case, row.dtype, accuracy, got)
    answers = [
        _answer(row, name, golden, got.get(name), measures.get(name))
        for name, golden in case.expected.items()
    ]
    answers += [
        (picture(f"got {shorten(n)}", a, "signed"),) for n, a in got.items() if n not in case.expected
    ]
    return Evidence(row.dtype, tuple(notes), tuple(answers), _weights(row, case), _inputs(row, case))


def _decoded(got: tuple[Got, ...]) -> tuple[dict[str, Array], str]:
    """The arrays of a report, which anybody may have written."""
    arrays: dict[str, Array] = {}
    for each in got:
        if each.dtype not in NUMPY_DTYPES:
            return {}, f"it has the dtype {shorten(each.dtype)}"
        entry = {"dtype": each.dtype, "shape": each.shape, "data": each.data}
        try:
            arrays[each.output] = decode_array(each.output, entry)
        except ProtocolError as error:
            return {}, str(error)
    return arrays, ""


def _measures(case: Case, dtype: str, accuracy: str, got: Mapping[str, Array]) -> dict[str, Measure]:
    """What can be compared element by element."""
    fits = all(name in got and got[name].shape == golden.shape for name, golden in case.expected.items())
    if not fits or not case.judged(dtype, accuracy):
        return {}
    return {m.output: m for m in measured(case, dtype, case.policy(dtype, accuracy), got)}


def _answer(
    row: Row, name: str, golden: Golden, got: Array | None, measure: Measure | None
) -> tuple[Picture, ...]:
    near, rows = _near(row, name, golden), golden.rows
    shared = [golden.hi] if measure is None else [golden.hi, measure.got]
    limit = min(largest(*shared), 4 * largest(golden.hi) or np.inf)  # what is far off must not pale the rest
    facts = (
        ""
        if rows is None
        else f"{len(rows)} of {golden.shape[query_axis(name, len(golden.shape))]} rows are judged"
    )
    shown = [picture(f"expected {name}", golden.hi, "signed", near=near, rows=rows, limit=limit, facts=facts)]
    if measure is not None:
        assert got is not None
        facts = str(got.dtype)
        shown.append(
            picture(f"got {name}", measure.got, "signed", near=near, rows=rows, limit=limit, facts=facts)
        )
        ratio = np.where(measure.misplaced, np.inf, measure.ratio)
        shown.append(picture(f"error ÷ tolerance of {name}", ratio, "error", near=near, rows=rows))
    elif got is not None:
        shown.append(picture(f"got {name}", got, "signed", facts=str(got.dtype)))
    return tuple(shown)


def _near(row: Row, name: str, golden: Golden) -> tuple[int, ...]:
    """The worst element, in the rows that the golden holds."""
    if row.worst is None or row.worst.output != name or len(row.worst.index) != len(golden.shape):
        return ()
    place = list(row.worst.index)
    if golden.rows is not None:
        axis = query_axis(name, len(place))
        place[axis] = golden.rows.index(place[axis]) if place[axis] in golden.rows else 0
    return tuple(place) if all(i < n for i, n in zip(place, golden.hi.shape, strict=True)) else ()


def _weights(row: Row, case: Case) -> Picture | None:
    weights = attention_weights(case)
    if weights is None:
        return None
    near: tuple[int, ...] = ()
    worst = row.worst
    if (
        worst is not None
        and worst.output in ("output", "weights", "lse")
        and len(worst.index) == weights.ndim
    ):
        near = (*worst.index[:-1], worst.index[-1] if worst.output == "weights" else 0)
    near = near if all(i < n for i, n in zip(near, weights.shape, strict=False)) else ()
    return picture("weights", weights, "share", near=near, facts="of each query by head")


def _inputs(row: Row, case: Case) -> tuple[Picture, ...]:
    return tuple(
        picture(
            name, array, "flag" if array.dtype.kind == "b" else "signed", facts=str(array.dtype), many=INPUTS
        )
        for name, array in case.operands(row.dtype).items()
    )
