"""The arrays of a recipe, and the call that they make."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.exploring.broken import broken
from conformance.exploring.counter import grid, key
from conformance.exploring.counts import lengths, offsets
from conformance.exploring.laid import dense_shapes, lay_out
from conformance.exploring.numbers import numbers, poles
from conformance.exploring.recipe import Recipe
from conformance.names import BIASES, LATENT, MERGE, WEIGHTS
from conformance.vectors.case import Array, held_in

HIDDEN = (-(2.0**13), -(2.0**10))
"""Biases that some libraries hide by, and that do not hide here."""
BLOCK = 16
"""Queries and keys of a block that a mask shows or hides as a whole."""
SHARE = {"r": 60, "s": 10, "d": 95, "e": 60}
"""How many of a hundred places a mask shows, by its kind."""


def arrays(recipe: Recipe) -> dict[str, Array]:
    """Every array of the call, by argument name; floating ones as float64, exact in the recipe's dtype."""
    shapes = shapes_of(recipe)
    inputs = {name: _held(recipe, _operand(recipe, name, shape)) for name, shape in shapes.items()}
    if recipe.sinks:
        inputs["sinks"] = _held(recipe, _made(recipe, "sinks", (recipe.heads,)))
    if recipe.mask:
        inputs["mask"] = mask(recipe)
    if recipe.bias:
        inputs["attn_bias"] = bias(recipe)
    if recipe.segments:
        inputs["q_segments"], inputs["kv_segments"] = segments(recipe)
    if recipe.lengths is not None and not recipe.served:
        inputs["kv_lengths"] = lengths(recipe).reshape(recipe.batch)
    if recipe.offset is not None and not isinstance(recipe.offset, int):
        inputs["q_offset"] = offsets(recipe).reshape(recipe.batch)
    if recipe.served:
        return lay_out(recipe, inputs)
    if recipe.poison:
        _poison(recipe, inputs)
    for name, kind in recipe.broken:
        seen = shares(recipe, inputs) if name in ("key", "value") else None
        inputs[name] = broken(inputs[name], name, kind, recipe.stream, seen)
    return inputs


def options(recipe: Recipe) -> dict[str, Any]:
    """What of the call is no array."""
    found: dict[str, Any] = {}
    if recipe.causal:
        found["is_causal"] = True
    if isinstance(recipe.offset, int):
        found["q_offset"] = recipe.offset
    if recipe.window is not None:
        found["window"] = list(recipe.window)
    for name in ("scale", "softcap"):
        if getattr(recipe, name) is not None:
            found[name] = getattr(recipe, name)
    if recipe.weights:
        found["return_weights"] = True
    if recipe.lse and not recipe.gradients:
        found["return_lse"] = True
    if recipe.operation == LATENT:
        found |= {
            "value_dim": recipe.d_v,
            "scale": recipe.d_k**-0.5 if recipe.scale is None else recipe.scale,
        }
    return found


def shapes_of(recipe: Recipe) -> dict[str, tuple[int, ...]]:
    """The shapes of the operands that share the dtype, but for sinks and bias."""
    if recipe.served:
        return dense_shapes(recipe)
    r, new = recipe, recipe.kv_len - recipe.past
    shapes: dict[str, tuple[int, ...]]
    if r.layer:
        d_q, d_kv, d_vv, d_out = r.widths
        shapes = {
            "query": (*r.batch, r.q_len, d_q),
            "key": (*r.batch, new, d_kv),
            "value": (*r.batch, new, d_vv),
            "w_q": (r.heads, d_q, r.d_k),
            "w_k": (r.groups, d_kv, r.d_k),
            "w_v": (r.groups, d_vv, r.d_v),
            "w_o": (r.heads, r.d_v, d_out),
        }
        own = {"q": (r.heads, r.d_k), "k": (r.groups, r.d_k), "v": (r.groups, r.d_v), "o": (d_out,)}
        shapes |= {f"b_{letter}": own[letter] for letter in r.biases}
        last = (*r.batch, r.q_len, d_out)
    else:
        shapes = {
            "query": (*r.batch, r.heads, r.q_len, r.d_k),
            "key": (*r.batch, r.groups, new, r.d_k),
            "value": (*r.batch, r.groups, new, r.d_v),
        }
        last = (*r.batch, r.heads, r.q_len, r.d_v)
    if r.gradients:
        shapes["grad_output"] = last
        if r.lse:
            shapes["grad_lse"] = (*r.batch, r.heads, r.q_len)
    if r.past:
        shapes["past_key"] = (*r.batch, r.groups, r.past, r.d_k)
        shapes["past_value"] = (*r.batch, r.groups, r.past, r.d_v)
    return shapes


def _operand(recipe: Recipe, name: str, shape: tuple[int, ...]) -> Array:
    if name in WEIGHTS:  # a variance of one over the width that comes in, to a power of two
        width = shape[1] * (recipe.heads if name == "w_o" else 1)
        return _made(recipe, name, shape) * 2.0 ** -round(math.log2(max(width, 1)) / 2)
    return _made(recipe, name, shape)


