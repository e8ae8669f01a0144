"""The options of a drawn call, and the lengths, offsets and masks that they stand for."""

from dataclasses import replace

from conformance.exploring import serve, sizes
from conformance.exploring.counter import Dice
from conformance.exploring.recipe import EVERY, EXPLICIT, Recipe
from conformance.names import PACKED, PAGED


def optional(features: frozenset[str], recipe: Recipe, options: set[str], path: str, dice: Dice) -> Recipe:
    """The recipe with some options; `features` are those that the target claims."""
    r = recipe
    if "cache" in options and r.kv_len > 1:
        r = replace(r, past=dice.choice((1, r.kv_len - 1, r.kv_len // 2, dice.between(1, r.kv_len - 1))))
    if "kv_lengths" in options and r.batch:
        r = replace(r, lengths=_lengths(r, dice))
    if "is_causal" in options:
        r = replace(r, causal=True)
    if "window" in options:
        sides: list[int | None] = [None, 0, 1, 3, 15, 16, 63, 127, 128, 255, r.kv_len // 2, r.kv_len]
        window = dice.choice(sides), dice.choice((None, 0, 0, 0, 1, 2, 7, r.kv_len))
        r = replace(r, window=window)
    if r.causal or r.window is not None:
        r = replace(r, offset=_offset(r, path, features, dice))
    if "mask" in options:
        r = replace(r, mask=f"{_broadcast(features, r, dice)}-{dice.choice('rrsdfhtebb')}")
    if "attn_bias" in options:
        kinds = ("n0", "n2", "y", "y", "x", "i") if r.mask else ("n0", "n2", "n4", "i", "x", "y", "n-6")
        r = replace(r, bias=f"{_broadcast(features, r, dice)}-{dice.choice(kinds)}")
    if "segments" in options:
        axes = dice.choice(("b", "")) if r.batch else ""
        r = replace(r, segments=f"{axes}-{dice.choice('suuwpv')}")
    if "scale" in options:
        r = replace(r, scale=dice.choice((0.0, 1.0, 0.3, -0.5, 0.0625, 0.088388, 2.0)))
    if "softcap" in options:
        r = replace(r, softcap=dice.choice((0.5, 2.0, 15.0, 30.0, 50.0)))
    if "sinks" in options:
        r = replace(r, sinks=True)
    if "returned" in options:
        weights = "return_weights" in features and dice.chance(60)
        r = replace(r, weights=weights, lse="return_lse" in features and (not weights or dice.chance(60)))
    if "grad_lse" in options:
        r = replace(r, lse=True)
    if r.layer:
        r = replace(r, biases="".join(letter for letter in "qkvo" if dice.chance(50)))
    return r


def _lengths(r: Recipe, dice: Dice) -> tuple[int, ...] | str:
    """One for each entry: full, empty, at and beside the edge of a tile, or any."""
    if r.entries > EXPLICIT:
        return EVERY
    found = []
    for _ in range(r.entries):
        tile = dice.choice([t for t in sizes.TILES if t <= r.kv_len] or [1])
        edge = tile * dice.between(1, max(r.kv_len // tile, 1)) + dice.choice((0, 0, -1, 1, -tile // 2))
        found.append(
            dice.choice((r.kv_len, edge, edge, edge, dice.between(0, r.kv_len), 0 if dice.chance(30) else 1))
        )
    return tuple(min(max(n, 0), r.kv_len) for n in found)


def _offset(r: Recipe, path: str, features: frozenset[str], dice: Dice) -> int | tuple[int, ...] | str | None:
    if "q_offset" not in features:
        return None
    if r.operation in (PACKED, PAGED):
        return serve.offset(r, dice)
    if r.batch and (r.entries > 1 or dice.chance(20)) and dice.chance(60):
        if r.entries > EXPLICIT:
            return EVERY
        if isinstance(r.lengths, tuple) and dice.chance(60):
            return tuple(n - r.q_len for n in r.lengths)
        return tuple(
            dice.choice((0, r.kv_len - r.q_len, dice.between(0, r.kv_len))) for _ in range(r.entries)
        )
    if path == "square" and r.q_len == r.kv_len and dice.chance(60):
        return None
    return dice.choice((r.kv_len - r.q_len, r.kv_len - r.q_len, 0, dice.between(-2, r.kv_len)))


def _broadcast(features: frozenset[str], r: Recipe, dice: Dice) -> str:
    """Which axes a mask or bias has."""
    if "broadcast" not in features:
        return dice.choice(("bhqk", "QK"))
    return dice.choice(("bhqk", "bhqk", "QK", "bqk", "hqk", "qk", "bk", "k", "bhk", "hq", "K"))
