"""What taking a head away, breaking one and adding more of them does."""

import numpy as np
import pytest
from document_layers import attend_heads, concatenated, draw, layer, tokens


def without(weights, i):
    return tuple(np.delete(w, i, axis=0) for w in weights)


def test_silent_and_repeated_heads_can_be_pruned_exactly():
    x = tokens(0, 4, 6)
    w_q, w_k, w_v, w_o = draw(1, 3, 6, 2)
    silent = w_o.copy()
    silent[1] = 0
    weights = (w_q, w_k, w_v, silent)
    np.testing.assert_allclose(layer(x, *without(weights, 1)), layer(x, *weights), rtol=1e-13)
    repeated = tuple(np.stack([w[0], w[0], w[2]]) for w in (w_q, w_k, w_v))
    merged = (*without(repeated, 1), np.stack([w_o[0] + w_o[1], w_o[2]]))
    np.testing.assert_allclose(layer(x, *merged), layer(x, *repeated, w_o), rtol=1e-11, atol=1e-13)


def test_heads_that_speak_are_missed():
    x = tokens(0, 4, 6)
    weights = draw(1, 3, 6, 2)
    output = layer(x, *weights)
    for i in range(3):
        lost = output - layer(x, *without(weights, i))
        head = attend_heads(x, *(w[i : i + 1] for w in weights[:3])).output[0]
        np.testing.assert_allclose(lost, head @ weights[3][i], rtol=1e-10, atol=1e-12)
        assert abs(lost).max() > 0.1


def test_redundancy_is_neither_absent_nor_built_in():
    x = tokens(0, 4, 2)
    w_q, w_k, w_v, w_o = draw(1, 1, 2, 2)
    w_q[0, :, 1] = 0  # a single head of width 2, half of whose logits are idle
    narrow = layer(x, w_q[..., :1], w_k[..., :1], w_v, w_o, scale=2**-0.5)
    np.testing.assert_allclose(narrow, layer(x, w_q, w_k, w_v, w_o), rtol=1e-13)
    identity = np.eye(2)
    several = draw(4, 2, 2, 1)[:3]  # two heads, each alone in its half of the output
    w_o = identity.reshape(2, 1, 2)
    output = layer(x, *several, w_o)
    for i in range(2):
        assert (layer(x, *without((*several, w_o), i))[:, i] == 0).all()
        assert abs(output[:, i]).max() > 0.1


def test_a_broken_head_is_not_outvoted():
    x = tokens(0, 4, 6)
    w_q, w_k, w_v, w_o = draw(1, 3, 6, 2)
    w_q, w_k, w_v, w_o = (np.repeat(w[:1], 3, axis=0) for w in (w_q, w_k, w_v, w_o / 3))  # three equal voters
    right = layer(x, w_q, w_k, w_v, w_o)
    broken = w_v.copy()
    broken[1] += 100
    error = layer(x, w_q, w_k, broken, w_o) - right
    wrong = attend_heads(x, w_q, w_k, broken).output
    np.testing.assert_allclose(error, (wrong[1] - wrong[0]) @ w_o[1], rtol=1e-9)  # its share in full
    assert abs(error).max() > 10
    voted = 3 * (np.median(wrong, axis=0) @ w_o[0])
    np.testing.assert_allclose(voted, right, rtol=1e-9, atol=1e-12)  # a vote would have been right
    broken[1, 0, 0] = np.nan
    assert np.isnan(layer(x, w_q, w_k, broken, w_o)).all()


def test_heads_that_outgrow_the_model_are_partly_unheard():
    for heads, unheard in ((2, 0), (3, 2), (5, 6)):
        w_o = draw(1, heads, 4, 2)[3].reshape(heads * 2, 4)
        assert heads * 2 - np.linalg.matrix_rank(w_o) == unheard
    w_q, w_k, w_v, w_o = draw(1, 3, 4, 2)
    x = tokens(0, 5, 4)
    z = concatenated(attend_heads(x, w_q, w_k, w_v).output)
    kernel = np.linalg.svd(w_o.reshape(6, 4).T)[2][-1]
    np.testing.assert_allclose(
        (z + kernel) @ w_o.reshape(6, 4), layer(x, w_q, w_k, w_v, w_o), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(("heads", "possible"), [(1, True), (3, True), (6, False)])
def test_more_heads_in_the_same_width_are_poorer_each(heads, possible):
    d_k = 6 // heads
    random = np.random.default_rng(0)
    best = 0.0
    for _ in range(200):  # can a head let each of three tokens see itself?
        corners = random.standard_normal((heads, 3, d_k))
        corners *= 10 / np.linalg.norm(corners, axis=-1, keepdims=True)
        weights = attend_heads(np.eye(3), corners, corners, corners).weights
        best = max(best, np.diagonal(weights, axis1=1, axis2=2).min(-1).max())
    assert (best > 0.99) == possible
    assert possible or best <= 0.5
