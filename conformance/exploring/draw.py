"""Case k of seed n: a function of the two, of what the target claims and of the size that is asked for."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from conformance.exploring import earlier, serve, sizes, smaller
from conformance.exploring.counter import Dice, key
from conformance.exploring.memory import LAYOUTS
from conformance.exploring.needs import needs
from conformance.exploring.rare import rare
from conformance.exploring.recipe import EVERY, EXPLICIT, Recipe, numbers_of
from conformance.exploring.valid import valid
from conformance.names import (
    APPEND,
    LATENT,
    MERGE,
    MHA,
    MHA_VJP,
    OPERATIONS,
    PACKED,
    PAGED,
    SDPA,
    SDPA_VJP,
    SERVING,
)

PATHS = ("one", "few", "chunk", "square", "long")
"""How queries and keys stand to each other: kernels have a path of their own for each."""
OPTIONS = (
    "mask", "attn_bias", "is_causal", "window", "kv_lengths", "scale", "softcap", "sinks",
    "segments", "grad_lse", "returned", "cache", "gqa", "value_dim", "several",
)  # fmt: skip
"""What is met pairwise on each path; `several` is a batch of entries that differ."""
SERVED = ("window", "kv_lengths", "attn_bias", "mask", "softcap", "sinks", "is_causal", "gqa", "several")
"""What comes together in calls of one query."""
SHARES = {SDPA: 6, SDPA_VJP: 2, MHA: 1, MHA_VJP: 1, PACKED: 2, PAGED: 2, APPEND: 1, LATENT: 1, MERGE: 1}
"""How often each operation is drawn."""
TRIES = 12


@dataclass(frozen=True)
class Claims:
    """What a target claims, as far as the draw depends on it."""

    operations: tuple[str, ...]
    features: frozenset[str]
    dtypes: tuple[str, ...]
    size: str = "kernel"
    wanted: frozenset[str] = frozenset()  # features of which a case needs one; empty = any

    def options(self, operation: str) -> tuple[str, ...]:
        """The options that are met pairwise."""
        known = {
            "several": True,
            "returned": not operation.endswith("_vjp")
            and bool({"return_weights", "return_lse"} & self.features),
            "window": {"window", "q_offset"} <= self.features,
            "grad_lse": operation.endswith("_vjp") and "grad_lse" in self.features,
        }
        if operation in SERVING:
            known["returned"] = "return_lse" in self.features
        names = tuple(name for name in OPTIONS if known.get(name, name in self.features))
        return serve.options(names, operation) if operation in SERVING else names


def draw(claims: Claims, seed: int, number: int) -> Recipe | None:
    """Case `number` of a seed; None where the target claims too little for what was drawn."""
    operation, turn = _operation(claims, number)
    options, path = _turn(claims.options(operation), seed, operation, turn)
    for attempt in range(TRIES):
        dice = Dice("case", seed, number, attempt)
        recipe = _recipe(claims, operation, set(options), path, dice)
        if recipe.served and not valid(recipe):
            continue
        recipe = rare(claims.features, recipe, Dice("rare", seed, number, attempt))
        needed = needs(recipe)
        if needed <= claims.features and (not claims.wanted or claims.wanted & needed):
            return recipe
    return None


def _operation(claims: Claims, number: int) -> tuple[str, int]:
    """The operation of a case, and how many of it were drawn before."""
    round_ = _round(tuple(name for name in OPERATIONS if name in claims.operations))
    turn, place = divmod(number, len(round_))
    operation = round_[place]
    return operation, turn * round_.count(operation) + round_[:place].count(operation)


@cache
def _round(operations: tuple[str, ...]) -> tuple[str, ...]:
    """Each operation as often as its share says, well mixed."""
    places = [((2 * n + 1) / SHARES[name], name) for name in operations for n in range(SHARES[name])]
    return tuple(name for _, name in sorted(places))


@cache
def _meetings(options: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Nothing, each option and each pair of options, on each path."""
    sets: Iterable[tuple[str, ...]] = itertools.chain(
        [()], itertools.combinations(options, 1), itertools.combinations(options, 2)
    )
    return tuple(itertools.product(sets, PATHS))


