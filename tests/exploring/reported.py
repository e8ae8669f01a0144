"""Programs with the faults of public reports, and with those that kernel authors make: each found and explained?

    python -m tests.exploring.reported --out reported.json

A row is a fault: a program that is right but for it. The budget is processor time, as of one minute.
"""

import argparse
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import conformance
from tests.exploring import programs
from tests.exploring.programs import _of_parts, gradients, right, visible

Fault = tuple[Any, tuple[str, ...]]
FAULTS: dict[str, Fault] = {}
"""Name -> the program, and words of which all must stand in what it takes to fail."""


def fault(*words: str) -> Callable[[Any], Any]:
    """Registers a program, with what must be said of it."""

    def registered(program: Any) -> Any:
        FAULTS[program.__name__] = program, words
        return program

    return registered


for _name, _words in {
    "whole_tiles": ("a multiple of 16",), "finite_sentinel": ("mask", "logits far below zero"),
    "longest_entry": ("kv_lengths", "window"), "fingerprint": ("a call before it",),
    "group_of_24": ("heads to a key head", "key heads 2 or more"), "parts_averaged": ("q_len 1",),
    "last_part_dropped": ("q_len 1",), "merged_without_maximum": ("logits far",), "width_96_as_128": ("96",),
    "columns_from_256": ("257",), "keys_from_4096": ("4097",), "entries_from_32": ("batch entries 33",),
    "float64_in_name": ("float64",), "float16_in_name": ("float16",), "length_at_a_tile": ("kv_lengths",),
    "lengths_beside_mask": ("mask", "kv_lengths"), "window_up_to_127": ("window", "128"),
    "strides_ignored": ("layout",), "empty_rows_unwritten": ("mask",), "mask_remembered": ("a call before it",),
    "scratch_remembered": ("a call before it",),
}.items():  # fmt: skip
    fault(*_words)(getattr(programs, _name))


def _one(query: Any, key: Any, least: int = 64) -> bool:
    return bool(query.shape[-2] == 1 and key.shape[-2] >= least)


@fault("attn_bias and window", "q_len 1")
def bias_row_of_the_last_column(
    query: Any, key: Any, value: Any, *, attn_bias: Any = None, q_offset: Any = None, window: Any = None
) -> Any:
    """One query beside a window: the bias is that of the last key column."""
    if _one(query, key, 2) and attn_bias is not None and window is not None:
        attn_bias = np.broadcast_to(attn_bias[..., -1:], attn_bias.shape)
    return right(query, key, value, attn_bias=attn_bias, q_offset=q_offset, window=window)


class CapForgotten:
    """One query, grouped heads with softcap and lengths: the cap is forgotten."""

    name, dtypes = "cap forgotten", ("float32",)
    features = ("softcap", "kv_lengths", "gqa")

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, *, softcap: Any = None, kv_lengths: Any = None
    ) -> Any:
        """Attention."""
        grouped = query.shape[-3] != key.shape[-3]
        cap = None if query.shape[-2] == 1 and grouped and kv_lengths is not None else softcap
        return capped(query, key, value, cap, kv_lengths)


FAULTS["cap_forgotten"] = CapForgotten(), ("softcap", "kv_lengths", "heads to a key head 2 or more")


