"""One head against several: which function is which, and at what width."""

import numpy as np
import pytest
from document_layers import attend_heads, draw, layer, stack, tokens

import mha_core
from conformance.judging.judge import judge
from conformance.vectors.load import load_vectors

LN3 = np.log(3.0)
PAIR = np.array([[0.0, 0], [1, 1]])
FIRST, SECOND = np.array([[1.0], [0]]), np.array([[0.0], [1]])
DISAGREEING = (  # two heads of width 1: token 2 gives token 2 the weight 3/4 in one and 1/4 in the other
    stack(FIRST * LN3, -FIRST * LN3),
    stack(FIRST, FIRST),
    stack(FIRST, SECOND),
    stack(FIRST.T, SECOND.T),
)


def test_no_width_makes_one_head_of_two():
    np.testing.assert_allclose(layer(PAIR, *DISAGREEING)[1], [0.75, 0.25], rtol=1e-14)
    for x in np.vstack(
        [np.eye(2), tokens(0, 5, 2)]
    ):  # a token alone: the product of values and output is fixed
        np.testing.assert_allclose(layer(x[None], *DISAGREEING)[0], x, rtol=1e-14)
    for width in (1, 2, 8, 64, 512):  # any single head with that product stays between the two tokens
        w_q, w_k, w_v, _ = draw(width, 1, 2, width, d_v=max(width, 2))
        w_o = np.linalg.pinv(w_v[0])[None]
        np.testing.assert_allclose(layer(np.eye(2)[:1], w_q, w_k, w_v, w_o), np.eye(2)[:1], atol=1e-12)
        first, second = layer(PAIR, w_q, w_k, w_v, w_o)[1]
        assert first == pytest.approx(second, abs=1e-12)
        assert np.hypot(first - 0.75, second - 0.25) >= 0.25 * np.sqrt(2) - 1e-12


def test_one_head_of_64_is_not_4_of_16():
    case = next(case for case in load_vectors().cases if case.id == "example/layer-64-as-4-of-16")
    operands = case.operands("float64")
    assert operands["w_q"].shape == (4, 64, 16)
    output = mha_core.multi_head_attention(**operands)
    assert judge(case, "float64", "eager", {"output": output}).verdict == "pass"
    joined = {"w_o": operands["w_o"].reshape(1, 64, 64), "b_o": operands["b_o"]}
    for name in "qkv":
        joined[f"w_{name}"] = operands[f"w_{name}"].swapaxes(0, 1).reshape(1, 64, 64)
        joined[f"b_{name}"] = operands[f"b_{name}"].reshape(1, 64)
    single = mha_core.multi_head_attention(*(operands[name] for name in ("query", "key", "value")), **joined)
    assert single.shape == output.shape
    assert judge(case, "float64", "eager", {"output": single}).verdict == "fail"


def test_equal_weights_make_one_head():
    x = tokens(0, 4, 6)
    w_q, w_k, w_v, w_o = draw(1, 2, 6, 3)
    shared_q, shared_k = w_q[[0, 0]], w_k[[0, 0]]  # separate values, one distribution
    joined_v, joined_o = np.concatenate(list(w_v), axis=1)[None], w_o.reshape(1, 6, 6)
    single = layer(x, w_q[:1], w_k[:1], joined_v, joined_o)
    np.testing.assert_allclose(layer(x, shared_q, shared_k, w_v, w_o), single, rtol=1e-11, atol=1e-13)
    assert abs(layer(x, w_q, w_k, w_v, w_o) - single).max() > 0.1


def probe_inputs(w_q):
    """For each head a token that its query cannot see, times a large number, and a few differences from it."""
    for head in range(2):
        blind = np.array([-w_q[head, 1, 0], w_q[head, 0, 0]])
        blind /= np.linalg.norm(blind)
        for angle in (-0.5, 0.5, np.pi - 0.5, np.pi + 0.5):
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            yield np.stack([1e4 * blind, 1e4 * blind + turn @ blind])


