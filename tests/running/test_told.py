"""What a user is told of a target that fails: the place, a hint at what was overlooked, the kind of thing returned."""

import fractions
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.names import SDPA
from conformance.running.arrays import describe, giver
from conformance.running.invoke import call
from conformance.running.messages import Answer
from conformance.running.target import adopt, load


def asked(function: Any, **attributes: Any) -> Answer:
    made = type("Made", (), {SDPA: staticmethod(function), **attributes})
    inputs = {name: np.ones((2, 3, 4), np.float32) for name in ("query", "key", "value")}
    return call(adopt(made, "x"), SDPA, inputs, {}, {})


def raising(text: str) -> Any:
    def attention(query: Any, key: Any, value: Any) -> Any:
        raise TypeError(text)

    return attention


TENSORS = '; it got NumPy arrays: for tensors say array_type = "torch"'
JAX = '; it got NumPy arrays: for arrays of JAX say array_type = "jax"'
LAYOUT = 'if yours are (batch, length, heads, width), set layout = "blhd"'
OWN = {"asarray": lambda self, array: array}


@pytest.mark.parametrize(
    ("text", "attributes", "hint"),
    [
        ("must be Tensor, not numpy.ndarray", {}, TENSORS),
        ("must be Tensor, not numpy.ndarray", OWN, ""),
        ("Argument of type <class 'numpy.ndarray'> is not a valid JAX type.", {}, JAX),
        ("Argument of type <class 'numpy.ndarray'> is not a valid JAX type.", OWN, ""),
        ("Argument of type <class 'list'> is not a valid JAX type.", {}, ""),
        (
            "operands could not be broadcast together",
            {},
            f"; arrays are (batch, heads, length, width): {LAYOUT}",
        ),
        ("operands could not be broadcast together", {"layout": "blhd"}, ""),
        ("no luck", {}, ""),
    ],
)
def test_a_hint_where_it_fits_and_nowhere_else(text: str, attributes: Any, hint: str) -> None:
    message = asked(raising(text), **attributes).message
    assert message.endswith(f" in attention){hint}")


def test_the_hint_is_of_what_is_special_in_the_call() -> None:
    shape = {"query": (4, 3, 4), "key": (2, 3, 4), "value": (2, 3, 4)}
    inputs = {name: np.ones(of, np.float32) for name, of in shape.items()}

    def attention(query: Any, key: Any, value: Any, *, q_offset: Any = 0) -> Any:
        raise ValueError("operands could not be broadcast together")

    def with_mask(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
        return attention(query, key, value)

    heads = "; query has 4 heads, key 2: repeat them, or leave gqa out of `features`"
    assert call(adopt(attention, "x"), SDPA, inputs, {}, {}).message.endswith(heads)
    one = {name: array[:1] for name, array in inputs.items()}
    asked_at = call(adopt(attention, "x"), SDPA, one, {"q_offset": np.array([1, 2])}, {}).message
    assert asked_at.endswith(
        "; q_offset is an array here: raise NotImplementedError if you take one integer only"
    )
    assert call(adopt(attention, "x"), SDPA, one, {}, {}).message.endswith(LAYOUT)
    assert call(adopt(attention, "x"), SDPA, one, {"q_offset": 1}, {}).message.endswith("in attention)")
    masked = {**one, "mask": np.ones((3, 3), bool)}
    assert call(adopt(with_mask, "x"), SDPA, masked, {}, {}).message.endswith(
        "; mask has shape (3, 3): broadcast it to the shape of the weights first"
    )
    attention.features = {"gqa"}  # type: ignore[attr-defined]
    assert call(adopt(attention, "x"), SDPA, inputs, {}, {}).message.endswith("heads, key 2: repeat them")


@pytest.mark.parametrize("loaded", [True, False])
def test_what_numpy_says_of_methods_of_tensors_is_a_hint_where_torch_is_loaded(
    loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    message = asked(lambda query, key, value: key.transpose(-1, -2)).message
    assert message.endswith(TENSORS) == loaded
    assert TENSORS not in asked(raising("no luck")).message


def test_the_place_is_where_it_was_raised() -> None:
    def softmax(logits: Any) -> Any:
        return 1 / 0

    def attention(query: Any, key: Any, value: Any) -> Any:
        return softmax(query)

    line = softmax.__code__.co_firstlineno + 1
    assert asked(attention).message == (
        f"ZeroDivisionError: division by zero (raised in your file, test_told.py:{line} in softmax)"
    )


def test_the_place_in_a_library_comes_with_the_line_that_called_it() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return fractions.Fraction("x")

    line = attention.__code__.co_firstlineno + 1
    assert asked(attention).message.endswith(f" in __new__, called at test_told.py:{line})")


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (1, "an int"),
        (None, "a NoneType"),
        ({}, "a dict"),
        (type("Output", (), {})(), "an Output"),
        (type("T" * 200, (), {})(), f"a {'T' * 100}..."),
        (np.ones(2, np.float16), "an array of float16"),
        (np.array([None]), "a ndarray"),
    ],
)
def test_things_in_a_few_words(thing: Any, words: str) -> None:
    assert describe(thing) == words


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None, wanted an array"),
        (
            object(),
            "output is an object, which NumPy cannot read as numbers; return an array, or say how by to_numpy",
        ),
        (
            "text",
            "output is a str, which NumPy cannot read as numbers; return an array, or say how by to_numpy",
        ),
    ],
)
def test_what_was_returned_instead_of_an_array(returned: Any, message: str) -> None:
    assert asked(lambda query, key, value: returned).message == message


