"""The sizes of a drawn call: edges of tiles, one size that is large by itself, as much work as there is time for."""

from dataclasses import replace

from conformance.exploring import serve, sizes
from conformance.exploring.claims import Claims
from conformance.exploring.counter import Dice
from conformance.exploring.recipe import Recipe
from conformance.names import MHA, MHA_VJP, SDPA_VJP

LARGE = ("", "width", "heads", "entries")
"""What alone is large in a call of next to nothing; empty: no such call."""


def sized(claims: Claims, operation: str, options: set[str], path: str, dice: Dice) -> Recipe:
    """A call of an operation on a path, with no option but those that are sizes."""
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
    return [
        (letter, each)
        for letter, each in found
        if each.work < r.work
        or each.heads * each.entries < r.heads * r.entries  # of no queries there is no work
    ]