def _held(recipe: Recipe, array: Array) -> Array:
    """Without what lies below the smallest number of float16."""
    return np.round(array * 2.0**24) * 2.0**-24 if recipe.dtype == "float16" else array


def _made(recipe: Recipe, name: str, shape: tuple[int, ...]) -> Array:
    operand = "weights" if name in WEIGHTS else "biases" if name in BIASES else name.removeprefix("new_")
    family = recipe.family(operand)
    if family[0] == "p":  # far from zero, on the side of its sign
        plain = numbers("n0", shape, recipe.dtype, name, recipe.stream)
        return poles(plain, int(family[1:])) if plain.size else plain
    bits = held_in("lses", recipe.dtype) if recipe.operation == MERGE and name == "key" else recipe.dtype
    return numbers(family, shape, bits, name, recipe.stream)


# Options that are arrays


def _axes(recipe: Recipe, words: str) -> tuple[tuple[int, ...], str]:
    """The shape that a mask or bias has, and its kind."""
    axes, _, kind = words.partition("-")
    if axes.isupper():
        return (recipe.q_len if "Q" in axes else 1, recipe.slots if "K" in axes else 1), kind
    batch = recipe.batch if "b" in axes else (1,) * len(recipe.batch)
    sizes = (("h", recipe.heads), ("q", recipe.q_len), ("k", recipe.slots))
    return (*batch, *(size if letter in axes else 1 for letter, size in sizes)), kind


