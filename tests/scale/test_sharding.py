"""Heads and batch over eight devices of JAX: the messages are counted, and the results are those of one device."""

import json
from pathlib import Path

import pytest
from array_libraries import library
from scale_programs import EIGHT, run

pytestmark = pytest.mark.turns(3, whole=True)

PROGRAM = Path(__file__).parent / "sharded.py"
ONE_SUM = {"all-reduce": 1}


@pytest.fixture(scope="module")
def counts():
    library("jax")
    return json.loads(run("-W", "error", str(PROGRAM), **EIGHT))


@pytest.mark.parametrize("case", ["heads", "both", "grouped"])
def test_heads_meet_in_one_sum(counts, case):
    assert counts[case] == ONE_SUM


@pytest.mark.covers("IND-2")
def test_batch_entries_send_each_other_nothing(counts):
    assert counts["batch"] == {}


@pytest.mark.parametrize("case", ["gradient by heads", "gradient by batch", "explicit gradient by heads"])
def test_gradients_need_sums_alone(counts, case):
    assert set(counts[case]) == {"all-reduce"}
    assert counts[case]["all-reduce"] <= 2  # the compiler may join that of the output with that of the input
