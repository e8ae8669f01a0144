"""What is read off an object that is adopted as a target: versions, options of modules, biases, what it declares."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.names import DEFAULT_FEATURES, MHA, SDPA
from conformance.running.protocol import encode, hello_message, parse_hello
from conformance.running.select import DECLARED, unclaimed
from conformance.running.target import adopt, load
from conformance.vectors.case import Case


def attention(query: Any, key: Any, value: Any) -> Any: ...


def made(**attributes: Any) -> Any:
    return type("Made", (), {SDPA: staticmethod(attention), **attributes})


@pytest.mark.parametrize(
    ("text", "version"),
    [("", None), ("__version__ = '1.2'", "1.2"), ("__version__ = (1, 2)", "(1, 2)")],
)
def test_a_function_has_the_version_of_its_file(tmp_path: Path, text: str, version: str | None) -> None:
    path = tmp_path / "versioned.py"
    path.write_text(f"{text}\ndef attention(query, key, value): ...")
    assert load(f"{path}:attention").hello.version == version


def test_its_own_version_goes_before_that_of_its_file() -> None:
    assert adopt(made(version="3"), "x").hello.version == "3"
    assert adopt(made(__version__="4"), "x").hello.version == "4"
    assert adopt(made(__version__="4", version="3"), "x").hello.version == "3"


@pytest.mark.parametrize("attribute", ["name", "version", "array_type", "layout", "accuracy", "device"])
def test_words_are_strings(attribute: str) -> None:
    with pytest.raises(UsageError, match=rf"^x: {attribute} must be a string, got 3$"):
        adopt(made(**{attribute: 3}), "x")


def test_features_are_assumed_of_those_that_declare_none() -> None:
    assert adopt(made(), "x").hello.assumed == DEFAULT_FEATURES
    assert adopt(made(features={"empty", "gqa"}), "x").hello.assumed == ()


def test_the_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.running.declarations.BEHIND", ())  # what other tests have loaded
    assert adopt(made(), "x").hello.environment == {"numpy": np.__version__}
    library = ModuleType("small_arrays")
    library.asarray = np.asarray  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "small_arrays", library)
    assert adopt(made(array_type="small_arrays"), "x").hello.environment == {"small_arrays": "unknown"}


def test_a_module_takes_what_its_forward_takes() -> None:
    class Module:
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return self.forward(*arguments, **options)

        def forward(self, query: Any, key: Any, value: Any, *, scale: Any = None) -> Any: ...

    assert set(adopt(Module(), "x").hello.features) == {"scale", *DEFAULT_FEATURES}

    class Plain(Module):
        def __call__(self, query: Any, key: Any, value: Any, *, softcap: Any = None) -> Any: ...  # type: ignore[override]

    assert set(adopt(Plain(), "x").hello.features) == {"softcap", *DEFAULT_FEATURES}


def test_compiled_code_without_a_signature_goes_by_position_and_takes_no_option() -> None:
    class Compiled:
        __signature__ = "none"

        def __call__(self, *arguments: Any) -> Any: ...

    target = adopt(Compiled(), "x")
    assert not target.calls[SDPA].by_keyword
    assert set(target.hello.features) == set(DEFAULT_FEATURES)


def test_biases_of_a_layer_are_no_news() -> None:
    def layer(
        query: Any,
        key: Any,
        value: Any,
        w_q: Any,
        w_k: Any,
        w_v: Any,
        w_o: Any,
        b_q: Any = None,
        b_o: Any = None,
    ) -> Any: ...

    def plain(query: Any, key: Any, value: Any, b_q: Any = None) -> Any: ...

    assert adopt(layer, "x", MHA).hello.notes == ()
    (note,) = adopt(plain, "x").hello.notes
    assert note.startswith(f"x ({SDPA}): b_q is not a parameter that the suite knows")


def test_what_cannot_be_called_says_how_it_was_read() -> None:
    def two(query: Any, key: Any) -> Any: ...

    message = f"x ({SDPA}) takes (query: Any, key: Any); it must take query, key, value by these names"
    with pytest.raises(UsageError, match=re.escape(message)):
        adopt(two, "x")


def test_a_file_of_helpers_names_what_could_be_called(tmp_path: Path) -> None:
    path = tmp_path / "helpers.py"
    path.write_text("from math import sqrt\ndef _softmax(x): ...\ndef mine(query, key, value): ...")
    message = (
        f"{path} has none of the operations {SDPA}, {MHA}, and cannot be called; name what to call, as in "
    )
    with pytest.raises(UsageError, match=re.escape(f"{message}{path}:mine")):
        load(str(path))


def test_of_several_functions_the_likeliest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "helpers.py"
    path.write_text("def softmax(x): ...\ndef attend_once(q): ...\ndef my_attention(query, key, value): ...")
    with pytest.raises(UsageError, match=re.escape(f"name what to call, as in {path}:my_attention")):
        load(str(path))


HEAD = """
dtypes = ("float32", "float16")
layout = "blhd"
accuracy = "eager"
features = 64
def attention(query, key, value): ...
class Kernel:
    layout = "bhld"
    def __call__(self, query, key, value): ...
