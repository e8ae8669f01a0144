"""Relations that exact results obey: the oracle gives equal pairs for calls that mean the same."""

import numpy as np
import pytest

from conformance.names import MHA, SDPA
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.generate.oracle import golden
from conformance.vectors.generate.random_inputs import Draws

SEEDS = ("one", "two")
B, H, N, M, DK, DV = 2, 3, 4, 6, 5, 3


def oracle(operation, arrays, *wanted, **options):
    """Hi and lo of every wanted output as one array with a last axis of two."""
    inputs = {**arrays, **{name: x for name, x in options.items() if isinstance(x, np.ndarray)}}
    options = {name: x for name, x in options.items() if not isinstance(x, np.ndarray)}
    problem = pose(operation, inputs, options, None)
    pairs, _ = golden(problem, approximate(problem), wanted or ("output",))
    return {name: np.stack(pair, axis=-1) for name, pair in pairs.items()}


def attend(arrays, *wanted, **options):
    return oracle(SDPA, arrays, *wanted, **options)


def layer(arrays, *wanted, **options):
    return oracle(MHA, arrays, *wanted, **options)


def same(left, right):
    assert left.shape == right.shape
    assert left.size
    assert np.array_equal(left, right, equal_nan=True)


def drawn(seed, kv_heads=H):
    draws = Draws(f"metamorphic/{seed}")
    arrays = {
        "query": draws.gauss(B, H, N, DK, sigma=1.5),
        "key": draws.gauss(B, kv_heads, M, DK, sigma=1.5),
        "value": draws.gauss(B, kv_heads, M, DV),
    }
    return arrays, draws


def drawn_layer(seed):
    draws = Draws(f"metamorphic/layer/{seed}")
    shapes = {
        "query": (B, N, 7),
        "key": (B, M, 7),
        "value": (B, M, 7),
        "w_q": (H, 7, DK),
        "w_k": (H, 7, DK),
        "w_v": (H, 7, DV),
        "w_o": (H, DV, 4),
        "b_q": (H, DK),
        "b_k": (H, DK),
        "b_v": (H, DV),
        "b_o": (4,),
    }
    return {name: draws.gauss(*shape, sigma=0.7) for name, shape in shapes.items()}, draws


@pytest.fixture(params=SEEDS)
def seed(request):
    return request.param


def test_the_order_of_the_keys_does_not_matter(seed):
    arrays, draws = drawn(seed)
    order = draws.permutation(M)
    assert order != sorted(order)
    mask, bias = draws.mask(B, H, N, M), draws.gauss(B, H, N, M)
    moved = {**arrays, "key": arrays["key"][:, :, order], "value": arrays["value"][:, :, order]}
    names = ("output", "weights", "lse")
    for given in ({}, {"mask": mask, "attn_bias": bias}, {"attn_bias": bias, "softcap": 1.5}):
        left = attend(arrays, *names, **given)
        right = attend(
            moved, *names, **{k: x[..., order] if isinstance(x, np.ndarray) else x for k, x in given.items()}
        )
        same(left["output"], right["output"])
        same(left["lse"], right["lse"])
        same(left["weights"][..., order, :], right["weights"])


def test_a_mask_is_a_truncation(seed):
    arrays, _ = drawn(seed)
    short = {**arrays, "key": arrays["key"][:, :, :4], "value": arrays["value"][:, :, :4]}
    wanted = attend(short, "output", "weights", "lse")
    hides = {
        "mask": {"mask": np.broadcast_to(np.arange(M) < 4, (N, M))},
        "bias": {"attn_bias": np.broadcast_to(np.where(np.arange(M) < 4, 0.0, -np.inf), (N, M))},
        "lengths": {"kv_lengths": np.array([4, 4])},
        "poisoned lengths": {"kv_lengths": np.array([4, 4])},
    }
    for name, given in hides.items():
        long = dict(arrays)
        if name.startswith("poisoned"):
            for operand in ("key", "value"):
                long[operand] = arrays[operand].copy()
                long[operand][:, :, 4:] = np.nan
        got = attend(long, "output", "weights", "lse", **given)
        same(got["output"], wanted["output"])
        same(got["lse"], wanted["lse"])
        same(got["weights"][..., :4, :], wanted["weights"])
        assert not got["weights"][..., 4:, :].any()


