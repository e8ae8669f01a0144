"""Each backend declares what the contract asks for and computes what mha_core computes."""

import importlib
import inspect
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import backends
import mha_core
from conformance import names
from mha_core import FEATURES, AttentionResult

FRAMEWORKS = {
    "numpy_backend": "numpy",
    "strict_backend": "array_api_strict",
    "torch_backend": "torch",
    "torch_portable_backend": "torch",
    "jax_backend": "jax",
    "jax_jit_backend": "jax",
}
ELSEWHERE = {"dask_backend", "mlx_backend"}
"""Backends that tests/others runs."""
NAMES = {
    "numpy_backend": "numpy",
    "strict_backend": "array-api-strict",
    "torch_backend": "torch",
    "torch_portable_backend": "torch-portable",
    "jax_backend": "jax",
    "jax_jit_backend": "jax-jit",
}
DENSE = (names.SDPA, names.MHA, names.SDPA_VJP, names.MHA_VJP)
"""Operations that take every option."""
SOURCES = sorted(
    path
    for path in Path(backends.__file__).parent.glob("*_backend.py")
    if "import mha_core" in path.read_text(encoding="utf-8")
)
DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LIMITS = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
RNG = np.random.default_rng(17)
HEADS = {
    "query": RNG.standard_normal((2, 4, 3, 5)),
    "key": RNG.standard_normal((2, 2, 6, 5)),
    "value": RNG.standard_normal((2, 2, 6, 7)),
    "past_key": RNG.standard_normal((2, 2, 1, 5)),
    "past_value": RNG.standard_normal((2, 2, 1, 7)),
    "attn_bias": RNG.standard_normal((3, 7)),
    "mask": RNG.random((2, 1, 3, 7)) < 0.7,
    "sinks": RNG.standard_normal(4),
    "kv_lengths": np.asarray([7, 5]),
}
OPTIONS = {
    "is_causal": True,
    "q_offset": 4,
    "window": [3, None],
    "scale": 0.5,
    "softcap": 3.0,
    "return_weights": True,
    "return_lse": True,
}
LAYER = {
    "query": RNG.standard_normal((2, 3, 4)),
    "key": RNG.standard_normal((2, 6, 4)),
    "value": RNG.standard_normal((2, 6, 4)),
    "w_q": RNG.standard_normal((4, 4, 3)),
    "w_k": RNG.standard_normal((2, 4, 3)),
    "w_v": RNG.standard_normal((2, 4, 7)),
    "w_o": RNG.standard_normal((4, 7, 2)),
    "b_o": RNG.standard_normal(2),
}


def imported(name):
    pytest.importorskip(FRAMEWORKS[name], reason=f"{FRAMEWORKS[name]} is not installed")
    return importlib.import_module(f"backends.{name}")


@pytest.fixture(params=FRAMEWORKS)
def backend(request):
    return imported(request.param)


@pytest.fixture(params=FRAMEWORKS)
def differentiable(request):
    return imported(request.param)


def converter(backend):
    module = importlib.import_module(
        {"numpy": "numpy", "array-api-strict": "array_api_strict", "torch": "torch", "jax": "jax.numpy"}[
            backend.array_type
        ]
    )

    def convert(x):
        if backend.array_type == "torch" and x.dtype == ml_dtypes.bfloat16:
            return module.asarray(x.astype(np.float32)).to(module.bfloat16)
        return module.asarray(x)

    return convert


def as_float64(x):
    if hasattr(x, "detach"):
        x = x.detach().to("cpu").double()
    return np.asarray(np.asarray(x), np.float64)


def dtypes_without_a_switch(backend):
    return [d for d in backend.dtypes if backend.array_type != "jax" or d != "float64"]


def run(backend, operation, arrays, dtype, **options):
    convert = converter(backend)
    given = {n: convert(x.astype(DTYPES[dtype]) if x.dtype.kind == "f" else x) for n, x in arrays.items()}
    with np.errstate(all="ignore"):
        return getattr(backend, operation)(**given, **options)


def test_every_backend_is_tested():
    assert {path.stem for path in SOURCES} == FRAMEWORKS.keys() | ELSEWHERE


def test_what_it_declares(backend):
    framework = importlib.import_module(FRAMEWORKS[backend.__name__.rpartition(".")[2]])
    assert backend.name == NAMES[backend.__name__.rpartition(".")[2]]
    assert backend.version == framework.__version__
    assert set(backend.dtypes) <= set(names.DTYPES)
    assert backend.features == set(names.FEATURES)
    assert backend.accuracy == "fused"
    for operation in set(names.OPERATIONS) - set(DENSE):
        own = inspect.signature(getattr(mha_core, operation)).parameters
        assert inspect.signature(getattr(backend, operation)).parameters.keys() == own.keys()
    for operation in DENSE:
        parameters = inspect.signature(getattr(backend, operation)).parameters
        returned = {"return_weights", "return_lse"} if operation.endswith("_vjp") else set()
        assert set(names.OPTIONS) - returned <= set(parameters)


def test_features_are_those_of_the_suite():
    assert set(names.FEATURES) == FEATURES


