"""Every rule fires: a wrong call raises the right type, with the requirement in its message."""

import fractions
import math
import re

import numpy as np
import pytest
from array_libraries import library

from mha_core import merge_attention, multi_head_attention, scaled_dot_product_attention


def zeros(*shape, dtype="float64"):
    return np.zeros(shape, dtype)


# B = 2, H = 6, G = 3, q_len = 4, kv_len = 5, d_k = 7, d_v = 8; in the layer d_q = 9, d_kv = 10, d_vv = 11, d_out = 12
HEADS = {"query": zeros(2, 6, 4, 7), "key": zeros(2, 3, 5, 7), "value": zeros(2, 3, 5, 8)}
LAYER = {
    "query": zeros(2, 4, 9),
    "key": zeros(2, 5, 10),
    "value": zeros(2, 5, 11),
    "w_q": zeros(6, 9, 7),
    "w_k": zeros(3, 10, 7),
    "w_v": zeros(3, 11, 8),
    "w_o": zeros(6, 8, 12),
}
PAST = {"past_key": zeros(2, 3, 1, 7), "past_value": zeros(2, 3, 1, 8)}

# What is wrong in the same way for both operations.
BOTH = [
    ({"query": zeros(2, 6, 4, 7, dtype="float32")}, TypeError, "DTYPE-2"),
    ({"key": zeros(2, 3, 5, 7, dtype="float16")}, TypeError, "DTYPE-2"),
    ({"value": zeros(2, 3, 5, 8, dtype="int64")}, TypeError, "DTYPE-2"),
    ({"value": zeros(2, 3, 5, 8, dtype="complex128")}, TypeError, "DTYPE-2"),
    ({"query": None}, TypeError, "DTYPE-2"),
    ({"key": [[1.0]]}, TypeError, "DTYPE-2"),
    ({"value": 1.0}, TypeError, "DTYPE-2"),
    ({"sinks": zeros(6, dtype="float32")}, TypeError, "DTYPE-2"),
    ({"sinks": [0.0] * 6}, TypeError, "DTYPE-2"),
    ({**PAST, "past_key": zeros(2, 3, 1, 7, dtype="float32")}, TypeError, "DTYPE-2"),
    ({"mask": np.ones((4, 5), np.int64)}, TypeError, "DTYPE-4"),
    ({"mask": np.ones((4, 5), np.float64)}, TypeError, "DTYPE-4"),
    ({"mask": [[True] * 5] * 4}, TypeError, "DTYPE-4"),
    ({"mask": True}, TypeError, "DTYPE-4"),
    ({"attn_bias": np.ones((4, 5), bool)}, TypeError, "DTYPE-5"),
    ({"attn_bias": np.ones((4, 5), np.int32)}, TypeError, "DTYPE-5"),
    ({"attn_bias": np.ones((4, 5), np.complex64)}, TypeError, "DTYPE-5"),
    ({"attn_bias": 0.0}, TypeError, "DTYPE-5"),
    ({"mask": np.ones((5,), bool)}, ValueError, "SHAPE-7"),
    ({"mask": np.ones((6, 4, 5), bool)}, ValueError, "SHAPE-7"),
    ({"mask": np.ones((1, 2, 6, 4, 5), bool)}, ValueError, "SHAPE-7"),
    ({"attn_bias": zeros(6, 4, 5)}, ValueError, "SHAPE-7"),
    ({"mask": np.ones((5, 4), bool)}, ValueError, "SHAPE-11"),
    ({"mask": np.ones((2, 3, 4, 5), bool)}, ValueError, "SHAPE-11"),
    ({"mask": np.ones((4, 0), bool)}, ValueError, "SHAPE-11"),
    ({"attn_bias": zeros(2, 6, 4, 2)}, ValueError, "SHAPE-11"),
    ({"mask": np.ones((4, 5), bool), **PAST}, ValueError, "SHAPE-11"),
    ({"q_segments": np.zeros(4, int)}, ValueError, "MASK-17"),
    ({"kv_segments": np.zeros(5, int)}, ValueError, "MASK-17"),
    ({"q_segments": np.zeros(4), "kv_segments": np.zeros(5, int)}, TypeError, "MASK-17"),
    ({"q_segments": np.zeros(4, int), "kv_segments": np.zeros(5, np.int16)}, TypeError, "MASK-17"),
    ({"q_segments": [0] * 4, "kv_segments": [0] * 5}, ValueError, "SHAPE-10"),
    ({"q_segments": np.zeros(5, int), "kv_segments": np.zeros(5, int)}, ValueError, "SHAPE-11"),
    ({"q_segments": np.zeros((3, 4), int), "kv_segments": np.zeros(5, int)}, ValueError, "SHAPE-11"),
    ({"q_segments": np.zeros(4, int), "kv_segments": np.zeros(5, int), **PAST}, ValueError, "SHAPE-11"),
    ({"is_causal": 1, "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"is_causal": None}, ValueError, "SHAPE-10"),
    ({"return_weights": 1}, ValueError, "SHAPE-10"),
    ({"return_lse": "yes"}, ValueError, "SHAPE-10"),
    ({"scale": math.nan}, ValueError, "SHAPE-10"),
    ({"scale": -math.inf}, ValueError, "SHAPE-10"),
    ({"scale": 10**400}, ValueError, "SHAPE-10"),
    ({"scale": True}, ValueError, "SHAPE-10"),
    ({"scale": "1"}, ValueError, "SHAPE-10"),
    ({"scale": 1j}, ValueError, "SHAPE-10"),
    ({"scale": np.ones(())}, ValueError, "SHAPE-10"),
    ({"softcap": 0}, ValueError, "SHAPE-10"),
    ({"softcap": -1.0}, ValueError, "SHAPE-10"),
    ({"softcap": math.inf}, ValueError, "SHAPE-10"),
    ({"softcap": math.nan}, ValueError, "SHAPE-10"),
    ({"softcap": True}, ValueError, "SHAPE-10"),
    ({"window": 3, "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"window": "12", "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"window": (1,), "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"window": (1, 2, 3), "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"window": (-1, 0), "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"window": (0, 1.0), "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"window": (0, False), "q_offset": 0}, ValueError, "SHAPE-10"),
    ({"is_causal": True, "q_offset": 1.0}, ValueError, "SHAPE-10"),
    ({"is_causal": True, "q_offset": True}, ValueError, "SHAPE-10"),
    ({"is_causal": True, "q_offset": [0, 1]}, ValueError, "SHAPE-10"),
    ({"kv_lengths": [5, 4]}, ValueError, "SHAPE-10"),
    ({"kv_lengths": 5}, ValueError, "SHAPE-10"),
    ({"q_offset": zeros(2)}, TypeError, "DTYPE-7"),
    ({"kv_lengths": zeros(2)}, TypeError, "DTYPE-7"),
    ({"kv_lengths": np.ones(2, bool)}, TypeError, "DTYPE-7"),
    ({"q_offset": zeros(3, dtype="int64")}, ValueError, "SHAPE-11"),
    ({"q_offset": zeros(1, dtype="int64")}, ValueError, "SHAPE-11"),
    ({"kv_lengths": zeros(1, dtype="int64")}, ValueError, "SHAPE-11"),
    ({"kv_lengths": zeros(dtype="int64")}, ValueError, "SHAPE-11"),
    ({"kv_lengths": zeros(2, 1, dtype="int64")}, ValueError, "SHAPE-11"),
    ({"sinks": zeros(3)}, ValueError, "SHAPE-11"),
    ({"sinks": zeros(1)}, ValueError, "SHAPE-11"),
    ({"sinks": zeros(2, 6)}, ValueError, "SHAPE-11"),
    ({"is_causal": True}, ValueError, "MASK-7"),
    ({"window": (1, 1)}, ValueError, "MASK-7"),
    ({"window": (None, None)}, ValueError, "MASK-7"),
    ({"past_key": PAST["past_key"]}, ValueError, "CACHE-5"),
    ({"past_value": PAST["past_value"]}, ValueError, "CACHE-5"),
    ({**PAST, "past_value": zeros(2, 3, 2, 8)}, ValueError, "SHAPE-5"),
    ({**PAST, "past_key": zeros(2, 6, 1, 7)}, ValueError, "SHAPE-5"),
    ({**PAST, "past_key": zeros(1, 3, 1, 7)}, ValueError, "SHAPE-5"),
    ({**PAST, "past_key": zeros(2, 3, 1, 8)}, ValueError, "SHAPE-5"),
    ({**PAST, "past_value": zeros(2, 3, 1, 7)}, ValueError, "SHAPE-5"),
    ({**PAST, "past_key": zeros(1, 7)}, ValueError, "SHAPE-11"),
]
ATTENTION = [
    ({"query": zeros(4, 7)}, ValueError, "SHAPE-11"),
    ({"key": zeros(5, 7)}, ValueError, "SHAPE-11"),
    ({"value": zeros(8)}, ValueError, "SHAPE-11"),
    ({"query": zeros(6, 4, 7)}, ValueError, "SHAPE-5"),
    ({"key": zeros(1, 3, 5, 7)}, ValueError, "SHAPE-5"),
    ({"value": zeros(3, 3, 5, 8)}, ValueError, "SHAPE-5"),
    ({"value": zeros(2, 3, 6, 8)}, ValueError, "SHAPE-5"),
    ({"value": zeros(2, 6, 5, 8)}, ValueError, "SHAPE-5"),
    ({"key": zeros(2, 3, 5, 1)}, ValueError, "SHAPE-5"),
    ({"query": zeros(2, 6, 4, 0), "key": zeros(2, 3, 5, 0)}, ValueError, "SHAPE-6"),
    ({"value": zeros(2, 3, 5, 0)}, ValueError, "SHAPE-6"),
    ({"query": zeros(2, 0, 4, 7)}, ValueError, "SHAPE-6"),
    ({"key": zeros(2, 0, 5, 7), "value": zeros(2, 0, 5, 8)}, ValueError, "SHAPE-6"),
    ({"query": zeros(2, 4, 4, 7)}, ValueError, "HEAD-3"),
    ({"query": zeros(2, 2, 4, 7)}, ValueError, "HEAD-3"),
]
LAYERS = [
    ({"query": zeros(9)}, ValueError, "SHAPE-11"),
    ({"value": zeros(11)}, ValueError, "SHAPE-11"),
    ({"key": zeros(3, 5, 10)}, ValueError, "SHAPE-5"),
    ({"value": zeros(5, 11)}, ValueError, "SHAPE-5"),
    ({"value": zeros(2, 4, 11)}, ValueError, "SHAPE-5"),
    ({"w_q": zeros(6, 7, 9)}, ValueError, "PROJ-6"),
    ({"w_q": zeros(9, 42)}, ValueError, "PROJ-6"),
    ({"w_k": zeros(3, 10, 8)}, ValueError, "PROJ-6"),
    ({"w_k": zeros(6, 10, 7)}, ValueError, "PROJ-6"),
    ({"w_v": zeros(3, 10, 8)}, ValueError, "PROJ-6"),
    ({"w_o": zeros(3, 8, 12)}, ValueError, "PROJ-6"),
    ({"w_o": zeros(6, 7, 12)}, ValueError, "PROJ-6"),
    ({"b_q": zeros(3, 7)}, ValueError, "PROJ-6"),
    ({"b_k": zeros(6, 7)}, ValueError, "PROJ-6"),
    ({"b_v": zeros(8)}, ValueError, "PROJ-6"),
    ({"b_o": zeros(1)}, ValueError, "PROJ-6"),
    ({"w_o": None}, TypeError, "DTYPE-2"),
    ({"w_q": zeros(6, 9, 7, dtype="float32")}, TypeError, "DTYPE-2"),
    ({"b_o": zeros(12, dtype="float32")}, TypeError, "DTYPE-2"),
    ({"w_q": zeros(6, 9, 0), "w_k": zeros(3, 10, 0)}, ValueError, "SHAPE-6"),
    ({"w_v": zeros(3, 11, 0), "w_o": zeros(6, 0, 12)}, ValueError, "SHAPE-6"),
    ({"w_q": zeros(0, 9, 7), "w_o": zeros(0, 8, 12)}, ValueError, "SHAPE-6"),
    ({"w_k": zeros(4, 10, 7), "w_v": zeros(4, 11, 8)}, ValueError, "HEAD-3"),
]


def label(x):
    return ",".join(f"{k}={getattr(v, 'shape', v)}" for k, v in x.items()) if isinstance(x, dict) else None


@pytest.mark.parametrize(("change", "error", "rule"), BOTH + ATTENTION, ids=label)
def test_attention_refuses(change, error, rule):
    with pytest.raises(error, match=rf"\({rule}\)$"):
        scaled_dot_product_attention(**(HEADS | change))


@pytest.mark.parametrize(("change", "error", "rule"), BOTH + LAYERS, ids=label)
def test_layer_refuses(change, error, rule):
    with pytest.raises(error, match=rf"\({rule}\)$"):
        multi_head_attention(**(LAYER | change))


def test_the_calls_that_the_changes_spoil_are_right():
    assert scaled_dot_product_attention(**HEADS).shape == (2, 6, 4, 8)
    assert scaled_dot_product_attention(**HEADS, **PAST).output.shape == (2, 6, 4, 8)
    assert multi_head_attention(**LAYER).shape == (2, 4, 12)
    assert multi_head_attention(**LAYER, **PAST).present_value.shape == (2, 3, 6, 8)


def test_a_message_says_given_wanted_and_rule():
    with pytest.raises(ValueError, match=re.escape("key has d_k=1 but query has d_k=7 (SHAPE-5)")):
        scaled_dot_product_attention(**HEADS | {"key": zeros(2, 3, 5, 1)})


@pytest.mark.parametrize(
    "change",
    [
        {"scale": 2},
        {"scale": np.float32(0.5)},
        {"scale": fractions.Fraction(1, 3)},
        {"softcap": np.float64(3.0)},
        {"window": [1, None], "q_offset": np.int32(1)},
        {"is_causal": True, "q_offset": np.asarray(1)},
        {"q_offset": -3},
        {"kv_lengths": np.asarray([5, 99], np.uint8)},
    ],
    ids=label,
)
def test_what_is_allowed(change):
    heads = {name: x.astype(np.float32) for name, x in HEADS.items()}
    assert scaled_dot_product_attention(**heads, **change).dtype == np.float32


@pytest.mark.parametrize("other", ["torch", "jax", "array-api-strict"])
@pytest.mark.parametrize("name", ["key", "mask", "kv_lengths", "q_offset", "sinks"])
def test_arrays_of_two_libraries(other, name):
    arrays = {
        **HEADS,
        "mask": np.ones((4, 5), bool),
        "kv_lengths": np.ones(2, int),
        "q_offset": np.ones(2, np.int32),
        "sinks": zeros(6),
    }
    arrays = {key: x.astype(np.float32) if x.dtype == np.float64 else x for key, x in arrays.items()}
    arrays["kv_lengths"] = arrays["kv_lengths"].astype(np.int32)
    scaled_dot_product_attention(**arrays)
    with pytest.raises(TypeError, match=r"\((DTYPE|MASK)-\d+\)$"):
        scaled_dot_product_attention(**arrays | {name: library(other).array(arrays[name])})


OUT, LSE = zeros(2, 3, 4, 5), zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("outputs", "lses", "sinks", "error", "rule"),
    [
        ([], [], None, ValueError, "MERGE-6"),
        ([OUT, OUT], [LSE], None, ValueError, "MERGE-6"),
        ([OUT, OUT[:1]], [LSE, LSE], None, ValueError, "MERGE-6"),
        ([OUT, OUT], [LSE, LSE[..., None]], None, ValueError, "MERGE-6"),
        ([OUT], [zeros(2, 3, 5)], None, ValueError, "MERGE-6"),
        ([OUT[0, 0]], [LSE[0, 0]], None, ValueError, "MERGE-6"),
        ([OUT], [LSE], zeros(4), ValueError, "MERGE-6"),
        ([OUT, OUT.astype(np.float32)], [LSE, LSE], None, TypeError, "DTYPE-2"),
        ([OUT], [LSE], zeros(3, dtype="float32"), TypeError, "DTYPE-2"),
        ([OUT.astype(int)], [LSE], None, TypeError, "DTYPE-2"),
        ([[1.0]], [LSE], None, TypeError, "DTYPE-2"),
        ([OUT], [LSE.astype(np.float32)], None, TypeError, "MERGE-2"),
        ([OUT.astype(np.float16)], [LSE], None, TypeError, "MERGE-2"),
        ([OUT], [[0.0]], None, TypeError, "MERGE-2"),
        (OUT[None], [LSE], None, TypeError, "MERGE-6"),
    ],
)
def test_merge_refuses(outputs, lses, sinks, error, rule):
    with pytest.raises(error, match=rf"\({rule}\)$"):
        merge_attention(outputs, lses, sinks)
