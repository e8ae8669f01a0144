"""What the set has to hold: a table of cells, and the cells that are known to be empty."""

import numpy as np
import pytest

from conformance.names import FEATURES, MHA, OPTIONS, SDPA
from conformance.vectors.load import load_vectors

CASES = load_vectors().cases
FORWARD = [case for case in CASES if not case.raises and not case.gradients]

ALONE = {
    "q_offset": {"window"},  # it moves causality or a window
    "broadcast": {"attn_bias"},  # it is the shape of a mask or bias
    "strict_masking": {"mask"},  # it needs something that hides a value
}
"""What else a case of the feature alone must claim; nothing for the rest."""

KV_LENGTHS = (
    0,
    1,
    2,
    3,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    512,
    513,
    1025,
)
D_K = (1, 2, 3, 5, 7, 8, 9, 33, 64, 65, 80, 128)
BATCH = (1, 2, 5)
HEADS = (1, 2, 3, 6)

HOLES: set[tuple[str, str]] = set()
"""Feature and operation without a case."""


def sizes(case):
    x, layer = case.inputs, case.operation == MHA
    past = x["past_key"].shape[-2] if "past_key" in x else 0
    return {
        "kv_len": x["key"].shape[-2] + past,
        "q_len": x["query"].shape[-2],
        "d_k": (x["w_q"] if layer else x["query"]).shape[-1],
        "d_v": (x["w_v"] if layer else x["value"]).shape[-1],
        "heads": x["w_q"].shape[0] if layer else x["query"].shape[-3],
        "kv_heads": x["w_k"].shape[0] if layer else x["key"].shape[-3],
        "batch": x["query"].shape[: -2 if layer else -3],
    }


def given(case):
    options = {name for name, value in case.options.items() if value is not None and value is not False}
    return options | (set(case.inputs) & set(OPTIONS))


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_has_a_case_of_its_own(feature):
    wanted = {feature} | ALONE.get(feature, set())
    alone = [case for case in CASES if set(case.features) == wanted]
    assert alone
    if not ALONE.get(feature) and feature not in ("gqa", "value_dim", "validation", "cache"):
        shape = [sizes(case) for case in alone]
        assert any(s["d_k"] == s["d_v"] and s["heads"] == s["kv_heads"] for s in shape)


@pytest.mark.parametrize("operation", [SDPA, MHA])
@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_has_a_case_in_both_operations(feature, operation):
    found = any(feature in case.features and case.operation == operation for case in CASES)
    assert found != ((feature, operation) in HOLES)


@pytest.mark.parametrize("operation", [SDPA, MHA])
@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_is_given_in_both_operations(option, operation):
    assert any(option in given(case) and case.operation == operation for case in FORWARD)


@pytest.mark.parametrize("name", ["b_q", "b_k", "b_v", "b_o"])
def test_each_bias_is_given_alone_and_left_out_alone(name):
    biases = [{n for n in case.inputs if n.startswith("b_")} for case in FORWARD if case.operation == MHA]
    assert {name} in biases
    assert any(name not in present for present in biases)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ("kv_len", KV_LENGTHS),
        ("d_k", D_K),
        ("heads", HEADS),
        ("kv_heads", (1, 2, 3)),
        ("q_len", (0, 1, 2, 17, 129)),
    ],
)
def test_each_size_at_the_edges_of_tiles_is_there(size, wanted):
    assert set(wanted) <= {sizes(case)[size] for case in FORWARD}


def test_batches_of_every_kind_are_there():
    for operation in (SDPA, MHA):
        shapes = {sizes(case)["batch"] for case in FORWARD if case.operation == operation}
        assert {(), (1,), (2,)} <= shapes
        assert any(len(shape) == 2 for shape in shapes)
    shapes = {sizes(case)["batch"] for case in FORWARD}
    assert {(n,) for n in BATCH} <= shapes
    assert any(len(shape) == 3 for shape in shapes)
    assert any(0 in shape for shape in shapes)


