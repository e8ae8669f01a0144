"""What rows amount to: counts, features, profiles, the status, and what no row has tested."""

from collections import Counter
from collections.abc import Iterable, Sequence

from conformance.judging.verdict import VERDICTS, Row
from conformance.names import FEATURES, MHA, PROFILES, SDPA
from conformance.running.messages import Hello
from conformance.running.select import DECLARED, in_profile
from conformance.telling.report import FeatureResult, Status
from conformance.telling.requirements import id_order
from conformance.telling.terminal import counted

FEW = 3
"""Rows of a feature below which their failing says nothing of it."""
RESULTS = ("return_weights", "return_lse")
"""Features that a gradient does not have."""


def count(rows: Iterable[Row]) -> dict[str, int]:
    """Rows by verdict."""
    counts = Counter(row.verdict for row in rows)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def status(rows: Iterable[Row], hello: Hello, whole: bool) -> Status:
    """What the rows say of everything that the target claims.

    A failure decides; else whatever was not run, or claimed and then not supported, leaves it open.
    `whole` says that no part was left out.
    """
    asked = [row for row in rows if claimed(row, hello)]
    if any(row.failed for row in asked):
        return "non-conformant"
    return "conformant" if whole and asked and all(row.executed for row in asked) else "incomplete"


def claimed(row: Row, hello: Hello) -> bool:
    """Whether the target claims all that a row needs."""
    if row.executed:
        return True
    supported = row.operation in hello.operations and set(row.features) <= set(hello.features)
    return supported and not row.message.startswith(DECLARED)


def unsupported_claims(rows: Iterable[Row], hello: Hello) -> list[str]:
    """In at most one sentence, that something claimed was answered `unsupported`."""
    those = [row for row in rows if claimed(row, hello) and not row.executed]
    if not those:
        return []
    first = f"{those[0].case} {those[0].dtype} ({those[0].message})"
    were = "of a supported feature was" if len(those) == 1 else "of supported features were"
    return [f"{counted(len(those), 'test')} {were} answered `unsupported`, first {first}"]


def assumed(rows: Iterable[Row], hello: Hello) -> str:
    """What to say of features that the target has not declared and seems to lack; empty if there are none.

    Either every failing row needs one of them, or every row that needs one fails while most others pass.
    """
    executed = [row for row in rows if row.executed]
    needed = [set(row.features) & set(hello.assumed) for row in executed if row.failed]
    if not needed:
        return ""
    if all(needed):
        names = [name for name in hello.assumed if any(name in those for those in needed)]
        return f"all failures need {' or '.join(names)}, {by_default(names, hello)}"
    lacking = [name for name in hello.assumed if _lacks(executed, name)]
    return f"every test of {' and of '.join(lacking)} fails, {by_default(lacking, hello)}" if lacking else ""


def by_default(names: Sequence[str], hello: Hello) -> str:
    """That features are tested though nothing was said of them, and what to write where they are not supported."""
    left = ", ".join(f'"{name}"' for name in hello.features if name not in names)
    are, they = ("are", "they are") if len(names) > 1 else ("is", "it is")
    return (
        f"which {are} assumed to be supported, since the target declares no features; if {they} not, write "
        f"features = {f'{{{left}}}' if left else 'set()'} in its file"
    )


def by_operation(rows: Iterable[Row], hello: Hello) -> str:
    """How many tests each operation got; empty where one operation was asked."""
    rows = list(rows)
    counts = [(name, [row for row in rows if row.operation == name]) for name in hello.operations]
    counts = [(name, those) for name, those in counts if those]
    if len(counts) < 2:
        return ""
    told = ", ".join(f"{name} {sum(r.executed for r in those)}{_failed(those)}" for name, those in counts)
    return f"tests by operation: {told}"


def _failed(rows: Iterable[Row]) -> str:
    number = sum(row.failed for row in rows)
    return f" ({number} failed)" if number else ""


def _lacks(executed: Sequence[Row], feature: str) -> bool:
    """Whether all rows of a feature fail, and most of the others do not."""
    those = [row for row in executed if feature in row.features]
    others = [row for row in executed if feature not in row.features]
    return (
        len(those) >= FEW
        and all(row.failed for row in those)
        and 2 * sum(r.failed for r in others) < len(others)
    )


def features(rows: Sequence[Row], hello: Hello, whole: bool) -> dict[str, FeatureResult]:
    """Each feature by the rows that need it."""
    results = {}
    for feature in FEATURES:
        those = [row for row in rows if feature in row.features]
        passed, failed = (sum(map(test, those)) for test in (lambda r: r.passed, lambda r: r.failed))
        word = status(those, hello, whole) if feature in hello.features else "not claimed"
        results[feature] = FeatureResult(word, passed, failed)
    return results


def profiles(rows: Sequence[Row], hello: Hello, whole: bool) -> dict[str, Status]:
    """Each profile by the rows in it; it is open as long as the target does not support all of it."""
    results: dict[str, Status] = {}
    for profile, needed in PROFILES.items():
        those = [row for row in rows if in_profile(row.operation, row.features, profile)]
        complete = whole and set(needed) <= set(hello.features)
        if profile == "training":
            complete = complete and _claims_gradients(those, hello)
        results[profile] = status(those, hello, complete)
    return results


def _claims_gradients(rows: Sequence[Row], hello: Hello) -> bool:
    """Whether the gradient of each claimed operation is claimed and has rows."""
    tested = {row.operation for row in rows}
    forward = [operation for operation in (SDPA, MHA) if operation in hello.operations]
    return bool(forward) and all(
        f"{operation}_vjp" in tested & set(hello.operations)
        and _features(hello, operation) - set(RESULTS) <= _features(hello, f"{operation}_vjp")
        for operation in forward
    )


def _features(hello: Hello, operation: str) -> set[str]:
    return set(hello.features_of.get(operation, hello.features))


def untested(rows: Iterable[Row], requirements: Iterable[str]) -> tuple[str, ...]:
    """The requirements that no executed row covers."""
    tested = {requirement for row in rows if row.executed for requirement in row.covers}
    return tuple(sorted(set(requirements) - tested, key=id_order))