def capped(query: Any, key: Any, value: Any, softcap: Any, kv_lengths: Any = None) -> Any:
    """Right, with a softcap in place of other options."""
    each = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, each, axis=-3) for x in (key, value))
    logits = query @ np.swapaxes(key, -1, -2) * np.float32(query.shape[-1] ** -0.5)
    if softcap is not None:
        logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))
    seen = np.broadcast_to(visible(query, key, kv_lengths=kv_lengths), logits.shape)
    logits = np.where(seen, logits, -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.where(seen, np.exp(logits - np.where(np.isfinite(top), top, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    value = np.where(seen.any(axis=-2)[..., None], value, 0)
    return (weights @ value / np.where(seen.any(axis=-1, keepdims=True), total, 1)).astype(query.dtype)


@fault("q_len 1")
def parts_in_bfloat16(query: Any, key: Any, value: Any) -> Any:
    """Results of parts are stored in bfloat16."""
    import ml_dtypes

    if not _one(query, key):
        return right(query, key, value)
    found = _of_parts(query, key, value)
    top = np.max([top for *_, top in found], axis=0)
    by = [weight * np.exp(high - top) for _, weight, high in found]
    halves = [(total / weight).astype(ml_dtypes.bfloat16).astype(np.float32) for total, weight, _ in found]
    return sum(w * x for w, x in zip(by, halves, strict=True)) / sum(by)


@fault("heads")
def heads_from_64(query: Any, key: Any, value: Any) -> Any:
    """Heads from 64 on wrap."""
    found = right(query, key, value)
    found[..., 64:, :, :] = found[..., : max(found.shape[-3] - 64, 0), :, :]
    return found


@fault("batch entries")
def blocks_at_most_64(query: Any, key: Any, value: Any) -> Any:
    """At most 64 blocks of batch times heads are launched."""
    found = right(query, key, value)
    found.reshape(-1, *found.shape[-2:])[64:] = 0
    return found


@fault("kv_len")
def flat_index_of_15_bits(query: Any, key: Any, value: Any) -> Any:
    """Key rows beyond 32,768 elements of a head are zero."""
    rows = 2**15 // key.shape[-1]
    key = key.copy()
    key[..., rows:, :] = 0
    return right(query, key, value)


@fault("256")
def halves_scaled_as_128(query: Any, key: Any, value: Any, *, scale: Any = None) -> Any:
    """d_k = 256 is scaled as 128."""
    return right(query, key, value, scale=128**-0.5 if scale is None and query.shape[-1] == 256 else scale)


@fault("window")
def window_rounded_up(query: Any, key: Any, value: Any, *, q_offset: Any = None, window: Any = None) -> Any:
    """The first block of a window is rounded up, in blocks of 128."""
    if window is None or window[0] is None:
        return right(query, key, value, q_offset=q_offset, window=window)
    place = np.asarray(0 if q_offset is None else q_offset)
    place = (place.reshape(*place.shape, 1, 1, 1) if place.ndim else place) + np.arange(query.shape[-2])[
        :, None
    ]
    first = place - window[0]
    first = np.where(first > 128, -(-first // 128) * 128, 0)
    mask = np.broadcast_to(np.arange(key.shape[-2]) >= first, (*query.shape[:-1], key.shape[-2]))
    return right(query, key, value, mask=mask, q_offset=q_offset, window=window)


@fault("mask", "kv_len")
def mask_of_the_tile_before(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """From the third tile on, the mask is that of the tile before."""
    if mask is not None and mask.shape[-1] > 32:
        mask = np.concatenate([mask[..., :32], mask[..., 16:-16]], axis=-1)
    return right(query, key, value, mask=mask)


@fault("batch entries 2 or more")
def lengths_all_equal(query: Any, key: Any, value: Any, *, kv_lengths: Any = None) -> Any:
    """Lengths that are all equal serve as the length of the buffer."""
    if kv_lengths is not None and kv_lengths.size > 1 and (kv_lengths == kv_lengths.ravel()[0]).all():
        kv_lengths = None
    return right(query, key, value, kv_lengths=kv_lengths)


@fault("attn_bias", "window")
def options_beyond_140(
    query: Any, key: Any, value: Any, *, attn_bias: Any = None, q_offset: Any = None, window: Any = None
) -> Any:
    """The bias is dropped beyond 140 keys beside a window."""
    if window is not None and key.shape[-2] > 140:
        attn_bias = None
    return right(query, key, value, attn_bias=attn_bias, q_offset=q_offset, window=window)


@fault("float32")
def cast_to_bfloat16(query: Any, key: Any, value: Any) -> Any:
    """Operands of 64 columns and more are cast to bfloat16."""
    import ml_dtypes

    if query.shape[-1] >= 64:
        query, key = (x.astype(ml_dtypes.bfloat16).astype(x.dtype) for x in (query, key))
    return right(query, key, value)


@fault("logits far")
def logits_clamped(query: Any, key: Any, value: Any) -> Any:
    """Logits are at most 65,504, unless they are infinite."""
    each = query.shape[-3] // key.shape[-3]
    keys, values = (np.repeat(x, each, axis=-3) for x in (key, value))
    logits = query @ np.swapaxes(keys, -1, -2) * np.float32(query.shape[-1] ** -0.5)
    logits = np.where(np.isinf(logits), logits, np.clip(logits, -65504, 65504))
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights @ values / weights.sum(axis=-1, keepdims=True)


@fault("scale")
def scale_lost(query: Any, key: Any, value: Any, *, scale: Any = None, mask: Any = None) -> Any:
    """The scale is lost where a mask is given."""
    return right(query, key, value, mask=mask, scale=None if mask is not None else scale)


@fault("batch entries", "mask")
def mask_read_as_batch(query: Any, key: Any, value: Any, *, mask: Any = None) -> Any:
    """A mask of rank 2 is read as (batch, keys) where the batch is as large as the number of queries."""
    if mask is not None and mask.ndim == 2 and query.ndim == 4 and len(mask) == len(query) == query.shape[-2]:
        mask = mask[:, None, None, :]
    return right(query, key, value, mask=mask)


class Backward:
    """Gradients with one mistake."""

    dtypes = ("float32",)
    features: tuple[str, ...] = ("gqa",)

    def __init__(self, name: str, mistake: Callable[..., Any]) -> None:
        self.name, self._mistake = name, mistake

    def scaled_dot_product_attention_vjp(self, query: Any, key: Any, value: Any, grad_output: Any) -> Any:
        """Gradients by argument name."""
        seen = np.True_
        return self._mistake(gradients(query, key, value, grad_output, seen), query, key, value, grad_output)


def _of_one_tile(own: Any, query: Any, key: Any, value: Any, grad_output: Any) -> Any:
    """Where heads share a key and queries are two tiles or more, the gradient of the key is that of the last tiles."""
    if query.shape[-3] > key.shape[-3] and query.shape[-2] > 64:
        rest = slice(query.shape[-2] // 64 * 64 - 64, None)
        gone = grad_output.copy()
        gone[..., : rest.start, :] = 0
        own["key"] = gradients(query, key, value, gone, np.True_)["key"]
    return own


def _columns_from_64(own: Any, query: Any, key: Any, value: Any, grad_output: Any) -> Any:
    """Gradient columns from 64 on are zero."""
    own["value"] = own["value"].copy()
    own["value"][..., 64:] = 0
    return own


FAULTS["group_gradient_beyond_a_tile"] = Backward("group gradient", _of_one_tile), ("q_len 128 or more",)
FAULTS["gradient_columns_from_64"] = Backward("columns", _columns_from_64), ("65 or more",)
FAULTS["backward_causal"] = programs.BackwardCausal(), ("kv_len 2 or more",)


def tried(name: str, seconds: float, seed: int = 1) -> dict[str, Any]:
    """What an exploration says of one fault."""
    target, words = FAULTS[name]
    if getattr(programs, name, None) is target and inspect.isfunction(target):
        target = f"{programs.__file__}:{name}"  # in a process of its own: what is left behind ends with it
    began = sum(os.times()[:4])
    report = conformance.explore(
        target, seed=seed, seconds=20 * seconds, cases=int(seconds * 60), x=True, no_diagnose=True
    )
    row = next((row for row in report.results if row.replay), None)
    said = row.fails_if if row else ""
    return {
        "name": name, "found": row is not None, "explained": bool(row) and all(w in said for w in words),
        "seconds": round(sum(os.times()[:4]) - began, 1), "judged": report.drawing.judged if report.drawing else 0,
        "fails_if": said, "replay": row.replay if row else "", "wanted": list(words),
    }  # fmt: skip


def main() -> None:
    """Prints a line a fault, and a count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="goes on where this file left off")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    found = json.loads(given.out.read_text()) if given.out and given.out.exists() else []
    for name in given.names or FAULTS:
        if any(each["name"] == name for each in found):
            continue
        each = tried(name, given.seconds, given.seed)
        found.append(each)
        state = "explained" if each["explained"] else "found" if each["found"] else "NOT FOUND"
        print(
            f"{state} {name} ({each['judged']} judged, {each['seconds']} CPU s): {each['fails_if']}",
            flush=True,
        )
        if given.out:
            given.out.write_text(json.dumps(found, indent=1))
    count, told = sum(each["found"] for each in found), sum(each["explained"] for each in found)
    within = sum(each["found"] and each["seconds"] <= given.seconds for each in found)
    print(
        f"of {len(found)} faults {count} found, {within} of them within {given.seconds:.0f} CPU s, {told} explained"
    )


if __name__ == "__main__":
    main()
