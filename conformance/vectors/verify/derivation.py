"""Derives a case anew from its inputs, and compares every number that is stored."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.case import Array, Case, Golden
from conformance.vectors.generate.build import build
from conformance.vectors.generate.draft import Draft, rows_of, sampled_of

PLAIN = ("shape", "rows", "rms_applies", "finite")


def derived(case: Case) -> tuple[int, list[str]]:
    """How many elements are certified, and what differs.

    The oracle accepts an element only if its ball rounds to one pair hi + lo and to one number in each dtype.
    """
    fresh = build(draft_of(case))
    wrong = list(_differences(case, fresh))
    if set(fresh.features) != set(case.features):
        wrong.append(f"features are {', '.join(fresh.features)}")
    elements = sum(golden.hi.size for golden in case.expected.values())
    return elements, [f"{case.id}: {problem}" for problem in wrong]


def draft_of(case: Case) -> Draft:
    """The declaration that a case was made from, as far as its numbers depend on it."""
    return Draft(
        id=case.id,
        note=case.note,
        covers=case.covers,
        operation=case.operation,
        inputs={
            name: array.astype(np.float64) if array.dtype.kind == "f" else array
            for name, array in case.inputs.items()
        },
        options=case.options,
        rows=rows_of(case),
        only=case.dtypes,
        needs=case.features,
        memory=case.memory,
        repeat=case.repeat,
        dtype_of=case.dtype_of,
        signatures={
            name: tuple(signature.limits)
            for golden in case.expected.values()
            for name, signature in golden.signatures.items()
        },
        seeded=case.seeded,
        sampled=sampled_of(case),
    )


def _differences(case: Case, fresh: Case) -> Iterator[str]:
    if set(fresh.expected) != set(case.expected):
        yield f"results are {', '.join(fresh.expected)}"
        return
    for name, golden in case.expected.items():
        anew = fresh.expected[name]
        if any(getattr(golden, field) != getattr(anew, field) for field in PLAIN):
            yield f"{name} has another shape, other rows or another word on rule 2 or what lies elsewhere"
        for part, stored, made in _tensors(golden, anew):
            if not np.array_equal(stored, made, equal_nan=True):
                yield f"{part} of {name} differs{_first(stored, made)}"
        limits = {key: signature.limits for key, signature in golden.signatures.items()}
        if limits != {key: signature.limits for key, signature in anew.signatures.items()}:
            yield f"the limits of a signature of {name} differ"


def _tensors(golden: Golden, anew: Golden) -> Iterator[tuple[str, Array, Array]]:
    yield "hi", golden.hi, anew.hi
    yield "lo", golden.lo, anew.lo
    for dtype, policies in golden.bounds.items():
        for policy, bound in policies.items():
            made = anew.bounds.get(dtype, {}).get(policy)
            for part in ("worst", "rms"):
                other = np.empty(0) if made is None else getattr(made, part)
                yield f"the {part} error at {dtype} {policy}", getattr(bound, part), other
    for name, signature in golden.signatures.items():
        yield f"the direction of {name}", signature.direction, anew.signatures[name].direction


def _first(stored: Array, made: Array) -> str:
    """Where, and by what."""
    if stored.shape != made.shape:
        return f": shape {stored.shape}, derived {made.shape}"
    place = tuple(int(i) for i in np.argwhere(~((stored == made) | (np.isnan(stored) & np.isnan(made))))[0])
    return f" at {list(place)}: {float(stored[place])!r}, derived {float(made[place])!r}"
