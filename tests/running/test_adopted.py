"""What is read off an object that is adopted as a target: versions, options of modules, biases, what it declares."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.names import DEFAULT_FEATURES, MHA, SDPA
from conformance.running.target import adopt, load


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
    assert note.startswith(f"x ({SDPA}) takes b_q, which is no name of the suite")


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


def test_what_stands_at_the_head_of_a_file_is_not_dropped_silently(tmp_path: Path) -> None:
    path = tmp_path / "headed.py"
    path.write_text(HEAD)
    hello = load(f"{path}:attention").hello
    assert hello.dtypes == ("float32",)
    (note,) = hello.notes
    assert note == (
        f"dtypes, layout at the head of its file are not read for {path}:attention: "
        "say attention.dtypes = dtypes"
    )
    (note,) = load(f"{path}:Kernel").hello.notes
    assert note.startswith("dtypes at the head of its file is not read for ")
    path.write_text(HEAD + 'attention.dtypes = dtypes\nattention.layout = "blhd"\n')
    assert load(f"{path}:attention").hello.notes == ()