def test_narrow_heads_are_not_one_wide_head():
    identity = np.eye(2)[None]
    single = (identity, identity, identity, identity)  # logits x_i . x_j, of rank 2
    misses = []
    for seed in range(60):
        w_q, w_k, w_v, w_o = draw(seed, 2, 2, 1, d_v=2)
        w_o[1] = np.linalg.solve(w_v[1], np.eye(2) - w_v[0] @ w_o[0])  # right on every single token
        np.testing.assert_allclose(np.einsum("hij,hjk->ik", w_v, w_o), np.eye(2), atol=1e-8)
        inputs = probe_inputs(w_q)
        misses.append(max(abs(layer(x, w_q, w_k, w_v, w_o)[0] - layer(x, *single)[0]).max() for x in inputs))
    assert min(misses) > 0.1


def test_layer_is_nonlinear_and_its_mixing_linear():
    x = tokens(0, 4, 6)
    weights = draw(1, 2, 6, 3)
    output = layer(x, *weights)
    assert abs(layer(2 * x, *weights) - 2 * output).max() > 0.1
    apart = [layer(x, *(w[i : i + 1] for w in weights)) for i in range(2)]
    np.testing.assert_allclose(sum(apart), output, rtol=1e-11, atol=1e-12)
    w_q, w_k, w_v, w_o = weights
    np.testing.assert_allclose(layer(x, w_q, w_k, 2 * w_v, w_o), 2 * output, rtol=1e-12)


def test_more_heads_are_not_more_depth():
    x, moved = tokens(0, 3, 6), tokens(0, 3, 6)
    moved[2] += 1.0  # a third token changes
    first, second = draw(1, 3, 6, 2), draw(2, 3, 6, 2)

    def odds(tokens):  # how much more query 0 attends key 0 than key 1
        weights = attend_heads(tokens, *second[:3]).weights
        return weights[:, 0, 0] / weights[:, 0, 1]

    np.testing.assert_allclose(odds(x), odds(moved), rtol=1e-12)
    deep, deep_moved = layer(x, *first), layer(moved, *first)
    assert abs(odds(deep) / odds(deep_moved) - 1).min() > 1e-2


def test_one_head_may_follow_two_relations():
    x = np.eye(3)
    near, fitting = np.array([0.0, 20, 0]), np.array([20.0, 0, 0])  # logits of query 2 under each relation
    key = np.stack([near, fitting], axis=1)[None]  # (1, 3 keys, 2)
    query = np.tile([np.sqrt(2), np.sqrt(2)], (1, 3, 1))
    weights = mha_core.scaled_dot_product_attention(query, key, x[None], return_weights=True).weights[0, 2]
    np.testing.assert_allclose(weights, [0.5, 0.5, 0], atol=1e-8)


def test_repeated_heads_are_one_lens():
    x = tokens(0, 4, 6)
    w_q, w_k, w_v, w_o = draw(1, 1, 6, 3)
    four = layer(x, *(np.repeat(w, 4, axis=0) for w in (w_q, w_k, w_v)), np.repeat(w_o, 4, axis=0) / 4)
    np.testing.assert_allclose(four, layer(x, w_q, w_k, w_v, w_o), rtol=1e-11, atol=1e-13)
    different = attend_heads(x, *draw(2, 4, 6, 3)[:3]).weights
    assert min(abs(different[i] - different[j]).max() for i in range(4) for j in range(i)) > 0.1


def test_no_gate_chooses_among_heads():
    x = np.ones((1, 1))
    ones = np.ones((2, 1, 1))
    both = layer(x, ones, ones, ones, ones)
    each = [layer(x, ones[:1], ones[:1], ones[:1], ones[:1])] * 2
    assert both[0, 0] == 2.0  # a gated mixture of two experts that both say 1 says 1
    assert each[0][0, 0] == each[1][0, 0] == 1.0
    x = tokens(0, 5, 4)  # each head counts the same whatever the input is
    w_q, w_k, w_v, w_o = draw(1, 2, 4, 2)
    doubled = w_o * np.array([2.0, 1])[:, None, None]
    first = layer(x, w_q[:1], w_k[:1], w_v[:1], w_o[:1])
    np.testing.assert_allclose(
        layer(x, w_q, w_k, w_v, doubled), layer(x, w_q, w_k, w_v, w_o) + first, atol=1e-12
    )
