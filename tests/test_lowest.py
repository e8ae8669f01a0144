""".ci/lowest.txt is the lower bound of every dependency that the tests need, as pyproject.toml states it."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOWEST = ROOT / ".ci" / "lowest.txt"
GROUPS = ("oracle", "test")
pytestmark = pytest.mark.skipif(not LOWEST.is_file(), reason="an sdist comes without .ci")


def requirements() -> Iterator[str]:
    """What is installed for the tests that need no framework."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    yield from project["project"]["dependencies"]
    yield from project["project"]["optional-dependencies"]["strict"]
    for group in GROUPS:
        yield from (line for line in project["dependency-groups"][group] if isinstance(line, str))


def test_every_requirement_is_a_lower_bound_and_stands_in_the_file() -> None:
    wanted = []
    for requirement in requirements():
        parts = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", requirement)
        assert parts, f"{requirement}: a name and its lower bound are wanted, as in click>=8.1"
        wanted.append(f"{parts[1]}=={parts[2]}")
    lines = LOWEST.read_text("utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == sorted(wanted)
