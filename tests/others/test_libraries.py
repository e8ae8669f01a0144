"""The core, unchanged, on libraries that it was not written for; nox -s others installs them."""

import importlib
import warnings

import numpy as np
import pytest

from mha_core import (
    merge_attention,
    multi_head_attention,
    multi_head_attention_vjp,
    scaled_dot_product_attention,
    scaled_dot_product_attention_vjp,
)

RANDOM = np.random.default_rng(13)


def draw(*shape):
    return RANDOM.standard_normal(shape)


HEADS = {"query": draw(2, 4, 5, 3), "key": draw(2, 2, 6, 3), "value": draw(2, 2, 6, 7)}
EXTRAS = {
    "mask": RANDOM.random((2, 4, 5, 6)) < 0.7,
    "attn_bias": draw(5, 6),
    "sinks": draw(4),
    "q_offset": np.asarray([1, -1]),
    "kv_lengths": np.asarray([6, 4]),
}
EXTRAS["mask"][0, 1, 2] = False  # an empty row
OPTIONS = {"is_causal": True, "window": (3, 1), "softcap": 5.0}
RETURNED = {"return_weights": True, "return_lse": True}
BEHIND = HEADS | {"value": np.where(np.arange(6)[:, None] < 4, HEADS["value"], np.nan)}
PAST = {"past_key": draw(2, 2, 3, 3), "past_value": draw(2, 2, 3, 7)}
TOKENS = {"query": draw(2, 5, 4), "key": draw(2, 6, 4), "value": draw(2, 6, 4)}
WEIGHTS = {
    "w_q": draw(4, 4, 3),
    "w_k": draw(2, 4, 3),
    "w_v": draw(2, 4, 7),
    "w_o": draw(4, 7, 2),
    "b_o": draw(2),
}
LAYER = TOKENS | WEIGHTS
PARTS = {"one": draw(2, 4, 5, 7), "two": draw(2, 4, 5, 7), "lse_one": draw(2, 4, 5), "lse_two": draw(2, 4, 5)}


def merged(one, two, lse_one, lse_two):
    return merge_attention([one, two], [lse_one, lse_two])


CASES = {
    "plain": (scaled_dot_product_attention, HEADS, {}),
    "every option": (scaled_dot_product_attention, HEADS | EXTRAS, OPTIONS | RETURNED),
    "past": (scaled_dot_product_attention, HEADS | PAST, {"return_lse": True}),
    "nan behind lengths": (scaled_dot_product_attention, BEHIND | {"kv_lengths": np.asarray([4, 3])}, {}),
    "visible nan": (scaled_dot_product_attention, BEHIND, {}),
    "layer": (multi_head_attention, LAYER | EXTRAS, OPTIONS),
    "gradients": (
        scaled_dot_product_attention_vjp,
        HEADS | EXTRAS | {"grad_output": draw(2, 4, 5, 7)},
        OPTIONS,
    ),
    "gradients of the layer": (multi_head_attention_vjp, LAYER | {"grad_output": draw(2, 5, 2)}, {}),
    "merge": (merged, PARTS, {}),
}
TOLERANCES = {"float64": {"rtol": 1e-12, "atol": 1e-13}, "float32": {"rtol": 1e-4, "atol": 1e-5}}


def results(result):
    """Arrays by name, of whatever an operation returns."""
    if isinstance(result, dict):
        return result
    if isinstance(result, tuple):
        return {name: x for name, x in result._asdict().items() if x is not None}
    return {"output": result}


def cast(arrays, dtype):
    return {name: x.astype(dtype) if x.dtype.kind == "f" else x for name, x in arrays.items()}


def assert_agrees(asarray, to_numpy, case, dtype):
    operation, arrays, options = CASES[case]
    arrays = cast(arrays, dtype)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dask says that NaN was met, and that there are many chunks
        wanted = results(operation(**arrays, **options))
        got = results(operation(**{name: asarray(x) for name, x in arrays.items()}, **options))
        got = {name: to_numpy(x) for name, x in got.items()}
    assert set(got) == set(wanted)
    for name, want in wanted.items():
        assert got[name].dtype == want.dtype, name
        np.testing.assert_allclose(got[name], want, err_msg=name, **TOLERANCES[dtype])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "dtype"), [("dask", "float64"), ("mlx", "float32")])
def test_unchanged_core(name, dtype, case):
    pytest.importorskip(name, reason=f"{name} is not installed: see nox -s others")
    backend = importlib.import_module(f"backends.{name}_backend")
    assert_agrees(backend.asarray, backend.to_numpy, case, dtype)


@pytest.mark.parametrize("case", CASES)
def test_everything_is_created_on_the_device_of_the_operands(case):
    """As on a GPU: the second device of array-api-strict takes no array of the first."""
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    device, home = strict.Device("device1"), strict.Device("CPU_DEVICE")

    def to_numpy(x):
        assert x.device == device
        return np.asarray(x.to_device(home))

    assert_agrees(lambda x: strict.asarray(x, device=device), to_numpy, case, "float64")
    with pytest.raises(ValueError, match="device"):
        strict.ones(1, device=device) + strict.ones(1)


@pytest.mark.parametrize("case", CASES)
def test_exported_as_an_onnx_graph(case):
    ndonnx = pytest.importorskip("ndonnx", reason="ndonnx is not installed: see nox -s others")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: see nox -s others")
    operation, arrays, options = CASES[case]
    arrays = cast(arrays, "float32")
    inputs = {
        name: ndonnx.argument(shape=x.shape, dtype=getattr(ndonnx, x.dtype.name))
        for name, x in arrays.items()
    }
    with np.errstate(all="ignore"):
        wanted = results(operation(**arrays, **options))
    outputs = {f"{name} out": x for name, x in results(operation(**inputs, **options)).items()}
    model = ndonnx.build(inputs, outputs)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {name: arrays[name] for name in [place.name for place in session.get_inputs()]}
    assert set(outputs) == {f"{name} out" for name in wanted}
    for name, got in zip(outputs, session.run(list(outputs), given), strict=True):
        want = wanted[name.removesuffix(" out")]
        np.testing.assert_allclose(got, want, err_msg=name, **TOLERANCES["float32"])
