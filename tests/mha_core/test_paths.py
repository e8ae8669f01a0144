"""The fused path is taken where it means the same, and nowhere else; both paths give the same."""

import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from array_libraries import TOLERANCES, library

import mha_core
from mha_core import multi_head_attention, path, scaled_dot_product_attention
from mha_core.torch_fused import portable

pytestmark = pytest.mark.turns(3)

RNG = np.random.default_rng(29)
FUSED = {
    "plain": {},
    "causal": {"is_causal": True},
    "no offset": {"is_causal": True, "q_offset": 0},
    "scale": {"scale": 2.5},
    "offset": {"is_causal": True, "q_offset": 1},
    "an offset each": {"is_causal": True, "q_offset": np.asarray([3, 0])},
    "mask": {"mask": np.tri(9, 9, 2, dtype=bool)},
    "a mask each": {
        "mask": np.tri(9, 9, 2, dtype=bool)[None, None] & (np.arange(8).reshape(2, 4, 1, 1) >= 0)
    },
    "padding": {"mask": np.arange(9) < np.asarray([9, 3]).reshape(2, 1, 1, 1)},
    "holes": {"mask": np.arange(9) % np.asarray([2, 3]).reshape(2, 1, 1, 1) == 0},
    "bias": {"attn_bias": RNG.standard_normal((9, 9)).astype(np.float32)},
    "bias and mask": {"attn_bias": RNG.standard_normal((1, 4, 1, 9)), "mask": np.tri(9, 9, dtype=bool)},
    "bias, causal": {"attn_bias": RNG.standard_normal((1, 4, 1, 9)), "is_causal": True},
    "lengths": {"kv_lengths": np.asarray([9, 3])},
    "segments": {"q_segments": np.arange(9) // 4, "kv_segments": np.arange(9) // 4},
    "segments, causal": {
        "q_segments": np.arange(18).reshape(2, 9) % 2,
        "kv_segments": np.arange(9) % 2,
        "is_causal": True,
        "q_offset": 1,
    },
    "segments, lengths": {
        "q_segments": np.zeros(9, np.int32),
        "kv_segments": np.arange(9) // 3 * np.ones((2, 1), int),
        "kv_lengths": np.asarray([9, 5]),
    },
    "the same lengths, causal": {"kv_lengths": np.asarray([4, 4]), "is_causal": True},
}
PORTABLE = {
    "negative scale": {"scale": -1.0},
    "scale of zero": {"scale": 0.0},
    "window": {"window": (1, 1)},
    "softcap": {"softcap": 1.0},
    "sinks": {"sinks": np.zeros(4, np.float32)},
    "weights": {"return_weights": True},
    "lse": {"return_lse": True},
}


@pytest.fixture
def torch():
    return library("torch").module


def heads(torch, num_heads=4, num_kv_heads=4, q_len=9, kv_len=9, d_k=6, d_v=6, dtype="float32"):
    shapes = (num_heads, q_len, d_k), (num_kv_heads, kv_len, d_k), (num_kv_heads, kv_len, d_v)
    return [torch.asarray(RNG.standard_normal((2, *s))).to(getattr(torch, dtype)) for s in shapes]


def as_tensors(torch, options):
    return {n: torch.asarray(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}


def both(arrays, **options):
    with portable():
        assert path(*arrays, **options) == "portable"
        return scaled_dot_product_attention(*arrays, **options)


@pytest.fixture
def kernel_calls(torch, monkeypatch):
    """How often the kernel is called."""
    calls, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*arguments, **options):
        calls.append(options)
        return kernel(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    return calls


@pytest.mark.covers("IND-6")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("options", FUSED)
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_the_fused_path_gives_the_same(torch, kernel_calls, options, num_kv_heads, dtype):
    arrays, options = heads(torch, num_kv_heads=num_kv_heads, dtype=dtype), as_tensors(torch, FUSED[options])
    assert path(*arrays, **options) == "fused"
    got = scaled_dot_product_attention(*arrays, **options)
    calls = len(kernel_calls)
    assert calls in (1, 2)  # entries of different lengths are asked one by one
    assert got.dtype == arrays[0].dtype
    rounded_weights = {"bfloat16": {"atol": 2e-2}, "float16": {"atol": 2e-3}}
    tolerance = TOLERANCES[dtype] | rounded_weights.get(dtype, {})
    np.testing.assert_allclose(got.double(), both(arrays, **options).double(), **tolerance)
    assert len(kernel_calls) == calls


@pytest.mark.parametrize("options", PORTABLE)
def test_what_the_kernel_lacks_is_portable(torch, kernel_calls, options):
    arrays, options = heads(torch), as_tensors(torch, PORTABLE[options])
    assert path(*arrays, **options) == "portable"
    scaled_dot_product_attention(*arrays, **options)
    assert not kernel_calls


SIZES = {
    "grouped": ({"num_kv_heads": 2}, {}, "fused"),
    "grouped and causal": ({"num_kv_heads": 2}, {"is_causal": True}, "fused"),
    "wider values": ({"d_v": 7}, {}, "portable"),
    "more keys": ({"kv_len": 20}, {}, "fused"),
    "more keys, causal": ({"kv_len": 20}, {"is_causal": True, "q_offset": 11}, "fused"),
    "the last query": ({"q_len": 1, "kv_len": 20}, {"is_causal": True, "q_offset": 19}, "fused"),
    "the last query, grouped": (
        {"q_len": 1, "kv_len": 20, "num_kv_heads": 1},
        {"is_causal": True, "q_offset": 19},
        "fused",
    ),
    "one before the last": ({"q_len": 1, "kv_len": 20}, {"is_causal": True, "q_offset": 18}, "fused"),
    "one of each": ({"q_len": 1, "kv_len": 1}, {"is_causal": True}, "fused"),
    "no keys": ({"kv_len": 0}, {}, "portable"),
    "no queries": ({"q_len": 0}, {}, "portable"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes(torch, case):
    sizes, options, wanted = SIZES[case]
    arrays = heads(torch, **sizes)
    assert path(*arrays, **options) == wanted
    got = scaled_dot_product_attention(*arrays, **options)
    np.testing.assert_allclose(got, both(arrays, **options), **TOLERANCES["float32"])


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_any_batch_axes(torch, batch):
    arrays = [torch.asarray(RNG.standard_normal((*batch, 2, 5, 4))) for _ in range(3)]
    assert path(*arrays) == "fused"
    got = scaled_dot_product_attention(*arrays)
    assert got.shape == arrays[0].shape
    np.testing.assert_allclose(got, both(arrays), **TOLERANCES["float64"])


def test_what_lies_otherwise_or_records_is_portable(torch):
    arrays = heads(torch)
    assert path(arrays[0].mT.contiguous().mT, *arrays[1:]) == "portable"
    assert path(arrays[0], arrays[1][:, :, :1].expand(arrays[1].shape), arrays[2]) == "portable"
    bias = torch.zeros(9, 9, requires_grad=True)
    assert path(*arrays, attn_bias=bias) == "portable"
    assert path(*(x.to("meta") for x in arrays)) == "portable"
    seen = []
    torch.func.vmap(lambda *xs: seen.append(path(*xs)) or xs[0])(*arrays)
    torch.func.grad(lambda x: (seen.append(path(x, *arrays[1:])), x.sum())[1])(arrays[0])
    assert seen == ["portable"] * 2
    with torch.autocast("cpu"):
        assert path(*arrays) == "portable"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert path(*arrays) == "portable"
    assert path(*arrays) == "fused"


@pytest.mark.covers("ATT-11", "MASK-4", "IND-6")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("hides", ["nothing", "causal", "mask", "bias", "lengths"])
@pytest.mark.parametrize("kv_len", [1, 7, 15, 16, 17, 33, 70])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_swallowed(torch, number, kv_len, hides, dtype):
    seen = torch.asarray(np.tri(kv_len, kv_len, -1, dtype=bool) | (np.arange(kv_len) % 2 == 0))
    options = {
        "nothing": {},
        "causal": {"is_causal": True},
        "mask": {"mask": seen},
        "bias": {"attn_bias": torch.where(seen, 1.0, -math.inf)},
        "lengths": {"kv_lengths": torch.asarray([kv_len, kv_len // 2])},
    }[hides]
    for operand in range(3):
        for at in {0, kv_len // 2, kv_len - 1}:
            arrays = heads(torch, q_len=kv_len, kv_len=kv_len, dtype=dtype)
            arrays[operand][1, 2, at, 3] = number
            got = scaled_dot_product_attention(*arrays, **options)
            wanted = both(arrays, **options)
            np.testing.assert_allclose(got.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def test_operands_that_overflow_unscaled_are_right(torch):
    query, key, value = heads(torch)
    query, key = query * 1e20, key * 1e20
    got = scaled_dot_product_attention(query, key, value, scale=1e-40)
    np.testing.assert_allclose(got, both([query, key, value], scale=1e-40), rtol=1e-4, atol=1e-4)


RECORDED = {name: FUSED[name] for name in ("plain", "causal", "mask", "padding", "bias, causal", "lengths")}


def gradients(torch, arrays, grad, **options):
    leaves = [x.detach().requires_grad_() for x in arrays]
    return torch.autograd.grad(scaled_dot_product_attention(*leaves, **options), leaves, grad)


@pytest.mark.covers("GRAD-1", "GRAD-12", "IND-6")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("options", RECORDED)
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_the_gradient_through_the_kernel_is_the_same(torch, kernel_calls, options, num_kv_heads, dtype):
    arrays, options = (
        heads(torch, num_kv_heads=num_kv_heads, dtype=dtype),
        as_tensors(torch, RECORDED[options]),
    )
    grad = torch.asarray(RNG.standard_normal(arrays[0].shape)).to(arrays[0].dtype)
    got = gradients(torch, arrays, grad, **options)
    assert kernel_calls
    with portable():
        wanted = gradients(torch, arrays, grad, **options)
        by_name = mha_core.scaled_dot_product_attention_vjp(*arrays, grad, **options)
    fused = mha_core.scaled_dot_product_attention_vjp(*arrays, grad, **options)
    tolerance = TOLERANCES[dtype] | {
        "atol": 1e-2 if dtype == "bfloat16" else 1e-3 if dtype == "float16" else 1e-5
    }
    for name, x, y in zip(("query", "key", "value"), got, wanted, strict=True):
        assert x.dtype == y.dtype == arrays[0].dtype
        np.testing.assert_allclose(x.double(), y.double(), **tolerance)
        np.testing.assert_allclose(fused[name].double(), by_name[name].double(), **tolerance)


@pytest.mark.covers("GRAD-9")
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("options", ["plain", "causal", "padding"])
@pytest.mark.parametrize("operand", ["query", "key", "value", "grad"])
def test_a_gradient_that_is_not_finite_is_the_exact_one(torch, number, options, operand):
    options, arrays = as_tensors(torch, FUSED[options]), heads(torch)
    grad = torch.asarray(RNG.standard_normal(arrays[0].shape).astype(np.float32))
    {"query": arrays[0], "key": arrays[1], "value": arrays[2], "grad": grad}[operand][1, 2, 5, 3] = number
    got = gradients(torch, arrays, grad, **options)
    with portable():
        wanted = gradients(torch, arrays, grad, **options)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_gradient_through_the_kernel_has_one_itself(torch, kernel_calls):
    arrays = [x.double().requires_grad_() for x in heads(torch, q_len=3, kv_len=3)]
    assert torch.autograd.gradcheck(scaled_dot_product_attention, arrays)
    assert torch.autograd.gradgradcheck(scaled_dot_product_attention, arrays)
    output = scaled_dot_product_attention(*arrays)
    twice = torch.stack([output.detach()] * 2)
    grads = torch.autograd.grad(output, arrays, twice, retain_graph=True, is_grads_batched=True)
    assert kernel_calls
    for many, one in zip(grads, torch.autograd.grad(output, arrays, output.detach()), strict=True):
        np.testing.assert_allclose(many[1], one, **TOLERANCES["float64"])


def test_memory_of_a_recorded_gradient_grows_with_the_length_alone(torch):
    """What is kept for the gradient are operands, output and a number a row, not the weights."""
    x = torch.ones(1, 1, 512, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: kept.append(y.numel()) or y, lambda y: y):
        scaled_dot_product_attention(x, x, x).sum().backward()
    assert kept
    assert max(kept) <= x.numel()


def test_the_layer_takes_the_kernel(torch, kernel_calls):
    x = torch.asarray(RNG.standard_normal((2, 5, 8)))
    weights = {n: torch.asarray(RNG.standard_normal((2, 8, 4))) for n in ("w_q", "w_k", "w_v")}
    weights["w_o"] = torch.asarray(RNG.standard_normal((2, 4, 8)))
    got = multi_head_attention(x, x, x, **weights, is_causal=True)
    assert len(kernel_calls) == 1
    with portable():
        wanted = multi_head_attention(x, x, x, **weights, is_causal=True)
    np.testing.assert_allclose(got, wanted, **TOLERANCES["float64"])


def test_numpy_is_portable_though_torch_is_there(torch):
    x = np.ones((1, 2, 3))
    assert path(x, x, x) == "portable"


def test_path_refuses_what_the_call_refuses():
    x = np.ones((1, 2, 3))
    with pytest.raises(ValueError, match="MASK-7"):
        path(x, x[:, :1], x[:, :1], is_causal=True)
    with pytest.raises(TypeError, match="unexpected keyword"):
        path(x, x, x, causal=True)


def imported_with(value, code="import mha_core"):
    environment = os.environ | {"MHA_CORE_PATH": value, "PYTHONPATH": str(Path(mha_core.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_environment_chooses(torch):
    code = "import torch, mha_core; print(mha_core.path(*[torch.ones(1, 2, 3)] * 3))"
    assert [imported_with(value, code).stdout.strip() for value in ("auto", "portable")] == [
        "fused",
        "portable",
    ]


def test_another_choice_is_one_clear_error():
    done = imported_with("fast")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: MHA_CORE_PATH='fast' but needs one of auto, portable; unset it for auto"
    )


def test_memory_of_16_thousand_tokens():
    """One head of 16,384 tokens in 24 MiB, its output of 4 MiB among them; the logits alone would take 1 GiB."""
    x = RNG.standard_normal((1, 16384, 64)).astype(np.float32)
    scaled_dot_product_attention(x[:, :9], x[:, :9], x[:, :9])
    tracemalloc.start()
    scaled_dot_product_attention(x, x, x, is_causal=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4 * 2**20 < peak < 24 * 2**20
