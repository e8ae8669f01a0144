"""Attention patterns: which can be drawn, which cannot, and what a sentence asks of its heads."""

import numpy as np
import pytest
from document_layers import attend_heads, draw, layer, stack, tokens

import mha_core

THE, DOG, ATE = range(3)
DRAWN = np.stack([np.eye(3), np.eye(3)[[DOG, THE, DOG]]])


def weights_of(query, key):
    value = np.zeros((*key.shape[:-1], 1))
    return mha_core.scaled_dot_product_attention(query, key, value, return_weights=True).weights


def test_drawn_matrices_of_two_heads():
    corners = 8 * np.array([[np.cos(a), np.sin(a)] for a in 2 * np.pi / 3 * np.arange(3)])  # [token, d_k]
    along = np.array([[1.0, 0], [-1, 0], [1, 0]])
    places = np.array([[-40.0, 0], [40, 0], [0, 0]])
    w_q, w_k = stack(corners, along), stack(corners, places)
    weights = attend_heads(np.eye(3), w_q, w_k, w_q).weights
    assert abs(weights - DRAWN).max() < 1e-9
    assert ((weights > 0) | (DRAWN == 0)).all()
    assert weights[DRAWN == 0].max() < 1e-9


def test_drawn_diagonal_needs_two_dimensions():
    random = np.random.default_rng(0)
    query, key = random.standard_normal((2, 5000, 3, 1)) * 10  # 5000 heads of width 1
    weights = weights_of(query, key)
    middle = np.argsort(key[..., 0])[:, 1]  # the key between the other two is never above both
    assert np.take_along_axis(weights, middle[:, None, None], axis=2).max() <= 0.5
    assert np.diagonal(weights, axis1=1, axis2=2).min(-1).max() <= 0.5
    second = weights_of(np.array([[[1.0], [-1], [1]]]), np.array([[[-40.0], [40], [0]]]))
    assert abs(second[0] - DRAWN[1]).max() < 1e-9  # the other drawing has enough of one


def test_adjacent_tokens_are_not_the_drawn_diagonal():
    previous = np.eye(3, k=-1)
    assert (DRAWN[0].argmax(-1) == np.arange(3)).all()  # labelled positional; each token sees itself alone
    assert (DRAWN[0] * previous).sum() == 0


def test_pattern_needs_distinguishable_tokens():
    x = np.array([[1.0, 0], [1, 0]])
    for seed in range(30):
        weights = draw(seed, 2, 2, 2)
        assert (attend_heads(x, *weights[:3]).weights == 0.5).all()
        first, second = layer(x, *weights)
        np.testing.assert_allclose(first, second, rtol=1e-13)
        assert np.linalg.norm(np.eye(2) - np.stack([first, second])) >= 1 - 1e-12


def test_pattern_is_reached_with_independent_tokens_and_width():
    n = 4
    pattern = np.random.default_rng(0).dirichlet(np.ones(n), n)
    logits = np.log(pattern) - np.log(pattern).mean(-1, keepdims=True)
    left, size, right = np.linalg.svd(logits)
    assert size[-1] < 1e-12  # n - 1 dimensions do, for a row of logits is free up to a constant
    w_q = (left * size * np.sqrt(n - 1))[:, : n - 1][None]
    w_k = right.T[:, : n - 1][None]
    x = np.linalg.qr(tokens(1, n, n))[0]
    identity = np.eye(n)[None]
    heads = (x.T @ w_q, x.T @ w_k, x.T @ identity, identity)
    np.testing.assert_allclose(
        layer(x, *heads), pattern, atol=1e-12
    )  # the output itself, with values of one hot
    np.testing.assert_allclose(attend_heads(x, *heads[:3]).weights[0], pattern, atol=1e-12)


def test_pattern_with_zeros_is_a_limit():
    for size, error in ((10.0, 1e-2), (20.0, 1e-6), (30.0, 1e-12)):
        corners = size**0.5 * 2 * np.eye(3)[None]
        weights = weights_of(corners, corners)[0]
        assert (weights > 0).all()
        assert 0 < abs(weights - np.eye(3)).max() < error


SENTENCE = ["Apple", "released", "a", "new", "phone", "because", "it", "is", "tasty"]
NOUN, EDIBLE, PLACE, ONE = range(4)


