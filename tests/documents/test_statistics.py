"""Means, variances, correlations and the measures of heads, over finitely many equally likely inputs."""

import math
from itertools import product

import numpy as np
import pytest
from document_layers import attend_heads, draw, layer, stack, tokens
from information import mutual, symbol

ONE = np.ones((1, 1, 1))


def correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    with np.errstate(invalid="ignore"):
        return np.float64((a * b).mean()) / np.sqrt((a * a).mean() * (b * b).mean())


def redundancy(a, b):
    with np.errstate(invalid="ignore"):
        return np.linalg.norm(a @ b.T) / np.float64(np.linalg.norm(a) * np.linalg.norm(b))


def total_variance(samples):
    """The trace of the covariance of the rows."""
    return np.var(np.stack(samples), axis=0).sum()


def test_uncorrelated_heads_may_depend_on_each_other():
    inputs = [np.array([[x, 1.0], [-x, 1], [0, 1]]) for x in (-1.0, 0.0, 1.0)]
    w_q = stack([[1.0], [0]], [[0.0], [1]])  # head 0 asks with x, head 1 with the constant
    w_kv = stack([[1.0], [0]], [[1.0], [0]])
    first, second = np.array([attend_heads(x, w_q, w_kv, w_kv).output[:, 0, 0] for x in inputs]).T
    peak = 2 * math.sinh(1) / (2 * math.cosh(1) + 1)
    np.testing.assert_allclose(first, [-peak, 0, peak], atol=1e-14)
    np.testing.assert_allclose(second, [peak, 0, peak], atol=1e-14)
    assert correlation(first, second) == pytest.approx(0, abs=1e-14)
    told = mutual([symbol(z) for z in first], [symbol(z) for z in second])
    assert told == pytest.approx(0.9182958340544896)  # head 0 tells all that head 1 says
    assert correlation(first, -2 * first) == pytest.approx(-1)
    assert math.isnan(correlation(first, np.ones(3)))  # a constant head has no correlation


def test_expected_norm_of_the_output():
    signs = [
        np.array(s, np.float64).reshape(2, 2) for s in product((-1, 1), repeat=4)
    ]  # 2 tokens, variance 1
    nothing = np.zeros((2, 2, 1))
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    w_v, w_o = turn[None], np.eye(2)[None]

    def mean_norm(inputs, w_q, w_k, w_v, w_o):
        return np.mean([(layer(x, w_q, w_k, w_v, w_o) ** 2).sum(-1) for x in inputs])

    assert mean_norm([x[:1] for x in signs], nothing[:1], nothing[:1], w_v, w_o) == pytest.approx(
        2
    )  # d_model
    assert mean_norm(signs, nothing[:1], nothing[:1], w_v, w_o) == pytest.approx(
        1
    )  # an average of two tokens
    assert mean_norm(signs, nothing[:1], nothing[:1], w_v, 0 * w_o) == 0
    assert mean_norm(
        [x[:1] for x in signs], nothing, nothing, stack(turn, turn), stack(turn, turn)
    ) == pytest.approx(8)
    rows = [np.hstack([x, np.eye(2)]) for x in signs]  # with places, each token can attend to itself alone
    place = np.vstack([np.zeros((2, 2)), 30 * np.eye(2)])[None]
    tall = np.vstack([turn, np.zeros((2, 2))])[None]
    assert mean_norm(rows, place, place, tall, w_o) == pytest.approx(2)


def test_norm_of_the_mean_is_no_importance():
    inputs = [np.array([[-1.0]]), np.array([[1.0]])]
    plus, silent = ONE, 0 * ONE
    head = np.stack([attend_heads(x, ONE, ONE, ONE).output[0] for x in inputs])
    assert np.linalg.norm(head.mean(0)) == 0  # "no importance"
    assert [float(layer(x, ONE, ONE, ONE, plus)[0, 0]) for x in inputs] == [-1, 1]  # and all there is
    constant = np.array([[1.0]])
    assert np.linalg.norm(attend_heads(constant, ONE, ONE, ONE).output[0]) == 1  # "important"
    assert layer(constant, ONE, ONE, ONE, silent)[0, 0] == 0  # and without effect


def test_redundancy_of_heads_ranges_and_fails():
    head = attend_heads(np.eye(2), *[np.eye(2)[None]] * 3).output[0]  # head 1 of the worked example
    assert redundancy(np.eye(2), np.eye(2)) == pytest.approx(1 / math.sqrt(2))  # the same head, of rank 2
    assert 1 / math.sqrt(2) < redundancy(head, head) < 1
    one = np.array([[1.0], [2.0]])
    assert redundancy(one, one) == pytest.approx(1)  # of rank 1
    assert redundancy(np.array([[1.0, 0]]), np.array([[0.0, 1]])) == 0  # one bit told in other coordinates
    assert math.isnan(redundancy(one, 0 * one))
    with pytest.raises(ValueError, match="mismatch"):
        redundancy(np.ones((2, 2)), np.ones((2, 3)))  # heads of unequal width
    pairs = [(tokens(seed, 4, 3), tokens(seed + 50, 4, 3)) for seed in range(50)]
    assert all(0 <= redundancy(a, b) <= 1 for a, b in pairs)
    assert all(redundancy(a, a) >= 1 / math.sqrt(3) for a, _ in pairs)


def test_variance_of_the_output_may_exceed_the_sum():
    inputs = [np.array([[-1.0]]), np.array([[1.0]])]
    heads = [[attend_heads(x, ONE, ONE, ONE).output[0] for x in inputs]] * 2
    assert sum(map(total_variance, heads)) == 2
    twice = np.ones((2, 1, 1))
    assert total_variance([layer(x, twice, twice, twice, twice) for x in inputs]) == 4
    assert total_variance([layer(x, ONE, ONE, ONE, 2 * ONE) for x in inputs]) == 4 > 1  # one head suffices


def test_variance_bound_for_uncorrelated_heads_and_contractions():
    inputs = [np.array([s], np.float64) for s in product((-1, 1), repeat=4)]
    w_v = np.eye(4).reshape(4, 2, 2).swapaxes(0, 1)  # heads that read apart, and so are uncorrelated
    nothing = np.zeros((2, 4, 1))
    heads = np.stack([attend_heads(x, nothing, nothing, w_v).output for x in inputs])
    for seed in range(10):
        w_o = draw(seed, 2, 4, 2)[3]
        w_o /= np.linalg.norm(w_o, 2, axis=(-2, -1), keepdims=True)
        outputs = [layer(x, nothing, nothing, w_v, w_o) for x in inputs]
        assert total_variance(outputs) <= np.var(heads, axis=0).sum() + 1e-12
    joined = [layer(x, nothing, nothing, w_v, np.eye(4).reshape(2, 2, 4)) for x in inputs]
    assert total_variance(joined) == pytest.approx(np.var(heads, axis=0).sum())  # the concatenation: equality