"""


def test_what_stands_at_the_head_of_a_file_is_read_for_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "headed.py"
    path.write_text(HEAD)
    target = load(f"{path}:attention")
    assert (target.hello.dtypes, target.layout) == (("float32", "float16"), "blhd")
    assert target.hello.features == DEFAULT_FEATURES, "64 is not a set of features"
    (note,) = target.hello.notes
    assert (
        note == f"{path}:attention says nothing of dtypes, layout, accuracy: taken from the head of its file"
    )
    target = load(f"{path}:Kernel")
    assert (target.hello.dtypes, target.layout) == (("float32", "float16"), "bhld")
    (note,) = target.hello.notes
    assert "says nothing of dtypes, accuracy: taken" in note
    path.write_text(
        HEAD + 'attention.dtypes = ("float64",)\nattention.layout = "bhld"\nattention.accuracy = "fused"\n'
    )
    target = load(f"{path}:attention")
    assert (target.hello.dtypes, target.layout, target.hello.notes) == (("float64",), "bhld", ())


def test_features_at_the_head_of_a_file_are_those_that_a_function_has_a_parameter_for(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        'features = {"mask", "window", "gqa"}\n'
        "def attention(query, key, value, mask=None): ...\n"
        "def windowed(query, key, value, window=None): ...\n"
    )
    assert load(f"{path}:attention").hello.features == ("mask", "gqa")
    assert load(f"{path}:windowed").hello.features == ("window", "gqa")


TWO = """
features = {"mask", "scale", "gqa"}
def scaled_dot_product_attention(query, key, value, mask=None, scale=None): ...
def multi_head_attention(query, key, value, w_q, w_k, w_v, w_o, mask=None): ...
"""


def test_each_function_has_the_features_that_it_has_a_parameter_for(
    tmp_path: Path, make_case: Callable[..., Case]
) -> None:
    path = tmp_path / "both.py"
    path.write_text(TWO)
    hello = load(str(path)).hello
    assert hello.features == ("mask", "scale", "gqa")
    assert hello.features_of == {MHA: ("mask", "gqa")}
    assert hello.notes == (f"{path} ({MHA}) has no parameter for scale, which is not tested there",)
    case = make_case("a/scale", operation=MHA, features=("scale",))
    assert unclaimed(case, hello) == f"{DECLARED}{MHA} does not support scale"
    assert unclaimed(replace(case, operation=SDPA), hello) == ""
    path.write_text(TWO + 'scaled_dot_product_attention.features = {"scale"}\n')
    hello = load(str(path)).hello
    assert hello.features_of == {SDPA: ("scale",), MHA: ("mask", "gqa")}
    assert parse_hello(encode(hello_message(hello)), "x") == hello
