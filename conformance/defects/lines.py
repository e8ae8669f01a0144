"""What became of planted defects, in a line for people and a record for machines."""

from collections.abc import Sequence

from conformance.defects.bank import BANK
from conformance.defects.kill import Kill
from conformance.names import DTYPES

KIND = {defect.id: kind for kind, defects in BANK.items() for defect in defects}


def line(kill: Kill) -> str:
    """One row: kills at each dtype, - where none is needed, and the first case."""
    cells = [
        f"{len(cases) if cases else '-' if kill.defect.excuse(dtype, kill.policy) else 'SURVIVES':>8}"
        for dtype, cases in kill.cases.items()
    ]
    first = next((cases[0] for cases in kill.cases.values() if cases), kill.defect.equivalent or "")
    return f"{KIND[kill.defect.id]:12} {kill.defect.id:40}{''.join(cells)}  {first}"


def as_json(kill: Kill) -> dict[str, object]:
    """One row for machines."""
    return {
        "id": kill.defect.id,
        "kind": KIND[kill.defect.id],
        "sentence": kill.defect.sentence,
        "violates": kill.defect.violates,
        "origin": kill.defect.origin,
        "stateful": kill.defect.stateful,
        "policy": kill.policy,
        "killed_by": kill.cases,
        "excused": {d: why for d in kill.cases if (why := kill.defect.excuse(d, kill.policy))},
        "problems": kill.problems,
    }


def totals(kills: Sequence[Kill]) -> str:
    """How many are shown at each dtype, of how many that must be."""
    rows = []
    for dtype in DTYPES:
        must = [kill for kill in kills if not kill.defect.excuse(dtype, kill.policy)]
        rows.append(f"{dtype}: {sum(bool(kill.cases[dtype]) for kill in must)} of {len(must)} shown")
    return f"{len(kills)} defects; " + ", ".join(rows)
