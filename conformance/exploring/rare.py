"""What few calls have beside all that is drawn for them; it comes from dice of its own, so that all others stay."""

from collections.abc import Callable
from dataclasses import replace

from conformance.exploring import broken, smaller
from conformance.exploring.counter import Dice
from conformance.exploring.needs import needs
from conformance.exploring.recipe import Recipe
from conformance.exploring.valid import valid

WORK = 2**14
"""Products up to which a call may grow."""
AXES = 64
"""Batch entries that may lie along two axes."""


def rare(features: frozenset[str], recipe: Recipe, dice: Dice) -> Recipe:
    """The recipe with what is rare, as far as the target claims it; the recipe itself as a rule."""
    for percent, change in CHANGES:
        if not recipe.served and dice.chance(percent):
            made = change(recipe, dice)
            if made != recipe and valid(made) and needs(made) <= features:
                recipe = made
    return recipe


def _row_of_the_bias(r: Recipe, dice: Dice) -> Recipe:
    """A whole row of the bias is -inf, where some of it is."""
    axes, _, kind = r.bias.partition("-")
    return replace(r, bias=f"{axes}-e") if kind == "y" else r


def _two_axes(r: Recipe, dice: Dice) -> Recipe:
    """The entries of one batch axis along two, the first of which is one where nothing else divides them."""
    if len(r.batch) != 1 or not 1 < r.entries <= AXES:
        return r
    first = dice.choice([n for n in range(2, r.entries) if r.entries % n == 0] or [1])
    return replace(r, batch=(first, r.entries // first))


def _as_many_queries_as_entries(r: Recipe, dice: Dice) -> Recipe:
    """A mask or bias of rank 2 whose queries are as many as the entries: it may be read as one of entries by keys."""
    if len(r.batch) != 1 or r.entries < 2 or not (r.mask or r.bias):
        return r
    name = "mask" if r.mask else "bias"
    kind = getattr(r, name).partition("-")[2]
    made = smaller.of_queries(r, r.entries, from_end=False)
    made = replace(made, mask=f"QK-{kind}") if name == "mask" else replace(made, bias=f"QK-{kind}")
    return made if made.work <= max(r.work, WORK) else r


def _lengths_alike(r: Recipe, dice: Dice) -> Recipe:
    """Entries of one length, shorter than the buffer where one of them is: as if it were the length of all keys."""
    if not isinstance(r.lengths, tuple) or r.entries < 2:
        return r
    length = dice.choice([n for n in r.lengths if 0 < n < r.kv_len] or [max(r.kv_len - 1, 0)])
    return replace(r, lengths=(length,) * r.entries)


def _length_out_of_range(r: Recipe, dice: Dice) -> Recipe:
    """A length above all keys, which hides nothing, or below zero, which hides everything (MASK-12)."""
    if not isinstance(r.lengths, tuple) or not r.lengths:
        return r
    place, by = dice.choice(range(len(r.lengths))), dice.choice((1, 1, 2, max(r.kv_len // 2, 1)))
    length = dice.choice((r.kv_len + by, -by))
    return replace(r, lengths=(*r.lengths[:place], length, *r.lengths[place + 1 :]))


def _broken(r: Recipe, dice: Dice) -> Recipe:
    """A number that is NaN or infinite where it is seen; of gradients nothing is asked then."""
    if r.gradients:
        return r
    there = [name for name in broken.OPERANDS if name != "attn_bias" or r.bias]
    if any(r.family(name)[0] == "p" for name in ("query", "key")):  # weights that may be zero
        there.remove("value")
    operand = dice.choice(there)
    return replace(r, broken=((operand, dice.choice(broken.kinds(operand, r.layer))),))


CHANGES: tuple[tuple[int, Callable[[Recipe, Dice], Recipe]], ...] = (
    (30, _row_of_the_bias), (10, _two_axes), (15, _as_many_queries_as_entries), (7, _broken), (10, _lengths_alike),
    (10, _length_out_of_range),
)  # fmt: skip
"""In how many of a hundred calls each is tried."""
