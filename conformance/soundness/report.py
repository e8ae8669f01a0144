"""What came of a trial, for people and for machines."""

from collections.abc import Iterator
from typing import Any

from conformance.names import DTYPES, POLICIES
from conformance.soundness.baseline_tolerances import RULES
from conformance.soundness.experiment import KINDS, RATIOS, Outcome


def lines(outcome: Outcome, seed: int, count: int, seconds: float) -> Iterator[str]:
    """Two tables, the alarms, and a line that sums up."""
    keys = _keys(outcome)
    yield f"{'of':8} {'dtype':9} {'policy':7} {'runs':>6} {'elements':>9} {'alarms':>6}  " + " ".join(
        f"{name:>13}" for name in RATIOS
    )
    for kind, dtype, policy in keys:
        t = outcome.tallies[kind, dtype, policy]
        cells = " ".join(f"{t.largest[name]:13.2f}" if name in t.largest else f"{'-':>13}" for name in RATIOS)
        yield f"{kind:8} {dtype:9} {policy:7} {t.runs:6} {t.elements:9} {t.alarms:6}  {cells}"
    yield ""
    yield "False alarms of other rules on the same runs"
    yield f"{'dtype':9} {'runs':>6}  " + " ".join(f"{name:>14}" for name in RULES)
    for dtype in DTYPES:
        parts = [outcome.tallies[key] for key in keys if key[1] == dtype and key[2] in ("eager", "fused")]
        counts = " ".join(f"{sum(t.fixed[name] for t in parts):14}" for name in RULES)
        yield f"{dtype:9} {sum(t.runs for t in parts):6}  {counts}"
    yield ""
    yield from (f"ALARM {alarm}" for alarm in outcome.alarms)
    if outcome.undecided:
        yield f"{outcome.undecided} of these cases left out: a ball cannot tell which number is right"
    for name, why in outcome.absent.items():
        yield f"{name} took no part: {why}"
    runs = sum(t.runs for t in outcome.tallies.values())
    elements = sum(t.elements for t in outcome.tallies.values())
    yield (
        f"{len(outcome.runs_of)} implementations, {count} cases of seed {seed}, {runs} runs, {elements} elements, "
        f"{len(outcome.alarms)} false alarms, {seconds:.0f} s"
    )


def record(outcome: Outcome, seed: int, count: int, seconds: float) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "seed": seed,
        "cases": count,
        "seconds": round(seconds, 1),
        "implementations": outcome.runs_of,
        "absent": outcome.absent,
        "undecided": outcome.undecided,
        "alarms": outcome.alarms,
        "rows": [
            {
                "of": kind,
                "dtype": dtype,
                "policy": policy,
                "runs": tally.runs,
                "elements": tally.elements,
                "alarms": tally.alarms,
                "largest": tally.largest,
                "false alarms of other rules": tally.fixed,
            }
            for kind, dtype, policy in _keys(outcome)
            for tally in [outcome.tallies[kind, dtype, policy]]
        ],
    }


def _keys(outcome: Outcome) -> list[tuple[str, str, str]]:
    orders = (KINDS, DTYPES, POLICIES)
    return sorted(
        outcome.tallies, key=lambda key: tuple(o.index(k) for o, k in zip(orders, key, strict=True))
    )
