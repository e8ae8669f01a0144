"""Which rows of the failing calls are wrong, where others of the same calls are right: a condition on rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from conformance.diagnosis.agree import Wrong
from conformance.diagnosis.bits import bits_to_say
from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.seen import of_rows, several
from conformance.diagnosis.shared import shared
from conformance.judging.measure import allowed
from conformance.vectors.case import Array, Golden

RESULTS = ("output", "lse", "weights")
"""Those that have rows of queries."""
LOOSE = 8.0
"""Times the largest bound of a result that a row may be off which is compared with the reference in the same dtype."""
MOST = 60
"""Failing calls that are looked into."""
BESIDE = 250
"""Passing calls that are looked into."""
PAIRED = 20
"""Conditions that are tried with every other."""
ENOUGH = 2
"""Cases that have right rows beside wrong ones."""
MANY = 16
"""Rows that are wrong, and that are right, of the only case that has both."""
ONLY = 0.95
"""The share of what is wrong that has to lie in the rows of a condition."""
MOSTLY = 0.6
"""The share of the rows of a condition that have to be wrong."""
CLOSER = 0.75
"""The same among the rows of failing calls alone."""
CLOSE = 0.85
"""The same of two conditions at once."""
HALF = 0.5
"""The share of the rows of a condition that are wrong, where each row counts the same, not each call."""
MOST_OF = 0.75
"""The share of what is wrong that lies in rows of a condition which are nearly all wrong."""
FEW = 0.1
"""The share of the other rows that may be wrong."""
TELLING = 0.25
"""Bits of a call's rows that a condition has to spare, on average over the calls that have rows of both kinds."""
SECOND = 0.25
"""Bits that a second condition has to spare beyond the first."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a call, without those that are right whatever is wrong."""

    case: str
    wrong: Array  # (n,) bool
    conditions: Mapping[str, Array]  # in words -> (n,) bool
    form: str = ""  # what the wrong ones hold

    @property
    def mixed(self) -> bool:
        """Whether right rows stand beside wrong ones."""
        return bool(self.wrong.any() and not self.wrong.all())


@dataclass(frozen=True)
class Looked:
    """The rows of all calls."""

    wrong: Array  # (N,) bool
    weight: Array  # (N,) each call counts one
    failing: Array  # (N,) bool: whether the call fails
    holds: Array  # (conditions, N) bool
    mixed: int  # calls with rows of both kinds

    def those(self, some: Array) -> "Looked":
        """Some of the rows."""
        return Looked(
            self.wrong[some], self.weight[some], self.failing[some], self.holds[:, some], self.mixed
        )


@dataclass(frozen=True)
class Place:
    """A condition on rows that tells the wrong ones from the right ones."""

    condition: str
    wrong: int
    right: int
    wrong_elsewhere: int
    right_elsewhere: int
    form: str = ""

    @property
    def sentence(self) -> str:
        """`Wrong are only rows that see no key, which come out as NaN: 12 of 12 ...`."""
        form = f", which come out as {self.form}" if self.form else ""
        how = "mostly" if self.wrong_elsewhere else "only"
        return (
            f"In the failing calls {how} rows {self.condition} are wrong{form}: {self.wrong} of "
            f"{self.wrong + self.right} there, {self.wrong_elsewhere} of "
            f"{self.wrong_elsewhere + self.right_elsewhere} elsewhere."
        )


def by_places(failures: Sequence[Failure], passes: Sequence[Asked], policy: str) -> Place | None:
    """The condition on rows that spares most; None where no one tells them apart.

    `passes` are calls that a condition should not hold for: where one option is needed, those that have it.
    """
    failing = list(_failing(failures, policy))
    mixed = {call.case for call in failing if call.mixed}
    if not mixed:
        return None
    found = _best(failing, list(_passing(passes))) or _best(failing, [])
    if found is None or len(mixed) >= ENOUGH:
        return found
    exact = not found.right and not found.wrong_elsewhere  # of one case all has to be told
    return found if exact and min(found.wrong, found.right_elsewhere) >= MANY else None


def _best(failing: Sequence[Rows], passing: Sequence[Rows]) -> Place | None:
    looked = _together(failing, passing)
    among = looked.those(looked.failing)
    spared = _spared(looked, looked.holds)
    best = int(np.argmax(spared))
    holds, bits = looked.holds[best], float(spared[best])
    which: tuple[int, ...] = (best,)
    if not np.isfinite(bits):
        return None
    for one in np.argsort(-spared, kind="stable")[:PAIRED]:
        both = looked.holds & looked.holds[one]
        # a second one has to leave out right rows of the failing calls as well, else it is a condition on calls
        inside = _spared(among, both[:, looked.failing], CLOSE)
        alone = _spared(among, looked.holds[None, one, looked.failing], 0.0)
        more = np.where(inside > alone + SECOND, _spared(looked, both, CLOSE), -np.inf)
        other = int(np.argmax(more))
        if more[other] > bits + SECOND and other != one:
            which, holds, bits = (int(one), other), both[other], float(more[other])
    if bits < TELLING or _spared(among, holds[None, looked.failing], CLOSER)[0] < TELLING:
        return None
    words, forms = list(failing[0].conditions), {call.form for call in failing}
    holds, wrong = holds[looked.failing], looked.wrong[looked.failing]
    if (holds & wrong).sum() < max(HALF * holds.sum(), MOST_OF * wrong.sum()):  # by numbers of rows as well
        return None
    if wrong[~holds].mean() > FEW:
        return None
    return Place(
        " and ".join(words[n] for n in sorted(which)),
        int((holds & wrong).sum()), int((holds & ~wrong).sum()),
        int((~holds & wrong).sum()), int((~holds & ~wrong).sum()), forms.pop() if len(forms) == 1 else "",
    )  # fmt: skip