@pytest.mark.parametrize("library", ["jax", "some_library"])
def test_a_file_that_lacks_a_library_is_no_backend_of_ours(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """The extras of this distribution are for its own backends."""
    monkeypatch.setitem(sys.modules, library, None)
    path = tmp_path / "lacking.py"
    path.write_text(f"import {library}")
    with pytest.raises(UsageError) as caught:
        load(str(path))
    assert str(caught.value) == (
        f"cannot import {path}: no module named {library!r}; install it for {sys.executable}, which runs this, "
        "or put it next to the file (line 1)"
    )


def test_a_result_on_another_device_than_its_operands() -> None:
    strict: Any = pytest.importorskip("array_api_strict")

    def elsewhere(query: Any, key: Any, value: Any) -> Any:
        return strict.asarray(query, device=strict.Device("device1"))

    assert asked(lambda query, key, value: query, array_type="array-api-strict").message == ""
    assert asked(elsewhere, array_type="array-api-strict").message == (
        "output is on device array_api_strict.Device('device1'), "
        "its operands are on array_api_strict.Device('CPU_DEVICE')"
    )


@pytest.mark.parametrize("give", ["from_dlpack", "asarray"])
def test_any_library_is_told_of_a_device_that_was_asked_for(
    give: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def made(array: Any, **options: Any) -> Any:
        seen.append(options)
        return array

    library = ModuleType("small_arrays")
    setattr(library, give, made)
    monkeypatch.setitem(sys.modules, "small_arrays", library)
    giver("small_arrays", "gpu:1")(np.ones(2))
    giver("small_arrays", None)(np.ones(2))
    assert seen == [{"device": "gpu:1"}] * 2 + [{}] * 2


def test_operands_lie_on_the_device_that_was_asked_for() -> None:
    pytest.importorskip("array_api_strict")
    seen = []

    def attention(query: Any, key: Any, value: Any) -> Any:
        seen.append(f"{query.device}")
        raise NotImplementedError

    made = type("Made", (), {SDPA: staticmethod(attention), "array_type": "array-api-strict"})
    inputs = {name: np.ones((2, 3, 4), np.float32) for name in ("query", "key", "value")}
    call(adopt(made, "x", device="device1"), SDPA, inputs, {}, {})
    assert seen == ["array_api_strict.Device('device1')"]
