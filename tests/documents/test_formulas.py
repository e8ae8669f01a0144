import math

import numpy as np
import pytest
from document_layers import attend_heads, concatenated, draw, layer, stack, tokens

import mha_core


def test_single_head_formula():
    query, key, value = tokens(0, 3, 2), tokens(1, 4, 2), tokens(2, 4, 5)
    expected = np.zeros((3, 5))
    for i in range(3):
        terms = [math.exp(sum(query[i] * key[j]) / math.sqrt(2)) for j in range(4)]
        for j in range(4):
            expected[i] += terms[j] / sum(terms) * value[j]
    output = mha_core.scaled_dot_product_attention(query[None], key[None], value[None])
    np.testing.assert_allclose(output[0], expected, rtol=1e-13)
    unscaled = mha_core.scaled_dot_product_attention(query[None], key[None], value[None], scale=1.0)
    assert abs(unscaled[0] - expected).max() > 1e-2


def test_one_head_has_one_bilinear_form():
    x = tokens(0, 4, 3)
    w_q, w_k, w_v, _ = draw(1, 1, 3, 2)
    form = w_q[0] @ w_k[0].T / math.sqrt(2)  # all that the weights know of the two projections
    exponentials = np.exp(x @ form @ x.T)
    weights = attend_heads(x, w_q, w_k, w_v).weights[0]
    np.testing.assert_allclose(weights, exponentials / exponentials.sum(-1, keepdims=True), rtol=1e-12)
    assert np.linalg.matrix_rank(form) == 2
    assert abs(weights[0] - weights[1]).max() > 1e-2  # a distribution for each query, not one for the head
    one = np.array([[1.0, 0], [0, 1]])
    similarity = one @ np.array([[-1.0, 2], [0, 1]]) @ one.T  # a form that no metric has
    assert similarity[0, 1] != similarity[1, 0]
    assert similarity[0, 0] < similarity[0, 1]


def test_multi_head_formula():
    x, source = tokens(0, 3, 4), tokens(1, 5, 4)
    w_q, w_k, w_v, w_o = draw(2, 3, 4, 2, d_v=5)
    outputs = []
    for i in range(3):
        logits = (x @ w_q[i]) @ (source @ w_k[i]).T / math.sqrt(2)
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        outputs.append(weights @ (source @ w_v[i]))
    expected = concatenated(outputs) @ w_o.reshape(15, 4)
    np.testing.assert_allclose(layer(x, w_q, w_k, w_v, w_o, source), expected, rtol=1e-12, atol=1e-14)


def test_shapes_of_projections_and_heads():
    n, m, d_model, heads, d_k, d_v = 3, 5, 8, 2, 3, 7
    x, source = tokens(0, n, d_model), tokens(1, m, d_model)
    w_q, w_k, w_v, w_o = draw(2, heads, d_model, d_k, d_v)
    assert w_q[0].shape == w_k[0].shape == (d_model, d_k)
    assert w_v[0].shape == (d_model, d_v)
    assert w_o.reshape(heads * d_v, -1).shape == (heads * d_v, d_model)
    assert (x @ w_q[0]).shape == (n, d_k)
    assert (source @ w_k[0]).shape == (m, d_k)
    assert (source @ w_v[0]).shape == (m, d_v)
    result = attend_heads(x, w_q, w_k, w_v, source)
    assert result.weights.shape == (heads, n, m)
    assert result.output.shape == (heads, n, d_v)
    assert layer(x, w_q, w_k, w_v, w_o, source).shape == (n, d_model)


def test_output_width_does_not_depend_on_the_heads():
    x = tokens(0, 3, 6)
    for heads, d_k in ((1, 6), (2, 3), (3, 2), (5, 7)):
        assert layer(x, *draw(1, heads, 6, d_k)).shape == (3, 6)


