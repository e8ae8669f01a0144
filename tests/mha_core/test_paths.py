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
from mha_core.fused import portable

RNG = np.random.default_rng(29)
FUSED = {
    "plain": {},
    "causal": {"is_causal": True},
    "no offset": {"is_causal": True, "q_offset": 0},
    "scale": {"scale": 2.5},
}
PORTABLE = {
    "negative scale": {"scale": -1.0},
    "scale of zero": {"scale": 0.0},
    "offset": {"is_causal": True, "q_offset": 1},
    "mask": {"mask": np.ones((9, 9), bool)},
    "bias": {"attn_bias": np.zeros((9, 9), np.float32)},
    "window": {"window": (1, 1)},
    "lengths": {"kv_lengths": np.asarray([9, 3])},
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
def test_the_fused_path_gives_the_same(torch, kernel_calls, options, dtype):
    arrays, options = heads(torch, dtype=dtype), FUSED[options]
    assert path(*arrays, **options) == "fused"
    got = scaled_dot_product_attention(*arrays, **options)
    assert len(kernel_calls) == 1
    assert got.dtype == arrays[0].dtype
    rounded_weights = {"bfloat16": {"atol": 2e-2}, "float16": {"atol": 2e-3}}
    tolerance = TOLERANCES[dtype] | rounded_weights.get(dtype, {})
    np.testing.assert_allclose(got.double(), both(arrays, **options).double(), **tolerance)
    assert len(kernel_calls) == 1


@pytest.mark.parametrize("options", PORTABLE)
def test_what_the_kernel_lacks_is_portable(torch, kernel_calls, options):
    arrays, options = heads(torch), as_tensors(torch, PORTABLE[options])
    assert path(*arrays, **options) == "portable"
    scaled_dot_product_attention(*arrays, **options)
    assert not kernel_calls


SIZES = {
    "grouped": ({"num_kv_heads": 2}, {}, "fused"),
    "grouped and causal": ({"num_kv_heads": 2}, {"is_causal": True}, "portable"),
    "wider values": ({"d_v": 7}, {}, "portable"),
    "more keys": ({"kv_len": 20}, {}, "fused"),
    "more keys, causal": ({"kv_len": 20}, {"is_causal": True, "q_offset": 11}, "portable"),
    "the last query": ({"q_len": 1, "kv_len": 20}, {"is_causal": True, "q_offset": 19}, "fused"),
    "the last query, grouped": (
        {"q_len": 1, "kv_len": 20, "num_kv_heads": 1},
        {"is_causal": True, "q_offset": 19},
        "fused",
    ),
    "one before the last": ({"q_len": 1, "kv_len": 20}, {"is_causal": True, "q_offset": 18}, "portable"),
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
    assert path(arrays[0].clone().requires_grad_(), *arrays[1:]) == "portable"
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
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_len", [1, 7, 15, 16, 17, 33, 70])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_swallowed(torch, number, kv_len, causal, dtype):
    for operand in range(3):
        for at in {0, kv_len // 2, kv_len - 1}:
            arrays = heads(torch, q_len=kv_len, kv_len=kv_len, dtype=dtype)
            arrays[operand][1, 2, at, 3] = number
            got = scaled_dot_product_attention(*arrays, is_causal=causal)
            wanted = both(arrays, is_causal=causal)
            np.testing.assert_allclose(got.float(), wanted.float(), rtol=2e-2, atol=2e-2)


def test_operands_that_overflow_unscaled_are_right(torch):
    query, key, value = heads(torch)
    query, key = query * 1e20, key * 1e20
    got = scaled_dot_product_attention(query, key, value, scale=1e-40)
    np.testing.assert_allclose(got, both([query, key, value], scale=1e-40), rtol=1e-4, atol=1e-4)


@pytest.mark.covers("GRAD-9")
def test_a_gradient_is_not_recorded_through_the_kernel(torch, kernel_calls):
    arrays = [x.requires_grad_() for x in heads(torch)]
    output = scaled_dot_product_attention(*arrays)
    (first,) = torch.autograd.grad(output.sum(), arrays[0], create_graph=True)
    assert torch.isfinite(torch.autograd.grad(first.sum(), arrays[0])[0]).all()
    assert not kernel_calls


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
