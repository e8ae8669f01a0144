"""Whether some case shows each planted defect: as recorded, or found out now."""

from collections.abc import Iterator, Sequence

from conformance.defects.defect import Defect
from conformance.defects.record import RECORD, THEN, UPDATE, WRITE, Record, read_record
from conformance.resources import PACKAGE
from conformance.telling.trace.holes import Hole
from conformance.telling.trace.links import Links

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
        yield from recorded(links, read_record(RECORD))
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