def sentence_features():
    x = np.zeros((len(SENTENCE), 4))
    x[[SENTENCE.index("Apple"), SENTENCE.index("phone")], NOUN] = 1
    x[SENTENCE.index("Apple"), EDIBLE] = 1
    x[:, PLACE] = np.arange(len(SENTENCE)) / len(SENTENCE)
    x[:, ONE] = 1
    return x


def test_two_heads_read_it_in_two_ways():
    x = sentence_features()
    ask = np.zeros((4, 1))
    ask[ONE] = 30
    near, fitting = np.zeros((4, 1)), np.zeros((4, 1))
    near[[NOUN, PLACE], 0] = 2, 1
    fitting[EDIBLE] = 1
    it = attend_heads(x, stack(ask, ask), stack(near, fitting), stack(ask, ask)).weights[
        :, SENTENCE.index("it")
    ]
    assert [SENTENCE[j] for j in it.argmax(-1)] == ["phone", "Apple"]
    assert it.max(-1).min() > 0.99
    noun = np.zeros((4, 1))
    noun[NOUN] = 1
    both = attend_heads(x, ask[None], noun[None], ask[None]).weights[0, SENTENCE.index("it")]
    np.testing.assert_allclose(both[[0, 4]], 0.5, atol=1e-9)  # one head can follow both clues, by halves


def test_one_head_cannot_read_it_in_two_ways():
    x = sentence_features()
    for seed in range(100):
        w_q, w_k, w_v, _ = draw(seed, 1, 4, 2)
        it = attend_heads(x, 5 * w_q, 5 * w_k, w_v).weights[0, SENTENCE.index("it")]
        assert min(it[SENTENCE.index("phone")], it[SENTENCE.index("Apple")]) <= 0.5


def test_short_and_long_range_can_be_drawn_from_places():
    n = 6
    query = 10 * np.eye(n)
    keys = [10 * np.roll(np.eye(n), -distance, axis=0).T @ np.eye(n) for distance in (1, 4)]
    weights = attend_heads(
        np.eye(n), stack(query, query), stack(*(k.T for k in keys)), stack(query, query)
    ).weights
    for head, distance in enumerate((1, 4)):
        assert (weights[head].argmax(-1) == (np.arange(n) - distance) % n).all()
        assert weights[head].max(-1).min() > 0.999


def test_diverse_weights_are_not_given():
    x = tokens(0, 4, 6)
    w_q, w_k, w_v, _ = draw(1, 3, 6, 2)
    zero = attend_heads(x, 0 * w_q, w_k, w_v).weights
    assert (zero == 0.25).all()  # computed apart, and all the same
    small = attend_heads(x, 0.01 * w_q, 0.01 * w_k, w_v).weights
    assert abs(small - 0.25).max() < 1e-3
    weights = attend_heads(x, w_q, w_k, w_v).weights
    assert min(abs(weights[i] - weights[j]).max() for i in range(3) for j in range(i)) > 0.1


def test_attention_is_not_of_all_other_tokens_only():
    one = np.ones((1, 1, 1))
    assert (
        attend_heads(np.ones((1, 1)), one, one, one).weights[0, 0, 0] == 1.0
    )  # its own weight, of a lone token
    w_q, w_k, w_v, _ = draw(0, 2, 4, 2)
    assert np.diagonal(attend_heads(tokens(0, 5, 4), w_q, w_k, w_v).weights, axis1=1, axis2=2).min() > 0


def test_order_does_not_matter_without_positions():
    x = tokens(0, 5, 4)
    weights = draw(1, 2, 4, 2)
    order = np.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(layer(x[order], *weights), layer(x, *weights)[order], rtol=1e-11, atol=1e-13)
    causal = layer(x, *weights, is_causal=True)
    assert abs(layer(x[order], *weights, is_causal=True) - causal[order]).max() > 0.1
    placed = x + tokens(2, 5, 4)
    assert abs(layer(x[order] + tokens(2, 5, 4), *weights) - layer(placed, *weights)[order]).max() > 0.1


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_no_head_is_positional_without_positions(heads):
    x = tokens(0, 4, 8)
    x[3] = x[0]  # the same word at both ends
    weights = attend_heads(x, *draw(1, heads, 8, 8 // heads)[:3]).weights
    np.testing.assert_allclose(weights[:, 0], weights[:, 3], rtol=1e-12)  # asks alike
    np.testing.assert_allclose(weights[:, :, 0], weights[:, :, 3], rtol=1e-12)  # and is asked alike
