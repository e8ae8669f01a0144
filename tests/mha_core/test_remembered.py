"""What the core remembers of a call that passed its checks hides no other call, and no value."""

import math

import numpy as np
import pytest
from array_libraries import library

import mha_core
from mha_core import remembered

SHAPE = (1, 2, 3, 4)
RNG = np.random.default_rng(3)
ARRAYS = {name: RNG.standard_normal(SHAPE) for name in ("query", "key", "value")}
OPTIONS = {
    "mask": np.ones((3, 4), bool),
    "attn_bias": np.zeros((3, 4)),
    "q_offset": np.asarray(0),
    "kv_lengths": np.asarray([3]),
    "sinks": np.zeros(2),
    "past_key": np.zeros((1, 2, 1, 4)),
    "past_value": np.zeros((1, 2, 1, 4)),
    "scale": 1,
    "softcap": 2,
    "is_causal": True,
    "return_lse": True,
}
WRONG = {
    "query": ARRAYS["query"][..., :3],
    "key": ARRAYS["key"].astype(np.float32),
    "value": ARRAYS["value"].tolist(),
    "mask": np.ones((3, 4)),
    "attn_bias": np.zeros((2, 4)),
    "q_offset": np.asarray(0.0),
    "kv_lengths": np.asarray([3, 3]),
    "sinks": np.zeros(3),
    "past_key": np.zeros((1, 2, 2, 4)),
    "past_value": np.zeros((1, 2, 1, 3)),
    "scale": True,
    "softcap": 0,
    "is_causal": 1,
    "return_lse": 1,
    "window": (1, True),
}
"""What a call may not change to: equal, in Python, to what stood there, where that is possible."""


def arrays_of(name, given):
    lib = library(name)
    return {key: lib.array(x) if isinstance(x, np.ndarray) else x for key, x in given.items()}


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_call_that_passed_lets_no_wrong_one_pass(name, wrong):
    given = arrays_of(name, ARRAYS | OPTIONS | ({"window": (1, 1)} if wrong == "window" else {}))
    for _ in range(3):
        mha_core.scaled_dot_product_attention(**given)
    with pytest.raises((TypeError, ValueError), match="-"):
        mha_core.scaled_dot_product_attention(**given | arrays_of(name, {wrong: WRONG[wrong]}))


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_changed_value_is_seen(name):
    lib, attend = library(name), mha_core.scaled_dot_product_attention
    given = {key: lib.array(x.copy()) for key, x in ARRAYS.items()}
    first = lib.numpy(attend(**given)).copy()
    given["value"][..., 0, 1] = math.nan
    given["key"] *= 100
    other = lib.numpy(attend(**given))
    assert np.isfinite(first).all()
    assert np.isnan(other[..., 1]).all()
    assert np.isfinite(other[..., 0]).all()
    assert not np.allclose(first[..., 0], other[..., 0])


def test_a_changed_scale_and_mask_are_seen():
    attend = mha_core.scaled_dot_product_attention
    results = [attend(**ARRAYS, scale=scale) for scale in (0.5, 1.0, 2.0)]
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[1], results[2])
    mask = np.ones((3, 3), bool)
    np.testing.assert_allclose(attend(**ARRAYS, mask=mask), attend(**ARRAYS))
    mask[0, 0] = False
    assert not np.allclose(attend(**ARRAYS, mask=mask)[..., 0, :], attend(**ARRAYS)[..., 0, :])


def test_a_layer_of_other_weights_is_refused():
    x, w = np.ones((1, 3, 4)), np.ones((2, 4, 2))
    layer = {"w_q": w, "w_k": w, "w_v": w, "w_o": np.ones((2, 2, 4)), "b_o": np.ones(4)}
    for _ in range(3):
        mha_core.multi_head_attention(x, x, x, **layer)
    with pytest.raises(ValueError, match="PROJ-6"):
        mha_core.multi_head_attention(x, x, x, **layer | {"b_o": None, "b_q": np.ones(4)})


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(remembered, "MOST", 4)
    for n in range(1, 12):
        x = np.ones((1, n, 2))
        assert mha_core.scaled_dot_product_attention(x, x, x).shape == x.shape
        assert len(remembered._PASSED) <= 4
