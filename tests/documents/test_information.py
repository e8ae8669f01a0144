"""Statements about information, on finitely many equally likely inputs, computed exactly.

A token alone gets the weight 1, so that its heads are its projected values.
"""

from itertools import product

import numpy as np
import pytest
from document_layers import attend_heads, concatenated, draw, layer, stack
from information import entropy, mutual, symbol

BITS = [np.array([bits], np.float64) for bits in product((0, 1), repeat=2)]  # a token of two features
FIRST, SECOND = np.array([[1.0], [0]]), np.array([[0.0], [1]])
ANY = np.zeros((2, 2, 1))


def outputs_of(inputs, w_q, w_k, w_v):
    """The outputs (H, n, d_v) for each input."""
    return [attend_heads(x, w_q, w_k, w_v).output for x in inputs]


def heads_information(w_v):
    """I(X; head_i) for each head, and I(X; all heads), for a token of two random bits."""
    outputs = outputs_of(BITS, ANY, ANY, w_v)
    xs = [symbol(x) for x in BITS]
    each = [mutual(xs, [symbol(z[i]) for z in outputs]) for i in range(len(w_v))]
    return each, mutual(xs, [symbol(z) for z in outputs])


def test_concatenation_tells_at_least_what_each_head_tells():
    inputs = [np.array(bits, np.float64).reshape(2, 2) for bits in product((0, 1), repeat=4)]
    xs = [symbol(x) for x in inputs]
    for seed in range(10):
        w_q, w_k, w_v, w_o = draw(seed, 2, 2, 1)
        w_v = np.round(w_v)  # so that heads do lose something
        outputs = outputs_of(inputs, w_q, w_k, w_v)
        each = max(mutual(xs, [symbol(z[i]) for z in outputs]) for i in range(2))
        joined = mutual(xs, [symbol(concatenated(z)) for z in outputs])
        assert joined >= each - 1e-12
        assert np.linalg.matrix_rank(w_o.reshape(2, 2)) == 2  # nothing is lost behind the concatenation
        after = mutual(xs, [symbol(layer(x, w_q, w_k, w_v, w_o)) for x in inputs])
        assert after == pytest.approx(joined, abs=1e-12)


def test_output_projection_may_lose_it_all():
    w_v, w_o = stack(FIRST, FIRST), stack([[1.0]], [[-1.0]])
    xs = [symbol(x) for x in BITS]
    each, joined = heads_information(w_v)
    assert each == [1.0, 1.0]
    assert joined == 1.0
    assert mutual(xs, [symbol(layer(x, ANY, ANY, w_v, w_o)) for x in BITS]) == 0.0


def test_capacities_add_only_for_heads_that_read_apart():
    each, joined = heads_information(stack(FIRST, SECOND))
    assert joined == sum(each) == 2.0
    each, joined = heads_information(stack(FIRST, FIRST))
    assert joined == 1.0  # of one bit, told twice
    assert sum(each) == 2.0


def conditional_multi_information(xs, parts):
    """sum_i H(head_i | X) - H(heads | X)."""
    given = [entropy(list(zip(xs, part, strict=True))) - entropy(xs) for part in parts]
    together = entropy(list(zip(xs, *parts, strict=True))) - entropy(xs)
    return sum(given) - together


def test_information_identity_subtracts_the_wrong_term():
    xs = [symbol(x) for x in BITS]
    for w_v, holds in ((stack(FIRST, SECOND), True), (stack(FIRST, FIRST), False)):
        outputs = outputs_of(BITS, ANY, ANY, w_v)
        parts = [[symbol(z[i]) for z in outputs] for i in range(2)]
        each, joined = heads_information(w_v)
        conditional = conditional_multi_information(xs, parts)
        assert conditional == 0.0  # heads are functions of the input
        assert (joined == sum(each) - conditional) is holds
        shared = sum(map(entropy, parts)) - entropy(list(zip(*parts, strict=True)))
        assert joined == sum(each) - shared + conditional  # what does hold, always