def test_concatenation_keeps_the_width_only_if_the_heads_add_up():
    for heads, d_v, kept in ((4, 2, True), (3, 2, False), (4, 3, False)):
        x = tokens(0, 3, 8)
        w_q, w_k, w_v, _ = draw(1, heads, 8, 2, d_v)
        assert (concatenated(attend_heads(x, w_q, w_k, w_v).output).shape == x.shape) is kept
    x = tokens(0, 2, 256)
    w_q, w_k, w_v, _ = draw(1, 4, 256, 64)
    assert concatenated(attend_heads(x, w_q, w_k, w_v).output).shape == (2, 256)


def test_head_width_by_division():
    assert 4 // 2 == 2
    assert divmod(512, 8) == (64, 0)
    assert divmod(256, 4) == (64, 0)
    assert divmod(5, 2) == (2, 1)  # two heads of 2 leave one feature over
    x = tokens(0, 3, 5)
    assert layer(x, *draw(1, 2, 5, 3, d_v=4)).shape == (3, 5)  # any other width is as legal


def test_projections_are_linear_without_bias():
    x, y = tokens(0, 3, 4), tokens(1, 3, 4)
    w = draw(2, 1, 4, 2)[0][0]
    np.testing.assert_allclose((2 * x - y) @ w, 2 * (x @ w) - y @ w, atol=1e-13)
    bias = np.array([1.0, -1.0])
    assert abs(((2 * x) @ w + bias) - 2 * (x @ w + bias)).max() == pytest.approx(1.0)


def test_different_projections_may_be_the_same_similarity():
    x = tokens(0, 4, 3)
    w_q, w_k, w_v, _ = draw(1, 1, 3, 2)
    change = np.array([[2.0, 1], [0, 1]])  # another basis of the same two-dimensional space
    w_q2, w_k2 = w_q @ change, w_k @ np.linalg.inv(change).T
    assert abs(w_q2 - w_q).max() > 0.1
    weights = attend_heads(x, w_q, w_k, w_v).weights
    np.testing.assert_allclose(attend_heads(x, w_q2, w_k2, w_v).weights, weights, rtol=1e-11)
    other = attend_heads(x, *draw(2, 1, 3, 2)[:2], w_v).weights
    assert abs(other - weights).max() > 0.1


def test_subspaces_hold_the_input_only_if_their_stack_has_full_rank():
    x = tokens(0, 5, 4)
    w_q = draw(1, 2, 4, 2)[0]
    stacked = np.concatenate(list(w_q), axis=1)  # (d_model, h * d_k)
    np.testing.assert_allclose((x @ stacked) @ np.linalg.inv(stacked), x, atol=1e-10)
    twice = np.concatenate([w_q[0], w_q[0]], axis=1)
    unseen = np.linalg.svd(twice.T)[2][-1]  # a change of the input that neither head sees
    assert np.linalg.matrix_rank(twice) == 2
    np.testing.assert_allclose((x + unseen) @ twice, x @ twice, atol=1e-13)


def test_rows_are_weighted_averages_unless_there_is_a_sink():
    x = tokens(0, 4, 3)
    w_q, w_k, w_v, _ = draw(1, 2, 3, 2)
    result = attend_heads(x, w_q, w_k, w_v)
    values = x @ w_v
    assert (result.weights > 0).all()
    np.testing.assert_allclose(result.weights.sum(-1), 1, rtol=1e-14)
    assert (result.output <= values.max(-2, keepdims=True)).all()
    assert (result.output >= values.min(-2, keepdims=True)).all()
    sunk = mha_core.scaled_dot_product_attention(
        x @ w_q, x @ w_k, values, sinks=np.zeros(2), return_weights=True
    )
    assert (sunk.weights.sum(-1) < 1).all()


def test_each_head_attends_on_its_own():
    x = tokens(0, 4, 3)
    first, second = draw(1, 3, 3, 2), draw(2, 3, 3, 2)
    mixed = [
        np.concatenate([a[:1], b[1:]]) for a, b in zip(first, second, strict=True)
    ]  # head 0 of the first
    before, after = attend_heads(x, *first[:3]), attend_heads(x, *mixed[:3])
    np.testing.assert_array_equal(before.weights[0], after.weights[0])
    np.testing.assert_array_equal(before.output[0], after.output[0])
    assert abs(before.weights[1:] - after.weights[1:]).max() > 0.1
    alone = [attend_heads(x, *(w[i : i + 1] for w in first[:3])).output[0] for i in (2, 0, 1)]
    np.testing.assert_allclose(np.stack(alone), before.output[[2, 0, 1]], rtol=1e-13)  # in any order


