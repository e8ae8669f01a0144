"""Sizes in the words of an experiment, and which of them say nothing."""

from collections.abc import Iterable

NAMES = {"kv_len": "kv_len", "q_len": "q_len", "d_k": "d_k", "d_v": "d_v", "length": "lengths"}
LENGTHS = ("kv_len", "q_len", "length")
PLACED = ("window", "kv_lengths", "is_causal", "q_offset")
"""Options that say by its place whether a key is seen."""
SMALL = 7
"""A number of keys or queries up to which such an option needs it."""
TRIVIAL = {("kv_len", "2 or more"), ("length", "2 or more")}
"""Sizes that say nothing: the weight of a single key is one, whatever is wrong with logits."""


def says_nothing(axis: str, words: str, needed: Iterable[str]) -> bool:
    """Whether a size is only what weights need to differ, or what an option needs to hide and to show something."""
    if (axis, words) in TRIVIAL:
        return True
    smallest = words.removesuffix(" or more")
    if axis in ("d_k", "d_v"):
        return words != smallest and smallest.isdigit() and 2 < int(smallest) <= SMALL
    placed = [words for words in needed if any(f"`{name}`" in words for name in PLACED) or " (that " in words]
    return (
        axis in LENGTHS
        and smallest.isdigit()
        and words != smallest
        and int(smallest) <= SMALL
        and bool(placed)
    )


def between(least: str, most: int) -> str:
    """Numbers of queries in words."""
    if least == str(most):
        return f"q_len {most}"
    return f"q_len {most} at most" if least == "1" else f"q_len {least} to {most}"


def of_tiles(words: str) -> bool:
    """Whether a size is said by the tiles that it fills: no smaller or larger one is."""
    return words.startswith(("no multiple of", "a multiple of", "with a rest of"))