def _turn(options: tuple[str, ...], seed: int, operation: str, turn: int) -> tuple[tuple[str, ...], str]:
    """What meets in a turn: all meetings come once in each round, in an order of their own."""
    meetings = _meetings(options)
    round_, place = divmod(turn, len(meetings))
    return meetings[_order(len(meetings), key("round", seed, operation, round_))[place]]


@cache
def _order(count: int, word: int) -> tuple[int, ...]:
    return tuple(Dice("order", word).order(range(count)))


def _recipe(claims: Claims, operation: str, options: set[str], path: str, dice: Dice) -> Recipe:
    for name in claims.options(operation):
        if dice.chance(6):
            options = options | {name}
    if path == "one" and dice.chance(30):  # a served call has several at once
        served = [name for name in SERVED if name in claims.options(operation)]
        options = options | {dice.choice(served) for _ in range(3) if served}
    recipe = _sized(claims, operation, options, path, dice)
    if recipe.served:
        recipe = serve.placed(recipe, claims.features, dice)
    recipe = _optional(claims, recipe, options, path, dice)
    return _filled(claims, recipe, dice)


# Sizes


LARGE = ("", "width", "heads", "entries")
"""What alone is large in a call of next to nothing; empty: no such call."""


def _sized(claims: Claims, operation: str, options: set[str], path: str, dice: Dice) -> Recipe:
    layer, backward = operation in (MHA, MHA_VJP), operation in (SDPA_VJP, MHA_VJP)
    most = sizes.MOST[claims.size]
    if layer or backward:
        most = min(most, 600 if dice.chance(15) else 130)
    powers = sizes.BACKWARD if backward else sizes.WORK[claims.size]
    power = powers[0] if dice.chance(70) else dice.choice(powers[1:])
    small = power == powers[0] and dice.chance(75)
    least = 0 if "empty" in claims.features and dice.chance(5) else 1
    large = dice.choice(LARGE[1:]) if dice.chance(18) else ""
    tiles = "" if large or not backward or dice.chance(50) else dice.choice(("q_len", "q_len", "kv_len"))
    if large:
        most = min(most, 33 if large == "width" else 17)
    kv_len = sizes.length(dice, 17 if tiles == "q_len" else most, least)
    long = sizes.length(dice, 17 if tiles == "kv_len" else most, least)
    q_len = {
        "one": 1, "few": dice.between(2, 8), "chunk": dice.between(1, max(kv_len - 1, 1)), "square": kv_len,
        "long": long,
    }[path]  # fmt: skip
    if tiles == "q_len" and path != "one":
        q_len = long
    whole = not (large or tiles or layer) and path in ("chunk", "square", "long") and dice.chance(30)
    if whole:  # tiles divide both, as no other draw would have it often
        q_len, kv_len = sizes.whole(dice, path == "square", most)
    if path == "one" and claims.size == "kernel" and not (layer or backward or large) and dice.chance(40):
        kv_len = dice.between(512, most)
    d_k, d_v = _widths(options, large, tiles, small, dice)
    heads, groups = _heads(claims, options, large, tiles, dice)
    batch: tuple[int, ...] = dice.choice(((), (1,), (1,), (2,)))
    if "kv_lengths" in options and not batch:
        batch = (1,)
    if "several" in options:
        batch = dice.choice(((2,), (3,), (2, 2), (5,), (9,), (33,)))
    if large == "entries":
        batch = (dice.choice(sizes.ENTRIES),)
    elif claims.size == "kernel" and not layer and not backward and dice.below(400) == 0:
        batch, q_len, kv_len, d_k, d_v = (dice.choice(sizes.MANY),), 1, dice.between(1, 2), 1, 1
        heads, groups = 1, 1
    if least == 0 and dice.chance(20):
        batch = (0,)
    recipe = Recipe(
        operation, dice.choice(claims.dtypes), batch, heads, groups, q_len, kv_len, d_k, d_v,
        widths=tuple(dice.choice((1, 3, 8, 9, 16, 33, 64)) for _ in range(4)) if layer else (),
        stream=dice.below(2**24),
    )  # fmt: skip
    if recipe.served:
        power = min(power, serve.MOST)
        recipe = serve.shaped(recipe, small, dice)
    if layer and dice.chance(25):  # square weights
        recipe = replace(recipe, widths=(recipe.d_k, recipe.d_k, recipe.d_v, recipe.d_k))
    kept = {"width": "d", "heads": "h", "entries": "b", "q_len": "q", "kv_len": "k"}.get(large or tiles, "")
    kept = "qk" if whole else kept
    return _within(recipe, 2**power, path, kept, dice)


