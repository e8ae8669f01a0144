"""Operations that are defined by reduction: the calls of attention that they stand for, and where their results go.

Gathering is exact, so the values, W and s of those calls are the values, W and s of the operation (spec/serving.md).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance.names import LATENT, MERGE, OPERATION_FEATURES, PACKED, PAGED, REQUIRED, SDPA, WRITING
from conformance.vectors.case import Array, Bound, Case, Golden, query_axis
from conformance.vectors.generate.draft import Draft

PAGES = ("key_pages", "value_pages")


@dataclass(frozen=True)
class Share:
    """One call of attention, and where its queries lie in the operation's results."""

    draft: Draft
    first: int = 0  # where its queries begin
    arrange: Callable[[str, Array], Array] = lambda name, x: x  # a result of the call -> one of the operation


def shares(draft: Draft) -> Iterator[Share]:
    """The calls of attention that a call stands for; none of `append_to_pages`."""
    if draft.operation == PACKED:
        yield from _parts(draft)
    if draft.operation == PAGED:
        yield Share(_gathered(draft))
    if draft.operation == LATENT:
        yield Share(_whole_rows(draft))
    if draft.operation == MERGE:
        yield Share(_one_key_a_part(draft), arrange=_from_rows)


def _parts(draft: Draft) -> Iterator[Share]:
    """PACK-1: each part is a call of its own on its slices."""
    starts, kv_starts = (draft.inputs[name].tolist() for name in ("q_starts", "kv_starts"))
    offset = draft.inputs.get("q_offset")
    for i in range(len(starts) - 1):
        rows, keys = slice(starts[i], starts[i + 1]), slice(kv_starts[i], kv_starts[i + 1])
        inputs = {
            "query": draft.inputs["query"][:, rows],
            "key": draft.inputs["key"][:, keys],
            "value": draft.inputs["value"][:, keys],
        }
        options = dict(draft.options)
        if offset is not None and offset.ndim:
            options["q_offset"] = int(offset[i])
        judged = None
        if draft.rows is not None:
            judged = tuple(row - rows.start for row in draft.rows if rows.start <= row < rows.stop)
            if not judged:
                continue
        yield Share(_attention(draft, inputs, options, judged), rows.start)


