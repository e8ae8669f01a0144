"""What assert_conforms says is likely: in narrow dtypes, in another layout, and in time."""

import time

import numpy as np
import pytest
from judged_calls import attention, operands

from conformance import assert_conforms
from conformance.oracle import waiting
from conformance.oracle.closest import closest
from conformance.oracle.likely import SECONDS
from conformance.vectors.load import load_vectors

pytestmark = pytest.mark.turns(3, whole=True)


def in_steps(query, key, value, scale, ahead=0, is_causal=True):
    """Attention that rounds after each step, with a causal mask that is `ahead` of the right one."""
    dtype = query.dtype
    q, k, v = (x.astype(np.float32) for x in (query, key, value))
    logits = (q @ k.swapaxes(-1, -2)).astype(dtype).astype(np.float32) * np.float32(scale)
    logits = logits.astype(dtype).astype(np.float32)
    if is_causal:
        logits = np.where(np.tri(*logits.shape[-2:], ahead, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(dtype).astype(np.float32)
    return (weights @ v).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "mistake", "named"),
    [
        ("bfloat16", {"scale": 1.0}, "scale-left-out"),
        ("bfloat16", {"scale": 0.125, "ahead": 1}, "causal-one-ahead"),
        ("float16", {"scale": 1.0}, "scale-left-out"),
    ],
)
def test_a_narrow_dtype_hides_no_mistake(dtype, mistake, named):
    given = operands("likely/narrow", dtype=dtype, batch=(), heads=1, q_len=60, kv_len=60, d_k=64)
    given["value"][..., 0, :] *= np.asarray(2.0**-9, given["value"].dtype)  # rows whose tolerance is tiny
    with pytest.raises(AssertionError, match=f"; {named}\\)"):
        assert_conforms(in_steps(**given, **mistake), **given, is_causal=True)


def test_noise_is_closest_to_nothing():
    case = next(case for case in load_vectors().cases if case.id == "attention/hand-sized")
    noise = np.random.default_rng(0).standard_normal(case.expected["output"].shape)
    assert closest(case, "bfloat16", noise, np.inf) == ()


def test_a_result_with_the_length_in_front_of_the_heads():
    given = operands("likely/layout", q_len=6, heads=3)
    with pytest.raises(AssertionError) as failed:
        assert_conforms(attention(**given).swapaxes(-3, -2), **given)
    assert str(failed.value).splitlines()[-1] == (
        "  likely    heads and length are exchanged: (batch, length, heads, width) was returned, "
        "(batch, heads, length, width) is wanted; its numbers are right"
    )
    square = operands("likely/layout", q_len=3, kv_len=3, heads=3)
    with pytest.raises(AssertionError, match=r"was returned.*; its numbers are right$"):
        assert_conforms(attention(**square).swapaxes(-3, -2), **square)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operands_with_the_length_in_front_of_the_heads(dtype):
    given = operands("likely/given", dtype=dtype, q_len=4, kv_len=4, heads=9)
    swapped = {name: x.swapaxes(-3, -2) for name, x in given.items()}
    with pytest.raises(AssertionError, match=r"in \(batch, length, heads, width\) the answer is right"):
        assert_conforms(attention(**swapped).swapaxes(-3, -2), **given)


def test_a_complete_answer_has_nothing_behind_it():
    given = operands("likely/complete", q_len=100, kv_len=100, d_k=64, heads=8)
    right = attention(**given)
    for wrong, end in (
        (right.astype(np.float64), "its numbers are right"),
        (right[..., :-1], "wanted (2, 8, 100, 64) (SHAPE-2)"),
    ):
        with pytest.raises(AssertionError) as failed:
            assert_conforms(wrong, **given)
        assert str(failed.value).splitlines()[0].endswith(end)
        assert "likely" not in str(failed.value)


def test_what_takes_long_says_so_once(capsys):
    with waiting.told("it is being found", seconds=0.01):
        time.sleep(0.2)
    with waiting.told("nothing is said of this", seconds=5):
        pass
    assert capsys.readouterr().err == "assert_conforms: it is being found\n"


def test_the_search_is_bounded():
    given = operands("likely/large", q_len=64, kv_len=1500, d_k=64)
    noise = np.random.default_rng(1).standard_normal(given["query"].shape).astype(np.float32)
    begun = time.process_time()
    with pytest.raises(AssertionError, match="no known mistake gives the same numbers"):
        assert_conforms(noise, **given, rows=4)
    assert time.process_time() - begun < 3 * SECONDS
