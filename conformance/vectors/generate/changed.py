"""Whether a case still is what its draft declares: everything but the numbers that are computed for it.

A change of the oracle or of the bounds is not seen here: it concerns every case.
"""

import json

from conformance.vectors.case import Array, Case
from conformance.vectors.generate.build import declared
from conformance.vectors.generate.draft import Draft, own_rows, rows_of, sampled_of
from conformance.vectors.generate.serving import judged_rows

FIELDS = (
    "note",
    "operation",
    "covers",
    "features",
    "dtypes",
    "excluded",
    "raises",
    "memory",
    "repeat",
    "dtype_of",
)


def differs(draft: Draft, case: Case) -> bool:
    """Whether the case would be another one if its draft were built."""
    fresh = declared(draft)
    return (
        any(getattr(fresh, field) != getattr(case, field) for field in FIELDS)
        or json.loads(json.dumps(draft.options)) != case.options
        or list(fresh.inputs) != list(case.inputs)
        or dict(draft.seeded) != dict(case.seeded)
        or not all(
            _same(fresh.inputs[name], case.inputs[name]) for name in fresh.inputs.keys() - draft.seeded
        )
        or _asked(draft) != _answered(case)
    )


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _asked(draft: Draft) -> tuple[object, ...]:
    """The rows that are judged and stored, and the dtypes of each signature."""
    signatures = {name: set(dtypes) for name, dtypes in draft.signatures.items()}
    rows = judged_rows(draft)
    return rows, own_rows(draft.sampled, rows), signatures


def _answered(case: Case) -> tuple[object, ...]:
    signatures = {
        name: set(signature.limits)
        for golden in case.expected.values()
        for name, signature in golden.signatures.items()
    }
    return rows_of(case), sampled_of(case), signatures
