"""Angles, spans, direct sums and the measures that are built on them."""

import math

import numpy as np
import pytest
from document_layers import attend_heads, draw, stack, tokens

import mha_core

rank = np.linalg.matrix_rank


def cosine(a, b):
    """The documents' measure between projections, with the Frobenius product."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b))


def diversity(matrices):
    h = len(matrices)
    total = sum(1 - abs(cosine(matrices[i], matrices[j])) for i in range(h) for j in range(h) if i != j)
    with np.errstate(invalid="ignore"):
        return np.float64(total) / (h * (h - 1))


def weights_of(query, key):
    value = np.zeros((1, len(key), 1))
    return mha_core.scaled_dot_product_attention(query[None], key[None], value, return_weights=True).weights[
        0
    ]


def test_similarity_is_an_angle_only_at_fixed_lengths():
    query, key = np.array([[1.0]]), np.array([[1.0], [2.0]])  # both keys at the angle zero
    np.testing.assert_allclose(weights_of(query, key), [[0.26894142136999, 0.73105857863000]], rtol=1e-12)
    query, key = tokens(0, 3, 4), tokens(1, 5, 4)
    query /= np.linalg.norm(query, axis=-1, keepdims=True)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    exponentials = np.exp(query @ key.T / 2)  # cosines over the square root of d_k
    np.testing.assert_allclose(
        weights_of(query, key), exponentials / exponentials.sum(-1, keepdims=True), rtol=1e-12
    )
    order = np.argsort(query @ key.T)
    np.testing.assert_array_equal(np.argsort(weights_of(query, key)), order)
    key[order[0, 0]] *= 50  # lengths that differ break the order of the angles
    assert (
        np.argsort(weights_of(query, key)) != np.argsort(query @ key.T / np.linalg.norm(key, axis=-1))
    ).any()


def test_heads_measure_other_angles_unless_one_is_the_other_turned():
    x, y = np.array([1.0, 1]), np.array([1.0, -1])
    first, second = np.array([[1.0], [0]]), np.array([[0.0], [1]])
    assert cosine(x @ first, y @ first) == 1.0
    assert cosine(x @ second, y @ second) == -1.0
    w = draw(0, 1, 2, 2)[0][0]
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    assert abs(x @ w - x @ w @ turn).max() > 0.1
    assert cosine(x @ w @ turn, y @ w @ turn) == pytest.approx(cosine(x @ w, y @ w), rel=1e-12)


def test_spans_are_not_orthogonal_by_themselves():
    assert np.array([1.0, 0]) @ np.array([1.0, 1]) == 1.0  # two heads of width 1 in a model of width 2
    for seed in range(20):
        w_q = draw(seed, 2, 4, 2)[0]
        assert abs(w_q[0].T @ w_q[1]).max() > 0.05


def test_spans_can_be_orthogonal_only_if_they_fit():
    selectors = np.eye(4).reshape(4, 2, 2).swapaxes(0, 1)
    assert (selectors[0].T @ selectors[1] == 0).all()
    angles = np.linspace(0, np.pi, 61)  # three lines in a plane, 3 * 1 > 2: two of them are within 60 degrees
    for a in angles:
        for b in angles:
            lines = np.array([[1, 0], [np.cos(a), np.sin(a)], [np.cos(b), np.sin(b)]])
            assert abs(lines @ lines.T - np.eye(3)).max() >= 0.5 - 1e-12


def test_direct_sum_of_output_spans():
    w_o = draw(0, 2, 4, 2)[3]
    stacked = w_o.reshape(4, 4)
    assert rank(stacked) == 4
    parts = np.linalg.solve(
        stacked.T, np.array([1.0, 2, 3, 4])
    )  # the one way to split a vector among the heads
    np.testing.assert_allclose(parts[:2] @ w_o[0] + parts[2:] @ w_o[1], [1, 2, 3, 4], rtol=1e-10)
    assert rank(np.concatenate([w_o[0], w_o[0]])) == 2  # equal heads: neither all of the space nor direct
    assert rank(draw(0, 3, 4, 2)[3].reshape(6, 4)) == 4 < 6  # too many heads: not direct
    assert rank(draw(0, 2, 5, 2)[3].reshape(4, 5)) == 4 < 5  # too few: not all of the space


def test_head_widths_add_up_only_if_heads_divide_the_width():
    assert 2 * (4 // 2) == 4
    assert 8 * (512 // 8) == 512
    assert 2 * (5 // 2) == 4 != 5


def test_cosine_of_projections_is_not_orthogonality():
    first, second = np.eye(2), np.diag([1.0, -1])
    assert cosine(first, second) == 0.0
    assert rank(np.concatenate([first, second], axis=1)) == 2  # the spans are one and the same plane
    assert cosine(np.eye(4)[:, :2], np.eye(4)[:, 2:]) == 0.0  # the converse is true
    one, other = np.array([[3.0], [4]]), np.array([[4.0], [-3]])
    assert cosine(one, other) == 0.0  # of width 1 the two are the same thing
    assert one.T @ other == 0.0
    assert cosine(one, -2 * one) == -1.0
    assert math.isnan(cosine(one, 0 * one))
    values = [cosine(*draw(seed, 2, 4, 2)[0]) for seed in range(50)]
    assert max(map(abs, values)) <= 1


def test_diversity_calls_equal_heads_diverse():
    x = tokens(0, 4, 2)
    turn = np.array([[0.0, -1], [1, 0]])
    w_q, w_k = stack(np.eye(2), turn), stack(np.eye(2), turn)
    result = attend_heads(x, w_q, w_k, stack(np.eye(2), np.eye(2)))
    np.testing.assert_allclose(result.output[0], result.output[1], rtol=1e-13)
    assert diversity(w_q) == 1.0  # as diverse as can be, and the same head twice
    assert diversity(stack(np.eye(2), 3 * np.eye(2))) == 0.0
    assert math.isnan(diversity(stack(np.eye(2))))  # h = 1 is 0 / 0
    assert all(0 <= diversity(draw(seed, 3, 4, 2)[0]) <= 1 for seed in range(20))


def test_union_of_spans_is_no_space():
    value = np.zeros((2, 2, 1))
    key = np.array([[[0.0], [np.log(3)]], [[np.log(3)], [0.0]]])
    rows = mha_core.scaled_dot_product_attention(np.ones((2, 1, 1)), key, value, return_weights=True).weights[
        :, 0
    ]
    np.testing.assert_allclose(rows, [[0.25, 0.75], [0.75, 0.25]], rtol=1e-14)
    both = rows.sum(0)  # (1, 1), in neither of the two lines
    assert all(rank(np.stack([row, both])) == 2 for row in rows)
    assert rank(np.stack([*rows, both])) == 2  # but in their sum
    assert (
        rank(np.stack([rows[0], rows[0], 3 * rows[0]])) == 1
    )  # one inside the other: then the union is a space
