"""What a target must claim to be asked: each option given, and what shapes and masks need."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from conformance.names import FEATURES, OPTION_FEATURES, SERVING
from conformance.vectors.case import Case
from conformance.vectors.generate import serving
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.normal_form import AT_ONCE, Problem, pose


def features_of(draft: Draft, problem: Problem | None) -> tuple[str, ...]:
    """What a target must claim: each option given, and what the shapes and masks need."""
    given = {**draft.inputs, **draft.options}
    found = {name for name in OPTION_FEATURES if given.get(name) is not None}
    found |= set(draft.needs)
    if "past_key" in given or "past_value" in given:
        found.add("cache")
    if "q_segments" in given or "kv_segments" in given:
        found.add("segments")
    if draft.raises:
        found.add("validation")
    if problem is not None:
        found |= _shape_features(draft, problem)
    if draft.operation in SERVING:
        found = serving.features(draft, found)
    return tuple(name for name in FEATURES if name in found)


def _shape_features(draft: Draft, problem: Problem) -> set[str]:
    found = set()
    if problem.num_kv_heads < problem.num_heads:
        found.add("gqa")
    if problem.d_v != problem.d_k:
        found.add("value_dim")
    full = (*problem.batch, problem.num_heads, problem.q_len, problem.kv_len)
    for name in ("mask", "attn_bias"):
        if name in draft.inputs:
            shape = draft.inputs[name].shape
            if any(
                size == 1 != whole for size, whole in zip(shape, full[len(full) - len(shape) :], strict=True)
            ):
                found.add("broadcast")
    # of a call with more pairs, the rows that are judged have to tell
    whole = problem if math.prod(full) > AT_ONCE else pose(draft.operation, draft.inputs, draft.options, None)
    empty = any(array.size == 0 for array in draft.inputs.values())  # of a past, say
    if empty or math.prod(full) == 0 or not whole.visible.any(axis=-1).all():
        found.add("empty")
    return found


def serving_features(draft: Draft, cases: Iterable[Case]) -> set[str]:
    """What the calls need; `empty` where an operand has no element, or a row sees none of the keys that are there."""
    found = {name for case in cases for name in case.features if name in ("gqa", "value_dim", "broadcast")}
    empty = any(array.size == 0 for array in draft.inputs.values())
    for share in serving.shares(draft):
        problem = pose(share.draft.operation, share.draft.inputs, share.draft.options, None)
        lengths = share.draft.inputs.get("kv_lengths", np.int64(problem.kv_len))
        there: Any = np.broadcast_to(np.ravel(lengths > 0), problem.size)  # entries that have any key
        some: Any = problem.visible.any(axis=-1)
        empty |= not some[there].all()
    return found | ({"empty"} if empty else set())
