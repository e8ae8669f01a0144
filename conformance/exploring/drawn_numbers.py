"""The numbers of a drawn call, how they lie in memory, and the call before it."""

from dataclasses import replace

from conformance.exploring import earlier, serve, smaller
from conformance.exploring.counter import Dice
from conformance.exploring.memory import LAYOUTS
from conformance.exploring.recipe import Recipe, numbers_of
from conformance.names import APPEND, MERGE, PACKED, PAGED

MAGNITUDES = ("n0", "n0", "n0", "n1", "n-2", "n2", "f0")


def filled(features: frozenset[str], recipe: Recipe, dice: Dice) -> Recipe:
    """The recipe with families of numbers, NaN in what is hidden, layouts, and a call before it."""
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
    elif not r.past and not (r.gradients and "strict_masking" not in features):
        strict = "strict_masking" in features and dice.chance(40)
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
