"""What an option has to hold for a call to fail, found by asking calls in which it does not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from test_experiment import needs_of, target

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