def mask(recipe: Recipe) -> Array:
    """A boolean mask: `f` shows all, `h` hides the first key, `t` the last, `b` whole blocks, the others a share."""
    shape, kind = _axes(recipe, recipe.mask)
    if kind in ("f", "h", "t"):
        shown = np.ones(shape, bool)
        if kind != "f" and shape[-1]:
            shown[..., 0 if kind == "h" else -1] = False
        return shown
    if kind == "b":
        blocks = (*shape[:-2], -(-shape[-2] // BLOCK), -(-shape[-1] // BLOCK))
        shown = (grid(key("blocks", recipe.stream), blocks) >> np.uint64(20)) % np.uint64(100) < np.uint64(55)
        return np.repeat(np.repeat(shown, BLOCK, -2), BLOCK, -1)[..., : shape[-2], : shape[-1]]
    words = grid(key("mask", recipe.stream), shape)
    shown = (words >> np.uint64(20)) % np.uint64(100) < np.uint64(SHARE[kind])
    if kind == "e" and shape[-2]:  # one row is empty
        shown[..., key("row", recipe.stream) % shape[-2], :] = False
    return shown


def bias(recipe: Recipe) -> Array:
    """A bias: numbers of a family, `x` with some large negative ones, `y` with some of -inf, `e` with a row of it."""
    shape, kind = _axes(recipe, recipe.bias)
    family = {"x": "n1", "y": "n1", "e": "n1"}.get(kind, kind)
    made = _held(recipe, numbers(family, shape, recipe.dtype, "attn_bias", recipe.stream))
    if kind in ("x", "y"):
        words = grid(key("bias", recipe.stream), shape) >> np.uint64(20)
        low = -np.inf if kind == "y" else HIDDEN[recipe.stream % 2]
        made = np.where((words % np.uint64(4) == 0) & (np.arange(shape[-1]) > 0), low, made)
    if kind == "e" and made.size:
        row = key("row", recipe.stream)
        heads = slice(None) if len(shape) < 3 or row // 2 % 2 else row // 4 % shape[-3]  # of one, or of all
        made[(..., heads, row % shape[-2], slice(None)) if len(shape) > 2 else (row % shape[-2],)] = -np.inf
    return made


NEIGHBOURS = {"s": (0, 1, 2, 3, 4, 5), "u": (0, 1, 2, 3, 4, 5), "p": (0, 1, 2, 3, 4, -1)}
"""Numbers of segments by kind: sorted runs, in any order, with a last run of padding."""
APART = (-(2**31), 2**31 - 1, -1, 255, 256, 0)
"""Numbers that are alike where some of their bits are lost."""
NEAR = {
    "int32": (2**24 + 1, 2**24, 2**31 - 2, 2**31 - 1, 257),
    "int64": (2**53 + 1, 2**53, 2**32 + 1, 1, 2**24 + 1),
}
"""Numbers by dtype that are alike as floating-point numbers, or in fewer bits: runs of kind `v`."""


def segments(recipe: Recipe) -> tuple[Array, Array]:
    """Numbers of the queries and of the keys, [..., q_len] and [..., kv_len], in int32 or int64."""
    axes, _, kind = recipe.segments.partition("-")
    entries, batch = (recipe.entries, recipe.batch) if axes == "b" else (1, ())
    count = 2 + key("segments", recipe.stream) % 4
    dtype = "int32" if recipe.stream % 3 else "int64"
    numbers = np.array(NEAR[dtype] if kind == "v" else NEIGHBOURS.get(kind, APART), np.int64)
    found = []
    for name, length in (("q", recipe.q_len), ("kv", recipe.kv_len)):
        place = np.arange(length, dtype=np.int64)[None, :] + np.arange(entries, dtype=np.int64)[:, None]
        run = np.minimum(place * count // max(recipe.kv_len if name == "kv" else length, 1), count - 1)
        if kind in ("u", "w"):
            drawn = grid(key(f"{name}_segments", recipe.stream), (entries, length)) >> np.uint64(20)
            run = (drawn % np.uint64(count)).astype(np.int64)
        if kind == "p":  # the last run is padding
            run = np.where(run == count - 1, len(numbers) - 1, run)
        held = numbers[run].astype(dtype)
        found.append(held.reshape(*batch, length))
    return found[0], found[1]


# What is seen


def spans(recipe: Recipe) -> tuple[Array, Array]:
    """The keys from .. to (without it) that causality, window and lengths show, [B, q_len] each."""
    place = np.arange(recipe.q_len)[None, :] + offsets(recipe)[:, None]
    first, end = np.zeros_like(place), np.full_like(place, recipe.kv_len)
    if recipe.causal:
        end = np.minimum(end, place + 1)
    if recipe.window is not None:
        left, right = recipe.window
        first = first if left is None else np.maximum(first, place - left)
        end = end if right is None else np.minimum(end, place + right + 1)
    if recipe.lengths is not None:
        end = np.minimum(end, lengths(recipe)[:, None])
    return first, end


def visible(recipe: Recipe, inputs: Mapping[str, Array]) -> Array:
    """Which key each query may attend, [B, H or 1, q_len, kv_len]."""
    first, end = spans(recipe)
    slots = np.arange(recipe.slots)
    shown: Array = ((slots >= first[..., None]) & (slots < end[..., None]))[:, None]
    if recipe.segments:
        of_query, of_key = (
            x.reshape(1 if x.ndim == 1 else recipe.entries, x.shape[-1]) for x in segments(recipe)
        )
        shown = shown & (of_query[:, :, None] == of_key[:, None, :])[:, None]
    for name in ("mask", "attn_bias"):
        if name in inputs:
            rule = inputs[name] if name == "mask" else ~np.isneginf(inputs[name])
            if rule.ndim > 2:
                rule = np.broadcast_to(rule, (*recipe.batch, *rule.shape[-3:]))
                rule = rule.reshape(recipe.entries, *rule.shape[-3:])
            shown = shown & rule
    return shown


def _poison(recipe: Recipe, inputs: dict[str, Array]) -> None:
    """NaN in keys and values that are never read: behind the lengths, or all that no query of theirs may attend."""
    r = recipe
    if r.poison == "n":
        seen: Any = np.broadcast_to(
            (np.arange(r.kv_len) < lengths(r)[:, None])[:, None], (r.entries, 1, r.kv_len)
        )
    else:
        seen = visible(r, inputs).any(axis=-2)  # [B, H or 1, kv_len]
    seen = _of_tokens(r, seen, np.any)
    for name in ("key", "value"):
        rows = np.broadcast_to(seen, inputs[name].shape[:-1])
        inputs[name] = np.where(rows[..., None], inputs[name], np.nan)


def _of_tokens(r: Recipe, by_head: Array, join: Callable[..., Any]) -> Any:
    """What is known of keys by query head, [B, H or 1, kv_len], of keys as they are stored: [..., G or 1, kv_len]."""
    if r.layer:
        by_head = join(by_head, axis=1)
    elif by_head.shape[1] > 1:  # a key is read by the heads of its group
        by_head = join(by_head.reshape(r.entries, r.groups, r.heads // r.groups, r.kv_len), axis=2)
    return by_head.reshape(*r.batch, *by_head.shape[1:])


def shares(recipe: Recipe, inputs: Mapping[str, Array]) -> Array:
    """The share of the query rows that see each key that is not of the past, in the shape of key without its width."""
    if not recipe.q_len:
        return np.zeros(inputs["key"].shape[:-1])
    seen = _of_tokens(recipe, visible(recipe, inputs).mean(axis=-2), np.mean)
    return np.broadcast_to(seen[..., recipe.past :], inputs["key"].shape[:-1])


# One number else


def changed(recipe: Recipe, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of the call before: one number in the middle of an operand is another one."""
    before = dict(inputs)
    array = np.array(inputs[recipe.again])
    if array.size:
        flat = array.reshape(-1)
        middle = array.size // 2
        flat[middle] = 1.0 if flat[middle] != 1.0 else -2.0
        before[recipe.again] = flat.reshape(array.shape)
    return before
