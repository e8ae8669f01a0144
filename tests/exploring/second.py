"""Drawn calls on packed, paged, latent and partial operands: the second reference finds what the oracle expects.

python -m tests.exploring.second --seed 1 --calls 500
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from mpmath import mp, mpf

from conformance.exploring.claims import Claims
from conformance.exploring.draw import draw
from conformance.exploring.recipe import Recipe, token
from conformance.exploring.trial import certify_recipe
from conformance.names import FEATURES, SERVING
from conformance.oracle import Certified
from conformance.vectors.verify.second_serving import served

CLAIMS = Claims(SERVING, frozenset(FEATURES) - {"validation"}, ("float64", "float32"), "small")
WORK = 30_000
"""Products of two numbers up to which scalar loops of many digits are run."""


@dataclass
class Compared:
    """A drawn call, how many of its elements were compared, and what differs."""

    recipe: Recipe
    elements: int
    wrong: list[str]


def compared(seed: int, calls: int) -> Iterator[Compared]:
    """The calls of a seed that are small enough and have expected values."""
    for number in range(calls):
        recipe = draw(CLAIMS, seed, number)
        if recipe is None or recipe.operation not in SERVING or recipe.work > WORK:
            continue
        certified = certify_recipe(recipe, f"explore/{number}")
        if certified is not None:
            elements, wrong = differences(certified)
            yield Compared(recipe, elements, wrong)


def differences(certified: Certified) -> tuple[int, list[str]]:
    """How many elements were compared, and what differs."""
    count, wrong = 0, []
    with mp.workdps(60):
        for name, place, value, slack in served(certified.case):
            golden, count = certified.case.expected[name], count + 1
            hi, lo = float(golden.hi[place]), float(golden.lo[place])
            if value is None or isinstance(value, float) or not math.isfinite(hi):
                same = value is not None and (hi == value or (hi != hi and value != value))
            else:
                same = abs(value - mpf(hi) - mpf(lo)) <= float(certified.own_error[name][place]) + slack
            if not same:
                wrong.append(f"{name}{list(place)}: {hi}, the second reference says {value}")
    return count, wrong


def main() -> None:
    """Prints what differs and the totals; exit 1 if something does."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=int, default=500, help="drawn; those that are small are compared")
    asked = parser.parse_args()
    calls = elements = differ = 0
    operations: dict[str, int] = {}
    for each in compared(asked.seed, asked.calls):
        calls, elements, differ = calls + 1, elements + each.elements, differ + bool(each.wrong)
        operations[each.recipe.operation] = operations.get(each.recipe.operation, 0) + 1
        if each.wrong:
            print(f"{token(each.recipe)}: {each.wrong[0]}; {len(each.wrong)} in all")
    print(
        f"{calls} calls ({', '.join(f'{n} {name}' for name, n in operations.items())}), {elements} elements: ",
        end="",
    )
    print(f"{differ} calls differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
