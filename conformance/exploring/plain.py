"""Plainer numbers for the operands of a call, and other ones."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from conformance.exploring.numbers import ONES, RAMP, SCRAMBLED, ZEROS
from conformance.exploring.recipe import Recipe
from conformance.names import APPEND, LATENT, MERGE

PLAIN = (ZEROS, ONES, RAMP)
"""Numbers that are the same at every place of a smaller call, or follow from the place."""
TURNS = 4
"""How often a size that passed is asked with other numbers."""
FAR_LSES = "O7"
"""Lses whose exponentials no float32 holds."""

OPERANDS = {LATENT: ("query", "key"), MERGE: ("key", "value"), APPEND: ("key", "value")}
"""Whose numbers a recipe says of operations that do not have all three."""


def plainer(recipe: Recipe, operand: str) -> Iterator[Recipe]:
    """Plainer numbers in one operand."""
    now = recipe.family(operand)
    shaped = now[0] in "nflc" and now != "n0"  # rather than plain already
    more = (FAR_LSES,) if recipe.operation == MERGE and operand == "key" and shaped else ()
    for family in (*_families(operand, now), *more):
        yield recipe.made_of(operand, family)


def _families(operand: str, now: str) -> Iterable[str]:
    order: tuple[str, ...] = (ZEROS, ONES, RAMP, SCRAMBLED, "i", "n0")
    if operand in ("value", "grad_output", "past_value"):
        order = (
            (ONES, RAMP, SCRAMBLED, ZEROS, "i", "n0")
            if operand == "grad_output"
            else (RAMP, SCRAMBLED, "i", "n0")
        )
    return order[: order.index(now)] if now in order else order


def operands(recipe: Recipe) -> list[str]:
    """The operands whose numbers may be made plainer."""
    found = list(OPERANDS.get(recipe.operation, ("query", "key", "value")))
    found += ["past_key", "past_value"] if recipe.past else []
    found += ["grad_output"] if recipe.gradients else []
    found += ["sinks"] if recipe.sinks else []
    found += ["weights"] if recipe.layer else []
    found += ["biases"] if recipe.biases else []
    return found


def by_chance(recipe: Recipe) -> bool:
    """Whether its numbers are no plain ones, so that another size may pass because of what they are there."""
    r = recipe
    return bool(r.broken or r.segments) or any(r.family(name) not in PLAIN for name in operands(r))


def other_numbers(recipe: Recipe) -> Iterator[Recipe]:
    """The same call with other small integers in place of its numbers that are not plain."""
    r = recipe
    for name in operands(r):
        r = r if r.family(name) in PLAIN else r.made_of(name, "i")
    for turn in range(1, TURNS + 1):
        yield replace(r, stream=r.stream + turn)
