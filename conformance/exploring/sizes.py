"""Sizes as they are met: edges of tiles, whole multiples, next to nothing, anything, and those of production."""

from conformance.exploring.counter import Dice

SIZES = ("small", "kernel", "large")
MOST = {"small": 130, "kernel": 8192}
"""Keys at most, by the size that is asked for."""
TILES = (8, 16, 32, 64, 80, 128, 192, 256, 512)
WORK = {"small": (16, 17, 17, 19), "kernel": (18, 18, 18, 20, 20, 20, 23)}
"""Products of two numbers that a call may take, as powers of two, the first of them most often."""
BACKWARD = (12, 12, 15, 17)
"""The same of gradients, whose bounds take longer."""
ELEMENTS = 2**20
"""Numbers that its operands may hold."""
PLACES = 600
"""Heads of batch entries, each of which is derived by itself."""

WIDTHS = (64, 80, 96, 128, 256)
PAIRS = ((192, 128), (576, 512), (128, 64), (64, 128), (96, 64), (80, 80), (256, 256))
"""d_k and d_v of models in use, and one the other way round."""
HEADS = ((2, 1), (4, 2), (8, 1), (5, 1), (24, 1), (48, 2), (24, 8), (32, 4), (6, 3), (64, 8))
"""Query heads and key heads where keys are shared."""
ALONE = ((1, 1), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (8, 8))
"""Heads that share no keys."""
MANY = (65_537, 4_097, 257)
"""Batch entries of next to nothing."""

WIDE = (64, 72, 80, 96, 112, 128, 160, 192, 256, 257, 264, 288, 320, 384, 512, 576)
"""Widths of heads in a call that is small otherwise."""
CROWD = ((65, 65), (72, 8), (96, 8), (96, 96), (128, 8), (128, 128), (128, 1), (64, 64), (80, 1), (130, 130))
"""Query heads and key heads, the same."""
GROUPED = ((2, 1), (4, 2), (3, 1), (4, 1), (6, 2))
"""Query heads and key heads of gradients over many queries or keys."""
ENTRIES = (17, 33, 34, 64, 65, 100, 129, 200, 257, 300, 513)
"""Batch entries, the same."""


def length(dice: Dice, most: int, least: int = 1) -> int:
    """A number of tokens."""
    kind = dice.below(100)
    tile = dice.choice([t for t in TILES if t <= most] or [1])
    if kind < 35:
        found = dice.choice((tile - 1, tile, tile + 1, 2 * tile + 1))
    elif kind < 60:
        found = tile * dice.between(1, dice.choice((2, 3, 4, max(most // tile, 1))))
    elif kind < 70:
        found = dice.below(4)
    else:
        found = dice.rough(most)
    return min(max(found, least), most)


def whole(dice: Dice, square: bool, most: int) -> tuple[int, int]:
    """Queries and keys that tiles of one size divide: a few tiles each, no more of queries than of keys as a rule."""
    tile = dice.choice([t for t in (16, 32, 64, 64, 64, 128, 128) if t <= most] or [1])
    keys = tile * dice.between(1, max(min(most // tile, 4), 1))
    return (keys if square else tile * dice.between(1, 2)), keys


def width(dice: Dice, small: bool) -> int:
    """A width of heads."""
    if small or dice.chance(50):
        return dice.choice((1, 2, 3, 4, 5, 7, 8, 8, 16, 16, 24, 32, 33))
    return dice.choice(WIDTHS)
