"""What serving calls stand for, by two programs that share nothing, on fresh draws."""

from dataclasses import replace

import pytest

from conformance.exploring.recipe import read_token
from conformance.exploring.trial import certify_recipe
from conformance.names import SERVING
from tests.exploring import second


def test_the_second_reference_finds_what_the_oracle_expects() -> None:
    found = list(second.compared(seed=4, calls=60))
    assert {each.recipe.operation for each in found} == set(SERVING)
    assert not [each for each in found if each.wrong]
    assert sum(each.elements for each in found) > 1000


@pytest.mark.parametrize("changed", [1e-9, float("nan")])
def test_what_differs_is_told(changed: float) -> None:
    certified = certify_recipe(read_token("x1_opg_t32_k3_DkZ,qZ,vR_r6152445_P2_c649"), "explore/0")
    assert certified is not None
    golden = certified.case.expected["output"]
    wrong = replace(golden, hi=golden.hi + changed)
    case = replace(certified.case, expected={**certified.case.expected, "output": wrong})
    count, differences = second.differences(replace(certified, case=case))
    assert count == 1
    assert "output[0, 0, 0, 0]: " in differences[0]
