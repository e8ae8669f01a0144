"""A target that is asked one question at a time, with a baseline and a profile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.running import subprocess_target
from conformance.running.baseline import Baseline, Entry
from conformance.running.request import Request
from conformance.running.select import Selection
from conformance.running.session import Session
from conformance.vectors.case import Case

Make = Callable[..., Case]


def attention(query: Any, key: Any, value: Any, *, is_causal: bool = False) -> Any:
    """Attention that knows no scale, and leaves out the mask in float32."""
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if is_causal and query.dtype != np.float32:
        logits = np.where(np.tri(*logits.shape[-2:], dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)


attention.dtypes = ("float64", "float32")  # type: ignore[attr-defined]


def causal(make_case: Make) -> Case:
    return make_case("causal/plain", options={"is_causal": True}, features=("is_causal",))


def opened(cases: list[Case], baseline: Baseline | None = None, **selection: Any) -> Session:
    selection = {"dtypes": ("float64", "float32"), **selection}
    return Session(Request(target=attention, selection=Selection(**selection), baseline=baseline), cases)


def verdicts(session: Session) -> dict[str, str]:
    return {f"{row.case} {row.dtype}": row.verdict for row in map(session.row, session.questions)}


def test_each_question_has_its_row_as_the_baseline_has_it(make_case: Make) -> None:
    cases = [make_case(), causal(make_case)]
    known = Baseline("known.toml", (Entry("causal/plain", "no mask yet", ("float32",)),))
    for baseline, verdict in ((None, "fail"), (known, "xfail")):
        session = opened(cases, baseline)
        assert verdicts(session) == {
            "core/plain float64": "pass",
            "core/plain float32": "pass",
            "causal/plain float64": "pass",
            "causal/plain float32": verdict,
        }
        assert [row.case for row in session.rows] == ["core/plain"] * 2 + ["causal/plain"] * 2
        assert session.problems() == ()


def test_an_entry_that_no_row_bears_out_is_told_once_it_was_asked(make_case: Make) -> None:
    entries = (Entry("causal/misspelt", "why"), Entry("core/plain", "why", ("float16",)))
    session = opened([make_case(dtypes=("float64", "float32"))], Baseline("known.toml", entries))
    verdicts(session)
    first, second = session.problems()
    assert "causal/misspelt" in first
    assert "float16" in second


def test_what_a_profile_needs_and_is_not_supported_is_an_error(make_case: Make) -> None:
    case = make_case("softcap/plain", features=("softcap",))
    assert verdicts(opened([case], dtypes=("float64",))) == {"softcap/plain float64": "unsupported"}
    session = opened([case], dtypes=("float64",), profile="full")
    row = session.row(session.questions[0])
    assert row.verdict == "error"
    assert row.message == "does not support softcap, which the profile full needs"


def test_the_accuracy_is_the_target_s_unless_another_is_asked_for(make_case: Make) -> None:
    assert opened([make_case()]).accuracy == "eager"
    assert Session(Request(target=attention, accuracy="fused"), [make_case()]).accuracy == "fused"


def test_a_process_is_ended_where_nothing_is_left_to_ask(
    targets: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, close = list[subprocess_target.Isolated](), subprocess_target.Isolated.close
    monkeypatch.setattr(
        subprocess_target.Isolated, "close", lambda self: (ended.append(self), close(self))[1]
    )
    request = Request(target=f"{targets}:good", selection=Selection(expression="absent"))
    with pytest.raises(UsageError, match="no case is left"):
        Session(request, [make_case()])
    assert len(ended) == 1


def test_what_a_target_writes_is_heard(targets: Path, make_case: Make) -> None:
    session = Session(Request(target=f"{targets}:printing"), [make_case()])
    assert session.row(session.questions[0]).verdict == "pass"
    session.close()
    assert session.heard == "printed\nwritten to stdout\nwritten to stderr\n"


def test_a_dtype_that_is_not_claimed(make_case: Make) -> None:
    with pytest.raises(
        UsageError, match=r"^attention does not support float16; it supports float64, float32:"
    ):
        opened([make_case()], dtypes=("float16",))
