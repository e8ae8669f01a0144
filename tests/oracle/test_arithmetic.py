"""Numbers that know their own error, against ball arithmetic."""

import flint
import numpy as np
import pytest

from conformance.oracle.near import Near
from conformance.oracle.twofold import Twofold
from conformance.vectors.generate.random_inputs import Draws

BITS = {Near: 45, Twofold: 64}
"""Significant bits that each kind has after one function, at least."""


@pytest.fixture(autouse=True)
def _precision():
    before, flint.ctx.prec = flint.ctx.prec, 400
    yield
    flint.ctx.prec = before


def assert_within(found, balls, bits):
    """Each number is within its bound of the exact one, and the bound is not idle."""
    high, low, error = found.parts()
    high, low, error = (np.broadcast_to(x, high.shape).ravel() for x in (high, low, error))
    for h, lo, e, ball in zip(high, low, error, balls, strict=True):
        off = abs(flint.arb(float(h)) + flint.arb(float(lo)) - ball)
        assert bool(off <= flint.arb(float(e))), (float(h), float(e), ball)
        assert e <= abs(h) * 2.0**-bits + 1e-290


@pytest.mark.parametrize("kind", [Near, Twofold])
def test_functions(kind):
    x = np.concatenate([np.linspace(-690.0, 0.0, 300), -np.logspace(-300, 2, 100), [0.0, -0.5, 1.0]])
    assert_within(kind.of(x).exp(), [flint.arb(float(y)).exp() for y in x], BITS[kind])
    y = np.logspace(-3, 6, 200)
    logs = [flint.arb(float(z)).log() for z in y]
    high, low, error = kind.of(y).log().parts()
    for h, lo, e, ball in zip(high, low, error, logs, strict=True):
        assert bool(abs(flint.arb(float(h)) + flint.arb(float(lo)) - ball) <= flint.arb(float(e)))
        assert e < 2.0 ** -BITS[kind] * 16


@pytest.mark.parametrize("kind", [Near, Twofold])
def test_four_operations(kind):
    x, y = Draws("oracle/x").gauss(200, bits=53), Draws("oracle/y").gauss(200, bits=53)
    pairs = [(flint.arb(float(a)), flint.arb(float(b))) for a, b in zip(x, y, strict=True)]
    a, b = kind.of(x), kind.of(y)
    assert_within(a * b, [p * q for p, q in pairs], BITS[kind])
    assert_within(a / b, [p / q for p, q in pairs], BITS[kind])
    squares = (a * a - b * b) / (a - b)  # loses bits where they are close, and says so
    high, low, error = squares.parts()
    for h, lo, e, (p, q) in zip(high, low, error, pairs, strict=True):
        assert bool(abs(flint.arb(float(h)) + flint.arb(float(lo)) - (p + q)) <= flint.arb(float(e)))


@pytest.mark.parametrize("kind", [Near, Twofold])
@pytest.mark.parametrize("count", [1, 7, 513, 1500])
def test_sums_and_products(kind, count):
    x, y = Draws("oracle/left").gauss(3, count, bits=53), Draws("oracle/right").gauss(count, 2, bits=53)
    left = flint.arb_mat(3, count, [flint.arb(float(z)) for z in x.ravel()])
    right = flint.arb_mat(count, 2, [flint.arb(float(z)) for z in y.ravel()])
    assert_within(kind.of(x) @ kind.of(y), (left * right).entries(), 35 if kind is Near else 60)
    sums = (left * flint.arb_mat(count, 1, [flint.arb(1)] * count)).entries()
    assert_within(kind.of(x).total(), sums, 35 if kind is Near else 60)


@pytest.mark.parametrize("kind", [Near, Twofold])
def test_what_is_zero_is_exact(kind):
    x, zeros = np.ones((2, 3)), np.zeros((3, 4))
    assert not (kind.of(x) @ kind.of(zeros)).parts()[2].any()
    assert not (kind.of(x) * kind.of(np.zeros(()))).parts()[2].any()


@pytest.mark.parametrize("kind", [Near, Twofold])
def test_a_division_by_what_may_be_zero_promises_nothing(kind):
    one, tiny = kind.of(np.array([1.0])), kind.of(np.array([1.0])).exp() - kind.of(np.exp(np.array([1.0])))
    with np.errstate(all="ignore"):
        error = (one / tiny).parts()[2]
    assert not (error < 1.0).all()