CELLS = {
    "1 < G < H": lambda c, s: 1 < s["kv_heads"] < s["heads"],
    "G = 1 < H": lambda c, s: s["kv_heads"] == 1 < s["heads"],
    "d_v > d_k": lambda c, s: s["d_v"] > s["d_k"],
    "d_v < d_k": lambda c, s: s["d_v"] < s["d_k"],
    "q_len = kv_len, plain": lambda c, s: s["q_len"] == s["kv_len"] > 1 and not c.features,
    "q_len > kv_len": lambda c, s: s["q_len"] > s["kv_len"] > 0,
    "negative scale": lambda c, s: c.options.get("scale", 1) < 0,
    "scale of zero": lambda c, s: c.options.get("scale", 1) == 0,
    "scale of one": lambda c, s: c.options.get("scale") == 1,
    "scale of full mantissa": lambda c, s: c.options.get("scale") == 0.3,
    "negative offset": lambda c, s: c.options.get("q_offset", 0) < 0,
    "offset of each batch entry": lambda c, s: "q_offset" in c.inputs,
    "causal and window": lambda c, s: {"is_causal", "window"} <= given(c),
    "causal and mask": lambda c, s: {"is_causal", "mask"} <= given(c),
    "causal and bias": lambda c, s: {"is_causal", "attn_bias"} <= given(c),
    "causal and lengths": lambda c, s: {"is_causal", "kv_lengths"} <= given(c),
    "mask and bias": lambda c, s: {"mask", "attn_bias"} <= given(c),
    "softcap and mask": lambda c, s: {"softcap", "mask"} <= given(c),
    "softcap and bias": lambda c, s: {"softcap", "attn_bias"} <= given(c),
    "sinks and an empty row": lambda c, s: "sinks" in given(c) and "empty" in c.features,
    "empty row and b_o": lambda c, s: "empty" in c.features and "b_o" in c.inputs,
    "past and lengths": lambda c, s: {"past_key", "kv_lengths"} <= given(c),
    "past and window": lambda c, s: {"past_key", "window"} <= given(c),
    "window open to the left": lambda c, s: c.options.get("window", [0])[0] is None,
    "window open to the right": lambda c, s: c.options.get("window", [0])[-1] is None,
    "sampled rows": lambda c, s: c.expected["output"].rows is not None,
    "full mantissas": lambda c, s: c.dtypes == ("float64", "float32"),
    "a mask of each head": lambda c, s: (
        "mask" in c.inputs and np.ndim(c.inputs["mask"]) > 2 and c.inputs["mask"].shape[-3] > 1
    ),
    "a bias of its own dtype": lambda c, s: "attn_bias" in c.dtype_of,
    "left out in float16 under eager alone": lambda c, s: "float16/eager" in c.excluded,
    "NaN expected": lambda c, s: np.isnan(c.expected["output"].hi).any(),
    "infinity expected": lambda c, s: np.isinf(c.expected["output"].hi).any(),
    "all rows empty": lambda c, s: c.expected["output"].hi.size > 0 and not c.expected["output"].hi.any(),
    "every layout": lambda c, s: bool(c.memory),
    "repeated call": lambda c, s: c.repeat > 1,
}


@pytest.mark.parametrize("cell", CELLS)
def test_no_cell_of_the_table_is_empty(cell):
    assert any(CELLS[cell](case, sizes(case)) for case in FORWARD)


def test_every_layout_is_asked_for():
    assert {layout for case in FORWARD for layout in case.memory.values()} == {
        "transposed",
        "reversed",
        "readonly",
        "unaligned",
    }


PAIRS = [
    "mask",
    "attn_bias",
    "is_causal",
    "q_offset",
    "window",
    "kv_lengths",
    "scale",
    "softcap",
    "sinks",
    "cache",
    "gqa",
    "value_dim",
]


def test_pairs_of_features_meet_in_a_small_case():
    # each pair in a case of at most six features, so that a failure can be told; those without one are listed
    empty = {
        (a, b)
        for i, a in enumerate(PAIRS)
        for b in PAIRS[i + 1 :]
        if not any({a, b} <= set(case.features) and len(case.features) <= 6 for case in FORWARD)
    }
    assert empty == UNPAIRED


UNPAIRED: set[tuple[str, str]] = set()
