"""Every option, in every operation, on random small shapes: oracle, second reference, core and judge agree."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from depth import examples
from hypothesis import given, reject
from hypothesis import strategies as st

from conformance.judging.judge import judge
from conformance.names import OPTIONS
from conformance.running.invoke import call
from conformance.running.target import Target, load
from conformance.vectors.case import Case
from conformance.vectors.generate.ball_rounding import NeverDecidedError
from conformance.vectors.generate.build import build
from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.verify.agreement import compared

FREE = ("q_offset",)  # which others need, and which may stand alone
RETURNED = ("return_weights", "return_lse")


@st.composite
def drafts(draw: Any, layer: bool, backward: bool) -> Draft:
    """A call with any of the options; sizes of zero and rows without a key among them."""
    name = f"drawn/{draw(st.integers(0, 2**32 - 1))}"
    draws = Draws(name)
    chosen = draw(st.sets(st.sampled_from([*OPTIONS, "grouped"]), max_size=6))
    batch = draw(st.sampled_from([(), (1,), (2,), (2, 1)]))
    groups = draw(st.integers(1, 2))
    heads = groups * (draw(st.integers(1, 2)) if "grouped" in chosen else 1)
    least = 1 if backward else 0
    q_len, kv_len = draw(st.integers(least, 3)), draw(st.integers(least, 4))
    past = draw(st.integers(0, kv_len)) if {"past_key", "past_value"} & chosen else 0
    given: dict[str, Any] = {}

    def shape() -> tuple[int, ...]:
        full = (*batch, heads, q_len, kv_len) if draw(st.booleans()) else (q_len, kv_len)
        return tuple(1 if n and draw(st.integers(0, 3)) == 0 else n for n in full)

    if "mask" in chosen:
        given["mask"] = draws.mask(*shape(), share=draw(st.sampled_from([0.3, 0.8])))
    if "attn_bias" in chosen:
        bias = draws.gauss(*shape(), sigma=draw(st.sampled_from([1.0, 8.0])))
        given["attn_bias"] = np.where(draws.mask(*bias.shape, share=0.85), bias, -math.inf)
    if "is_causal" in chosen:
        given["is_causal"] = True
    if "window" in chosen:
        side = st.none() | st.integers(0, 3)
        given["window"] = [draw(side), draw(side)]
    if "q_offset" in chosen or {"is_causal", "window"} & set(given):
        number = draw(st.integers(-2, 4))
        given["q_offset"] = draw(st.sampled_from([number, np.full(batch, number)])) if batch else number
    if "kv_lengths" in chosen:
        given["kv_lengths"] = draws.integers(*batch, low=-1, high=kv_len + 1).astype(np.int64)
    if "scale" in chosen:
        given["scale"] = draw(st.sampled_from([0.0, 1.0, -0.75, 0.3, 4.0]))
    if "softcap" in chosen:
        given["softcap"] = draw(st.sampled_from([0.5, 2.0, 30.0]))
    if "sinks" in chosen:
        given["sinks"] = draws.gauss(heads, sigma=2.0)
    given |= {option: True for option in RETURNED if option in chosen and not backward}
    sizes: dict[str, Any] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": groups,
        "q_len": q_len,
        "kv_len": kv_len,
        "past": past,
        "d_k": draw(st.integers(1, 3)),
        "d_v": draw(st.integers(1, 3)),
    }
    if layer:
        biases = draw(st.sampled_from(["", "qkvo", "o", "k", "qv"]))
        made = project(
            name, "A drawn case.", "ATT-1", d_q=draw(st.integers(1, 3)), biases=biases, **sizes, **given
        )
    else:
        made = attend(
            name, "A drawn case.", "ATT-1", sigma=draw(st.sampled_from([1.0, 4.0])), **sizes, **given
        )
    return gradient(made) if backward else made


KINDS = list(itertools.product([False, True], repeat=2))
NAMES = ("attention", "attention-gradient", "layer", "layer-gradient")


@pytest.fixture(scope="module")
def core() -> Target:
    return load("numpy")


@pytest.mark.parametrize(("layer", "backward"), KINDS, ids=NAMES)
@given(data=st.data())
@examples(8)
@pytest.mark.covers("ATT-1", "GRAD-1", "PROJ-1", "NUM-1")
def test_three_ways_to_one_answer(core: Target, layer: bool, backward: bool, data: st.DataObject) -> None:
    draft = data.draw(drafts(layer, backward))
    try:
        case = build(draft)
    except NeverDecidedError:  # 1/3 of a sum that three divides, say, which no ball tells from its neighbours
        reject()
    _, off = compared(case)
    assert not off, (draft, off)
    for dtype in case.dtypes:
        if case.judged(dtype, "eager"):
            found = judge(case, dtype, "eager", answered(core, case, dtype))
            assert found.verdict == "pass", (draft, dtype, found.message)


def answered(core: Target, case: Case, dtype: str) -> Any:
    answer = call(core, case.operation, case.operands(dtype), case.options, case.memory)
    assert answer.kind == "outputs", answer.message
    return answer.outputs
