"""What an option has to hold for a call to fail, found by asking calls in which it does not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from test_experiment import CASES, needs_of, target

import mha_core
from conformance.exploring.additions import additions
from conformance.exploring.experiment import Experiment
from conformance.exploring.vary import varied
from conformance.judging.verdict import Row
from conformance.running.runner import InProcess
from conformance.running.target import adopt

Given = Mapping[str, Any]


def left(given: Given) -> int | None:
    """The left side of a window, if there is one."""
    found: int | None = given["window"][0] if "window" in given else None
    return found


def rises(given: Given) -> bool:
    """Whether a length is above the one before it."""
    return "kv_lengths" in given and bool((np.diff(given["kv_lengths"].reshape(-1)) > 0).any())


def hides(given: Given) -> bool:
    """Whether a mask hides something."""
    return "mask" in given and not given["mask"].all()


HELD: dict[str, tuple[str, Callable[[Given], bool]]] = {
    "`window` (with a left side)": ("causal/window-left", lambda given: left(given) is not None),
    "`window` (with a left side of 0)": ("causal/window-zero", lambda given: left(given) == 0),
    "`window` (with an open right side)": (
        "causal/window-left",
        lambda given: "window" in given and given["window"][1] is None,
    ),
    "`scale` (below 0)": ("attention/scale-negative", lambda given: given.get("scale", 1) < 0),
    "`mask` (that hides a key)": ("attention/softcap-mask-bias", hides),
    "`kv_lengths` (not in descending order)": ("pairs/lengths-softcap-bias-value-dim", rises),
}


@pytest.mark.parametrize("words", HELD)
def test_what_an_option_holds_is_said(words: str) -> None:
    case, fails = HELD[words]
    needs = needs_of(case, target(lambda given, *_: fails(given)))
    assert needs is not None
    assert words in needs.options


def test_an_option_that_matters_whatever_it_holds_stands_alone() -> None:
    needs = needs_of("attention/softcap-mask-bias", target(lambda given, *_: "mask" in given))
    assert needs is not None
    assert needs.options == ("`mask`",)


def test_an_offset_that_cannot_be_left_out_is_set_to_zero() -> None:
    case = "kernels/layer-decode-128-mask-offset-window-softcap-grouped-value-dim-empty"

    def layer(*args: Any, **options: Any) -> Any:
        found: Any = mha_core.multi_head_attention(*args, **options)
        moved = np.any(np.asarray(0 if options.get("q_offset") is None else options["q_offset"]) != 0)
        return found * 1.5 if moved and options.get("window") is not None else found

    needs = needs_of(case, InProcess(adopt(layer, "spoiled", operation="multi_head_attention")))
    assert needs is not None
    assert "`q_offset` (above 0)" in needs.options


def test_an_option_that_must_not_be_given_is_said() -> None:
    asker = target(lambda given, *_: "softcap" in given and "attn_bias" not in given)
    needs = needs_of("attention/softcap", asker)
    assert needs is not None
    assert needs.options == ("`softcap`", "no `attn_bias`")


@pytest.mark.parametrize(
    "name", ["attention/softcap", "cache/grouped", "digits/gradient-float32-long-plain", "cache/layer-causal"]
)
def test_a_right_program_passes_every_call_with_one_option_more(name: str) -> None:
    case, asker = CASES[name], InProcess(adopt(mha_core, "right"))
    row = Row(case.id, case.operation, "float32", "fail", case.covers, case.features)
    asked = Experiment(case, row, "eager", asker.ask, float("inf"))
    told = {words: asked.fails(more) for words, more in additions(varied(case))}
    assert told
    assert not any(told.values())
