"""The worked example: its numbers are those of the operations, and it can be read."""

import numpy as np
import pytest

import mha_core
from mha_core.explaining import Explained


def numbers(*shape):
    return np.random.default_rng(5).standard_normal(shape)


def test_an_attention_with_every_option_that_is_explained():
    query, key, value = numbers(2, 4, 3, 5), numbers(2, 2, 6, 5) + 0.5, numbers(2, 2, 6, 2)
    options = {
        "mask": np.arange(6) != 1,
        "attn_bias": numbers(4, 1, 6)[None],
        "is_causal": True,
        "q_offset": 2,
        "scale": 0.3,
        "softcap": 2.0,
    }
    options["mask"] = np.broadcast_to(options["mask"], (3, 6))
    options["attn_bias"] = np.broadcast_to(options["attn_bias"], (1, 4, 1, 6))
    told = mha_core.explain(query, key, value, **options)
    right = mha_core.scaled_dot_product_attention(query, key, value, return_weights=True, **options)
    assert [step.name for step in told.steps] == ["logits", "softcap", "bias", "visible", "weights", "output"]
    np.testing.assert_allclose(told["weights"], right.weights[0], atol=1e-12)
    np.testing.assert_allclose(told["output"], right.output[0], atol=1e-12)


def test_a_layer():
    x = numbers(2, 3, 4)
    weights = {f"w_{name}": numbers(2, 4, 3) for name in "qkv"} | {"w_o": numbers(2, 3, 5)}
    biases = {f"b_{name}": numbers(2, 3) for name in "qkv"} | {"b_o": numbers(5)}
    told = mha_core.explain(x, x, x, tokens=["The", "dog", "ate"], is_causal=True, **weights, **biases)
    right = mha_core.multi_head_attention(x, x, x, is_causal=True, return_weights=True, **weights, **biases)
    names = ["queries", "keys", "values", "logits", "visible", "weights", "heads", "concatenated", "output"]
    assert [step.name for step in told.steps] == names
    np.testing.assert_allclose(told["weights"], right.weights[0], atol=1e-12)
    np.testing.assert_allclose(told["output"][0], right.output[0], atol=1e-12)
    assert np.shape(told["concatenated"]) == (1, 3, 6)
    assert "   head 1\n" in str(told)
    assert " The [" in str(told)
    assert told._repr_html_().count("<table") == 2 * 7 + 2


def test_a_row_that_may_attend_nothing_is_zero_and_hides_nan():
    x = numbers(1, 2, 2)
    value = np.array([[[1.0, 2.0], [np.nan, 3.0]]])
    told = mha_core.explain(x, x, value, mask=np.array([[False, False], [True, False]]))
    assert told["weights"] == [[[0.0, 0.0], [1.0, 0.0]]]
    assert told["output"] == [[[0, 0], [1.0, 2.0]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": (1, 0)}, "explain has 'window' but it explains mask"),
        ({"is_causal": True}, "needs q_offset .MASK-7."),
    ],
)
def test_what_is_not_explained(options, message):
    with pytest.raises(ValueError, match=message):
        mha_core.explain(numbers(1, 2, 2), numbers(1, 3, 2), numbers(1, 3, 2), **options)


def test_what_is_too_large_or_empty():
    with pytest.raises(ValueError, match="a size is above 16"):
        mha_core.explain(*[numbers(1, 17, 2)] * 3)
    with pytest.raises(ValueError, match="a size is 0"):
        mha_core.explain(*[numbers(1, 0, 2)] * 3)
    with pytest.raises(ValueError, match="do not divide"):
        mha_core.explain(numbers(3, 2, 2), *[numbers(2, 2, 2)] * 2)


def test_public_names():
    assert "explain" in dir(mha_core)
    assert "scaled_dot_product_attention" in dir(mha_core)
    assert not [name for name in dir(mha_core) if name.startswith("_") or name == "attention"]
    assert isinstance(mha_core.explain(*[numbers(1, 2, 2)] * 3), Explained)


def test_a_result_in_a_notebook():
    x = numbers(2, 3, 4, 5)
    shown = mha_core.scaled_dot_product_attention(x, x, x, return_weights=True)._repr_html_()
    assert "<th>weights</th><td>(2, 3, 4, 4)</td><td>float64</td>" in shown
    assert "present_key" not in shown
    assert shown.count("<rect") == 3 * 4 * 4
    lse = mha_core.scaled_dot_product_attention(x, x, x, return_lse=True)
    assert "<svg" not in lse._repr_html_()
    long = numbers(1, 1, 40, 2)
    assert (
        "<svg"
        not in mha_core.scaled_dot_product_attention(long, long, long, return_weights=True)._repr_html_()
    )
