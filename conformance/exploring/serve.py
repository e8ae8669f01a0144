"""Draws of packed, paged, latent and merged attention: their sizes, and how their operands lie."""

from dataclasses import replace

from conformance.exploring import sizes
from conformance.exploring.counter import Dice
from conformance.exploring.laid import UNUSUAL
from conformance.exploring.recipe import EVERY, Numbers, Recipe
from conformance.names import APPEND, LATENT, MERGE, OPTIONS_OF, PACKED, PAGED

PAGES = (1, 16, 16, 16, 64, 64, 256, 2, 3, 8, 32, 128)
"""Slots of a page: those of kernels, and some that are no power of two."""
ENTRIES = (1, 2, 2, 3, 3, 5, 9, 17, 33)
"""Parts of a packed call, and entries of a paged one."""
PARTS = (1, 2, 2, 3, 4, 5, 8, 16, 33)
"""Partial results."""
ROWS = ((576, 512), (576, 512), (320, 256), (80, 64), (72, 64), (40, 32))
"""Width of latent rows, and of the values in it, of models in use and smaller."""
NARROW = ((5, 4), (3, 2), (6, 4), (4, 4), (9, 1), (24, 16))
OFTEN = {"p": 65, "n": 15}
"""How many of a hundred calls have something unusual in how they lie, where it is not a third."""
LSES = ("n0", "n1", "n3", "n5", "n7", "n9", "f0", "f2", "i", "l")
"""Families of the lses of partial results: from next to each other to far apart, on both sides of zero."""
EXPLICIT = 5
"""Entries whose counts are drawn one by one: a token holds three numbers of each."""
MOST = 20
"""Products of two numbers of a packed call, as a power of two: all its rows are judged."""


def shaped(r: Recipe, small: bool, dice: Dice) -> Recipe:
    """Sizes that an operation has, from those of a call of attention."""
    if r.operation in (PACKED, PAGED):
        return replace(
            r, batch=(0 if r.operation == PACKED and dice.below(60) == 0 else dice.choice(ENTRIES),)
        )
    if r.operation == LATENT:
        d_k, d_v = dice.choice(NARROW if small else ROWS)
        return replace(r, d_k=d_k, d_v=d_v, heads=dice.choice((1, 2, 4, 8, 16, 65)), groups=1)
    if r.operation == MERGE:
        batch = dice.choice(((), (1,), (2,), (3,), (2, 2)))
        q_len = max(r.q_len if dice.chance(50) else dice.between(1, 9), 1)
        return replace(r, batch=batch, kv_len=dice.choice(PARTS), q_len=q_len, d_k=1, groups=r.heads)
    cells = sizes.length(dice, 600)
    new = dice.choice((1, 2, 3, 7, 16, 33, cells, cells // 2 + 1))
    return replace(r, batch=(), heads=r.groups, kv_len=cells, q_len=new)


def placed(r: Recipe, claimed: frozenset[str], dice: Dice) -> Recipe:
    """Pages, parts, and what is unusual in how they lie."""
    layout = "".join(letter for letter in UNUSUAL[r.operation] if dice.chance(OFTEN.get(letter, 35)))
    behind = [letter for letter in layout if letter in "moh"]
    layout = "".join(x for x in layout if x not in behind[1:])
    if r.operation in (PAGED, APPEND):
        page = dice.choice(PAGES)
        r = replace(r, page=page if page <= 2 * r.kv_len or dice.chance(20) else dice.choice((1, 2, 4)))
    if r.operation == APPEND:
        r = replace(r, q_len=min(r.q_len, r.slots))
    if r.operation in (PACKED, PAGED) and dice.chance(85):
        r = replace(r, lengths=_counts(r, r.kv_len, r.page, dice))
    if r.operation == PACKED and r.lengths is not None and dice.chance(75):
        r = replace(r, queries=_queries(r, dice))
    if r.operation == PAGED and "append" in claimed and dice.chance(25):
        r = replace(r, written=dice.choice((1, 1, 2, r.q_len, r.page + 1)))
    if r.operation == PAGED and not r.written:
        layout = layout.replace("e", "")
    return replace(r, layout=layout)


def _counts(r: Recipe, most: int, page: int, dice: Dice) -> Numbers:
    """One for each entry: whole pages and one beside them, edges of tiles, none, one, all or any."""
    if r.entries > EXPLICIT:
        return EVERY
    found = []
    for _ in range(r.entries):
        tile = dice.choice([t for t in (page, page, page, *sizes.TILES) if 0 < t <= most] or [1])
        edge = tile * dice.between(1, max(most // tile, 1)) + dice.choice((0, 0, -1, 1, -tile // 2))
        found.append(dice.choice((most, edge, edge, edge, dice.between(0, most), 0, 1)))
    return tuple(min(max(n, 0), most) for n in found)


def _queries(r: Recipe, dice: Dice) -> Numbers:
    """As many as there are keys, one, or others."""
    kind = dice.below(100)
    if r.lengths == EVERY or not isinstance(r.lengths, tuple):
        return EVERY
    if kind < 30:  # a chunk, or all
        return tuple(min(n, r.q_len) for n in r.lengths)
    if kind < 45:  # some entries decode
        return tuple(dice.choice((1, r.q_len)) for _ in r.lengths)
    return _counts(r, r.q_len, 0, dice)


def options(names: tuple[str, ...], operation: str) -> tuple[str, ...]:
    """Those that are met pairwise; the features of an operation itself are drawn beside them."""
    own = (
        {"gqa", "value_dim"}
        if operation in (PACKED, PAGED)
        else {"value_dim"}
        if operation == APPEND
        else set()
    )
    own |= {"several"} if operation in (LATENT, MERGE) else set()
    own |= {"gqa"} if operation == APPEND else set()
    known = (
        set(OPTIONS_OF[operation]) | own | ({"returned"} if "return_lse" in OPTIONS_OF[operation] else set())
    )
    return tuple(name for name in names if name in known)


def offset(r: Recipe, dice: Dice) -> int | Numbers | None:
    """Where the queries of each part or entry stand; None where they stand at their keys by themselves."""
    alike = r.operation == PACKED and r.queries is None and r.lengths is None and r.q_len == r.kv_len
    if alike and dice.chance(50):
        return None
    if dice.chance(30):
        return dice.choice((r.kv_len - r.q_len, 0, dice.between(-2, r.kv_len)))
    if r.entries > EXPLICIT or EVERY in (r.lengths, r.queries):
        return EVERY
    held = r.lengths if isinstance(r.lengths, tuple) else (r.kv_len,) * r.entries
    rows = r.queries if isinstance(r.queries, tuple) else (r.q_len,) * r.entries
    if dice.chance(60):
        return tuple(n - q for n, q in zip(held, rows, strict=True))
    return tuple(dice.choice((0, n - q, dice.between(0, n))) for n, q in zip(held, rows, strict=True))
