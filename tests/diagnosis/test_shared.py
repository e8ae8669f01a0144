"""What models share of a call changes nothing of what they answer."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.diagnosis.model import Model
from conformance.diagnosis.search import models
from conformance.diagnosis.shared import Shared, shared
from conformance.running.messages import Question
from conformance.running.runner import InProcess
from conformance.running.target import adopt
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
SAMPLE = models()[::29]


@pytest.mark.parametrize(
    "name",
    ["pairs/asked-value-dim-past", "gradient/everything", "gradient/layer-everything", "nonfinite/value"],
)
def test_a_model_answers_as_a_target_of_its_own_would(name: str) -> None:
    case, asked = CASES[name], 0
    for model in SAMPLE:
        (defect,) = model.defects
        if callable(defect.change) or not model.may_show(case):
            continue
        own = InProcess(adopt(Implementation(replace(REFERENCE, **defect.change)), defect.id))
        with np.errstate(all="ignore"):
            wanted, got = own.ask(Question(case, "float32")), model.ask(case, "float32")
        assert (got.kind, got.message) == (wanted.kind, wanted.message)
        assert got.outputs.keys() == wanted.outputs.keys()
        for output, array in wanted.outputs.items():
            assert got.outputs[output].dtype == array.dtype
            np.testing.assert_array_equal(got.outputs[output], array, err_msg=f"{model.name}: {output}")
        asked += 1
    assert asked > 10


def test_what_is_written_to_what_it_was_given_is_seen() -> None:
    def score(c, query, key, scale):  # type: ignore[no-untyped-def]
        query *= scale
        return REFERENCE.score(c, query, key, 1.0)

    case = CASES["attention/plain"]
    with pytest.raises(ValueError, match="read-only"):
        Shared(case, "float32").compute({"score": score})


def test_calls_that_matter_are_not_shared() -> None:
    assert shared(CASES["independence/repeated-past"], "float32") is None
    assert shared(next(case for case in CASES.values() if case.raises), "float32") is None


def test_a_model_that_keeps_state_starts_anew() -> None:
    stateful = next(model for model in models() if callable(model.defects[0].change))
    assert isinstance(stateful, Model)
    case = CASES["attention/plain"]
    one, other = (stateful.ask(case, "float32").outputs["output"] for _ in range(2))
    np.testing.assert_array_equal(one, other)
