"""Gradients by central differences, descent and the shape of the loss near a minimum."""

import math

import numpy as np
import pytest
from document_layers import attend_heads, draw, layer, tokens

import mha_core


def gradient(f, x, step=1e-5):
    """Central differences of a function of an array, output axes first."""
    columns = []
    for flat in range(x.size):
        up, down = x.copy(), x.copy()
        up.flat[flat] += step
        down.flat[flat] -= step
        columns.append((np.asarray(f(up)) - np.asarray(f(down))) / (2 * step))
    return np.stack(columns, axis=-1).reshape(*columns[0].shape, *x.shape)


def replaced(w, i, new):
    return np.stack([new if head == i else matrix for head, matrix in enumerate(w)])


def test_chain_rule_through_one_head():
    x, target = tokens(0, 3, 4), tokens(1, 3, 4)
    w_q, w_k, w_v, w_o = draw(2, 2, 4, 2)

    def loss(w_q):
        return 0.5 * ((layer(x, w_q, w_k, w_v, w_o) - target) ** 2).sum()

    by_head = np.einsum("nd,hvd->hnv", layer(x, w_q, w_k, w_v, w_o) - target, w_o)  # dL/dhead_i
    for i in range(2):
        jacobian = gradient(lambda w, i=i: attend_heads(x, replaced(w_q, i, w), w_k, w_v).output[i], w_q[i])
        through = np.einsum("nv,nvdk->dk", by_head[i], jacobian)
        direct = gradient(lambda w, i=i: loss(replaced(w_q, i, w)), w_q[i])
        np.testing.assert_allclose(through, direct, atol=1e-7)
    tied = gradient(lambda w: loss(np.stack([w, w])), w_q[0])  # one matrix in both heads
    w_q = np.stack([w_q[0], w_q[0]])
    by_head = np.einsum("nd,hvd->hnv", layer(x, w_q, w_k, w_v, w_o) - target, w_o)
    jacobian = gradient(lambda w: attend_heads(x, np.stack([w, w]), w_k, w_v).output, w_q[0])
    paths = np.einsum("hnv,hnvdk->hdk", by_head, jacobian)
    np.testing.assert_allclose(paths.sum(0), tied, atol=1e-7)
    assert abs(paths[0] - tied).max() > 0.1  # the one factor of one head is not enough


@pytest.mark.parametrize("heads", [1, 3])
def test_gradient_takes_three_paths_a_head(heads):
    x = tokens(0, 3, 4)
    w_q, w_k, w_v, w_o = draw(1, heads, 4, 2)

    def loss(query, key, value, i):
        one = [w[i : i + 1] for w in (w_q, w_k, w_v, w_o)]
        names = dict(zip(("w_q", "w_k", "w_v", "w_o"), one, strict=True))
        return (mha_core.multi_head_attention(query, key, value, **names) * x[::-1]).sum()

    paths = []
    for i in range(heads):
        paths.append(gradient(lambda t, i=i: loss(t, x, x, i), x))
        paths.append(gradient(lambda t, i=i: loss(x, t, x, i), x))
        paths.append(gradient(lambda t, i=i: loss(x, x, t, i), x))
    assert min(abs(path).max() for path in paths) > 1e-2
    whole = gradient(lambda t: (layer(t, w_q, w_k, w_v, w_o) * x[::-1]).sum(), x)
    np.testing.assert_allclose(sum(paths), whole, atol=1e-7)


def test_descent_step():
    x, target = tokens(0, 3, 4), tokens(1, 3, 4)
    w_q, w_k, w_v, w_o = draw(2, 2, 4, 2)

    def loss(w_q):
        return 0.5 * ((layer(x, w_q, w_k, w_v, w_o) - target) ** 2).sum()

    slope = gradient(loss, w_q)
    small = 1e-4
    gained = loss(w_q) - loss(w_q - small * slope)
    assert gained == pytest.approx(small * (slope**2).sum(), rel=0.05)
    momentum, square = 0.1 * slope / (1 - 0.9), 0.001 * slope**2 / (1 - 0.999)  # Adam's first step
    adam = -small * momentum / (np.sqrt(square) + 1e-12)
    np.testing.assert_allclose(adam, -small * np.sign(slope), rtol=1e-3)
    assert abs(adam + small * slope).max() > small / 2


PAIR = np.array([[1.0], [-1.0]])


def pair_output(w):
    """Token 1's output for the tokens 1 and -1: w_v * tanh(w_q * w_k)."""
    w_q, w_k, w_v = (np.reshape(part, (1, 1, 1)) for part in w)
    return layer(PAIR, w_q, w_k, w_v, np.ones((1, 1, 1)))[0, 0]


def hessian(f, w):
    return gradient(lambda v: gradient(f, v, 1e-4), w, 1e-4)


def test_hessian_is_positive_semidefinite_at_a_minimum_but_not_only_there():
    assert pair_output([0.5, 0.8, 2.0]) == pytest.approx(2 * math.tanh(0.4))
    root = math.sqrt(math.atanh(0.5))
    minimum = np.array([root, root, 1.0])
    curvatures = np.linalg.eigvalsh(hessian(lambda w: (pair_output(w) - 0.5) ** 2, minimum))
    assert curvatures.min() > -1e-5
    assert curvatures.max() > 1
    origin = np.zeros(3)  # slope and curvature vanish, and the loss falls all the same
    assert abs(gradient(pair_output, origin)).max() == 0
    assert np.linalg.eigvalsh(hessian(pair_output, origin)).min() >= -1e-6
    assert pair_output([0.1, 0.1, -0.1]) < pair_output(origin) == 0
    saddle = np.array([0.0, 0.0, 1.0])  # a stationary point that is no minimum, with curvatures of both signs
    assert abs(gradient(pair_output, saddle)).max() < 1e-9
    np.testing.assert_allclose(np.linalg.eigvalsh(hessian(pair_output, saddle)), [-1, 0, 1], atol=1e-5)


def descend(rate, steps):
    """Squared slopes and losses of (w_v w_o - 1)^2 / 2 along descent from (3, 3), a token alone."""
    w = np.array([3.0, 3.0])
    slopes, losses = [], []
    for _ in range(steps):
        miss = w[0] * w[1] - 1
        slope = miss * w[::-1]
        slopes.append(float(slope @ slope))
        losses.append(0.5 * float(miss) ** 2)
        w = w - rate * slope
    return np.array(slopes), np.array(losses)


def test_descent_rate_needs_a_small_step():
    one = np.ones((1, 1, 1))
    assert layer(np.ones((1, 1)), one, one, 3 * one, 3 * one)[0, 0] == 9  # w_v * w_o
    rate = 0.02
    slopes, losses = descend(rate, 400)
    steps = np.arange(1, 401)
    average = np.cumsum(slopes) / steps
    assert (average <= 2 * losses[0] / (rate * steps)).all()  # C / t, and so C / sqrt(t)
    assert (average <= 2 * losses[0] / (rate * np.sqrt(steps))).all()
    wild, _ = descend(1.0, 4)
    np.testing.assert_allclose(wild[:2], [1152.0, 440.0**2 * 2 * 21**2])  # the same start, a step of 1
    assert (np.diff(wild) > 0).all()
