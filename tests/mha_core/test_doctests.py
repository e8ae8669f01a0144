"""The examples in docstrings run, and each public function has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import mha_core
from conformance.names import OPERATIONS

MODULES = [module.name for module in pkgutil.walk_packages(mha_core.__path__, "mha_core.")]
FUNCTIONS = [name for name in mha_core.__all__ if inspect.isfunction(getattr(mha_core, name))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_are_documented(name):
    text = inspect.getdoc(getattr(mha_core, name))
    assert doctest.DocTestParser().get_examples(text)
    assert all(f"\n{part}:\n" in text for part in ("Args", "Returns", "Raises"))
    for parameter in inspect.signature(getattr(mha_core, name)).parameters:
        assert f"\n    {parameter}: " in text


def test_every_operation_is_public():
    assert {*OPERATIONS, "merge_attention"} <= set(FUNCTIONS)
