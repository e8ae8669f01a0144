"""Calls whose answer is known without computing it: each query asks one key, and the value is the key's address.

Keys are words of +-1, all different. A query is the word of the key that it asks, many times as large, so that the
weight of every other key is far below what the dtype can hold beside 1. Values are digits to the base 16.
"""

from collections.abc import Mapping

import numpy as np

from conformance.exploring.arrays import spans
from conformance.exploring.counter import grid, key
from conformance.exploring.recipe import Recipe
from conformance.vectors.case import Array

LARGEST = 2.0**14
"""Of a product of query and key, so that float16 holds it."""
NEAR = 0.25
"""How far from a digit an answer may be: far more than any rounding, less than half of a digit."""
KINDS = ("low digit of the key", "second digit", "third digit", "key head", "entry", "mass")
GAP = 24.0
"""Least difference of logits: what leaks is below 2^-34 for each other key."""


def possible(recipe: Recipe) -> bool:
    """Whether the logit of the key that is asked can be made to stand out."""
    r = recipe
    plain = not (r.softcap or r.mask or r.bias or r.layer or r.gradients)
    scale = 1.0 / r.d_k**0.5 if r.scale is None else r.scale
    wide = r.d_k >= (32 if r.kv_len <= 256 else 64)
    return plain and wide and scale * 0.3 * r.d_k * _times(r) >= GAP


def _times(r: Recipe) -> float:
    return float(min(64.0, 2.0 ** np.floor(np.log2(LARGEST / r.d_k))))


def asked(recipe: Recipe) -> Array:
    """The key that each query asks, [B, H, q_len]; -1 where it may see none."""
    r = recipe
    first, end = spans(r)  # [B, q_len]
    first = np.maximum(first, 0)
    words = grid(key("asked", r.stream), (r.entries, r.heads, r.q_len)) >> np.uint64(20)
    many = np.maximum(end - first, 1)[:, None].astype(np.uint64)
    keys = first[:, None] + (words % many).astype(np.int64)
    return np.where((end > first)[:, None], keys, -1)


def addressed(recipe: Recipe, latent: bool) -> dict[str, Array]:
    """Query, key and value."""
    r = recipe
    words = (
        grid(key("words", r.stream), (r.entries, r.groups, r.kv_len, r.d_k)) >> np.uint64(33)
    ) & np.uint64(1)
    keys = 2.0 * words.astype(np.float64) - 1.0
    pages = np.arange(r.heads) // (r.heads // r.groups)
    wanted = np.maximum(asked(r), 0)
    entries = np.arange(r.entries)[:, None, None]
    query = _times(r) * keys[entries, pages[None, :, None], wanted]
    made: dict[str, Array] = {"query": query, "key": keys}
    if not latent:
        made["value"] = digits(r)
    return made


def digits(recipe: Recipe) -> Array:
    """The values: what each column holds follows from its number, [B, G, kv_len, d_v]."""
    r = recipe
    slots = np.arange(r.kv_len)
    columns = (
        slots % 16,
        slots // 16 % 16,
        slots // 256 % 16,
        np.arange(r.groups)[:, None] % 16,
        np.arange(r.entries)[:, None, None] % 16,
        np.ones((), np.int64),
    )
    made = np.empty((r.entries, r.groups, r.kv_len, r.d_v))
    for column in range(r.d_v):
        made[..., column] = columns[column % len(columns)]
    return made


def expected(recipe: Recipe, inputs: Mapping[str, Array]) -> Array:
    """The answer, [B, H, q_len, d_v]: the value of the key that is asked."""
    r = recipe
    pages = np.arange(r.heads) // (r.heads // r.groups)
    wanted = asked(r)
    entries = np.arange(r.entries)[:, None, None]
    answer = inputs["value"][entries, pages[None, :, None], np.maximum(wanted, 0)]
    return np.where(wanted[..., None] < 0, 0.0, answer)


def wrong(recipe: Recipe, inputs: Mapping[str, Array], output: Array) -> str:
    """What is wrong with an answer, in words; empty if nothing is."""
    right = expected(recipe, inputs)
    if output.shape != right.shape:
        return f"output has shape {output.shape}, wanted {right.shape}"
    got = output.astype(np.float64)
    bad = ~(np.abs(got - right) <= NEAR)
    if not bad.any():
        return ""
    entry, head, row, column = (int(n) for n in np.argwhere(bad)[0])
    wanted = int(asked(recipe)[entry, head, row])
    group = head // (recipe.heads // recipe.groups)
    values = inputs["value"][entry, group]
    near = np.flatnonzero(np.abs(values - got[entry, head, row]).max(axis=-1) <= NEAR)
    place = f"query {row} of head {head}, entry {entry}, asks key {wanted}"
    if not np.isfinite(got[entry, head, row]).all():
        return f"{place} and gets {got[entry, head, row, column]}"
    if len(near) and recipe.d_v > 2:
        return f"{place} and gets the value of key {int(near[0])}"
    rows = int(bad.any(axis=-1).sum())
    return (
        f"{place} and gets {got[entry, head, row, column]:.4g} where its value has "
        f"{right[entry, head, row, column]:.4g}, as {rows} of {right[..., 0].size} queries do in some column"
    )
