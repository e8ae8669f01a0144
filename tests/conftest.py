"""What several test files share: small cases with their goldens, and vectors made of them."""

import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definition import scaled_dot_product_attention
from hypothesis import settings

from conformance.cli import main
from conformance.names import SDPA
from conformance.vectors.case import Array, Bound, Case, Golden
from conformance.vectors.load import Vectors

settings.register_profile("suite", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("suite")
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # what tests run is no step of whoever runs them


TESTS = Path(__file__).parent
sys.path.append(str(TESTS))  # the modules beside the tests
PROCESSES = (
    "benching/test_bench.py", "benching/test_benching.py", "diagnosis/test_command.py", "gpu",
    "hardening/test_files.py", "hardening/test_floods.py", "others", "plugin", "running/test_garbage.py",
    "running/test_isolated_alone.py", "running/test_pool.py", "running/test_process.py",
    "running/test_programs.py", "running/test_session.py", "scale", "telling/page/test_browser.py",
    "telling/page/test_size.py", "telling/test_merge_shards.py", "telling/test_trace.py", "test_cli.py",
    "test_cli_runs.py", "test_init.py", "test_readme.py", "test_tour.py", "test_workflow.py", "judge",
    "vectors/test_export.py", "wheel",
)  # fmt: skip
"""Files and folders of tests that start processes, or are of the weight of those: `nox -s quick` leaves them out."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what starts processes."""
    if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).as_posix().startswith(PROCESSES):
        item.add_marker("process")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a session did that has run already, and parameters whose turn it is not: spec/ci.md."""
    run, turn = os.environ.get("SESSIONS_RUN", "").split(), os.environ.get("TURN")
    left_out = {
        item
        for item in items
        if any(mark.args[0] in run for mark in item.iter_markers("session"))
        or (turn is not None and not _is_its_turn(item, int(turn)))
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_its_turn(item: pytest.Item, turn: int) -> bool:
    """Whether one of many parameters of a test, or one test of a file of long ones, is tried at this commit."""
    mark = item.get_closest_marker("turns")
    if mark is None or not (hasattr(item, "callspec") or mark.kwargs.get("whole")):
        return True
    return (zlib.crc32(item.nodeid.encode()) + turn) % int(mark.args[0]) == 0


UNIT = {"float64": 1e-13, "float32": 1e-6, "float16": 1e-2, "bfloat16": 1e-1}


def golden_of(
    exact: Array, rows: tuple[int, ...] | None = None, rms_applies: bool = False, **bound: Any
) -> Golden:
    """A golden with a bound of one size for each dtype, half of it under `fused`; -2 is the query axis."""
    exact = np.asarray(exact, np.float64)
    hi = exact if rows is None else exact[..., list(rows), :]

    def bounds(dtype: str, share: float) -> Bound:
        worst = np.full(hi.shape, bound.get("worst", UNIT[dtype]) * share)
        return Bound(worst, np.full(hi.shape, bound.get("rms", UNIT[dtype]) * share))

    policies = {"eager": 1.0, "fused": 0.5}
    return Golden(
        shape=exact.shape,
        rows=rows,
        hi=hi,
        lo=np.zeros_like(hi),
        rms_applies=rms_applies,
        bounds={
            dtype: {policy: bounds(dtype, share) for policy, share in policies.items()} for dtype in UNIT
        },
    )


def case_of(id: str = "core/plain", **fields: Any) -> Case:  # noqa: A002 -- the field is called so
    """A case of (2, 3, 4) operands; fields replace its own."""
    random = np.random.default_rng(7)
    inputs = fields.pop(
        "inputs",
        {
            name: random.integers(-8, 8, (2, 3, 4)).astype(np.float32) / 8
            for name in ("query", "key", "value")
        },
    )
    options = fields.pop("options", {})
    if "expected" not in fields:
        exact = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in inputs.items()}
        wanted = {} if fields.get("raises") else scaled_dot_product_attention(**exact, **options)
        fields["expected"] = {name: golden_of(x) for name, x in wanted.items()}
    return Case(
        id=id,
        **{
            "note": "A small case of the tests.",
            "operation": SDPA,
            "covers": ("ATT-1",),
            "features": (),
            "dtypes": ("float64", "float32", "float16", "bfloat16"),
            "excluded": {},
            "options": options,
            "inputs": inputs,
            **fields,
        },
    )


@pytest.fixture
def make_case() -> Callable[..., Case]:
    return case_of


@pytest.fixture
def make_golden() -> Callable[..., Golden]:
    return golden_of


@pytest.fixture
def make_vectors() -> Callable[..., Vectors]:
    def make(*cases: Case) -> Vectors:
        return Vectors(tuple(sorted(cases, key=lambda case: case.id)), "0" * 64, "1.1", "2")

    return make


Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Called:
    """The command line in this process: arguments -> exit status, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        return (status, *capsys.readouterr())

    return call


@pytest.fixture
def target(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with the functions that the test file holds as TARGET."""
    path = tmp_path / "target.py"
    path.write_text(request.module.TARGET)
    return path
