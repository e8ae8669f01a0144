"""What a failure needs and what it does not depend on, found by experiments on the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from conformance.exploring import broken, smaller
from conformance.exploring.boundary import condition
from conformance.exploring.earlier import SAME, SHAPE
from conformance.exploring.entries import MANY
from conformance.exploring.laid import SAME_LAYOUT
from conformance.exploring.numbers import ZEROS
from conformance.exploring.recipe import NUMBERS, Recipe
from conformance.exploring.reduce import Reduction
from conformance.exploring.valid import valid
from conformance.names import APPEND, LATENT, MERGE, PACKED, PAGED

CALLS = 160
SPARE = 40
"""Calls that are left for what comes later."""
SIZES = ("kv_len", "length", "left", "q_len", "page", "d_k", "d_v", "heads", "kv_heads", "batch")
ASKS, FEW = {"kv_len": 18, "length": 14, "left": 14, "q_len": 14}, 10
"""How many sizes of an axis are asked for."""
MOST = {
    "kv_len": 1100,
    "q_len": 520,
    "d_k": 257,
    "d_v": 257,
    "heads": 65,
    "kv_heads": 65,
    "batch": 65,
    "page": 257,
}
"""How far a size is taken up, unless the smallest that fails is large itself."""
MOST_SLOTS = 4400
LABELS = {
    "kv_heads": "key heads", "batch": "batch entries", "length": "a length",
    "left": "the left side of the window", "page": "the page size",
}  # fmt: skip
OWN_LABELS = {
    PACKED: {"kv_len": "the keys of a part", "q_len": "the queries of a part", "batch": "parts"},
    APPEND: {"kv_len": "slots", "q_len": "new rows"},
    LATENT: {"d_k": "the width of the rows", "d_v": "value_dim"},
    MERGE: {"kv_len": "partial results", "kv_heads": "heads"},
}
"""What the sizes of a recipe are in operations that have other words for them."""
OWN_OPERANDS = {MERGE: {"key": "lses", "value": "outputs"}, LATENT: {"key": "latent"}}
"""What the operands of a recipe are called in such operations."""
NONE_OF = {APPEND: ("heads", "batch"), MERGE: ("heads", "d_k"), LATENT: ("kv_heads",)}
"""Sizes that an operation does not have."""
FREE = {**LABELS, "batch": "the batch"}
SHAPED = {
    "l": "one loud token in {}", "c": "numbers in {} that cancel", "t": "neighbouring tokens of {} that are equal",
    "f": "numbers in {} that use all bits of the dtype",
}  # fmt: skip
NAMES = {
    "memory": "the layout of an operand in memory", "poison": "NaN in what is hidden",
    "cache": "a past", "segments": "segments", "biases": "a bias of a projection",
}  # fmt: skip
FAR = "logits far from zero"


@dataclass(frozen=True)
class Needs:
    """What it takes to fail, in words and as a test of other recipes."""

    options: tuple[str, ...]
    sizes: tuple[str, ...]
    dtypes: tuple[str, ...]
    free: tuple[str, ...]  # what it does not depend on
    before: str = ""  # what is another one in the call before
    broken: str = ""  # what of a visible number that is NaN or infinite it takes

    def sentence(self) -> str:
        """`window and kv_lengths, kv_len a multiple of 16; float32 and bfloat16; not the batch, the heads`."""
        what = [
            *([joined([self._named(name) for name in self.options])] if self.options else []),
            *self.sizes,
        ]
        parts = [", ".join(what) or "always", joined(self.dtypes)]
        if self.free:
            parts.append(f"it does not depend on {joined(self.free)}")
        return "; ".join(parts)

    def _named(self, name: str) -> str:
        if name.startswith(smaller.BROKEN):
            return self.broken
        return differs(self.before) if name == "again" else NAMES.get(name, name)


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def explain(reduction: Reduction, dtypes: Sequence[str], room: Callable[[Recipe], bool]) -> Needs:
    """Experiments around the smallest call: each option off, each size up, other numbers, each dtype."""
    r = reduction.now
    options = tuple(name for name in smaller.given(r) if not _optional(name, r))
    sizes, free = [], []
    sure = reduction.fails(_otherwise(r)) or reduction.fails(_otherwise(_otherwise(r)))
    for name in SIZES:
        if not applies(name, r):
            continue
        found = _size(reduction, name, r, room)
        if found == "":
            own = OWN_LABELS.get(r.operation, {})
            free.append(own.get(name) or FREE.get(name, name))
        elif found and (sure or found.endswith("or more")):  # else it is chance which sizes fail
            sizes.append(found)
    sizes += [] if sure else ["with some numbers"]
    conditions, independent = numbers(reduction)
    failing = [d for d in dtypes if d == r.dtype or reduction.fails(replace(r, dtype=d))]
    return Needs(
        options, (*sizes, *conditions), tuple(failing), (*free, *independent), r.again, _broken(reduction)
    )


def _broken(reduction: Reduction) -> str:
    """What of a visible number that is NaN or infinite it takes, if that is an option of the call."""
    r = reduction.now
    for operand, kind in r.broken:
        others = [k for k in broken.kinds(operand, r.layer) if k in broken.KINDS]
        failing = tuple(
            k for k in (*others, broken.EVERY_KEY)
            if k == kind or (k in others and reduction.fails(replace(r, broken=((operand, k),))))
        )  # fmt: skip
        return broken.said(operand, failing)
    return ""


def differs(again: str) -> str:
    """The call before, and in what it differs."""
    if again == SAME:
        return "the same call before it"
    if again == SHAPE:
        return "a call before it of this shape, and one of more keys"
    one = "one number of " if again in (*NUMBERS, "sinks") else ""
    return f"a call before it with {one}{again} changed"


def numbers(reduction: Reduction) -> tuple[list[str], list[str]]:
    """What the numbers have to be, and where they do not matter."""
    r = reduction.now
    query, key = r.family("query"), r.family("key")
    if "p" in (query[0], key[0]):
        powers = [int(family[1:]) if family[0] == "p" else 0 for family in (query, key)]
        far = "query" if query[0] == "p" else "key"
        if "O" not in (query[0], key[0]) and not all(powers):
            return [FAR], []
        if reduction.fails(r.made_of(far, f"p{-int(r.family(far)[1:])}")):
            return [FAR], []
        negative = (powers[0] < 0) ^ (powers[1] < 0) ^ (r.scale is not None and r.scale < 0)
        return [f"logits far {'below' if negative else 'above'} zero"], []
    found = [
        words.format(OWN_OPERANDS.get(r.operation, {}).get(name, name))
        for name in ("query", "key", "value")
        if (words := SHAPED.get(r.family(name)[0])) is not None
    ]
    if found or r.layer or r.operation in (APPEND, MERGE):
        return found + (["lses far from zero"] if _only_far(reduction) else []), []
    if {query, key} <= {ZEROS}:
        scattered = [
            replace(r.made_of("query", f).made_of("key", f), stream=r.stream) for f in ("S", "n0", "i")
        ]
        if any(reduction.fails(other) for other in scattered):
            return [], ["the numbers in query and key"]
        return ["logits that are equal"], []
    above, below = (r.made_of("query", "p2").made_of("key", f"p{power}") for power in (2, -2))
    signs = [reduction.fails(above), reduction.fails(below)]
    if signs == [True, False]:
        return ["logits above zero"], []
    return (["logits below zero"], []) if signs == [False, True] else ([], [])


def _only_far(reduction: Reduction) -> bool:
    """Whether partial results have to have lses far from zero."""
    r = reduction.now
    kind, power = r.family("key")[0], r.family("key")[1:]
    if r.operation != MERGE or kind not in "On" or int(power or 0) <= 2:
        return False
    return not any(reduction.fails(r.made_of("key", near)) for near in ("n0", "n1", "n2"))


def _optional(name: str, r: Recipe) -> bool:
    """An offset that has to be given is no condition, nor are biases that were not tried off."""
    apart = r.q_len != r.kv_len or r.operation == PAGED or not (r.lengths is None and r.queries is None)
    return name == "q_offset" and (apart if r.served else r.q_len != r.kv_len)


def applies(name: str, r: Recipe) -> bool:
    """Whether a size means something for a recipe."""
    if name in NONE_OF.get(r.operation, ()) or (name == "page" and not r.page):
        return False
    if name == "length":
        return isinstance(r.lengths, tuple) and 1 < max(r.lengths, default=0) < r.kv_len
    if name == "left":
        return r.window is not None and (r.window[0] or 0) > 1
    return not (name == "q_len" and r.q_len == r.kv_len and r.q_len > 1)


def resized(r: Recipe, name: str, size: int, tied: bool = True) -> Recipe:
    """The recipe with another size; widths of heads that are the same stay so where they are tied."""
    if name == "kv_len":
        return smaller.of_keys(r, size)
    if name == "q_len":
        return smaller.of_queries(r, size, from_end=False)
    if name == "batch":
        batched = r if r.batch else replace(r, batch=(1,))
        return smaller.of_batch(batched, size)
    if name == "heads":
        return replace(
            r, heads=size * r.groups if r.heads == r.groups else size * r.heads // max(size_of(r, name), 1)
        )
    if name == "kv_heads":
        return replace(r, heads=r.heads // r.groups * size, groups=size)
    if name == "page":  # as many pages as before, and as much in the last of them
        if not r.kv_len:
            return replace(r, page=size)
        whole, rest = divmod(r.kv_len - 1, r.page)
        return smaller.of_keys(replace(r, page=size), whole * size + min(rest, size - 1) + 1, square=False)
    if name in ("d_k", "d_v"):
        return replace(r, d_k=size, d_v=size) if tied and r.d_k == r.d_v else smaller.of_width(r, size, name)
    behind = r.kv_len - size_of(
        r, name
    )  # of a length or a side of a window: as many keys behind it as before
    longer = smaller.of_keys(r, size + behind) if size + behind > r.kv_len else r
    if name == "length":
        assert isinstance(r.lengths, tuple)
        longest = max(r.lengths)
        return replace(longer, lengths=tuple(size if n == longest else n for n in r.lengths))
    if name == "left" and r.window is not None:
        return replace(longer, window=(size, r.window[1]))
    raise ValueError(name)


def size_of(r: Recipe, name: str) -> int:
    """A size of a recipe; that of `heads` is how many share a key head."""
    sizes = {
        "kv_len": r.kv_len,
        "q_len": r.q_len,
        "d_k": r.d_k,
        "d_v": r.d_v,
        "batch": r.entries,
        "page": r.page,
    }
    if name == "length":
        return max(r.lengths) if isinstance(r.lengths, tuple) else 0
    if name == "left":
        return (r.window or (0, 0))[0] or 0
    return {**sizes, "heads": r.heads // r.groups, "kv_heads": r.groups}[name]


def _size(reduction: Reduction, name: str, r: Recipe, room: Callable[[Recipe], bool]) -> str | None:
    """What is said of a size: nothing needed (empty), a condition, or None where it could not be found out."""
    tied = r.d_k == r.d_v and not reduction.apart
    if name == "d_v" and tied:
        return None
    label = OWN_LABELS.get(r.operation, {}).get(name) or LABELS.get(name, name)
    if name == "heads" and (r.groups > 1 or r.heads > 1):
        label = "heads to a key head"
    if name == "d_k" and tied:
        label = "d_k and d_v"

    def fails(n: int) -> bool | None:
        made = resized(r, name, n, tied)
        if (
            n < 1
            or not room(made)
            or (made.served and not valid(made))
            or made.columns * made.page > MOST_SLOTS
        ):
            return None
        return reduction.fails(made) or (  # a call may be right by chance: once more with other numbers
            reduction.left > SPARE and reduction.fails(_otherwise(made))
        )

    most = max(MOST.get(name, 520), 3 * size_of(r, name) + 1)
    if name == "batch" and r.again:
        most = MANY  # of more some are judged, and not for certain the one whose number is changed
    if name == "d_k" and any(r.family(each)[0] == "p" for each in ("query", "key")):
        most = 4  # the usual scale makes far logits of wider heads less far
    least = size_of(r, name)
    if r.served and least > 1 and fails(1):  # which was right with these numbers alone
        least = 1
    found = condition(least, fails, ASKS.get(name, FEW), most)
    return f"{label} {found}" if found else found


def _otherwise(r: Recipe) -> Recipe:
    """The same call with other numbers of the same kind."""
    plain = {name: family for name, family in r.data if family[0] in "pltcf"}
    return replace(r, data=tuple(sorted(plain.items())), stream=r.stream + (SAME_LAYOUT if r.served else 1))
