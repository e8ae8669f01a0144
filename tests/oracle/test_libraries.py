"""Arrays of other libraries: torch with gradients, bfloat16 and strides, and JAX."""

import numpy as np
import pytest
from judged_calls import operands

from conformance import assert_conforms, expected
from conformance.names import SDPA_VJP

pytestmark = pytest.mark.turns(3, whole=True)

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
    visible = torch.arange(9) < lengths[:, None, None, None]
    assert assert_conforms(attend(q, k, v, attn_mask=visible), q, k, v, kv_lengths=lengths).verdict == "pass"


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_dtype_of_torch(dtype):
    given = operands("libraries/dtype", dtype="bfloat16")
    one, other = expected(**given, dtype=dtype), expected(**given, dtype=str(dtype).removeprefix("torch."))
    assert np.array_equal(one.tolerance["output"], other.tolerance["output"])
    with pytest.raises(ValueError, match=r"dtype=torch\.int8 but one of float64"):
        expected(**given, dtype=torch.int8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x: x.to(torch.float8_e4m3fn),
            r"a torch\.float8_e4m3fn Tensor: give float64, float32, float16 or bfloat16, dense \(",
        ),
        (lambda x: x.to("meta"), "on the device meta, where it has no numbers"),
        (lambda x: x.to_sparse(), "a torch.float32 Tensor: give .*, dense .*Sparse layout"),
    ],
    ids=["float8", "meta", "sparse"],
)
def test_a_tensor_that_cannot_be_read_is_named(change, words):
    given = {name: torch.from_numpy(x) for name, x in operands("libraries/unreadable").items()}
    with pytest.raises(TypeError, match=f"^query is {words}"):
        expected(**{**given, "query": change(given["query"])})
    with pytest.raises(
        TypeError, match=r"^mask is (a torch\.float.* Tensor: give bool, dense|on the device meta)"
    ):
        expected(**given, mask=change(given["query"]))
    with pytest.raises(AssertionError, match=r"^output is (a torch\.float.* Tensor|on the device meta)"):
        assert_conforms(change(attend(**given)), **given)


def test_a_tracer_of_jax_is_named():
    jax = pytest.importorskip("jax")
    given = operands("libraries/tracer")
    judge = jax.jit(lambda query: expected(**{**given, "query": query}).rows)
    with pytest.raises(
        TypeError, match=r"query is a JAX tracer, which has no numbers: call it outside jax\.jit"
    ):
        judge(given["query"])
