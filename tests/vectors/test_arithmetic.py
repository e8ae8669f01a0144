"""The arithmetic below the goldens: rounding of balls, exact matrices, and the stream of inputs."""

import hashlib
import math
from fractions import Fraction

import flint
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.dtypes import cast
from conformance.names import DTYPES
from conformance.vectors.generate.ball_rounding import FORMATS, UndecidedError, round_dyadic, split
from conformance.vectors.generate.dyadic import Exact
from conformance.vectors.generate.random_inputs import Draws, exact, round_to_bits

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None)
NUMPY = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LARGEST = {"float64": 1000, "float32": 126, "float16": 14, "bfloat16": 126}


def rounded(x, bits, smallest):
    """A fraction to the nearest number of a format, ties to even, by the definition."""
    if x == 0:
        return 0.0
    top = x.numerator.bit_length() - x.denominator.bit_length()
    top -= abs(x) < Fraction(2) ** top
    quantum = Fraction(2) ** max(top - bits + 1, smallest)
    return float(round(x / quantum) * quantum)


def dyadic(x):
    """A fraction over a power of two as mantissa and exponent."""
    return x.numerator, 1 - x.denominator.bit_length()


def ball(x, radius=Fraction(0)):
    mantissa, exponent = dyadic(x)
    centre = flint.arb((mantissa, exponent))
    if not radius:
        return centre
    r, e = dyadic(radius)
    return flint.arb((mantissa, exponent), (r, e))


@pytest.fixture(autouse=True)
def _precision():
    before, flint.ctx.prec = flint.ctx.prec, 300
    yield
    flint.ctx.prec = before


