"""Mistakes that are made in a part of a call: one pass of a gradient, some blocks of keys, some heads."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from wrong import Slip, read_slips, rows_of

from conformance.defects.bank import DEFECTS
from conformance.defects.call import Call
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.agree import Wrong
from conformance.diagnosis.failing import Failure
from conformance.diagnosis.finding import Finding
from conformance.diagnosis.model import Model
from conformance.diagnosis.search import diagnose
from conformance.telling.diagnosis import diagnosis_json, finding_line
from conformance.vectors.case import Array, Case
from conformance.vectors.load import load_vectors

THIRD = read_slips("third")
BY_ID = {defect.id: defect for defect in DEFECTS}


@cache
def cases(*words: str) -> tuple[Case, ...]:
    return tuple(c for c in load_vectors().cases if any(word in c.id for word in words) and c.elements < 4000)


def found(target: Any, among: str, *words: str) -> Finding:
    """The first finding."""
    rows = rows_of(target, cases(*words))
    return diagnose(rows, cases(*words), "eager", [BY_ID[name] for name in among.split()]).findings[0]


@pytest.mark.parametrize(
    ("slip", "among", "words", "detail"),
    [
        (
            "vjp-flash-sink-not-in-lse",
            "sinks-ignored mask-inverted",
            ("gradient/",),
            "in the lse that is kept only",
        ),
        ("vjp-flash-causal-forward-only", "causal-ignored", ("gradient/causal",), "on the way back only"),
    ],
)
def test_a_mistake_of_one_pass_of_the_gradient(
    slip: str, among: str, words: tuple[str, ...], detail: str
) -> None:
    best = found(THIRD[slip].target(), among, *words)
    assert (best.defects[0].id, best.defects[0].detail) == (among.split()[0], detail)
    assert best.model.violates == ("GRAD-1",)
    assert f"({detail})" in finding_line(best)


def test_a_mistake_behind_the_first_block_of_keys() -> None:
    capped = ("if softcap is not None:", "if softcap is not None and start == 0:")
    target = Slip("softcap-in-first-block", "third/online", (capped,), ()).target()
    best = found(target, "softcap-ignored mask-inverted", "softcap", "sizes/")
    assert (best.defects[0].id, best.defects[0].detail) == (
        "softcap-ignored",
        "in blocks of 32, behind the first block only",
    )


def test_a_mistake_of_some_heads() -> None:
    def score(c: Call, query: Array, key: Array, scale: float) -> Any:
        logits = REFERENCE.score(c, query, key, scale)
        return np.concatenate(
            [REFERENCE.score(c, query, key, 1.0)[..., :1, :, :], logits[..., 1:, :, :]], axis=-3
        )

    target = Implementation(replace(REFERENCE, score=score))
    best = found(target, "scale-left-out mask-inverted", "attention/", "heads/")
    assert (best.defects[0].id, best.partly) == ("scale-left-out", True)
    assert "in a part of each of these calls" in finding_line(best)
    rows = rows_of(target, cases("attention/"))
    among = [BY_ID["scale-left-out"]]
    assert (
        diagnosis_json(diagnose(rows, cases("attention/"), "fused", among))["findings"][0]["partly"] is True
    )


def test_where_most_calls_raise_a_refusal_of_some_is_no_cause() -> None:
    def compute(s: Any, c: Call) -> Any:
        raise ValueError("axes don't match array")

    target = Implementation(replace(REFERENCE, compute=compute))
    rows = rows_of(target, cases("attention/", "heads/"))
    among = [BY_ID[name] for name in ("no-batch-refused", "empty-row-nan")]
    assert diagnose(rows, cases("attention/", "heads/"), "fused", among).findings == ()


def test_what_only_a_signature_refuses_is_explained_by_no_part() -> None:
    """Every element is within its tolerance: any model would have the same numbers wherever the target is wrong."""
    case = next(c for c in load_vectors().cases if c.id == "attention/plain")
    held = {"output": case.expected["output"].hi.astype(np.float32).reshape(case.expected["output"].shape)}
    wrong = Wrong(Failure(case, "float32", outputs=held), "fused")
    words = {
        wrong.word(Model((BY_ID[name],))) for name in ("scale-left-out", "mask-inverted", "groups-tiled")
    }
    assert words <= {"other", "right"}
