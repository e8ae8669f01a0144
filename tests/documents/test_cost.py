"""Multiplications, exponentials, parameters and memory, counted on a layer that is really computed."""

import math

import numpy as np
import pytest
from document_layers import attend_heads, draw, layer, tokens


class Counted:
    """A number that counts the multiplications and exponentials it takes part in."""

    multiplications = 0
    exponentials = 0

    def __init__(self, number):
        self.number = float(number)

    def __mul__(self, other):
        Counted.multiplications += 1
        return Counted(self.number * other.number)

    def __add__(self, other):
        return Counted(self.number + other.number)

    def exp(self):
        Counted.exponentials += 1
        return Counted(math.exp(self.number))

    def divided(self, divisor):
        return Counted(self.number / divisor)


counted = np.vectorize(Counted, otypes=[object])
numbers = np.vectorize(lambda c: c.number, otypes=[float])


def count(x, source, w_q, w_k, w_v, w_o):
    """The layer's output with the multiplications and exponentials that it took."""
    Counted.multiplications = Counted.exponentials = 0
    x, source, *weights = map(counted, (x, source, w_q, w_k, w_v, w_o))
    total = None
    for q, k, v, o in zip(*weights, strict=True):
        logits = (x @ q) @ (source @ k).T
        exponentials = np.exp(
            np.vectorize(lambda c, s=q.shape[1] ** 0.5: c.divided(s), otypes=[object])(logits)
        )
        sums = numbers(exponentials).sum(-1)
        rows = [[c.divided(s) for c in row] for row, s in zip(exponentials, sums, strict=True)]
        head = np.array(rows, dtype=object) @ (source @ v) @ o
        total = head if total is None else total + head
    return numbers(total), Counted.multiplications, Counted.exponentials


def products(n, m, d_q, d_kv, d_k, d_v, d_out, heads=1):
    """The corrected formula: projections in, logits, weighted means, projection out."""
    return heads * (n * d_q * d_k + m * d_kv * (d_k + d_v) + n * m * (d_k + d_v) + n * d_v * d_out)


@pytest.mark.parametrize(
    ("heads", "n", "m", "d_k", "d_v"), [(1, 3, 3, 4, 4), (2, 3, 5, 2, 2), (2, 2, 4, 3, 1)]
)
def test_multiplications_of_a_layer(heads, n, m, d_k, d_v):
    x, source, weights = tokens(0, n, 4), tokens(1, m, 4), draw(2, heads, 4, d_k, d_v)
    output, multiplications, exponentials = count(x, source, *weights)
    np.testing.assert_allclose(output, layer(x, *weights, source), rtol=1e-11, atol=1e-12)
    assert multiplications == products(n, m, 4, 4, d_k, d_v, 4, heads)
    assert exponentials == heads * n * m


def test_heads_cost_what_one_wide_head_costs_but_for_exponentials():
    x = tokens(0, 3, 4)
    _, single, single_exponentials = count(x, x, *draw(1, 1, 4, 4))
    for heads in (2, 4):
        _, several, exponentials = count(x, x, *draw(1, heads, 4, 4 // heads))
        assert several == single == 4 * 3 * 16 + 2 * 9 * 4 == 264
        assert exponentials == heads * single_exponentials
    _, wider, _ = count(x, x, *draw(1, 2, 4, 4))  # heads of full width each
    assert wider == 2 * single


def test_documented_complexity_is_no_bound():
    def documented(n, m, d_k):
        return n * n * d_k + n * m * d_k

    for d_model in (
        2,
        4,
        8,
    ):  # one query, one key, d_k = 1: the projections grow without limit, the formula not
        _, multiplications, _ = count(tokens(0, 1, d_model), tokens(1, 1, d_model), *draw(2, 1, d_model, 1))
        assert multiplications == 4 * d_model + 2
        assert documented(1, 1, 1) == 2
    for n in (10, 100, 1000):  # and many queries of one key: n^2 is not needed
        assert documented(n, 1, 1) > n * products(n, 1, 0, 0, 1, 1, 0) / 2
    _, small, _ = count(tokens(0, 4, 2), tokens(1, 1, 2), *draw(2, 1, 2, 1))
    _, twice, _ = count(tokens(0, 8, 2), tokens(1, 1, 2), *draw(2, 1, 2, 1))
    assert twice - small == 4 * (2 + 2 + 2)  # linear in n
    for n in (1, 3, 9):  # with the projections left out and m = n, d_v = d_k it is the count
        assert documented(n, n, 2) == products(n, n, 0, 0, 2, 2, 0)


def test_parameters():
    for d_model, heads in ((4, 2), (512, 8), (512, 1)):
        d_k = d_model // heads
        sizes = [heads * d_model * d_k] * 3 + [heads * d_k * d_model]
        assert sum(sizes) == 4 * d_model**2
    assert sum(w.size for w in draw(0, 2, 4, 2)) == sum(w.size for w in draw(0, 1, 4, 4)) == 64
    biases = 3 * 2 * 2 + 4
    assert biases == 4 * 4  # four more rows of d_model where each projection has a bias
    assert sum(w.size for w in draw(0, 2, 4, 4)) == 128  # other head widths, another number
    assert sum(w.size for w in draw(0, 2, 5, 2)) == 80 != 4 * 5**2


def test_memory():
    def documented(h, n, m, d_k):
        return h * (3 * n * d_k + m * d_k + n * m)

    def held(h, n, m, d_k, d_v):
        x, source = tokens(0, n, 4), tokens(1, m, 4)
        w_q, w_k, w_v, _ = draw(2, h, 4, d_k, d_v)
        result = attend_heads(x, w_q, w_k, w_v, source)
        arrays = (x @ w_q, source @ w_k, source @ w_v, result.weights, result.output)
        return sum(array.size for array in arrays)

    assert held(2, 3, 3, 2, 2) == documented(2, 3, 3, 2) == 66
    assert held(1, 1, 2, 1, 1) == 8 != documented(1, 1, 2, 1) == 7
    assert held(2, 3, 5, 2, 2) != documented(2, 3, 5, 2)
    assert held(2, 3, 3, 2, 5) != documented(2, 3, 3, 2)
    assert held(2, 3, 5, 2, 4) == 2 * (
        3 * 2 + 5 * 2 + 5 * 4 + 3 * 5 + 3 * 4
    )  # h (n d_k + m d_k + m d_v + n m + n d_v)
