"""Case k of seed n: a function of the two, of what the target claims and of the size that is asked for."""

import itertools
from collections.abc import Iterable
from functools import cache

from conformance.exploring import serve
from conformance.exploring.claims import PATHS, Claims
from conformance.exploring.counter import Dice, key
from conformance.exploring.drawn_numbers import filled
from conformance.exploring.drawn_options import optional
from conformance.exploring.drawn_sizes import sized
from conformance.exploring.needs import needs
from conformance.exploring.rare import rare
from conformance.exploring.recipe import Recipe
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
)

SERVED = ("window", "kv_lengths", "attn_bias", "mask", "softcap", "sinks", "is_causal", "gqa", "several")
"""What comes together in calls of one query."""
SHARES = {SDPA: 6, SDPA_VJP: 2, MHA: 1, MHA_VJP: 1, PACKED: 2, PAGED: 2, APPEND: 1, LATENT: 1, MERGE: 1}
"""How often each operation is drawn."""
TRIES = 12


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
    recipe = sized(claims, operation, options, path, dice)
    if recipe.served:
        recipe = serve.placed(recipe, claims.features, dice)
    recipe = optional(claims.features, recipe, options, path, dice)
    return filled(claims.features, recipe, dice)
