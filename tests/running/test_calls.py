"""Calls in this process, one after another; what of the surroundings a target may import."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.names import SDPA
from conformance.running import locating
from conformance.running.aliasing import Previous
from conformance.running.invoke import call
from conformance.running.locating import implementations
from conformance.running.messages import Answer
from conformance.running.target import adopt, load

Raised = Callable[[BaseException], None]


def inputs(dtype: str = "float32") -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {name: random.random((2, 3, 4)).astype(dtype) for name in ("query", "key", "value")}


def asked(function: Any, raised: Raised | None = None, **attributes: Any) -> Answer:
    made = type("Made", (), {SDPA: staticmethod(function), **attributes})
    return call(adopt(made, "x"), SDPA, inputs(), {}, {}, raised=raised)


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
@pytest.mark.covers("IND-7")
def test_answers_stay_what_they_were_in_either_layout(layout: str) -> None:
    made = type("Made", (), {SDPA: staticmethod(lambda query, key, value: query + 1), "layout": layout})
    loaded, previous = adopt(made, "x"), Previous()
    for _ in range(3):
        answer = call(loaded, SDPA, inputs(), {}, {}, previous=previous)
        assert answer.message == ""
        np.testing.assert_array_equal(answer.outputs["output"], inputs()["query"] + 1)


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
@pytest.mark.covers("IND-7")
def test_one_buffer_for_all_answers_in_either_layout(layout: str) -> None:
    buffer = np.zeros((3, 2, 4) if layout == "blhd" else (2, 3, 4), np.float32)

    def attention(query: Any, key: Any, value: Any) -> Any:
        buffer[...] += query
        return buffer

    made = type("Made", (), {SDPA: staticmethod(attention), "layout": layout})
    loaded, previous = adopt(made, "x"), Previous()
    assert call(loaded, SDPA, inputs(), {}, {}, previous=previous).kind == "outputs"
    second = call(loaded, SDPA, inputs(), {}, {}, previous=previous)
    assert second.message == "the output of the call before was written to: return new arrays (IND-7)"


@pytest.mark.covers("IND-5")
def test_every_operand_that_was_written_to_is_named() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        key[...], value[...] = 0, 0
        return query

    assert asked(attention).message == "key, value was written to during the call (IND-5)"
    own = asked(attention, asarray=lambda self, array: array, to_numpy=lambda self, array: array)
    assert own.message == "key, value was written to during the call (IND-5)"


@pytest.mark.covers("IND-5")
def test_copies_that_were_written_to_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that shares no memory with NumPy."""
    library = ModuleType("copying_arrays")
    library.asarray = np.array  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "copying_arrays", library)

    def attention(query: Any, key: Any, value: Any) -> Any:
        value[0] = 0
        return query

    answer = asked(attention, array_type="copying_arrays")
    assert answer.message == "value was written to during the call (IND-5)"


def test_whoever_listens_gets_the_exception_itself() -> None:
    heard: list[BaseException] = []
    error = ValueError("no luck")

    def attention(query: Any, key: Any, value: Any) -> Any:
        raise error

    assert asked(attention, heard.append).kind == "error"
    assert heard == [error]


def test_what_was_returned_and_why_it_cannot_be_read() -> None:
    class Broken(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise RuntimeError("not today")

        __iter__ = items = keys = __getitem__  # type: ignore[assignment]

    answer = asked(lambda query, key, value: Broken(output=query))
    assert answer.kind == "wrong"
    assert answer.message.startswith("returned a Broken that cannot be read: ")


def test_a_file_may_import_from_where_the_suite_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    (tmp_path / "here" / "beside_the_suite.py").write_text("def attention(query, key, value): ...")
    (tmp_path / "there" / "far.py").write_text("from beside_the_suite import attention")
    monkeypatch.chdir(tmp_path / "here")
    assert load("../there/far.py:attention").hello.name == "attention"


def test_a_file_with_the_name_of_a_library_that_is_not_imported_yet_does_not_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "library_of_a_target.py").write_text("installed = True")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    path = tmp_path / "library_of_a_target.py"
    path.write_text(
        "import library_of_a_target\ndef attention(query, key, value): ...\nlibrary_of_a_target.installed"
    )
    assert load(f"{path}:attention").hello.name == "attention"
    assert importlib.import_module("library_of_a_target").installed


def test_a_file_that_imports_as_if_it_were_in_a_package(tmp_path: Path) -> None:
    path = tmp_path / "relative.py"
    path.write_text("from . import beside")
    with pytest.raises(UsageError) as caught:
        load(str(path))
    assert str(caught.value) == (
        f"cannot import {path}: ImportError: attempted relative import with no known parent package (line 1); "
        "a file has no package: name it as package.module:attribute"
    )
    path.write_text("from math import no_such_function")
    with pytest.raises(UsageError, match=r"cannot import name 'no_such_function' from 'math' \([^;]*\)$"):
        load(str(path))


def test_a_device_is_asked_of_the_target_that_is_named(targets: Path) -> None:
    with pytest.raises(UsageError, match=re.escape("numpy makes no array on device 'cuda'")):
        load(f"{targets}:good", device="cuda")


def test_a_checkout_that_is_not_installed_has_its_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locating, "entry_points", lambda group: [])
    assert implementations()["numpy"] == "backends.numpy_backend"
