"""The gradient of the query alone: its bound is that which it has beside the others."""

import numpy as np
import pytest
from judged_calls import operands

from conformance.names import SDPA_VJP
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.gradients import limits
from conformance.vectors.generate.gradients.limits import Sensitivity
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.generate.policies import POLICY


@pytest.mark.parametrize(("dtype", "policy"), [("float32", "eager"), ("bfloat16", "fused")])
def test_the_bound_is_the_same(dtype: str, policy: str) -> None:
    inputs = operands("rows-of-gradients", dtype=dtype, grad_output=(2, 3, 5, 4))
    wide = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    problem = pose(SDPA_VJP, wide, {"is_causal": True, "q_offset": 2}, (1, 4))
    alone, beside = (
        Sensitivity(problem, approximate(problem), (1, 1), "seed", of_query).limits(POLICY[dtype, policy])
        for of_query in (True, False)
    )
    assert set(alone) == {"query"}
    assert set(beside) == {"query", "key", "value"}
    for one, other in zip(alone["query"], beside["query"], strict=True):
        assert np.array_equal(one, other)


def test_nothing_is_drawn_where_nothing_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = operands("rows-of-gradients", dtype="float32", grad_output=(2, 3, 5, 4))
    wide = {name: np.asarray(x, np.float64) for name, x in inputs.items()}
    problem = pose(SDPA_VJP, wide, {}, None)
    monkeypatch.setattr(limits, "curvature", lambda *_: None)
    monkeypatch.setattr(limits.Responses, "predicted", None)
    for of_query, names in ((True, {"query"}), (False, {"query", "key", "value"})):
        sensitivity = Sensitivity(problem, approximate(problem), (1, 1), "seed", of_query)
        found = sensitivity.limits(POLICY["float32", "eager"])
        assert set(found) == names
        assert all(worst is rms for worst, rms in found.values())
