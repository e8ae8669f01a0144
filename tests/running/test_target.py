"""Targets by every kind of name, what they claim, and every way in which they are refused."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections import namedtuple
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.names import DEFAULT_FEATURES, MHA, OPTION_FEATURES, OPTIONS, SDPA
from conformance.running import locating
from conformance.running.arrays import UnreadableError, take
from conformance.running.invoke import call
from conformance.running.locating import implementations
from conformance.running.process import environment, worker_command
from conformance.running.protocol import encode, start_message
from conformance.running.signature import DECLARE
from conformance.running.target import adopt, load


def arrays(**more: Any) -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {**{name: random.random((2, 3, 4), np.float32) for name in ("query", "key", "value")}, **more}


def test_backends_have_names() -> None:
    assert implementations()["numpy"] == "backends.numpy_backend"


@pytest.mark.parametrize("name", ["good", "by_position", "scaled", "Attention", "instance"])
def test_attributes_of_a_file(targets: Path, name: str) -> None:
    assert load(f"{targets}:{name}").hello.operations == (SDPA,)


def test_attributes_of_a_module(targets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(targets.parent))
    assert load("fakes:instance.scaled_dot_product_attention").hello.name == SDPA


def test_a_module_itself(tmp_path: Path) -> None:
    path = tmp_path / "whole.py"
    path.write_text(
        "__version__ = '7'\ndef multi_head_attention(query, key, value, *, w_q, w_k, w_v, w_o): ..."
    )
    hello = load(str(path)).hello
    assert (hello.name, hello.version, hello.operations) == ("whole", "7", (MHA,))


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a_target.py").write_text("def attention(query, key, value): ...")
    path = tmp_path / "importing.py"
    path.write_text("from neighbour_of_a_target import attention")
    assert load(f"{path}:attention").hello.name == "attention"


def test_what_an_object_says(targets: Path) -> None:
    hello = load(f"{targets}:Attention").hello
    assert (hello.name, hello.version, hello.accuracy) == ("my attention", "0.3", "fused")
    assert hello.dtypes == ("float64", "float32")
    assert hello.environment["numpy"] == np.__version__


def test_what_a_bare_function_says() -> None:
    def attention(query: Any, key: Any, value: Any, *, mask: Any = None, past_key: Any = None) -> None: ...

    hello = adopt(attention, "attention").hello
    assert (hello.name, hello.dtypes, hello.accuracy) == ("attention", ("float32",), "eager")
    assert set(hello.features) == {"mask", *DEFAULT_FEATURES}, "half a cache is no cache"


def test_options_are_claims() -> None:
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in ("query", "key", "value", *OPTIONS)
    ]

    def everything(**options: Any) -> None: ...

    everything.__signature__ = Signature(options)  # type: ignore[attr-defined]
    hello = adopt(everything, "x").hello
    forward = {*OPTION_FEATURES, *DEFAULT_FEATURES} - {"grad_lse"}
    assert (set(hello.features), hello.notes) == (forward, ())


def test_options_without_names_claim_nothing_and_say_so() -> None:
    def some(query: Any, key: Any, value: Any, *, scale: Any = None, **rest: Any) -> Any:
        return query

    hello = adopt(some, "x").hello
    assert set(hello.features) == {"scale", *DEFAULT_FEATURES}
    assert hello.notes == (f"x ({SDPA}) takes **rest, which says nothing of what it supports; {DECLARE}",)
    some.features = {"mask"}  # type: ignore[attr-defined]
    assert adopt(some, "x").hello.notes == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("attn_mask", "; rename it to mask or attn_bias"),
        ("causal", "; rename it to is_causal"),
        ("soft_cap", "; rename it to softcap"),
        ("xyz", ""),
    ],
)
def test_parameters_that_are_never_passed(name: str, hint: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def attention(query, key, value, {name}=None, _own=1): ...", scope)
    (note,) = adopt(scope["attention"], "x").hello.notes
    assert note == f"x ({SDPA}): {name} is not a parameter that the suite knows, so it is not tested{hint}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("feature", "features"), ("dtype", "dtypes"), ("Layout", "layout"), ("arraytype", "array_type")],
)
def test_attributes_that_are_not_read(name: str, meant: str) -> None:
    def attention(query: Any, key: Any, value: Any) -> None: ...

    setattr(attention, name, "x")
    attention.calls = 0  # type: ignore[attr-defined]  # looks like none
    assert adopt(attention, "x").hello.notes == (f"x has {name}, which is not read (did you mean {meant}?)",)


def test_a_layer_needs_its_weights() -> None:
    def attention(query: Any, key: Any, value: Any, w_q: Any = None) -> None: ...

    with pytest.raises(
        UsageError,
        match=f"x .* lacks the parameters w_k, w_v, w_o, so it is not a {MHA}; it needs query, key",
    ):
        adopt(attention, "x", MHA)


@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
def test_a_backend_without_its_library_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "backend_that_lacks.py").write_text(f"import {library}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(locating, "implementations", lambda: {"b": "backend_that_lacks"})
    with pytest.raises(UsageError, match=f"install it with: pip install {library.replace('_', '-')}$"):
        load("b")


def test_what_a_message_says_to_install_is_on_the_index() -> None:
    """The suite itself is not: it is installed from a clone, so no message names it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    ours = {re.split("[>=<[]", line)[0] for line in extras} - {project["name"]}
    assert {name for names in locating.PACKAGES.values() for name in names.split()} <= ours


