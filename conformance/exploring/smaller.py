"""What a smaller call may look like: the same recipe with something off, or a size down and all that hangs on it."""

from dataclasses import replace
from typing import Any

from conformance.exploring import parts
from conformance.exploring.counts import lengths, offsets, queries
from conformance.exploring.plain import OPERANDS
from conformance.exploring.recipe import EXPLICIT, Recipe
from conformance.names import PACKED, PAGED

BROKEN = "NaN or infinity in "
"""What the option is called, before its operand, that a visible number is one of these."""
TILES = (8, 16, 32, 64, 128, 256)

OFF: dict[str, dict[str, Any]] = {
    "again": {"again": ""}, "memory": {"memory": ()}, "poison": {"poison": ""}, "return_weights": {"weights": False},
    "return_lse": {"lse": False}, "sinks": {"sinks": False}, "softcap": {"softcap": None}, "scale": {"scale": None},
    "attn_bias": {"bias": ""}, "mask": {"mask": ""}, "cache": {"past": 0}, "kv_lengths": {"lengths": None},
    "segments": {"segments": ""},
    "window": {"window": None}, "is_causal": {"causal": False}, "q_offset": {"offset": None},
    "biases": {"biases": ""}, "grad_lse": {"lse": False},
}  # fmt: skip
"""Option -> the fields that leave it out."""

OTHERS = {
    "mask": "mask", "attn_bias": "bias", "kv_lengths": "lengths", "sinks": "sinks", "is_causal": "causal",
    "q_segments": "segments", "kv_segments": "segments", "window": "window", "scale": "scale", "softcap": "softcap",
}  # fmt: skip
"""Options that may be others in the call before, each with its field of a recipe."""


def given(recipe: Recipe) -> list[str]:
    """The options that a recipe has on, in the order in which they are tried off."""
    return [
        name
        for name, fields in _off(recipe).items()
        if any(getattr(recipe, field) != value for field, value in fields.items())
        and name != ("return_lse" if recipe.gradients else "grad_lse")
    ]


def _off(recipe: Recipe) -> dict[str, dict[str, Any]]:
    own = parts.off(recipe)
    known = {name: fields for name, fields in OFF.items() if fields not in own.values()}
    first: dict[str, dict[str, Any]] = {f"{BROKEN}{operand}": {"broken": ()} for operand, _ in recipe.broken}
    return {**first, **known, **own}


def others(recipe: Recipe) -> list[str]:
    """The options of a call that may be others in the call before."""
    found = [name for name, field in OTHERS.items() if getattr(recipe, field) not in (None, False, "")]
    return [name for name in found if name != "kv_lengths" or recipe.operation != PACKED]


def without(recipe: Recipe, option: str) -> Recipe:
    """The recipe without an option, and without what needs it."""
    r = replace(recipe, **_off(recipe)[option])
    if r.poison == "n" and r.lengths is None and not r.served:
        r = replace(r, poison="")
    if not r.causal and r.window is None:
        r = replace(r, offset=None)
    return mended(r)


def mended(r: Recipe) -> Recipe:
    """With an offset where one is required, and nothing said of operands and options that are gone."""
    if r.again in OTHERS and r.again not in others(r):
        r = replace(r, again="")
    if "attn_bias" in dict(r.broken) and not r.bias:
        r = replace(r, broken=())
    if r.operation in (PACKED, PAGED):
        r = parts.mended(r)
    elif (r.causal or r.window is not None) and r.offset is None and r.q_len != r.kv_len:
        r = replace(r, offset=r.kv_len - r.q_len)
    there = set(OPERANDS.get(r.operation, ("query", "key", "value"))) | (
        {"grad_output"} if r.gradients else set()
    )
    there |= {"grad_lse"} if r.gradients and r.lse else set()
    there |= {"past_key", "past_value"} if r.past else set()
    there |= {"sinks"} if r.sinks else set()
    there |= {"weights"} if r.layer else set()
    there |= {"biases"} if r.biases else set()
    data = tuple((name, family) for name, family in r.data if name in there and family != "n0")
    return replace(r, data=data) if data != r.data else r