def _failing(failures: Sequence[Failure], policy: str) -> Iterator[Rows]:
    found = 0
    for failure in failures:
        if failure.outputs is None or failure.case.raises or failure.case.gradients or found == MOST:
            continue
        conditions = of_rows(failure.case)
        if conditions is None:
            continue
        rows = _rows(failure, policy, next(iter(conditions.values())).shape)
        if rows is not None:
            found += 1
            wrong, there, form = rows
            keep = (there & (wrong | several(failure.case))).reshape(-1)
            yield Rows(failure.case.id, wrong.reshape(-1)[keep], _kept(conditions, keep), form)


def _passing(passes: Sequence[Asked]) -> Iterator[Rows]:
    """Some calls, each at one dtype; rows without a key count too, since many mistakes are made there."""
    cases = {asked.case.id: asked.case for asked in passes}
    some = [case for case in cases.values() if not case.raises and not case.gradients]
    for case in some[:: -(-len(some) // BESIDE) or 1]:
        conditions = of_rows(case)
        if conditions is not None:
            keep = (several(case) | conditions["that see no key"]).reshape(-1)
            if keep.any():
                yield Rows(case.id, np.zeros(int(keep.sum()), bool), _kept(conditions, keep))


def _kept(conditions: Mapping[str, Array], keep: Array) -> dict[str, Array]:
    return {words: rows.reshape(-1)[keep] for words, rows in conditions.items()}


def _together(failing: Sequence[Rows], passing: Sequence[Rows]) -> Looked:
    calls = [call for call in (*failing, *passing) if len(call.wrong)]
    return Looked(
        np.concatenate([call.wrong for call in calls]),
        np.concatenate([np.full(len(call.wrong), 1 / len(call.wrong)) for call in calls]),
        np.concatenate([np.full(len(call.wrong), call in failing) for call in calls]),
        np.concatenate([np.array(list(call.conditions.values())) for call in calls], axis=1),
        sum(call.mixed for call in failing),
    )


def _rows(failure: Failure, policy: str, shape: tuple[int, ...]) -> tuple[Array, Array, str] | None:
    """Which rows (B, H, q_len) are wrong in some result, which ones are known, and what the wrong ones hold."""
    wrong, there = np.zeros(shape, bool), np.zeros(shape, bool)
    forms = set[str]()
    for name, (right, held, golden) in Wrong(failure, policy).rights.items():
        if name not in RESULTS:
            continue
        if golden.rows is not None and not right.all():
            right, held = _every(failure, policy, name, golden) or (right, held)
        bad = np.asarray(~right if name == "lse" else (~right).any(axis=-1))
        if name != "output" and shape[1] == 1:
            bad = np.asarray(bad.any(axis=-2))  # a layer has heads in these alone
        partial = golden.rows is not None and bad.shape[-1] == len(golden.rows)
        queries = np.array(golden.rows, np.int64) if partial else np.arange(shape[2])
        if bad.size != shape[0] * shape[1] * len(queries):
            return None
        wrong[:, :, queries] |= bad.reshape(shape[0], shape[1], len(queries))
        there[:, :, queries] = True
        if not right.all():
            forms.add(_form(held[~right]))
    return wrong, there, forms.pop() if len(forms) == 1 else ""


def _every(failure: Failure, policy: str, name: str, golden: Golden) -> tuple[Array, Array] | None:
    """Where all rows are right, as far as the reference tells, those too that the golden has not; and what came."""
    known = shared(failure.case, failure.dtype)
    got = (failure.outputs or {})[name].astype(np.float64)
    if known is None:
        return None
    wanted = known.compute({})[name].astype(np.float64)
    bound = golden.bounds[failure.dtype][failure.case.policy(failure.dtype, policy)]
    most = LOOSE * float(allowed(bound).max(initial=0))
    near = np.abs(got - wanted) <= most
    return near | (got == wanted) | (np.isnan(got) & np.isnan(wanted)), got


def _form(numbers: Array) -> str:
    if np.isnan(numbers).all():
        return "NaN"
    return "zero" if (numbers == 0).all() else ""


def _spared(looked: Looked, holds: Array, share: float = MOSTLY) -> Array:
    """Bits that each of some conditions spares of whoever says which rows are wrong, per call that has both kinds."""
    wrong, weight = looked.wrong, looked.weight
    inside, bad = holds @ weight, holds @ (weight * wrong)
    every, all_bad = weight.sum(), (weight * wrong).sum()
    spared = (
        bits_to_say(all_bad, every) - bits_to_say(bad, inside) - bits_to_say(all_bad - bad, every - inside)
    )
    good = (bad >= ONLY * all_bad) & (bad >= share * inside)
    good |= (bad >= MOST_OF * all_bad) & (bad >= ONLY * inside)
    return np.where(good, spared / looked.mixed, -np.inf)
