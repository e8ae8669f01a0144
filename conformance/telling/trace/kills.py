"""Whether some case shows each planted defect: as recorded, or found out now."""

from collections.abc import Iterator, Sequence

from conformance.defects.defect import Defect
from conformance.defects.record import RECORD, THEN, UPDATE, WRITE, Record, read_record
from conformance.resources import PACKAGE
from conformance.telling.requirements import Requirement
from conformance.telling.trace.holes import Hole, place
from conformance.telling.trace.links import Links

UNGUARDED = "no case on record that shows a defect which violates it"
WHERE = RECORD.relative_to(PACKAGE.parent).as_posix()


def holes(links: Links, run: bool) -> Iterator[Hole]:
    """Defects that no case kills at a dtype where one must; found out by running them all, or as recorded.

    Raises:
        UsageError: there is a record, and it cannot be read.
    """
    if run:
        from conformance.defects.kill import matrix  # starts processes

        for kill in matrix(links.defects):
            yield from (Hole(f"defect {kill.defect.id}", problem) for problem in kill.problems)
    elif RECORD.is_file():
        record = read_record(RECORD)
        yield from recorded(links, record)
        for requirement in links.requirements:
            if not guarded(links, record, requirement):
                yield Hole(place(requirement), f"{requirement.id} is covered by {UNGUARDED}")
    else:
        yield Hole(WHERE, f"is missing; say `{WRITE}`")


def recorded(links: Links, record: Record, defects: Sequence[Defect] | None = None) -> Iterator[Hole]:
    """The same, of all defects or of some, as a record says; a case that is no longer there kills nothing."""
    cases = {case.id for case in links.cases}
    defects = links.defects if defects is None else defects
    for defect in defects:
        if defect.id not in record.kills:
            yield Hole(f"defect {defect.id}", f"is not on record in {WHERE}; say `{UPDATE}`")
            continue
        for dtype in defect.observable:
            if not any(cases >= set(shown.split(THEN)) for shown in record.kills[defect.id].get(dtype, ())):
                yield Hole(f"defect {defect.id}", f"no case on record kills it at {dtype}; say `{UPDATE}`")
    for name in sorted(record.kills.keys() - {defect.id for defect in defects}):
        yield Hole(f"defect {name}", f"is on record in {WHERE} and not in the bank; say `{UPDATE}`")


def guarded(links: Links, record: Record, requirement: Requirement) -> bool:
    """Whether a case that covers a requirement shows a defect that violates it, as far as the record tells.

    Of a requirement without a case or a defect, and of defects that are not on record, it tells nothing.
    """
    cases = set(links.cases_of.get(requirement.id, ()))
    defects = links.defects_of.get(requirement.id, [])
    if requirement.untested or not cases or not defects or not record.kills.keys() >= set(defects):
        return True
    shown = (one for name in defects for by_dtype in record.kills[name].values() for one in by_dtype)
    return any(one.split(THEN)[-1] in cases for one in shown)