def of_entry(recipe: Recipe, entry: int, keep_axis: bool) -> Recipe:
    """One batch entry alone; it keeps an axis of one if lengths need it."""
    r = recipe
    if r.lengths is not None:
        r = replace(r, lengths=(int(lengths(recipe)[entry]),))
    if r.queries is not None:
        r = replace(r, queries=(int(queries(recipe)[entry]),))
    if r.offset is not None and not isinstance(r.offset, int):
        r = replace(r, offset=int(offsets(recipe)[entry]))
    keep = keep_axis or r.lengths is not None or r.operation in (PACKED, PAGED)
    r = replace(r, batch=(1,) if keep else ())
    return _alone(mended(r)) if r.operation == PACKED else r


def _alone(r: Recipe) -> Recipe:
    """A single part, as long as it is."""
    held = r.kv_len if r.lengths is None else int(lengths(r)[0])
    rows = r.q_len if r.queries is None else int(queries(r)[0])
    return replace(r, kv_len=held, q_len=rows, lengths=None, queries=None)


def of_entries(recipe: Recipe, entries: tuple[int, ...]) -> Recipe:
    """Some batch entries, on one axis."""
    r = recipe
    if r.lengths is not None:
        r = replace(r, lengths=tuple(int(n) for n in lengths(recipe)[list(entries)]))
    if r.queries is not None:
        r = replace(r, queries=tuple(int(n) for n in queries(recipe)[list(entries)]))
    if r.offset is not None and not isinstance(r.offset, int):
        r = replace(r, offset=tuple(int(n) for n in offsets(recipe)[list(entries)]))
    r = replace(r, batch=(len(entries),))
    return mended(r) if r.served else r


def of_batch(recipe: Recipe, count: int) -> Recipe:
    """The first entries, or as many more of the same."""
    if recipe.served and max(recipe.entries, count) > EXPLICIT:
        return replace(recipe, batch=(count,))
    if count > EXPLICIT:
        own = any(isinstance(each, tuple) for each in (recipe.lengths, recipe.queries, recipe.offset))
        return recipe if own else replace(recipe, batch=(count,))
    return of_entries(recipe, tuple(n % max(recipe.entries, 1) for n in range(count)))


def of_keys(recipe: Recipe, count: int, square: bool | None = None) -> Recipe:
    """Another number of keys; what stood at the end stays there."""
    r, less = recipe, recipe.kv_len - count
    q_len = count if (r.q_len == r.kv_len if square is None else square) else r.q_len
    if isinstance(r.lengths, tuple):
        r = replace(r, lengths=tuple(n - less if n >= r.kv_len else min(n, count) for n in r.lengths))
    if isinstance(r.offset, int):
        moved = r.offset - less + (r.q_len - q_len) if r.offset == recipe.kv_len - recipe.q_len else r.offset
        r = replace(r, offset=min(moved, count))
    elif isinstance(recipe.offset, tuple):
        tied = isinstance(recipe.lengths, tuple) and all(
            f == n - recipe.q_len for f, n in zip(recipe.offset, recipe.lengths, strict=True)
        )
        if tied and isinstance(r.lengths, tuple):
            r = replace(r, offset=tuple(n - q_len for n in r.lengths))
        else:
            r = replace(r, offset=tuple(min(f, count) for f in recipe.offset))
    if r.window is not None:
        r = replace(r, window=(_side(r.window[0], count), _side(r.window[1], count)))
    r = mended(replace(r, kv_len=count, q_len=q_len, past=min(r.past, max(count - 1, 0))))
    return parts.at_the_end(r) if parts.tied(recipe) else r


def of_near_lengths(recipe: Recipe) -> Recipe:
    """Lengths below zero or above all keys by one alone."""
    if not isinstance(recipe.lengths, tuple):
        return recipe
    return replace(recipe, lengths=tuple(min(max(n, -1), recipe.kv_len + 1) for n in recipe.lengths))