def _widths(options: set[str], large: str, tiles: str, small: bool, dice: Dice) -> tuple[int, int]:
    if large == "width":
        d_k = dice.choice(sizes.WIDE)
        pair = dice.choice((*sizes.PAIRS, (d_k, 8), (8, d_k), (64, d_k)))
        return pair if "value_dim" in options else (d_k, d_k)
    if large or tiles:
        small = True
    d_k = d_v = sizes.width(dice, small)
    if large or tiles:
        d_k = d_v = min(d_k, dice.choice((1, 2, 4)))
    if "value_dim" in options:
        d_k, d_v = dice.choice(sizes.PAIRS) if not small else (d_k, sizes.width(dice, small))
    return d_k, d_v


def _heads(claims: Claims, options: set[str], large: str, tiles: str, dice: Dice) -> tuple[int, int]:
    heads = dice.choice(sizes.ALONE)
    if large == "heads":
        crowd = [pair for pair in sizes.CROWD if "gqa" in options or pair[0] == pair[1]]
        return dice.choice(crowd)
    if tiles and "gqa" in claims.features and dice.chance(60):
        return dice.choice(sizes.GROUPED)
    return dice.choice(sizes.HEADS) if "gqa" in options else heads


def _within(recipe: Recipe, work: int, path: str, kept: str, dice: Dice) -> Recipe:
    """Smaller in what matters least, until it takes no more than so much work; what is kept comes last."""
    while recipe.work > work or recipe.elements > sizes.ELEMENTS or _crowded(recipe):
        smaller = _less(recipe, path)
        other = [each for letter, each in smaller if not set(letter) & set(kept)]
        less = other or [each for _, each in smaller]
        if not less:
            return replace(recipe, kv_len=max(recipe.kv_len // 2, 1))
        recipe = dice.choice(less)
        if recipe.heads % recipe.groups:
            recipe = replace(recipe, groups=1)
    return recipe


def _crowded(r: Recipe) -> bool:
    """Whether heads of entries are more than can be judged one by one in little time."""
    return r.heads > 1 and r.heads * r.entries > sizes.PLACES


def _less(r: Recipe, path: str) -> list[tuple[str, Recipe]]:
    """Recipes that take less work, with the letter of what is smaller in each."""
    batch = tuple(n // 2 if n > 2 else min(n, 1) if n < 2 else n for n in r.batch)
    found = [
        ("b", replace(r, batch=batch)),
        ("d", replace(r, d_k=max(r.d_k // 2, 1), d_v=max(r.d_v // 2, 1))),
    ]
    if r.heads % r.groups == 0 and r.heads > 2:  # fewer key heads, each shared by as many as before
        shared, groups = r.heads // r.groups, r.groups // 2 or 1
        found.append(
            ("h", replace(r, heads=(shared if r.groups > 1 else shared // 2) * groups, groups=groups))
        )
    if path == "square" and r.q_len == r.kv_len:
        found.append(("qk", replace(r, q_len=r.kv_len // 2, kv_len=r.kv_len // 2)))
    else:
        found.append(("q", replace(r, q_len=max(r.q_len // 2, 1))))
        found.append(("k", replace(r, kv_len=max(r.kv_len // 2, 1))) if r.q_len <= 4 else found[-1])
    return [(letter, each) for letter, each in found if each != r and each.work < r.work]


# Options


def _optional(claims: Claims, recipe: Recipe, options: set[str], path: str, dice: Dice) -> Recipe:
    r, features = recipe, claims.features
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
        r = replace(r, segments=f"{axes}-{dice.choice('ssuuwp')}")
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


# Numbers and memory

MAGNITUDES = ("n0", "n0", "n0", "n1", "n-2", "n2", "f0")


def _filled(claims: Claims, recipe: Recipe, dice: Dice) -> Recipe:
    r = recipe
    data: dict[str, str] = {}
    kind = dice.below(100)
    if r.operation in (APPEND, MERGE):
        kind = max(kind, 40)
    hides = bool(r.mask or r.bias or r.causal or r.window or r.lengths or r.segments)
    if kind < (40 if hides else 15) and not r.layer:  # logits far from zero, on one side of it
        query, key = _poles(r, dice)
        data |= {"query": query, "key": key, **({"past_key": key} if r.past else {})}
    elif kind < 50:
        data |= dict.fromkeys(("query", "key", "value"), "i")
    elif kind < 56:
        data["key"] = dice.choice(("l", "t"))
    elif kind < 62:
        data["value"] = dice.choice(("c", "l", "t"))
    elif kind < 71:
        data |= dict.fromkeys(
            ("query", "key", "value", "grad_output", "attn_bias", "sinks", "weights", "biases"), "f0"
        )
    else:
        data |= {name: dice.choice(MAGNITUDES) for name in ("query", "key", "value")}
    if r.operation == MERGE:
        data["key"] = dice.choice(serve.LSES)
    r = smaller.mended(replace(r, data=tuple(sorted(data.items()))))
    if r.served:
        r = replace(r, poison="n" if dice.chance(50) else "")
    elif not r.past and not (r.gradients and "strict_masking" not in claims.features):
        strict = "strict_masking" in claims.features and dice.chance(40)
        if strict or (r.lengths is not None and dice.chance(50)):
            r = replace(r, poison="s" if strict else "n")
    if dice.chance(15):
        operands = [name for name in ("query", "key", "value") if len(r.batch) or not r.layer]
        operands = list(numbers_of(r)) if r.served else operands
        r = replace(r, memory=((dice.choice(operands), dice.choice(LAYOUTS)),)) if operands else r
    if dice.chance(12):
        r = replace(r, again=_again(r, dice))
    return r


def _again(r: Recipe, dice: Dice) -> str:
    """What the call before it differs in."""
    kind = dice.below(100)
    others = smaller.others(r)
    numbers = numbers_of(r)
    if r.operation in (PACKED, PAGED) and dice.chance(50):
        return earlier.SHAPE
    if kind < 25 or (not numbers and kind < 80):
        return "same"
    if kind < 50 or (kind < 80 and not others):
        return dice.choice(numbers)
    return dice.choice(others) if kind < 80 else earlier.SHAPE


FAR = {
    "float64": (10, 14, 17, 20),
    "float32": (10, 14, 17, 20),
    "bfloat16": (10, 14, 17),
    "float16": (8, 10, 12),
}
"""How far from zero the logits lie, as powers of two."""


def _poles(r: Recipe, dice: Dice) -> tuple[str, str]:
    """Families of query and key whose products lie so far on one side of zero, most often below it."""
    width = 0 if r.dtype == "float16" else (r.d_k.bit_length() - 1) // 2  # the scale takes this away again
    power = (dice.choice((4, 5, 6)) if r.gradients else dice.choice(FAR[r.dtype])) + width
    side = dice.choice((1, -1, -1, -1))
    return f"p{power // 2}", f"p{side * (power - power // 2)}"