def test_causal_and_window_are_masks(seed):
    arrays, _ = drawn(seed)
    i, j = np.arange(N)[:, None], np.arange(M)[None, :]
    for offset in (-2, 0, 2, 9):
        got = attend(arrays, "output", "lse", is_causal=True, q_offset=offset)
        want = attend(arrays, "output", "lse", mask=j <= i + offset)
        same(got["output"], want["output"])
        same(got["lse"], want["lse"])
        got = attend(arrays, window=(2, 1), q_offset=offset)
        same(got["output"], attend(arrays, mask=(j >= i + offset - 2) & (j <= i + offset + 1))["output"])
        got = attend(arrays, window=(None, 1), q_offset=offset)
        same(got["output"], attend(arrays, mask=j <= i + offset + 1)["output"])


def test_a_constant_added_to_a_row_of_logits_cancels(seed):
    arrays, draws = drawn(seed)
    shift = draws.gauss(N, 1, sigma=20.0)
    same(attend(arrays)["output"], attend(arrays, attn_bias=shift)["output"])
    plain = attend(arrays, "weights", softcap=2.0)["weights"]
    same(plain, attend(arrays, "weights", softcap=2.0, attn_bias=shift)["weights"])


def test_a_split_sequence_gives_the_rows_of_the_whole(seed):
    arrays, _ = drawn(seed)
    whole = attend(arrays, "output", "lse", is_causal=True, q_offset=M - N)
    first = {
        "query": arrays["query"][:, :, :1],
        "key": arrays["key"][:, :, :3],
        "value": arrays["value"][:, :, :3],
    }
    second = {
        "query": arrays["query"][:, :, 1:],
        "key": arrays["key"][:, :, 3:],
        "value": arrays["value"][:, :, 3:],
        "past_key": first["key"],
        "past_value": first["value"],
    }
    names = ("output", "lse")
    top = attend(first, *names, is_causal=True, q_offset=M - N)
    rest = attend(second, *names, "present_key", "present_value", is_causal=True, q_offset=1 + M - N)
    for name in names:
        axis = 2
        same(np.concatenate([top[name], rest[name]], axis=axis), whole[name])
    same(rest["present_key"][..., 0], arrays["key"])
    same(rest["present_value"][..., 0], arrays["value"])
    assert not rest["present_key"][..., 1].any()


def test_the_layers_past_is_what_it_returned(seed):
    arrays, _ = drawn_layer(seed)
    empty = {"past_key": np.zeros((B, H, 0, DK)), "past_value": np.zeros((B, H, 0, DV))}
    whole = layer({**arrays, **empty}, "output", "present_key", "present_value")
    first = {**arrays, **empty, "key": arrays["key"][:, :4], "value": arrays["value"][:, :4]}
    first_present = layer(first, "present_key", "present_value")
    assert not first_present["present_key"][..., 1].any()  # exact in float64, so that it can be handed in
    second = {**arrays, "key": arrays["key"][:, 4:], "value": arrays["value"][:, 4:]}
    second |= {f"past_{name}": first_present[f"present_{name}"][..., 0] for name in ("key", "value")}
    got = layer(second, "output", "present_key", "present_value")
    for name in got:
        same(got[name], whole[name])


