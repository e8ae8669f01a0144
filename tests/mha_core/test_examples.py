"""The examples in the docstrings of the core run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import mha_core

FOLDER = Path(mha_core.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_there_are_examples():
    wanted = {
        "attention",
        "cache",
        "drawing",
        "layer",
        "weights.convert",
        "analysis.counts",
        "analysis.pruning",
    }
    assert wanted <= {name.removeprefix("mha_core.") for name in MODULES}