@pytest.mark.parametrize(
    ("operation", "arrays", "options"),
    [(names.SDPA, HEADS, OPTIONS), (names.MHA, LAYER, {}), (names.SDPA, HEADS, {})],
)
def test_it_computes_what_numpy_computes_in_float64(backend, operation, arrays, options):
    reference = importlib.import_module("backends.numpy_backend")
    for dtype in dtypes_without_a_switch(backend):
        rounded = {
            n: x.astype(DTYPES[dtype]).astype(np.float64) if x.dtype.kind == "f" else x
            for n, x in arrays.items()
        }
        wanted = run(reference, operation, rounded, "float64", **options)
        got = run(backend, operation, arrays, dtype, **options)
        if not isinstance(wanted, AttentionResult):
            wanted, got = AttentionResult(wanted), AttentionResult(got)
        for name, x, want in zip(wanted._fields, got, wanted, strict=True):
            assert (x is None) == (want is None), name
            if want is not None:
                np.testing.assert_allclose(
                    as_float64(x), want, rtol=LIMITS[dtype], atol=LIMITS[dtype], err_msg=name
                )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"is_causal": 1}, ValueError),
        ({"softcap": -1.0}, ValueError),
        ({"window": [-1, 0]}, ValueError),
        ({"q_offset": None}, ValueError),
        ({"mask": np.ones((3, 7), np.int32)}, TypeError),
        ({"mask": np.ones((3, 6), bool)}, ValueError),
        ({"sinks": np.ones(3)}, ValueError),
    ],
)
def test_it_refuses_what_is_wrong_even_after_what_is_right(backend, change, error):
    run(backend, names.SDPA, HEADS, "float32", **OPTIONS)
    arrays = {**HEADS, **{n: x for n, x in change.items() if isinstance(x, np.ndarray)}}
    options = {**OPTIONS, **{n: x for n, x in change.items() if not isinstance(x, np.ndarray)}}
    with pytest.raises(error, match=r"\([A-Z]+-\d+\)(\n|$)"):  # jax.jit adds lines of its own
        run(backend, names.SDPA, arrays, "float32", **options)


def test_masked_nan_gives_nothing(backend):
    value = HEADS["value"].copy()
    value[1, :, 4:] = math.nan  # behind kv_lengths, the past counted
    got = run(backend, names.SDPA, HEADS | {"value": value}, "float32", **OPTIONS)
    wanted = run(backend, names.SDPA, HEADS, "float32", **OPTIONS)
    np.testing.assert_array_equal(as_float64(got.output), as_float64(wanted.output))


def gradients(backend, operation, arrays, dtype, **options):
    """Gradients by name in float64, each seen to have its argument's shape."""
    got = run(backend, operation, arrays, dtype, **options)
    assert {name: tuple(x.shape) for name, x in got.items()} == {
        name: x.shape for name, x in arrays.items() if name not in NO_GRADIENT
    }
    return {name: as_float64(x) for name, x in got.items()}


NO_GRADIENT = ("grad_output", "past_key", "past_value", "mask", "kv_lengths")
GRADIENT_OPTIONS = {name: x for name, x in OPTIONS.items() if not name.startswith("return_")}
HEADS_VJP = HEADS | {"grad_output": RNG.standard_normal((2, 4, 3, 7))}
LAYER_VJP = LAYER | {"grad_output": RNG.standard_normal((2, 3, 2))}


@pytest.mark.covers("GRAD-1", "GRAD-2")
@pytest.mark.parametrize(
    ("operation", "arrays", "options"),
    [(names.SDPA_VJP, HEADS_VJP, GRADIENT_OPTIONS), (names.MHA_VJP, LAYER_VJP, {})],
)
def test_its_gradients_are_those_of_numpy_in_float64(differentiable, operation, arrays, options):
    reference = importlib.import_module("backends.numpy_backend")
    for dtype in dtypes_without_a_switch(differentiable):
        rounded = {
            n: x.astype(DTYPES[dtype]).astype(np.float64) if x.dtype.kind == "f" else x
            for n, x in arrays.items()
        }
        wanted = gradients(reference, operation, rounded, "float64", **options)
        got = gradients(differentiable, operation, arrays, dtype, **options)
        limit = 4 * LIMITS[dtype]
        for name, x in got.items():
            np.testing.assert_allclose(x, wanted[name], rtol=limit, atol=limit, err_msg=name)


@pytest.mark.covers("GRAD-3", "GRAD-9")
def test_masked_nan_reaches_no_gradient(differentiable):
    spoilt = {name: HEADS_VJP[name].copy() for name in ("key", "value")}
    for x in spoilt.values():
        x[1, :, 4:] = math.nan  # behind kv_lengths, the past counted
    got = gradients(differentiable, names.SDPA_VJP, HEADS_VJP | spoilt, "float32", **GRADIENT_OPTIONS)
    wanted = gradients(differentiable, names.SDPA_VJP, HEADS_VJP, "float32", **GRADIENT_OPTIONS)
    for name, x in got.items():
        np.testing.assert_allclose(x, wanted[name], atol=1e-6, err_msg=name)
    assert (got["key"][1, :, 4:] == 0).all()


@pytest.mark.covers("GRAD-14")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"grad_output": np.ones((2, 4, 3, 6))}, ValueError),
        ({"grad_output": np.ones((2, 4, 3, 7), np.int32)}, TypeError),
        ({"mask": np.ones((3, 6), bool)}, ValueError),
    ],
)
def test_its_gradients_refuse_what_is_wrong(differentiable, change, error):
    with pytest.raises(error, match=r"\([A-Z]+-\d+\)(\n|$)"):
        run(differentiable, names.SDPA_VJP, HEADS_VJP | change, "float32", **GRADIENT_OPTIONS)


def test_jit_compiles_once_for_each_choice_of_options():
    pytest.importorskip("jax", reason="jax is not installed")
    jit = importlib.import_module("backends.jax_jit_backend")
    run(jit, names.SDPA, HEADS, "float32", **OPTIONS)
    before = jit._compiled.cache_info()
    run(jit, names.SDPA, HEADS, "float32", **OPTIONS)
    after = jit._compiled.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)
