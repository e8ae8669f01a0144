"""Targets that keep state, break their process or return what is none of theirs: each has a verdict that says so."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.judging.verdict import Row
from conformance.running import process, subprocess_target
from conformance.running.memory_limit import allowance, resident
from conformance.running.request import Request
from conformance.running.runner import run
from conformance.running.select import Selection
from conformance.vectors.case import Case

Make = Callable[..., Case]

TARGETS = """
import numpy as np

def attend(query, key, value):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def allocating(query, key, value):
    held = []
    while True:
        held.append(np.ones(2**21))

buffer = np.zeros((2, 3, 4), np.float32)

def one_buffer(query, key, value):
    buffer[...] = attend(query, key, value)
    return buffer

kept = {}

def keeping(query, key, value):
    return attend(query, kept.setdefault(key.shape, key), value)

def patching(query, key, value):
    np.abs = np.isnan = np.asarray = np.array_equal = np.maximum = lambda *a, **k: np.float64(0)
    return query

def view(query, key, value):
    return value

def view_of_the_past(query, key, value):
    return query[..., :2].swapaxes(-1, -2)
"""

TORCH = """
import torch

array_type = "torch"
dtypes = ("float32",)

class Base:
    array_type = "torch"
    def scaled_dot_product_attention(self, query, key, value):
        return self.changed(torch.nn.functional.scaled_dot_product_attention(query, key, value))

class Recording(Base):
    def changed(self, x):
        return x.requires_grad_(True) * 1

class Elsewhere(Base):
    def changed(self, x):
        return x.to("meta")

class Sparse(Base):
    def changed(self, x):
        return x.to_sparse()
"""


@pytest.fixture(autouse=True)
def _no_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_target, "FIRST_CASE_SECONDS", 20.0)


@pytest.fixture
def garbage(tmp_path: Path) -> Path:
    path = tmp_path / "garbage.py"
    path.write_text(TARGETS)
    return path


def rows(target: str, *cases: Case, **request: object) -> list[Row]:
    _, *found = run(
        Request(target=target, selection=Selection(dtypes=("float32",)), **request),  # type: ignore[arg-type]
        cases,
    )
    return found  # type: ignore[return-value]


def another(make_case: Make, name: str = "core/second") -> Case:
    """A case of the same shapes with other values."""
    random = np.random.default_rng(8)
    inputs = {n: random.integers(-8, 8, (2, 3, 4)).astype(np.float32) / 8 for n in ("query", "key", "value")}
    return make_case(name, inputs=inputs)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process holds")
def test_one_that_allocates_without_end_is_ended_and_the_run_goes_on(
    garbage: Path, make_case: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "allowance", lambda: 2.0**28)
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.02)
    first, second = rows(f"{garbage}:allocating", make_case("a/a"), make_case("a/b"))
    for row in (first, second):
        assert (row.verdict, row.message) == (
            "crash",
            "the process took more than 0.2 GiB of memory, and was ended",
        )
        assert row.seconds < 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory a process holds")
def test_what_the_system_tells_of_memory() -> None:
    import os

    assert 2**20 < resident(os.getpid()) < allowance() < 2**50
    assert resident(2**22 + 1) == 0
    before = resident(os.getpid())
    held = np.ones(2**23)  # 64 MiB
    assert 0.9 * held.nbytes < resident(os.getpid()) - before < 2 * held.nbytes


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.covers("IND-7")
def test_one_buffer_for_every_answer(garbage: Path, make_case: Make, in_process: bool) -> None:
    first, second, same = rows(
        f"{garbage}:one_buffer",
        make_case(),
        another(make_case),
        another(make_case, "core/third"),
        in_process=in_process,
    )
    assert (first.verdict, same.verdict) == ("pass", "pass"), "nobody can see it there"
    assert (second.verdict, second.message) == (
        "fail", "the output of the call before was written to: return new arrays (IND-7)",
    )  # fmt: skip


@pytest.mark.covers("IND-4", "CONF-16")
def test_state_of_an_earlier_call(garbage: Path, make_case: Make) -> None:
    first, second = rows(f"{garbage}:keeping", make_case(), another(make_case), in_process=True)
    assert (first.verdict, second.verdict) == ("pass", "fail")
    (alone,) = rows(f"{garbage}:keeping", make_case(), fresh=1)
    assert alone.verdict == "fail"
    assert alone.message.startswith("answers the stored case but not its variant (value negated")


def test_a_patched_numpy_harms_nobody_else(garbage: Path, make_case: Make) -> None:
    (row,) = rows(f"{garbage}:patching", make_case())
    assert row.verdict == "fail"
    assert np.abs(-1) == 1
    (row,) = rows(f"{garbage}:one_buffer", make_case())
    assert row.verdict == "pass"


def test_views_of_inputs_are_judged_as_what_they_hold(garbage: Path, make_case: Make) -> None:
    (row,) = rows(f"{garbage}:view", make_case(), in_process=True)
    assert (row.verdict, row.message[:7]) == ("fail", "output[")
    (row,) = rows(f"{garbage}:view_of_the_past", make_case(), in_process=True)
    assert row.message == "output has shape (2, 2, 3), wanted (2, 3, 4) (SHAPE-2)"


@pytest.mark.parametrize(
    ("name", "verdict", "message"),
    [
        ("Recording", "pass", ""),
        ("Elsewhere", "fail", "output is on device meta, its operands are on cpu"),
        ("Sparse", "fail", "output is a Tensor that cannot be read: "),
    ],
)
def test_tensors_of_every_kind(
    tmp_path: Path, make_case: Make, name: str, verdict: str, message: str
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "tensors.py"
    path.write_text(TORCH)
    (row,) = rows(f"{path}:{name}", make_case(), in_process=True)
    assert (row.verdict, row.message[: len(message)]) == (verdict, message)
