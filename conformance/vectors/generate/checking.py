"""Before anything is derived: whether a call is right or to be refused, as its draft says, and which dtypes hold it."""

import numpy as np

from conformance.defects.call import Call
from conformance.defects.checks import CHECKS
from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import SERVING_CHECKS
from conformance.dtypes import cast, dtype_name, same_numbers
from conformance.names import DTYPES, SERVING
from conformance.vectors.case import held_in
from conformance.vectors.generate import serving
from conformance.vectors.generate.draft import Draft


def check(draft: Draft) -> None:
    """Whether the call is refused is what the draft says (spec/errors.md)."""
    try:
        _refuse(draft)
    except (TypeError, ValueError) as error:
        if not draft.raises:
            raise ValueError(f"{draft.id} is a wrong call: {error}") from error
    else:
        if draft.raises:
            raise ValueError(f"{draft.id} is to be refused, and nothing in it is wrong")


def _refuse(draft: Draft) -> None:
    """Makes every check of a call.

    Raises:
        ValueError, TypeError: it is wrong.
    """
    dtype = (draft.only or DTYPES)[0]
    arrays = {}
    for name, array in draft.inputs.items():
        own = dtype if array.dtype.kind == "f" else dtype_name(array.dtype)
        arrays[name] = cast(array, draft.dtype_of.get(name) or held_in(name, own))
    if draft.operation in SERVING:
        served = Served(draft.operation, **arrays, **draft.options)
        for check in SERVING_CHECKS:
            check(served)
        for share in serving.shares(draft):
            _refuse(share.draft)
        return
    call = Call(draft.operation, **arrays, **draft.options)
    for check in CHECKS:
        check(call)


def inexact(draft: Draft) -> dict[str, str]:
    """The dtypes that the draft leaves out, or that do not hold its inputs exactly, with the reason."""
    excluded = {}
    for dtype in DTYPES:
        if draft.only is not None and dtype not in draft.only:
            excluded[dtype] = f"the case is about {' and '.join(draft.only)}"
            continue
        for name, array in draft.inputs.items():
            own = draft.dtype_of.get(name) or held_in(name, dtype)
            held = cast(array, own) if array.dtype.kind == "f" else array
            if array.dtype.kind == "f" and not same_numbers(held.astype(np.float64), array):
                excluded[dtype] = f"{name} is not exact in {dtype}"
                break
    return excluded