@pytest.mark.parametrize("name", ["struct", "fractions", "numpy", "colorsys"])
def test_files_with_names_of_libraries_replace_no_library(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text("def attention(query, key, value): ...")
    assert load(f"{path}:attention").hello.name == "attention"
    assert getattr(importlib.import_module(name), "attention", None) is None


def test_a_worker_is_not_disturbed_by_the_files_around_it(tmp_path: Path) -> None:
    for name in ("struct", "json", "signal", "traceback", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "beside.py").write_text("def attention(query, key, value): ...")
    (tmp_path / "mine.py").write_text("from beside import attention")
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for source in ("mine:attention", "mine.py:attention"):
        done = subprocess.run(
            worker_command(source, None, None), cwd=tmp_path, input=encode(start_message()), capture_output=True,
            env=environment(around), check=False,
        )  # fmt: skip
        assert b'"name":"attention"' in done.stdout, done.stderr


def test_declared_features_replace_the_signature_s(targets: Path) -> None:
    assert load(f"{targets}:opted_out").hello.features == ("empty",)


@pytest.mark.parametrize(
    ("name", "op", "operation"),
    [("attention", None, SDPA), ("attention", MHA, MHA), (MHA, None, MHA), (MHA, SDPA, MHA)],
)
def test_name_or_op_says_the_operation(name: str, op: str | None, operation: str) -> None:
    def function(query: Any, key: Any, value: Any, **options: Any) -> None: ...

    function.__name__ = name
    assert adopt(function, "x", op).hello.operations == (operation,)


def test_builtin_without_signature_goes_by_position() -> None:
    how = adopt(np.add, "x").calls[SDPA]
    assert not how.by_keyword


def make(**attributes: Any) -> Any:
    return type("Made", (), {SDPA: staticmethod(lambda query, key, value: query), **attributes})


REFUSED: dict[str, tuple[Any, str]] = {
    "feature": (make(features={"sofcap"}), "unknown feature of x: 'sofcap'; did you mean 'softcap'?"),
    "features as a string": (
        make(features="mask"),
        "x: features must be a set of names, such as {'mask', 'attn_bias'}, got 'mask'",
    ),
    "a feature without its argument": (
        make(features={"window"}),
        "x has 'window' in its features, and no parameter window; add it, or leave the feature out",
    ),
    "a cache without a past": (make(features={"cache"}), "and no parameter past_key"),
    "dtype": (make(dtypes=("float23",)), "unknown dtype of x: 'float23'; did you mean 'float32'?"),
    "accuracy": (make(accuracy="fuzed"), "unknown accuracy of x: 'fuzed'; did you mean 'fused'?"),
    "layout": (make(layout="bhdl"), "unknown layout of x: 'bhdl'; did you mean"),
    "array type": (
        make(array_type="array_api_stric"),
        "No module named 'array_api_stric'; did you mean 'array-api-strict'?",
    ),
    "device": (
        make(device="cuda"),
        "numpy makes no array on device 'cuda': ValueError: NumPy has the device",
    ),
    "name": (make(name=3), "x: name must be a string, got 3"),
    "property": (
        make(features=property(lambda self: 1 / 0)),
        "cannot be read as a target: ZeroDivisionError",
    ),
    "number": (3, "x has none of the operations"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_says_is_refused(what: str) -> None:
    target, message = REFUSED[what]
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        adopt(target, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nunpy", "no backend, module or file named 'nunpy'; did you mean 'numpy'?"),
        ("", "TARGET '' names nothing"),
        (":", "TARGET ':' names nothing"),
        (".", "'.' is a folder; give a backend, package.module:attribute or path/to/file.py:attribute"),
        ("{dir}", "'{dir}' is a folder; give"),
        ("{file}:", "names no attribute after the colon; give {file}:NAME, or {file} alone"),
        (
            ":attention",
            "':attention' names nothing before the colon; give package.module:attribute or path/to/file.py:",
        ),
        ("a b", "'a b' is not the name of a module"),
        ("x" * 5000, "no backend, module or file named"),
        ("no.such.module:x", "no backend, module or file named 'no.such.module'"),
        ("{dir}/fake.py:good", "no file '{dir}/fake.py'; did you mean '{dir}/fakes.py'?"),
        ("{file}:goood", "cannot find 'goood' in {file}:goood; did you mean 'good'?"),
        (
            "{file}:two",
            "takes (a, b); it must take query, key, value by these names, or 3 arrays by position",
        ),
        ("{file}:swapped", "takes (query, value, k); it must take"),
        ("{file}:needy", "the parameter 'num_heads' needs a default value"),
        ("{file}:Arguments", "is a class that cannot be made without arguments: TypeError"),
        ("{file}:Misspelt", "did you mean 'softcap'?"),
        ("{file}:number", "has none of the operations"),
        ("{file}", "name what to call, as in {file}:Attention"),
        ("{dir}/broken.py", "cannot import {dir}/broken.py: SyntaxError"),
        ("{dir}/exiting.py", "cannot import {dir}/exiting.py: SystemExit: 5"),
        (
            "{dir}/needing.py",
            "cannot import {dir}/needing.py: no module named 'no_such_thing'; install it for",
        ),
    ],
)
def test_what_cannot_be_loaded(targets: Path, source: str, message: str) -> None:
    folder = targets.parent
    (folder / "broken.py").write_text("def")
    (folder / "exiting.py").write_text("raise SystemExit(5)")
    (folder / "needing.py").write_text("import no_such_thing")
    source, message = (text.format(dir=folder, file=targets) for text in (source, message))
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        load(source)
    assert "\n" not in str(caught.value)


def test_a_device_for_own_arrays_is_refused() -> None:
    with pytest.raises(UsageError, match="makes its arrays itself"):
        adopt(make(asarray=lambda self, x: x), "x", device="cuda")


# Calls


@pytest.mark.covers("CONF-4")
def test_an_option_that_is_not_taken_is_unsupported() -> None:
    def attention(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
        return query

    answer = call(adopt(attention, "x"), SDPA, arrays(), {"softcap": 2.0, "scale": 1.0}, {})
    assert (answer.kind, answer.message) == ("unsupported", f"{SDPA} does not take softcap")
    assert call(adopt(attention, "x"), MHA, arrays(), {}, {}).message == f"has no {MHA}"


def seen(
    inputs: dict[str, Any], options: dict[str, Any], operation: str = SDPA, **attributes: Any
) -> dict[str, Any]:
    """What a target gets."""
    got: dict[str, Any] = {}

    def function(self: Any, query: Any, key: Any, value: Any, **rest: Any) -> Any:
        got.update(query=query, key=key, value=value, **rest)
        return query

    answer = call(
        adopt(type("T", (), {operation: function, **attributes}), "x"), operation, inputs, options, {}
    )
    assert answer.kind == "outputs", answer.message
    return {**got, "answer": answer.outputs["output"]}


def test_layout_swaps_heads_and_length_of_operands_alone() -> None:
    mask = np.ones((2, 3, 3), bool)
    given = arrays(mask=mask, past_key=np.zeros((2, 5, 4), np.float32))
    got = seen(given, {}, layout="blhd")
    assert got["query"].shape == (3, 2, 4)
    assert got["query"].flags.c_contiguous
    assert got["past_key"].shape == (5, 2, 4)
    assert got["mask"].shape == (2, 3, 3)
    assert got["answer"].shape == (2, 3, 4)


def test_layout_of_a_layer_swaps_the_past_alone() -> None:
    weights = {name: np.zeros((2, 4, 5), np.float32) for name in ("w_q", "w_k", "w_v", "w_o")}
    got = seen(arrays(**weights, past_key=np.zeros((2, 5, 4), np.float32)), {}, MHA, layout="blhd")
    assert (got["query"].shape, got["past_key"].shape, got["w_q"].shape) == ((2, 3, 4), (5, 2, 4), (2, 4, 5))
    assert got["answer"].shape == (2, 3, 4)


def test_window_is_a_tuple_and_scalars_stay() -> None:
    got = seen(arrays(), {"window": [1, None], "q_offset": 2, "is_causal": True})
    assert (got["window"], got["q_offset"], got["is_causal"]) == ((1, None), 2, True)


def test_own_conversions() -> None:
    got = seen(
        arrays(), {}, asarray=lambda self, x: x.tolist(), to_numpy=lambda self, x: np.array(x, np.float32)
    )
    assert isinstance(got["query"], list)
    assert got["answer"].dtype == np.float32


RETURNS: dict[str, tuple[Callable[[Any], Any], dict[str, Any], set[str]]] = {
    "array": (lambda q: q, {}, {"output"}),
    "mapping": (lambda q: {"output": q, "lse": q, "weights": None}, {}, {"output", "lse"}),
    "pair": (lambda q: (q, q), {"return_weights": True}, {"output", "weights"}),
}


@pytest.mark.parametrize("form", RETURNS)
def test_forms_of_an_answer(form: str) -> None:
    result, options, names = RETURNS[form]

    def attention(query: Any, key: Any, value: Any, **rest: Any) -> Any:
        return result(query)

    answer = call(adopt(attention, "x"), SDPA, arrays(), options, {})
    assert set(answer.outputs) == names


def test_named_tuple() -> None:
    result = namedtuple("result", "output weights lse present_key present_value")

    def attention(query: Any, key: Any, value: Any) -> Any:
        return result(query, None, None, key, value)

    answer = call(adopt(attention, "x"), SDPA, arrays(), {}, {})
    assert set(answer.outputs) == {"output", "present_key", "present_value"}


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Hostile:
    def __array__(self, *more: Any, **options: Any) -> Any:
        raise ValueError("not now")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[1.0], [1.0, 2.0]], "output is a list that cannot be read: ValueError"),
        (Hostile(), "output is a Hostile that cannot be read: ValueError: not now"),
        ([1.0], "output: returned a list, wanted an array; NumPy reads it as float64 (DTYPE-1)"),
        ("text", "output is a str, which NumPy cannot read as numbers"),
        (
            np.broadcast_to(np.float32(1), (2**14, 2**14)),
            "output has shape (16384, 16384) and dtype float32, 1024 MiB",
        ),
        ({str(i): np.broadcast_to(np.float32(1), 2**22) for i in range(3)}, "2 has shape (4194304,) and"),
    ],
)
def test_what_cannot_be_read_was_not_refused(returned: Any, message: str) -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return returned

    answer = call(adopt(attention, "x"), SDPA, arrays(), {}, {})
    assert (answer.kind, answer.message[: len(message)]) == ("wrong", message)