def test_softmaxes_differ_only_if_logits_differ_by_more_than_a_row_constant():
    x = tokens(0, 4, 3)
    w_q, w_k, w_v, _ = draw(1, 2, 3, 2)
    weights = attend_heads(x, w_q, w_k, w_v).weights
    assert abs(weights[0] - weights[1]).max() > 0.1
    query, key = x @ w_q[:1], x @ w_k[:1]
    moved = mha_core.scaled_dot_product_attention(
        np.concatenate([query, query]),
        np.concatenate([key, key + np.array([1.0, -2])]),  # moves each row of logits by one number
        np.concatenate([x, x]).reshape(2, 4, 3),
        return_weights=True,
    ).weights
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-12)


def test_column_convention_is_the_transpose():
    x = tokens(0, 3, 4)
    w_q, w_k, w_v, w_o = draw(1, 2, 4, 2, d_v=3)
    w_o = w_o.reshape(6, 4)
    columns = concatenated(attend_heads(x, w_q, w_k, w_v).output).T  # a token is a column
    np.testing.assert_allclose((w_o.T @ columns).T, layer(x, w_q, w_k, w_v, w_o.reshape(2, 3, 4)), atol=1e-12)
    with pytest.raises(ValueError, match="mismatch"):
        w_o @ columns


def test_identity_output_projection_is_no_projection():
    x = tokens(0, 3, 4)
    w_q, w_k, w_v, w_o = draw(1, 2, 4, 2)
    z = concatenated(attend_heads(x, w_q, w_k, w_v).output)
    np.testing.assert_allclose(layer(x, w_q, w_k, w_v, np.eye(4).reshape(2, 2, 4)), z, atol=1e-14)
    other = w_v.copy()
    other[1] += 1
    for projection, first_moves in ((np.eye(4).reshape(2, 2, 4), False), (w_o, True)):
        moved = layer(x, w_q, w_k, other, projection) - layer(x, w_q, w_k, w_v, projection)
        assert bool(abs(moved[:, :2]).max() > 1e-3) is first_moves  # unmixed, block 0 belongs to head 0


def test_split_after_projecting_is_the_stacked_form():
    x = tokens(0, 3, 4)
    w_q = draw(1, 2, 4, 2)[0]
    fused = np.concatenate(list(w_q), axis=1)  # (d_model, h * d_k), heads side by side
    projected = x @ fused
    np.testing.assert_allclose(projected.reshape(3, 2, 2).swapaxes(0, 1), x @ w_q, atol=1e-13)
    interleaved = projected.reshape(3, 2, 2).transpose(2, 0, 1)  # head index fastest
    assert abs(interleaved - x @ w_q).max() > 0.1
    halves = x.reshape(3, 2, 2).swapaxes(0, 1)  # the input split before it is projected
    generic = halves @ w_q[:, :2]
    assert abs(generic - x @ w_q).max() > 0.1
    selectors = stack(np.eye(4)[:, :2], np.eye(4)[:, 2:])
    np.testing.assert_array_equal(halves, x @ selectors)


def test_attention_distribution_of_a_head():
    x, source = tokens(0, 3, 4), tokens(1, 5, 4)
    w_q, w_k, w_v, _ = draw(2, 2, 4, 2)
    weights = attend_heads(x, w_q, w_k, w_v, source).weights
    for i in range(2):
        logits = x @ w_q[i] @ (source @ w_k[i]).T / math.sqrt(2)
        expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)  # over the keys
        np.testing.assert_allclose(weights[i], expected, rtol=1e-12)
        over_queries = np.exp(logits) / np.exp(logits).sum(axis=0)
        assert abs(weights[i] - over_queries).max() > 0.1
