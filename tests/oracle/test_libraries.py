"""Arrays of other libraries: torch with gradients, bfloat16 and strides, and JAX."""

import numpy as np
import pytest
from judged_calls import operands

from conformance import assert_conforms, expected
from conformance.names import SDPA_VJP

torch = pytest.importorskip("torch")
attend = torch.nn.functional.scaled_dot_product_attention


def tensors(name, dtype):
    return [
        torch.from_numpy(x).to(dtype).transpose(-2, -3).contiguous().transpose(-2, -3).requires_grad_()
        for x in operands(name, q_len=9, kv_len=9, d_k=16).values()
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_torch(dtype):
    q, k, v = tensors("libraries/torch", dtype)
    out = attend(q, k, v, is_causal=True)
    assert assert_conforms(out, q, k, v, is_causal=True).verdict == "pass"
    with pytest.raises(AssertionError, match="times what is allowed"):
        assert_conforms(attend(q, k, v), q, k, v, is_causal=True)
    cotangent = torch.from_numpy(operands("libraries/g", g=(2, 3, 9, 16))["g"]).to(dtype)
    gradients = dict(
        zip(("query", "key", "value"), torch.autograd.grad(out, (q, k, v), cotangent), strict=True)
    )
    call = {"is_causal": True, "operation": SDPA_VJP, "grad_output": cotangent}
    assert assert_conforms(gradients, q, k, v, **call).verdict == "pass"
    with pytest.raises(AssertionError, match="gradient of key"):
        assert_conforms({**gradients, "key": gradients["key"] * 1.5}, q, k, v, **call)


def test_options_are_tensors_too():
    q, k, v = tensors("libraries/options", torch.float32)
    mask = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)) > 0.3
    assert assert_conforms(attend(q, k, v, attn_mask=mask), q, k, v, mask=mask).verdict == "pass"
    lengths = torch.tensor([9, 4])
    hidden = torch.arange(9) < lengths[:, None, None, None]
    assert assert_conforms(attend(q, k, v, attn_mask=hidden), q, k, v, kv_lengths=lengths).verdict == "pass"


def test_jax():
    jax = pytest.importorskip("jax")
    arrays = [jax.numpy.asarray(x) for x in operands("libraries/jax", q_len=9, kv_len=9, d_k=16).values()]
    narrow = [x.astype(jax.numpy.bfloat16) for x in arrays]
    for q, k, v in (arrays, narrow):
        out = jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, v))).swapaxes(1, 2)
        assert assert_conforms(out, q, k, v).verdict == "pass"
        with pytest.raises(AssertionError):
            assert_conforms(out * 1.5, q, k, v)


def test_libraries_may_be_mixed():
    given = operands("libraries/mixed")
    out = attend(*map(torch.from_numpy, given.values()))
    assert assert_conforms(out, *given.values()).verdict == "pass"
    value = expected(*map(torch.from_numpy, given.values())).value["output"]
    assert value.dtype == np.float64