def test_tensors_that_are_too_large_are_not_copied() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UnreadableError, match=r"has shape \(100000, 100000\) and dtype bfloat16"):
        take(torch.ones(1, dtype=torch.bfloat16).expand(100000, 100000))


def test_subclasses_of_arrays_are_read_as_arrays() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return np.ma.masked_array(query, mask=True)

    answer = call(adopt(attention, "x"), SDPA, arrays(), {}, {})
    assert type(answer.outputs["output"]) is np.ndarray
    np.testing.assert_array_equal(answer.outputs["output"], arrays()["query"])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (MuteError(), "error", "MuteError ("),
        (GeneratorExit(), "error", "GeneratorExit ("),
        (BaseException("bare"), "error", "BaseException: bare ("),
        (NotImplementedError(), "unsupported", "raises NotImplementedError"),
        (ValueError("x" * 10**6), "error", "ValueError: " + "x" * 300 + "... ("),
        (ValueError("\ud800"), "error", "ValueError: \\ud800 ("),
        (
            TypeError("must be Tensor, not numpy.ndarray"),
            "error",
            "TypeError: must be Tensor, not numpy.ndarray (",
        ),
    ],
)
def test_exceptions_of_every_kind(error: BaseException, kind: str, message: str) -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        raise error

    def untellable(told: BaseException) -> None:
        raise OSError("stderr is closed")

    answer = call(adopt(attention, "x"), SDPA, arrays(), {}, {}, raised=untellable)
    assert (answer.kind, answer.message[: len(message)]) == (kind, message)
    assert ('array_type = "torch"' in answer.message) == ("Tensor" in answer.message)


