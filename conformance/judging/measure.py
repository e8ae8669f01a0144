"""Errors of one output in float64, element by element, next to what the tolerance rule allows them."""

from dataclasses import dataclass

import numpy as np

from conformance.names import REDUCED_POLICIES
from conformance.vectors.case import Array, Bound, Golden, query_axis

RMS_MANY, RMS_SOME = 100, 8
"""From how many elements on rule 2 has its tight limit, and from how many on it applies at all."""
RMS_MANY_ROWS, RMS_SOME_ROWS = 16, 4
"""Each limit needs as many rows too: the elements of one row share the errors of its weights."""

NAN, POSITIVE, NEGATIVE = 1, 2, 3


@dataclass(frozen=True)
class Along:
    """How far one output lies along a signature: its relative systematic error."""

    name: str
    delta: float
    limit: float

    @property
    def exceeds(self) -> bool:
        """Whether rule 3 is broken; written so that no NaN passes."""
        return not (abs(self.delta) <= self.limit)


@dataclass(frozen=True)
class Measure:
    """One output of an answer against its golden; arrays have the shape of Golden.hi."""

    output: str
    label: str  # the output as messages call it
    golden: Golden
    got: Array  # float64
    misplaced: Array  # bool: a non-finite value of another kind than the golden's, where one is required
    error: Array  # float64, |y - O|; 0 where the golden is not finite
    allowed: Array  # float64
    exceeds: Array  # bool
    rms: float | None  # None where rule 2 does not apply
    rms_limit: float
    rms_count: int
    along: tuple[Along, ...]  # empty where rule 3 does not apply

    @property
    def ratio(self) -> Array:
        """|err| / allowed: 0 where nothing is erred, infinite where nothing or no number is allowed."""
        with np.errstate(all="ignore"):
            ratio = self.error / self.allowed
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        return np.where((self.error == 0) & ~self.exceeds, 0.0, ratio)

    @property
    def rms_exceeds(self) -> bool:
        """Whether rule 2 is broken."""
        return self.rms is not None and not (self.rms <= self.rms_limit)

    @property
    def met(self) -> bool:
        """Whether every rule holds."""
        systematic = any(along.exceeds for along in self.along)
        return not (self.misplaced.any() or self.exceeds.any() or self.rms_exceeds or systematic)

    def place(self, flat: int) -> tuple[int, ...]:
        """The index in the whole output of an element of the held rows."""
        index = [int(i) for i in np.unravel_index(flat, self.golden.hi.shape)]
        if self.golden.rows is not None:
            axis = query_axis(self.output, len(index))
            index[axis] = self.golden.rows[index[axis]]
        return tuple(index)


def measure(
    output: str,
    golden: Golden,
    dtype: str,
    policy: str,
    array: Array,
    label: str | None = None,
    tokens: int | None = None,  # over how many a gradient is summed
    free: Array | None = None,  # bool, same shape as Golden.hi: where nothing is required
) -> Measure:
    """The three rules of spec/numerics.md on one output of the right shape."""
    bound = golden.bounds[dtype][policy]
    with np.errstate(all="ignore"):
        got = held_rows(output, golden, array).astype(np.float64)
    misplaced = kinds(got) != kinds(golden.hi)
    finite = np.isfinite(golden.hi)
    error = np.where(finite, distance(got, golden), 0.0)
    limit = np.where(finite, allowed(bound), 0.0)
    scored = finite & (bound.rms > 0)
    count = int(scored.sum())
    return Measure(
        output=output,
        label=label or output,
        golden=golden,
        got=got,
        misplaced=misplaced if free is None else misplaced & ~free,
        error=error,
        allowed=limit,
        exceeds=exceeds(error, limit),
        rms=root_mean_square(error[scored], bound.rms[scored])
        if golden.rms_applies and count >= RMS_SOME
        else None,
        rms_limit=rms_limit(count, rows_of(output, scored, tokens), policy),
        rms_count=count,
        along=tuple(
            Along(
                name,
                matched_filter(got, golden, signature.direction, bound),
                signature.limits[dtype][policy],
            )
            for name, signature in golden.signatures.items()
            if policy in signature.limits.get(dtype, {})
        ),
    )


def held_rows(output: str, golden: Golden, array: Array) -> Array:
    """The query rows that the golden holds."""
    if golden.rows is None:
        return array
    rows = np.array(golden.rows, np.int64)  # of packed queries perhaps none
    return np.take(array, rows, axis=query_axis(output, array.ndim))


def kinds(array: Array) -> Array:
    """0 for a finite element, else which non-finite value it is."""
    return np.select([np.isnan(array), np.isposinf(array), np.isneginf(array)], [NAN, POSITIVE, NEGATIVE], 0)


def distance(got: Array, golden: Golden) -> Array:
    """The size of the error, |y - O|."""
    off: Array = np.abs(deviation(got, golden))
    return off


def deviation(got: Array, golden: Golden) -> Array:
    """The signed error, y - O with O = hi + lo: near O the first subtraction is exact, and nothing is lost."""
    with np.errstate(all="ignore"):
        off: Array = (got - golden.hi) - golden.lo
    return off


def matched_filter(got: Array, golden: Golden, direction: Array, bound: Bound) -> float:
    """How far the answer lies along a direction: the least-squares fit of it to the errors, in units of s."""
    scored = np.isfinite(golden.hi) & (bound.rms > 0)
    error, along, rms = (x[scored] for x in (deviation(got, golden), direction, bound.rms.astype(np.float64)))
    with np.errstate(all="ignore"):
        along = along / rms  # s^2 may underflow
        return float(np.sum(error / rms * along) / np.sum(np.square(along)))


def allowed(bound: Bound) -> Array:
    """What each element may err: min(W, 6 s), and W alone where s is 0."""
    worst, rms = bound.worst.astype(np.float64), bound.rms.astype(np.float64)
    return np.where(rms == 0, worst, np.minimum(worst, 6 * rms))


def exceeds(error: Array, limit: Array) -> Array:
    """Where rule 1 is broken; written so that no NaN passes."""
    broken: Array = ~(error <= limit)
    return broken


def root_mean_square(error: Array, rms: Array) -> float:
    """RMS(err / s) over the elements that rule 2 scores."""
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(np.square(error / rms.astype(np.float64)))))


def rows_of(output: str, scored: Array, tokens: int | None = None) -> int:
    """How many rows rule 2 scores: each element of the lse is one, the others have rows of elements.

    In a sum over a few tokens, the rows of a head are so many rows of errors over and over.
    """
    if output == "lse":
        return int(scored.sum())
    rows = scored.any(axis=-1)
    return int(rows.sum() if tokens is None else np.minimum(rows.sum(axis=-1), tokens).sum())


def rms_limit(count: int, rows: int, policy: str) -> float:
    """Rule 2's limit for a number of elements in a number of rows."""
    many, some, few = (2.0, 3.0, 3.5) if policy in REDUCED_POLICIES else (1.25, 2.0, 2.5)
    if rows < RMS_SOME_ROWS:
        return few
    return many if count >= RMS_MANY and rows >= RMS_MANY_ROWS else some