def test_a_batch_entry_alone_gives_the_same(seed):
    arrays, draws = drawn(seed)
    mask = draws.mask(B, H, N, M)
    mask[1, 2, 3] = False
    given = {"mask": mask, "kv_lengths": np.array([3, 6]), "q_offset": np.array([1, 2])}
    both = attend(arrays, "output", "lse", is_causal=True, **given)
    for b in range(B):
        one = attend(
            {name: x[b : b + 1] for name, x in arrays.items()},
            "output",
            "lse",
            is_causal=True,
            **{name: x[b : b + 1] for name, x in given.items()},
        )
        none = attend(
            {name: x[b] for name, x in arrays.items()},
            "output",
            "lse",
            is_causal=True,
            mask=mask[b],
            kv_lengths=np.asarray(given["kv_lengths"][b]),
            q_offset=np.asarray(given["q_offset"][b]),
        )
        for name in both:
            same(one[name][0], both[name][b])
            same(none[name][0], both[name][b])  # the oracle flattens no batch axis to one


def test_heads_may_be_reordered_with_all_that_is_theirs(seed):
    arrays, draws = drawn_layer(seed)
    order = [2, 0, 1]
    per_head = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v")
    moved = {name: x[order] if name in per_head else x for name, x in arrays.items()}
    bias, sinks = draws.gauss(B, H, N, M), draws.gauss(H)
    left = layer(arrays, "output", "weights", attn_bias=bias, sinks=sinks)
    right = layer(moved, "output", "weights", attn_bias=bias[:, order], sinks=sinks[order])
    same(left["output"], right["output"])
    same(left["weights"][:, order], right["weights"])


def test_grouped_heads_are_repeated_ones(seed):
    arrays, draws = drawn(seed, kv_heads=2)
    arrays["query"] = draws.gauss(B, 6, N, DK, sigma=1.5)
    repeated = {**arrays, **{name: np.repeat(arrays[name], 3, axis=1) for name in ("key", "value")}}
    tiled = {**arrays, **{name: np.tile(arrays[name], (1, 3, 1, 1)) for name in ("key", "value")}}
    sinks = draws.gauss(6)
    same(attend(arrays, sinks=sinks)["output"], attend(repeated, sinks=sinks)["output"])
    assert not np.array_equal(attend(arrays)["output"], attend(tiled)["output"])


def test_a_layer_of_identities_is_attention(seed):
    arrays, _ = drawn(seed)
    one = {name: x[:, :1] for name, x in arrays.items()}
    flat = {name: x[:, 0] for name, x in one.items()}
    flat |= {
        "w_q": np.eye(DK)[None],
        "w_k": np.eye(DK)[None],
        "w_v": np.eye(DV)[None],
        "w_o": np.eye(DV)[None],
    }
    for given in (
        {},
        {"softcap": 1.5},
        {"scale": -0.5},
        {"sinks": np.array([0.5])},
        {"is_causal": True, "q_offset": 1},
    ):
        left, right = attend(one, "output", "lse", **given), layer(flat, "output", "lse", **given)
        same(left["output"][:, 0], right["output"])
        same(left["lse"], right["lse"])


def test_projections_may_be_folded(seed):
    arrays, draws = drawn_layer(seed)
    shapes = {name: arrays[name].shape for name in ("w_q", "w_k", "w_v", "w_o")}
    small = {name: draws.integers(*shape, low=-3, high=3) / 4 for name, shape in shapes.items()}
    arrays = {name: arrays[name] for name in ("query", "key", "value")} | small
    folded = {
        **arrays,
        "w_q": small["w_q"] @ np.swapaxes(small["w_k"], 1, 2),  # exact: small numbers
        "w_k": np.broadcast_to(np.eye(7), (H, 7, 7)),
        "w_v": small["w_v"] @ small["w_o"],
        "w_o": np.broadcast_to(np.eye(4), (H, 4, 4)),
    }
    same(layer(arrays, scale=0.25)["output"], layer(folded, scale=0.25)["output"])


