"""The features that a drawn call needs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.exploring.arrays import arrays, bias, mask, shares, spans, visible
from conformance.exploring.laid import hollow, rows_there
from conformance.exploring.recipe import Recipe
from conformance.names import APPEND, LATENT, MERGE, OPERATION_FEATURES, PACKED, PAGED
from conformance.vectors.case import Array


def needs(recipe: Recipe) -> frozenset[str]:
    """The features that a call needs: its options, and what its sizes and hidden keys need."""
    r = recipe
    options: dict[str, object] = {
        "mask": r.mask, "attn_bias": r.bias, "is_causal": r.causal, "q_offset": r.offset is not None,
        "window": r.window is not None, "kv_lengths": r.lengths is not None, "scale": r.scale is not None,
        "softcap": r.softcap is not None, "sinks": r.sinks, "return_weights": r.weights,
        "return_lse": r.lse and not r.gradients, "grad_lse": r.lse and r.gradients,
        "cache": r.past, "segments": r.segments, "gqa": r.groups < r.heads, "value_dim": r.d_v != r.d_k,
        "broadcast": any(_broadcasts(r, words) for words in (r.mask, r.bias) if words),
        "empty": has_empty(r), "strict_masking": _strict(r),
    }  # fmt: skip
    found = frozenset(name for name, given in options.items() if given)
    return served_needs(r, found) if r.served else found


def _strict(r: Recipe) -> bool:
    """Whether a number that is not finite is hidden by more than the lengths, from all rows or from some."""
    return r.poison == "s" or (bool(r.poison) and r.gradients) or _hidden_from_some(r)


def _hidden_from_some(r: Recipe) -> bool:
    """Whether a value that is not finite is hidden from a row of its heads."""
    if not r.q_len or "value" not in dict(r.broken):
        return False
    inputs = arrays(replace(r, poison=""))
    return bool((~np.isfinite(inputs["value"]).all(axis=-1) & (shares(r, inputs) < 1)).any())


def _broadcasts(r: Recipe, words: str) -> bool:
    axes = words.partition("-")[0]
    axes_of: Sequence[tuple[str, int]] = (("q", r.q_len), ("k", r.slots))
    if not axes.isupper():
        axes_of = (*axes_of, ("h", r.heads), *(("b", n) for n in r.batch))
    return any(letter not in axes.lower() and size != 1 for letter, size in axes_of)


def served_needs(r: Recipe, found: frozenset[str]) -> frozenset[str]:
    """Of an operation of spec/serving.md: itself, and its options but those that each of its calls has."""
    if r.operation in (APPEND, MERGE):
        found &= {"sinks"} if r.operation == MERGE else {"empty"}
    if r.operation == PACKED and not r.entries:  # without a part there is no call of attention
        found -= {"gqa", "value_dim"}
    if r.operation == LATENT:
        found -= {"gqa", "value_dim", "scale"}
    if r.operation in (PACKED, PAGED):
        found -= {"kv_lengths"}
    return found | {OPERATION_FEATURES[r.operation]} | ({"append"} if r.written else set())


def has_empty(r: Recipe) -> bool:
    """Whether a size is zero, or a row sees no key."""
    if r.served:
        return hollow(r) or (r.operation not in (APPEND, MERGE) and bool((rows_there(r) & ~_sees(r)).any()))
    return 0 in (*r.batch, r.q_len, r.kv_len) or not bool(_sees(r).all())


def _sees(r: Recipe) -> Array:
    """Whether each row sees a key, [B, q_len]."""
    if r.mask or r.segments or r.bias.endswith(("-y", "-e")):
        given = {"mask": mask(r)} if r.mask else {}
        given |= {"attn_bias": bias(r)} if r.bias else {}
        seen: Any = visible(r, given).any(axis=-1)  # [B, H or 1, q_len]
        every: Array = seen.all(axis=1)
        return every
    first, end = spans(r)
    some: Array = first < end
    return some
