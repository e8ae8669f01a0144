"""`python tests/diagnosis/measure.py`: how often the right mistake is named first (spec/diagnosis.md)."""

import argparse
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from wrong import FILES, read_slips, rows_of

from conformance.defects.bank import DEFECTS
from conformance.diagnosis.search import diagnose
from conformance.telling.diagnosis import diagnosis_lines, split_lines
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

SETS = {which: {f"{which} {name}": made for name, made in read_slips(which).items()} for which in FILES}
SLIPS = {name: made for those in SETS.values() for name, made in those.items()}
EACH = 16
"""Of the bank every so many defects are measured, so that it ends in minutes."""


@dataclass(frozen=True)
class Outcome:
    """What was said of one wrong target."""

    name: str
    failed: int
    first: tuple[str, ...]  # the IDs named first
    alike: tuple[str, ...]  # those that look the same
    cases: int  # that fail
    seconds: float
    line: str
    conditions: tuple[str, ...] = ()

    def right(self, wanted: Iterable[str]) -> bool:
        """Whether the right one is named first, or looks the same as what is."""
        return bool({*self.first, *self.alike} & set(wanted))

    def under(self, where: Iterable[str]) -> bool:
        """Whether a condition is named, before any mistake, that is as right."""
        return any(re.search(pattern, line) for pattern in where for line in self.conditions)


@cache
def cases() -> tuple[Case, ...]:
    """The vectors, once a process."""
    return load_vectors().cases


def slip(name: str) -> Outcome:
    """A slip, diagnosed."""
    made = SLIPS[name]
    return _outcome(name, made.target(), "eager", made.dtypes)


def defect(name: str) -> Outcome:
    """A defect of the bank, diagnosed at a dtype at which it shows, float32 if it does there."""
    found = next(d for d in DEFECTS if d.id == name)
    dtypes = [d for d in ("float32", "float64", "float16", "bfloat16") if d in found.observable]
    return _outcome(name, found.implementation(), "fused", tuple(dtypes[:1]))


def _outcome(name: str, target: object, policy: str, dtypes: tuple[str, ...]) -> Outcome:
    rows = rows_of(target, cases(), dtypes)
    began = time.process_time()
    found = diagnose(rows, cases(), policy)
    seconds = time.process_time() - began
    failing = [row for row in rows if row.failed]
    best = found.findings[0] if found.findings else None
    first = best.model.defects if best else found.single[0].defects if found.single else ()
    alike = best.alike if best else found.single[1:]
    names = tuple(d.id for d in first)
    told = max(found.notes, key=lambda note: (note.first, len(note.explained)), default=None)
    if told is not None and (told.first or best is None or len(told.explained) >= best.explains):
        names, alike = (told.kind,), ()
    line = "; ".join(
        [
            *(f"{note.kind} {len(note.explained)}" for note in found.notes),
            *(
                f"{f.model.name} {f.explains}{f' c{f.contradicted}/{f.looked_at}' if f.contradicted else ''}"
                for f in found.findings
            ),
        ]
    )
    conditions = split_lines(found.splits)
    conditions += [said for said in diagnosis_lines(found) if "say it themselves" in said and not best]
    return Outcome(
        name,
        len(failing),
        names,
        tuple(d.id for model in alike for d in model.defects),
        len({row.case for row in failing}),
        seconds,
        line
        or ("single case: " + ", ".join(m.name for m in found.single[:4]) if found.single else "nothing"),
        tuple(conditions),
    )


def measure(processes: int, each: int, verbose: bool, sets: Sequence[str]) -> int:
    """Prints the rates of some sets of slips, and of the bank."""
    names = [name for which in sets if which in SETS for name in SETS[which]]
    bank = [d.id for d in DEFECTS if d.observable][::each] if "bank" in sets else []
    with get_context("spawn").Pool(processes) as pool:
        slips = {o.name: o for o in pool.imap_unordered(slip, names)}
        own = {o.name: o for o in pool.imap_unordered(defect, bank)}
    wanted = {name: made.wanted for name, made in SLIPS.items()}
    for which in (which for which in sets if which in SETS):
        those = SETS[which]
        where = {name: made.where for name, made in those.items()}
        tell(f"slips, {which} set", [slips[name] for name in those], wanted, where, verbose)
        if any(made.missed for made in those.values()):
            named = sum(made.missed is None for made in those.values())
            print(f"    when it was written, with the bank as it stood: in {named} of {len(those)}")
    if own:
        tell(f"bank, one of {each}", list(own.values()), {name: (name,) for name in own}, {}, verbose)
    times = sorted(o.seconds for o in [*slips.values(), *own.values()])
    print(f"seconds a diagnosis: median {times[len(times) // 2]:.1f}, largest {times[-1]:.1f}")
    return 0


def tell(
    title: str,
    outcomes: Sequence[Outcome],
    wanted: Mapping[str, Sequence[str]],
    where: Mapping[str, Sequence[str]],
    verbose: bool,
) -> None:
    """One rate, and what was missed."""
    right = [o for o in outcomes if o.right(wanted[o.name])]
    alone = [o for o in right if set(o.first) & set(wanted[o.name])]
    under = [o for o in outcomes if o not in right and o.under(where.get(o.name, ()))]
    wrong = [o for o in outcomes if o not in right and o not in under and o.first]
    print(f"{title}: the right one first in {len(right)} of {len(outcomes)}, named itself in {len(alone)}")
    print(f"    or the right condition first: {len(right) + len(under)}; a wrong one first: {len(wrong)}")
    for o in outcomes if verbose else ():
        if o not in right:
            how = "condition" if o in under else "wrong" if o in wrong else "nothing"
            print(f"    {o.name}: {how}; {o.failed} rows of {o.cases} cases fail; said: {o.line}")
            print(f"        {' '.join(o.conditions)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", type=int, default=2, help="processes")
    parser.add_argument("--each", type=int, default=EACH, help="of the bank every so many; 1 for all")
    parser.add_argument("-v", action="store_true", help="say what was missed")
    parser.add_argument(
        "--set", action="append", choices=[*SETS, "bank"], help="what to measure; all by default"
    )
    given = parser.parse_args()
    sys.exit(measure(given.j, given.each, given.v, given.set or [*SETS, "bank"]))