def test_a_sink_is_a_key_whose_value_is_zero(seed):
    arrays, draws = drawn(seed)
    sinks = draws.gauss(H)
    longer = {
        **arrays,
        "key": np.concatenate([arrays["key"], np.zeros((B, H, 1, DK))], axis=2),
        "value": np.concatenate([arrays["value"], np.zeros((B, H, 1, DV))], axis=2),
    }
    bias = np.zeros((1, H, 1, M + 1))
    bias[0, :, 0, M] = sinks
    left = attend(arrays, "output", "weights", "lse", sinks=sinks)
    right = attend(longer, "output", "weights", "lse", attn_bias=bias)
    same(left["output"], right["output"])
    same(left["lse"], right["lse"])
    same(left["weights"], right["weights"][..., :M, :])
    none = attend(arrays, "output", "lse", sinks=np.full(H, -np.inf))
    for name, plain in attend(arrays, "output", "lse").items():
        same(none[name], plain)


def test_powers_of_two_pass_through(seed):
    arrays, _ = drawn(seed)
    plain = attend(arrays, "output", "weights", "lse")
    louder = attend({**arrays, "value": 8 * arrays["value"]}, "output")
    same(louder["output"], 8 * plain["output"])
    opposite = attend({**arrays, "value": -arrays["value"]}, "output")
    same(opposite["output"], -plain["output"])
    moved = attend(
        {**arrays, "query": 4 * arrays["query"], "key": arrays["key"] / 4}, "output", "weights", "lse"
    )
    for name in plain:
        same(moved[name], plain[name])
    half = attend({**arrays, "query": -2 * arrays["query"]}, scale=-0.25)
    same(half["output"], attend(arrays, scale=0.5)["output"])


def test_equal_keys_average_and_equal_values_stay(seed):
    arrays, draws = drawn(seed)
    flat = {**arrays, "key": np.repeat(arrays["key"][:, :, :1], M, axis=2)}
    weights = attend(flat, "weights")["weights"]
    assert np.all(weights[..., 0] == 1 / M)
    assert np.all(weights[..., 1] == weights[0, 0, 0, 0, 1])
    four = {name: x[:, :, :4] for name, x in flat.items()}
    got = attend(four)["output"]
    mean = four["value"].sum(axis=2, keepdims=True) / 4  # exact: a power of two
    same(got[..., 0], np.broadcast_to(mean, (B, H, N, DV)))
    constant = {**arrays, "value": np.repeat(arrays["value"][:, :, :1], M, axis=2)}
    got = attend(constant, attn_bias=draws.gauss(N, M, sigma=5.0))["output"]
    same(got[..., 0], np.broadcast_to(constant["value"][:, :, :1], (B, H, N, DV)))
    assert not got[..., 1].any()
    single = {**arrays, "key": arrays["key"][:, :, :1], "value": arrays["value"][:, :, :1]}
    same(attend(single)["output"][..., 0], np.broadcast_to(single["value"], (B, H, N, DV)))


def test_a_scale_of_zero_is_a_mean(seed):
    arrays, draws = drawn(seed)
    bias = draws.gauss(N, M)
    zero = {**arrays, "key": np.zeros_like(arrays["key"])}
    same(attend(arrays, scale=0.0, attn_bias=bias)["output"], attend(zero, attn_bias=bias)["output"])


def test_columns_of_the_values_do_not_meet(seed):
    arrays, _ = drawn(seed)
    whole = attend(arrays)["output"]
    for c in range(DV):
        same(attend({**arrays, "value": arrays["value"][..., c : c + 1]})["output"], whole[..., c : c + 1, :])
    poisoned = {**arrays, "value": arrays["value"].copy()}
    poisoned["value"][0, 1, 2, 1] = np.nan
    got = attend(poisoned)["output"]
    touched = np.zeros((B, H, N, DV), bool)
    touched[0, 1, :, 1] = True
    assert np.isnan(got[touched][:, 0]).all()
    same(got[~touched], whole[~touched])