def written(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """PAGE-7: both arrays of pages after what is new was written, slot by slot."""
    pages = {name: inputs[name].copy() for name in PAGES}
    if "slots" not in inputs:
        return pages
    size = pages["key_pages"].shape[1]
    for t, slot in enumerate(inputs["slots"].tolist()):
        if slot != -1:
            for name in PAGES:
                pages[name][slot // size, slot % size] = inputs[f"new_{name.removesuffix('_pages')}"][t]
    return pages


def _gathered(draft: Draft) -> Draft:
    """PAGE-1: keys and values by table; a page behind the length is none (PAGE-2)."""
    table, lengths = draft.inputs["page_table"], draft.inputs["kv_lengths"]
    size = draft.inputs["key_pages"].shape[1]
    used = np.arange(table.shape[1]) < -(-lengths[:, None] // size)  # [B, M]
    inputs: dict[str, Array] = {"query": draft.inputs["query"]}
    for name, pages in written(draft.inputs).items():
        found = np.zeros((*table.shape, *pages.shape[1:]))  # [B, M, P, G, d]
        found[used] = pages[table[used]]
        joined = found.reshape(table.shape[0], table.shape[1] * size, *pages.shape[2:])  # [B, M P, G, d]
        inputs[name.removesuffix("_pages")] = np.moveaxis(joined, 2, 1)
    return _attention(draft, {**inputs, "kv_lengths": lengths}, dict(draft.options), draft.rows)


def _whole_rows(draft: Draft) -> Draft:
    """LAT-1: the keys are the rows, the values their first channels."""
    options = dict(draft.options)
    width = options.pop("value_dim")
    key = draft.inputs["latent"][..., None, :, :]
    inputs = {"query": draft.inputs["query"], "key": key, "value": key[..., :width]}
    return _attention(draft, inputs, options, draft.rows)


def _one_key_a_part(draft: Draft) -> Draft:
    """MERGE-1: every row on its own attends one key a part, whose logit is the part's lse."""
    outputs, lses = draft.inputs["outputs"], draft.inputs["lses"]  # [P, ..., H, q_len, d_v] and without d_v
    value = np.moveaxis(np.moveaxis(outputs, 0, -2), -3, -4)  # [..., q_len, H, P, d_v]
    bias = np.moveaxis(lses, 0, -1).swapaxes(-2, -3)[..., None, :]  # [..., q_len, H, 1, P]
    inputs = {
        "query": np.zeros((*value.shape[:-2], 1, 1)),
        "key": np.zeros((*value.shape[:-1], 1)),
        "value": value,
        "attn_bias": bias,
    }
    share = _attention(draft, inputs, {"return_lse": True}, None)
    halves = draft.only is None or set(draft.only) & {"float16", "bfloat16"}
    return replace(share, dtype_of={"attn_bias": "float32"} if halves else {})


def _from_rows(name: str, x: Array) -> Array:
    """[..., q_len, H, 1, d_v] or [..., q_len, H, 1] -> [..., H, q_len, d_v] or [..., H, q_len]."""
    return x[..., 0].swapaxes(-1, -2) if name == "lse" else x[..., 0, :].swapaxes(-2, -3)


def _attention(
    draft: Draft, inputs: dict[str, Array], options: dict[str, Any], rows: tuple[int, ...] | None
) -> Draft:
    """A call of attention with the options that keep their meaning."""
    taken: tuple[str, ...] = ("mask", "attn_bias", "sinks", "q_offset")
    options = {name: x for name, x in options.items() if name not in ("q_starts", "kv_starts")}
    if draft.operation == PACKED:
        taken = ("sinks",)
    if draft.operation == LATENT:
        taken += ("kv_lengths",)
    inputs |= {name: draft.inputs[name] for name in taken if name in draft.inputs and name not in inputs}
    return Draft(
        draft.id, draft.note, draft.covers, SDPA, inputs, options, rows, draft.only, dtype_of=draft.dtype_of
    )


def features(draft: Draft, found: Iterable[str]) -> set[str]:
    """What a call needs: its operation, its options but those that it always has, and what its calls need.

    Parts and lengths of zero belong to the operation.
    """
    operation = draft.operation
    needed = {OPERATION_FEATURES[operation]} | (set(found) - set(REQUIRED[operation]))
    if set(WRITING) & draft.inputs.keys():
        needed.add("append")
    if operation == LATENT:
        needed -= {"gqa", "value_dim"}
    if operation == MERGE:
        needed &= {"merge", "sinks", "validation", "strict_masking"}
    return needed


Held = Mapping[str, tuple[str, ...]]
"""The policies of each dtype under which a case is judged."""


def joined(draft: Draft, parts: list[tuple[Share, Case]], every: Held) -> dict[str, Golden]:
    """The results of an operation, from those of its calls. `every` holds all policies of each dtype that is left."""
    held = _held(parts, every)
    whole: dict[str, Golden] = {}
    if draft.operation == PACKED:
        for name in ("output", "lse") if draft.options.get("return_lse") else ("output",):
            whole[name] = _packed(
                draft, name, [(share.first, case.expected[name]) for share, case in parts], held
            )
    else:
        for share, case in parts:
            for name, golden in case.expected.items():
                whole[name] = _arranged(golden, partial(share.arrange, name))
    if "slots" in draft.inputs:
        whole |= {name: _exact(pages, held) for name, pages in written(draft.inputs).items()}
    return whole


def judged_rows(draft: Draft) -> tuple[int, ...] | None:
    """The query rows that are judged: those that are asked for, of a packed call those of them in a part (PACK-5)."""
    if draft.operation != PACKED or draft.raises:
        return draft.rows
    length = draft.inputs["query"].shape[1]
    starts = draft.inputs["q_starts"].tolist()
    rows = tuple(row for row in range(starts[0], starts[-1]) if draft.rows is None or row in draft.rows)
    return None if rows == tuple(range(length)) else rows


def _held(parts: list[tuple[Share, Case]], every: Held) -> dict[str, tuple[str, ...]]:
    """The policies under which every call is judged."""
    held = dict(every)
    for _, case in parts:
        bounds = next(iter(case.expected.values())).bounds
        held = {
            dtype: tuple(policy for policy in policies if policy in bounds[dtype])
            for dtype, policies in held.items()
            if dtype in bounds
        }
    return held


def _arranged(golden: Golden, arrange: Callable[[Array], Array]) -> Golden:
    hi = arrange(golden.hi)
    return replace(
        golden,
        shape=golden.shape if hi.shape == golden.hi.shape else hi.shape,
        hi=hi,
        lo=arrange(golden.lo),
        bounds={
            dtype: {policy: Bound(arrange(b.worst), arrange(b.rms)) for policy, b in of.items()}
            for dtype, of in golden.bounds.items()
        },
    )


def _packed(draft: Draft, name: str, found: list[tuple[int, Golden]], held: Held) -> Golden:
    """The rows that belong to a part; the others are unspecified, as rows that are not judged are (PACK-5)."""
    heads, length = draft.inputs["query"].shape[:2]
    width = () if name == "lse" else (draft.inputs["value"].shape[-1],)
    axis = query_axis(name, 2 + len(width))

    def together(arrays: Iterable[Array]) -> Array:
        some = list(arrays)
        return np.concatenate(some, axis) if some else np.zeros((heads, 0, *width))

    return Golden(
        shape=(heads, length, *width),
        rows=judged_rows(draft),
        hi=together(golden.hi for _, golden in found),
        lo=together(golden.lo for _, golden in found),
        rms_applies=any(golden.rms_applies for _, golden in found),
        bounds={
            dtype: {
                policy: Bound(
                    together(golden.bounds[dtype][policy].worst for _, golden in found),
                    together(golden.bounds[dtype][policy].rms for _, golden in found),
                )
                for policy in policies
            }
            for dtype, policies in held.items()
        },
    )


def _exact(array: Array, held: Held) -> Golden:
    """A result that is copied and not computed: nothing is allowed."""
    nothing = np.zeros(array.shape, np.float32)
    bound = Bound(nothing, nothing)
    return Golden(
        shape=array.shape,
        rows=None,
        hi=array.astype(np.float64),
        lo=np.zeros(array.shape),
        rms_applies=False,
        bounds={dtype: dict.fromkeys(policies, bound) for dtype, policies in held.items()},
    )