# -- rounding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(mantissa=st.integers(-(2**90), 2**90), exponent=st.integers(-1180, 80))
@QUICK
def test_rounding_is_the_nearest_even_number(dtype, mantissa, exponent):
    bits, smallest = FORMATS[dtype]
    x = Fraction(mantissa) * Fraction(2) ** exponent
    assert round_dyadic(mantissa, exponent, bits, smallest) == rounded(x, bits, smallest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_agrees_with_numpy(dtype):
    random = np.random.default_rng(1)
    bits, smallest = FORMATS[dtype]
    low = smallest - 3
    exponents = random.integers(low, LARGEST[dtype], 4000)
    exponents[:1000] = random.integers(low, smallest + bits + 2, 1000)  # subnormal numbers and their edge
    # 24 bits pass through float32 unchanged: a cast to bfloat16 by way of it rounds once
    width = 53 if dtype == "float64" else 23
    x = np.ldexp(
        random.integers(-(2**width), 2**width, 4000).astype(np.float64), np.maximum(exponents - width, -1074)
    )
    for value in x.tolist():
        got = round_dyadic(*dyadic(Fraction(value)), bits, smallest)
        assert got == float(np.asarray(np.float64(value)).astype(NUMPY[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_ties_go_to_the_even_number(dtype, sign):
    bits, smallest = FORMATS[dtype]
    for quantum in (-bits + 1, smallest, smallest + 3):  # of normal numbers and of subnormal ones
        first = 1 << (bits - 1) if quantum > smallest else 1
        for n in range(first, first + 6):
            got = round_dyadic(sign * (2 * n + 1), quantum - 1, bits, smallest)
            even = n if n % 2 == 0 else n + 1
            assert got == sign * math.ldexp(even, quantum)
            for nudge in (-1, 1):
                got = round_dyadic(sign * ((2 * n + 1) * 2**40 + nudge), quantum - 41, bits, smallest)
                assert got == sign * math.ldexp(n if nudge < 0 else n + 1, quantum)
    assert round_dyadic(sign, smallest - 1, bits, smallest) == 0.0
    assert round_dyadic(sign * 3, smallest - 2, bits, smallest) == sign * math.ldexp(1, smallest)
    assert round_dyadic(0, 5, bits, smallest) == 0.0


@given(
    numerator=st.integers(-(10**30), 10**30), denominator=st.integers(1, 10**30), power=st.integers(-300, 300)
)
@QUICK
def test_a_pair_is_the_value_and_what_is_left(numerator, denominator, power):
    x = Fraction(numerator, denominator) * Fraction(2) ** power
    hi, lo = split(flint.arb(flint.fmpq(x.numerator, x.denominator)))
    assert hi == float(x)
    assert lo == float(x - Fraction(hi))
    assert math.copysign(1, lo) == 1 or lo != 0


def test_exact_balls_split_exactly():
    for x in (
        Fraction(0),
        Fraction(1),
        Fraction(-3, 8),
        Fraction(2**60 + 1),
        Fraction(-(2**200) - 5),
        Fraction(1, 2**1074),
    ):
        hi, lo = split(ball(x))
        assert Fraction(hi) + Fraction(lo) == x or abs(x) > 2**110
        assert hi == float(x)
    assert split(ball(Fraction(1, 2**1300))) == (0.0, 0.0)
    assert split(ball(Fraction(0), Fraction(1, 2**1250))) == (0.0, 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("place", ["normal", "subnormal", "least"])
def test_a_ball_that_straddles_a_tie_is_undecided(dtype, sign, place):
    bits, smallest = FORMATS[dtype]
    quantum = {"normal": 3 - bits, "subnormal": smallest, "least": smallest}[place]
    n = {"normal": (1 << (bits - 1)) + 5, "subnormal": 5, "least": 0}[place]
    tie = sign * Fraction(2 * n + 1, 2) * Fraction(2) ** quantum
    off = abs(tie) / 2**70
    hi, lo = split(ball(tie))
    assert (hi, lo) == (float(tie), float(tie - Fraction(float(tie))))
    for centre in (tie, tie + off, tie - off):
        with pytest.raises(UndecidedError):
            split(ball(centre, 2 * off))
    for centre in (tie + off, tie - off):
        split(ball(centre, off / 2**120))  # on one side: decided


def test_balls_that_are_too_wide_are_undecided():
    for centre, radius in (
        (Fraction(1), Fraction(1, 2**20)),
        (Fraction(0), Fraction(1, 4)),
        (Fraction(1, 7), Fraction(1, 2**100)),
    ):
        x = flint.arb(flint.fmpq(centre.numerator, centre.denominator)) + flint.arb((0, 0), dyadic(radius))
        with pytest.raises(UndecidedError):
            split(x)  # the last one decides hi, and not lo
    for x in (flint.arb("nan"), flint.arb("inf"), flint.arb("-inf"), flint.arb("0 +/- inf")):
        with pytest.raises(UndecidedError):
            split(x)
    lowest = flint.arb(flint.fmpq(1, 7)) + flint.arb((0, 0), (1, -200))
    assert split(lowest) == (1 / 7, float(Fraction(1, 7) - Fraction(1 / 7)))


# -- exact matrices ------------------------------------------------------------------------------

numbers = st.builds(lambda m, e: math.ldexp(m, e), st.integers(-(2**24), 2**24), st.integers(-60, 40))


def matrices(rows, columns):
    return st.lists(st.lists(numbers, min_size=columns, max_size=columns), min_size=rows, max_size=rows).map(
        np.array
    )


def fractions(matrix):
    return [[Fraction(float(x)) for x in row] for row in np.asarray(matrix)]


def held(matrix):
    rows, columns = matrix.integers.nrows(), matrix.integers.ncols()
    unit = Fraction(2) ** matrix.exponent
    return [[matrix.integer(i, j) * unit for j in range(columns)] for i in range(rows)]


@given(left=matrices(3, 4), right=matrices(4, 2), row=matrices(1, 2), more=matrices(2, 2))
@QUICK
def test_matrices_are_exact(left, right, row, more):
    a, b = Exact.of(left), Exact.of(right)
    assert held(a) == fractions(left)
    product = [
        [sum(x * y for x, y in zip(r, c, strict=True)) for c in zip(*fractions(right), strict=True)]
        for r in fractions(left)
    ]
    assert held(a @ b) == product
    assert held(a.transposed()) == [list(column) for column in zip(*fractions(left), strict=True)]
    offset = fractions(row)[0]
    moved = [[x + o for x, o in zip(r, offset, strict=True)] for r in product]
    assert held((a @ b).plus_row(Exact.of(row))) == moved
    assert held((a @ b).above(Exact.of(more))) == product + fractions(more)
    centred, first = (a @ b).centred()
    assert held(centred) == [[x - y for x, y in zip(r, product[0], strict=True)] for r in product]
    assert [
        Fraction(*map(int, (x.man_exp()[0], 1))) * Fraction(2) ** int(x.man_exp()[1]) for x in first
    ] == product[0]
    for i, r in enumerate(product):
        for j, x in enumerate(r):
            assert _of((a @ b).ball(i, j)) == x
            assert _of((a @ b).balls()[i, j]) == x
            assert _of((a @ b).difference(i, j, 0)) == x - r[0]


def _of(exact_ball):
    assert exact_ball.is_exact()
    mantissa, exponent = exact_ball.man_exp()
    return int(mantissa) * Fraction(2) ** int(exponent)


def test_matrices_without_rows_and_with_infinities():
    nothing = Exact.of(np.zeros((0, 3)))
    assert nothing.centred() == (nothing, None)
    assert held(nothing.above(Exact.of(np.ones((2, 3))))) == [[1] * 3] * 2
    assert held(Exact.of(np.array([[np.nan, np.inf, -np.inf, 1.5]]))) == [[0, 0, 0, Fraction(3, 2)]]


# -- inputs --------------------------------------------------------------------------------------


PINNED_GAUSS = [
    [-0.1728515625, 0.921875, 0.53515625, 0.404296875],
    [-0.80859375, -0.205078125, -0.32421875, -0.10595703125],
]
PINNED_FULL = [0.019523795694112778, 0.099483422935009, 0.1391151249408722]
PINNED_INTEGERS = [7.0, -2.0, 0.0, 3.0, -3.0, 0.0, 2.0, -3.0]
PINNED_MASK = [False, True, True, True, True, True, True, True]
PINNED_ORDER = [0, 7, 2, 5, 6, 1, 3, 4]
PINNED_HASH = "3fb274a789ebf4a0"


def test_the_stream_never_changes():
    draws = Draws("pinned")
    assert draws.gauss(2, 4).tolist() == PINNED_GAUSS
    assert draws.gauss(3, sigma=0.25, bits=24).tolist() == PINNED_FULL
    assert draws.integers(8, low=-3, high=9).tolist() == PINNED_INTEGERS
    assert draws.mask(8).tolist() == PINNED_MASK
    assert draws.permutation(8) == PINNED_ORDER
    assert hashlib.sha256(Draws("pinned/long").gauss(50, 40).tobytes()).hexdigest()[:16] == PINNED_HASH


def test_streams_differ_by_name_and_do_not_repeat():
    first, second = Draws("a"), Draws("b")
    x = first.gauss(200)
    assert np.array_equal(x, Draws("a").gauss(200))
    assert not np.array_equal(x, second.gauss(200))
    assert not np.array_equal(x, first.gauss(200))


@pytest.mark.parametrize("sigma", [1e-4, 0.05, 1.0, 30.0, 1000.0])
def test_draws_are_exact_in_every_dtype(sigma):
    x = Draws(f"exact/{sigma}").gauss(2000, sigma=sigma)
    assert np.all((np.abs(x) >= 2.0**-14) | (x == 0))
    for dtype in DTYPES:
        assert np.array_equal(cast(x, dtype).astype(np.float64), x)
    assert np.array_equal(exact(x), x)
    if sigma >= 0.05:
        assert abs(x.mean()) < 4 * sigma / 2000**0.5
        assert 0.9 < x.std() / sigma < 1.1
        assert len(np.unique(x)) > 200


def test_full_mantissas_are_exact_in_float32_and_in_no_shorter_one():
    x = Draws("full").gauss(1000, bits=24)
    assert np.array_equal(x.astype(np.float32), x)
    assert (cast(x, "bfloat16").astype(np.float64) != x).mean() > 0.95
    last = np.ldexp(*np.frexp(x)[:1], 24) % 2  # the last of 24 bits is in use
    assert 0.4 < last.mean() < 0.6


def test_integers_and_masks_have_their_range():
    x = Draws("integers").integers(3000, low=-2, high=3)
    assert set(x.tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0, 3.0}
    mask = Draws("mask").mask(3000, share=0.7)
    assert mask.dtype == bool
    assert 0.65 < mask.mean() < 0.75
    assert sorted(Draws("order").permutation(50)) == list(range(50))


@given(x=st.floats(2.0**-13, 2.0**15), bits=st.integers(1, 24), sign=st.sampled_from([-1, 1]))
@QUICK
def test_round_to_bits_is_the_nearest_number(x, bits, sign):
    got = float(round_to_bits(np.array(sign * x), bits))
    assert got == rounded(Fraction(sign * x), bits, -200)


def test_what_eight_bits_do_not_hold_is_refused():
    for wrong in (0.1, 257.0, 2.0**-15, 1 + 2.0**-8):
        with pytest.raises(ValueError, match="eight"):
            exact([1.0, wrong])
    assert exact([255.0, -np.inf, 0.5, 0.0]).tolist() == [255.0, -np.inf, 0.5, 0.0]
