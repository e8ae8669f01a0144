"""What a stored case that fails needs, found by asking the target changed calls: a condition that is true of it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from conformance.diagnosis.finding import Diagnosed
from conformance.exploring.additions import additions
from conformance.exploring.alone import alone, behind
from conformance.exploring.boundary import condition
from conformance.exploring.changed import Changed, by_worst
from conformance.exploring.costs import products_of, rows_of, work_of
from conformance.exploring.details import told as held
from conformance.exploring.grow import LONGEST, last, moved, shrunk, stretched, stretches, up_to
from conformance.exploring.lengths import NAMES, between, of_tiles, says_nothing
from conformance.exploring.needed import Needs, covered
from conformance.exploring.vary import Varied, axes, changes, cut, extent, otherwise, parts, varied
from conformance.exploring.whole import WIDTHS, fillings
from conformance.exploring.worth import known_rows
from conformance.judging.verdict import Row
from conformance.names import DENSE, REDUCED_POLICIES
from conformance.oracle import Certified, UnjudgedError, WrongOracleError, certify
from conformance.running.messages import Answer, Question
from conformance.running.runner import Asker
from conformance.vectors.case import Case

SECONDS = 5.0
"""Of this process's time for all experiments of a run."""
WALL = 30.0
"""Of any time, for one experiment: a target may wait, or compute elsewhere."""
ALONE = 2
"""Times as much where neither a condition nor a mistake is known."""
ASKS = 12
"""Sizes of an axis that are asked above the smallest that fails."""
COSTLY = 2**9
"""Queries times keys of a call above which its lengths are cut first."""
ROWS = 2**13
"""Rows of a call above which its queries are cut before it is asked."""
FIRST = (64, 1024)
"""Queries to which they are cut."""
MOST = 2
"""Cases that are changed."""
LARGE = 2**26
"""Products of two numbers in a call above which it is not changed: it takes too long to judge."""
OTHERS = 2
"""Draws of other numbers, before a size is taken for one that passes."""
HALVES = ("float16", "bfloat16")
WIDER = {"float32": ("float64",), "float16": ("float32", "float64"), "bfloat16": ("float32", "float64")}
"""Dtypes that hold what another one holds."""

Ask = Callable[[Question], Answer]


