"""Gradients at production size in closed form: both keys of a word have one, so that a tile that is lost is seen."""

from dataclasses import replace

import large_gradients
import numpy as np
import pytest

from conformance.exploring.large.asked import asked, slots_of, word_of
from conformance.exploring.large.backward import sums
from conformance.exploring.large.call import Large
from conformance.exploring.large.sampled import certified
from conformance.exploring.large.where import ask
from conformance.names import MHA_VJP, SDPA_VJP

LONG = Large(operation=SDPA_VJP, q_len=32, kv_len=32_769, members=2, strided=True, stream=3)
SQUARE = replace(LONG, q_len=1025, kv_len=1026)
CALLS: dict[str, Large] = {
    "few queries over 32,769 keys": LONG,
    "square": SQUARE,
    "keys of a word side by side": replace(SQUARE, strided=False),
    "a group": replace(SQUARE, heads=4, groups=2),
    "16 bits": replace(SQUARE, dtype="bfloat16"),
    "a layer": Large(operation=MHA_VJP, heads=4, groups=4, q_len=1024, kv_len=1024, members=2, strided=True),
    "sampled": replace(SQUARE, family="sampled", members=1, few=True),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", [*large_gradients.MISTAKES, "none"])
def test_a_tile_that_is_lost_is_seen(call: Large, name: str) -> None:
    mistake = large_gradients.MISTAKES.get(name, lambda right, given: right(**given))
    told = ask(large_gradients.target(call.operation, mistake, call.dtype), call, "eager")
    told = told if told.pieces is None else certified(call, "eager", told)
    assert told.kind == "judged", told.message
    assert told.failed == (name != "none"), told.message


@pytest.mark.parametrize("call", [LONG, SQUARE, replace(SQUARE, strided=False)], ids=str)
def test_every_pair_of_keys_that_is_asked_for_has_a_gradient(call: Large) -> None:
    keys = slots_of(call, word_of(call, asked(call, np.arange(call.q_len))))
    pairs = keys[(keys < call.kv_len).all(axis=-1)]
    once = [key for key, count in zip(*np.unique(pairs, return_counts=True), strict=True) if count == 1]
    found = sums(call, 0, 1).value["key"]
    assert len(once) > 10
    assert (np.abs(found[once]).max(axis=-1) > 0).all()
