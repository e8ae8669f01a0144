import numpy as np
from document_layers import attend_heads, concatenated, draw, layer, tokens

rank = np.linalg.matrix_rank


def one_head(n, d_model, d_k, d_v, seed=1):
    w_q, w_k, w_v, _ = draw(seed, 1, d_model, d_k, d_v)
    return attend_heads(tokens(0, n, d_model), w_q, w_k, w_v)


def test_rank_of_the_weights_bounds_the_output():
    x = tokens(0, 5, 4)
    w_q, w_k, w_v, _ = draw(1, 1, 4, 3)
    uniform = attend_heads(x, 0 * w_q, w_k, w_v)
    assert rank(x @ w_v[0]) == 3
    assert rank(uniform.weights[0]) == rank(uniform.output[0]) == 1
    result = attend_heads(x, w_q, w_k, w_v)
    assert rank(result.output[0]) == min(rank(result.weights[0]), 3) == 3


def test_rank_of_one_head_is_bounded_by_the_value_width():
    assert rank(one_head(5, 4, d_k=2, d_v=2).output[0]) == 2
    assert rank(one_head(1, 4, d_k=2, d_v=2).output[0]) == 1  # no more than tokens either
    assert rank(one_head(5, 4, d_k=3, d_v=2).output[0]) == 2
    assert rank(one_head(2, 2, d_k=1, d_v=2).output[0]) == 2  # above d_k


def test_rank_of_the_concatenation():
    def joined(n, d_k, d_v, heads=2):
        w_q, w_k, w_v, _ = draw(1, heads, 4, d_k, d_v)
        return concatenated(attend_heads(tokens(0, n, 4), w_q, w_k, w_v).output)

    assert rank(joined(6, 2, 2)) == 4  # h * d_k
    assert rank(joined(3, 2, 2)) == 3  # n
    assert rank(joined(4, 1, 2)) == 4  # above h * d_k = 2, for d_v > d_k
    assert rank(joined(9, 4, 4, heads=2)) == 8
    x = tokens(0, 9, 4)
    assert rank(layer(x, *draw(1, 2, 4, 4, d_out=3))) == 3  # d_out


def test_one_full_width_head_has_the_same_bound():
    x = tokens(0, 6, 4)
    single, several = layer(x, *draw(1, 1, 4, 4)), layer(x, *draw(1, 2, 4, 2))
    assert rank(single) == rank(several) == 4
    narrow = layer(x, *draw(1, 1, 4, 2))
    assert rank(narrow) == 2  # against a head of the same width, several do have more


def test_rank_of_the_logits():
    x = tokens(0, 5, 4)
    for d_k in (1, 2, 4):
        w_q, w_k, *_ = draw(1, 1, 4, d_k)
        assert rank((x @ w_q[0]) @ (x @ w_k[0]).T) == d_k
    assert rank(one_head(5, 4, d_k=1, d_v=1).weights[0]) > 1  # the softmax is not bound by it