def test_methods_of_tensors_hint_at_tensors() -> None:
    pytest.importorskip("torch")

    def attention(query: Any, key: Any, value: Any) -> Any:
        return query @ key.transpose(-1, -2)

    assert 'array_type = "torch"' in call(adopt(attention, "x"), SDPA, arrays(), {}, {}).message


def test_ctrl_c_is_the_user_s() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(adopt(attention, "x"), SDPA, arrays(), {}, {})


def test_shapes_that_do_not_go_together_may_be_the_layout() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return query @ key

    assert 'set layout = "blhd"' in call(adopt(attention, "x"), SDPA, arrays(), {}, {}).message


def test_texts_of_a_target_are_bounded() -> None:
    hello = adopt(make(name="n" * 10**6, version="\ud800" * 1000), "x").hello
    assert (len(hello.name), len(hello.version or "")) < (400, 2500)
    assert hello.name.encode("utf-8").endswith(b"n...")


def test_a_pair_is_not_guessed_at() -> None:
    def attention(query: Any, key: Any, value: Any, **rest: Any) -> Any:
        return query, query

    for options in ({}, {"return_weights": True, "return_lse": True}):
        answer = call(adopt(attention, "x"), SDPA, arrays(), options, {})
        assert answer.kind == "wrong"
        assert answer.message.startswith("returned a tuple of 2 (an array of float32, an array of float32)")


def test_no_warning_of_numpy_gets_through() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return query / np.float32(0)

    assert call(adopt(attention, "x"), SDPA, arrays(), {}, {}).kind == "outputs"