class Experiment:
    """The changed calls of one case."""

    def __init__(self, case: Case, row: Row, policy: str, ask: Ask, until: float) -> None:
        self._case, self._row, self._ask, self._until = case, row, ask, until
        self._changed = Changed()
        self._sure = False  # whether it fails with other numbers as well
        self._late = time.monotonic() + WALL
        self._policy = "eager" if policy in REDUCED_POLICIES and row.dtype != "float32" else policy

    def fails(self, v: Varied, dtype: str = "") -> bool | None:
        """Whether a call fails in the same way; None where nothing is known of it, or it fails in another way."""
        if self._over:
            return None
        dtype = dtype or self._row.dtype
        try:
            certified = self._certified(v, dtype, look=self._case.gradients)
            case = replace(certified.case, memory=v.memory)
            answer = self._ask(Question(case, dtype))
            kind: str = answer.kind
            if kind == "outputs":
                kind = self._looked(certified, answer) or self._judged(v, dtype, answer)
        except (UnjudgedError, WrongOracleError, ValueError, TypeError):
            return None
        if kind not in (self._row.judged, "pass"):
            return None
        if dtype == self._row.dtype:
            self._changed.add(by_worst(certified.case), dtype, answer, kind != "pass")
        return kind != "pass"

    def _certified(self, v: Varied, dtype: str, look: bool = False) -> Certified:
        return certify(
            v.operation, v.inputs, v.options, dtype, policies=(self._policy,),
            dtype_of=v.dtype_of, name=f"diagnose/changed-{self._changed.number}", look=look,
        )  # fmt: skip

    def _looked(self, certified: Certified, answer: Answer) -> str:
        """The verdict, where few drawn roundings tell it: of gradients many take long to draw."""
        if not self._case.gradients:
            return certified.judge(answer.outputs, self._policy).verdict
        if certified.passes(answer.outputs, self._policy):
            return "pass"
        return "fail" if certified.beyond(answer.outputs, self._policy) else ""

    def _judged(self, v: Varied, dtype: str, answer: Answer) -> str:
        return self._certified(v, dtype).judge(answer.outputs, self._policy).verdict

    def needs(self) -> Needs | None:
        """Each option off, then each size down; None where the case does not fail again."""
        whole = varied(self._case)
        costly = products_of(whole) > COSTLY
        if rows_of(whole) > ROWS:
            some_of = (cut(whole, "q_len", to) for to in FIRST if to < whole.size("q_len"))
            fewer = next((part for part in some_of if self.fails(part)), None)
            if fewer is None:
                return None
            whole = fewer
        some = ((told, part) for told, part in parts(whole) if costly and self.fails(part))
        free, now = next(((list(told), part) for told, part in some), ([], whole))
        again = now is not whole or self.fails(now)
        if not again:
            return None if again is None or self._case.repeat > 1 else self._alone
        now = self._smaller(now)
        needed, untried = list[str](), list[str]()
        for words, ways in chain(changes(now), fillings(now)):
            told: list[bool | None] = []
            untried += [words] if self._over else []
            for way in ways:
                changed: Varied | None = None
                with suppress(ValueError, IndexError):
                    changed = way(now)
                if changed is not None:
                    told.append(self.fails(changed))
                    if told[-1]:
                        now = changed
                        free += [words] if words != WIDTHS else []
                        break
            if told and all(each is False for each in told):
                needed.append(words)
        plain = {words.removesuffix(" that broadcasts") for words in needed if words.endswith("broadcasts")}
        options, now = held(now, self.fails, needed, lambda: self._over)
        options = [words for words in options if words.partition(" (")[0] not in plain]
        options = [*self._narrow(now), *options, *self._without(now)]
        lengths = list[str]()
        others = [self.fails(otherwise(now, seed)) for seed in range(OTHERS)]
        self._sure = any(others)
        for axis in axes(now):
            if WIDTHS in needed and axis in ("d_k", "d_v"):
                continue
            words, now = self._size(now, axis)
            if words and (self._sure or words.endswith("or more")) and not says_nothing(axis, words, options):
                lengths.append(f"{NAMES[axis]} {words}")
        most = up_to(now, self._ever)
        if most and not self._over:
            least = next(
                (words for words in lengths if words.startswith("q_len ") and words.endswith(" or more")), ""
            )
            lengths = [words for words in lengths if words != least]
            lengths.append(between(least.removeprefix("q_len ").removesuffix(" or more") or "1", most))
        if all(other is False for other in others):
            options.append("numbers such as these")
        if self._over and not options and not lengths:
            return None
        return Needs(
            self._row.case, self._row.dtype, "raises" if self._row.judged == "error" else "is wrong",
            self._case.operation, tuple(options), tuple(lengths), tuple(free), untried=tuple(untried),
            there=self._changed.there(self._policy), changed=self._changed,
        )  # fmt: skip

    def _without(self, v: Varied) -> Iterator[str]:
        """Options that it must not be given, if it must be given some."""
        for name, more in additions(v):
            if not self._over and self.fails(more) is False:
                yield f"no `{name}`"

    def _narrow(self, v: Varied) -> Iterator[str]:
        """The dtype of a call, if a wider one passes; that it has 16 bits, if the other of these fails too."""
        dtype = self._row.dtype
        if not any(self.fails(v, wider) is False for wider in WIDER.get(dtype, ())):
            return
        other = HALVES[1 - HALVES.index(dtype)] if dtype in HALVES else ""
        yield "operands of 16 bits" if other and self.fails(v, other) else dtype

    @property
    def _over(self) -> bool:
        """Whether time ran out."""
        return time.process_time() > self._until or time.monotonic() > self._late

    def _smaller(self, v: Varied) -> Varied:
        """The call with lengths cut to a quarter or a half as long as it fails and is costly."""
        for axis in ("length", "q_len", "kv_len"):
            while axis in axes(v) and products_of(v) > COSTLY and extent(v, axis) > 1:
                some = (cut(v, axis, -(-extent(v, axis) // share)) for share in (4, 2))
                less = next((each for each in some if self.fails(each)), None)
                if less is None:
                    break
                v = less
        return v

    @property
    def _alone(self) -> Needs:
        return Needs(self._row.case, self._row.dtype, "", self._case.operation, (), (), (), alone=True)

    def _ever(self, v: Varied) -> bool | None:
        """The same, or with other numbers where these do not matter: a mistake may not show in few of them."""
        found = self.fails(v)
        for seed in range(OTHERS):
            if found is not False or not self._sure:
                break
            found = self.fails(otherwise(v, seed)) or found
        return found

    def _size(self, v: Varied, axis: str) -> tuple[str, Varied]:
        """What is said of a size, and the call with the smallest that was found to fail."""
        most = extent(v, axis)
        known: dict[int, bool | None] = {most: True}
        failing = {most: v}

        def fails(n: int) -> bool | None:
            if n > most:
                known.setdefault(n, self._ever(stretched(v, axis, n)))
            elif n not in known:
                # lengths and offsets that are cut may be what fails no longer, and so may the last rows
                for way in (cut, shrunk, moved, last):
                    smaller = way(v, axis, n)
                    known[n] = self._ever(smaller) if way is cut or smaller is not v else known[n]
                    if known[n]:
                        failing[n] = smaller
                        break
            return known[n]

        least = most
        low = 0
        while least - low > 1:
            middle = 1 if low == 0 and 1 not in known else (low + least) // 2
            if fails(middle):
                least = middle
            else:
                low = middle
        words = condition(least, fails, ASKS, most) if most > 1 else ""
        if not words and least > 1 and fails(least - 1) is False:
            words = f"{least} or more"
        if not words and stretches(v, axis):  # none of its own sizes tells of tiles
            more = condition(least, fails, ASKS, LONGEST) or ""
            words = more if of_tiles(more) else ""
        if self._over:
            words = ""
        return words or "", failing[least]


def experiments(
    found: Diagnosed,
    rows: Iterable[Row],
    cases: Iterable[Case],
    policy: str,
    start: Callable[[], Asker],
    seconds: float = SECONDS,
) -> tuple[Needs, ...]:
    """What a few failing cases need to fail, the cheapest of which nothing is known first.

    The second is one that the first does not cover. `start` gives an asker of the target, for each of them.
    """
    known, told = {case.id: case for case in cases}, known_rows(found)
    failing = [
        row
        for row in rows
        if row.failed
        and row.judged in ("fail", "error")
        and not known[row.case].raises
        and known[row.case].operation in DENSE  # the others have no lengths that are cut
        and row.key not in told
    ]
    failing.sort(key=lambda row: work_of(known[row.case]))
    told_else = bool(found.splits or found.places or found.notes)
    needs: list[Needs] = []
    seconds *= 1 if found.splits or found.findings else ALONE
    until, tried = time.process_time() + seconds, 0
    while failing and tried < MOST:
        row = failing.pop(0)
        case = known[row.case]
        if time.process_time() > until:
            break
        if work_of(case) > LARGE or any(covered(case, each) for each in needs):
            continue
        tried += 1
        asker = start()
        try:
            needed = Experiment(case, row, policy, asker.ask, until).needs()
        except BaseException:
            asker.kill()
            raise
        asker.close()
        if needed is not None and needed.alone:  # only what fails without earlier calls can be told more of
            after = behind(row, case, policy, start, until)
            others = alone(failing, known, policy, start, until)
            needed, failing = replace(needed, others=others.sentence, behind=after), [*others.failing]
        # that all can be left out says nothing beside a condition
        if needed is not None and (needed.alone or needed.options or needed.sizes or not told_else):
            needs.append(needed)
    return tuple(needs)
