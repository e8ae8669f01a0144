"""What is said of a size: the guesses that are told apart by asking."""

from collections.abc import Callable

import pytest

from conformance.exploring.boundary import condition

SAID: dict[str, Callable[[int], bool]] = {
    "": lambda n: True,
    "odd": lambda n: n % 2 == 1,
    "at most 64": lambda n: n <= 64,
    "1": lambda n: n == 1,
    "no multiple of 16": lambda n: n % 16 != 0,
    "a multiple of 16": lambda n: n % 16 == 0,
    "a multiple of 128, from 384 on": lambda n: n > 256 and n % 128 == 0,
    "65 or more": lambda n: n >= 65,
    "no multiple of 64, from 65 on": lambda n: n > 64 and n % 64 != 0,
    "with a rest of 1 in 64, from 129 on": lambda n: n > 128 and n % 64 == 1,
    "with a rest of 3 in 8": lambda n: n % 8 == 3,
    "96": lambda n: n == 96,
    "from 17 to 40": lambda n: 17 <= n <= 40,
}


@pytest.mark.parametrize("said", SAID)
def test_a_condition_is_told_by_few_sizes(said: str) -> None:
    holds, asked = SAID[said], []

    def fails(n: int) -> bool:
        asked.append(n)
        return holds(n)

    least = next(n for n in range(1, 1000) if holds(n))
    assert condition(least, fails, 18, 8192) == said
    assert len(asked) <= 20
    assert len(set(asked)) == len(asked)


def test_by_turns_is_chance_and_nothing_is_said() -> None:
    assert condition(5, lambda n: n in (6, 11, 15), 18, 8192) is None


def test_what_cannot_be_asked_is_left_out() -> None:
    assert condition(5, lambda n: None, 18, 8192) is None
    assert condition(5, lambda n: True, 18, 5) is None
    assert condition(65, lambda n: True if n < 130 else None, 18, 8192) == "65 or more"