def of_last_keys(recipe: Recipe, count: int) -> Recipe:
    """Fewer keys, with every query and every length as far from the end as it was."""
    r, less = recipe, recipe.kv_len - count

    def moved(offset: Any) -> Any:
        return tuple(n - less for n in offset) if isinstance(offset, tuple) else offset - less

    if isinstance(r.lengths, tuple):
        r = replace(r, lengths=tuple(min(n, max(n - less, 0)) for n in r.lengths))
    if isinstance(r.offset, (int, tuple)):
        r = replace(r, offset=moved(r.offset))
    return mended(replace(r, kv_len=count, past=min(r.past, max(count - 1, 0))))


def of_one_length(recipe: Recipe, length: int) -> Recipe:
    """All entries of another length, with as many keys behind it as before."""
    assert isinstance(recipe.lengths, tuple)
    shorter = of_keys(recipe, recipe.kv_len - recipe.lengths[0] + length, square=False)
    return replace(shorter, lengths=(length,) * recipe.entries)


def _side(side: int | None, count: int) -> int | None:
    return None if side is None else min(side, max(count, 1))


def of_queries(recipe: Recipe, count: int, from_end: bool) -> Recipe:
    """The first queries or the last; each stays where it stands."""
    r, less = recipe, recipe.q_len - count
    shift = less if from_end else 0
    if r.causal or r.window is not None:
        if isinstance(r.offset, tuple):
            r = replace(r, offset=tuple(f + shift for f in r.offset))
        elif not isinstance(r.offset, str):
            r = replace(r, offset=(r.offset or 0) + shift)
    if isinstance(r.queries, tuple):
        r = replace(r, queries=tuple(min(n, count) for n in r.queries))
    r = mended(replace(r, q_len=count))
    return parts.at_the_end(r) if parts.tied(recipe) else r


def row_alone(recipe: Recipe, row: int) -> Recipe:
    """One query, where it stands."""
    r = of_queries(recipe, recipe.q_len - row, from_end=True)
    return of_queries(r, 1, from_end=False)


def of_width(recipe: Recipe, width: int, name: str = "both") -> Recipe:
    """Another width of heads; where both are the same they stay so."""
    if name == "both":
        return replace(recipe, d_k=width, d_v=width)
    return replace(recipe, **{name: width})  # type: ignore[arg-type]


def of_window(recipe: Recipe, left: int | None = None, right: int | None = None) -> Recipe:
    """Another reach of the window to one side."""
    old = recipe.window or (None, None)
    return replace(recipe, window=(old[0] if left is None else left, old[1] if right is None else right))


def of_kind(recipe: Recipe, name: str, words: str) -> Recipe:
    """Another mask or another bias."""
    return replace(recipe, mask=words) if name == "mask" else replace(recipe, bias=words)


def of_length(place: int, recipe: Recipe, length: int) -> Recipe:
    """Another length of one entry; the same recipe where all are alike."""
    if not isinstance(recipe.lengths, tuple):
        return recipe
    return _tied(recipe, replace(recipe, lengths=_other(recipe.lengths, place, length)))


def of_rows(place: int, recipe: Recipe, count: int) -> Recipe:
    """Another number of queries of one part; the same recipe where all are alike."""
    if not isinstance(recipe.queries, tuple):
        return recipe
    return _tied(recipe, replace(recipe, queries=_other(recipe.queries, place, count)))


def standing(place: int, recipe: Recipe, offset: int) -> Recipe:
    """Another offset of one entry."""
    assert isinstance(recipe.offset, tuple)
    return replace(recipe, offset=_other(recipe.offset, place, offset))


def _other(numbers: tuple[int, ...], place: int, number: int) -> tuple[int, ...]:
    return (*numbers[:place], number, *numbers[place + 1 :])


def _tied(before: Recipe, r: Recipe) -> Recipe:
    """Of an operation with parts or pages: queries that stood at the end of their keys stay there."""
    if not r.served:
        return r
    return parts.at_the_end(mended(r)) if parts.tied(before) else mended(r)


def candidates(size: int, least: int = 1) -> list[int]:
    """Smaller sizes, the smallest first: few, powers of two, and those with the same rest in a tile."""
    small = {least, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}
    rests = {size % tile + whole for tile in TILES if tile < size for whole in (0, tile)}
    return sorted(n for n in small | rests if least <= n < size)
