"""What a failure needs and what it does not depend on, found by experiments on the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from conformance.exploring import smaller
from conformance.exploring.recipe import Recipe
from conformance.exploring.reduce import Reduction

CALLS = 70
SIZES = ("kv_len", "q_len", "d_k", "d_v", "heads", "kv_heads", "batch")
WORDS = {"batch": "batch entries", "heads": "heads", "kv_heads": "key heads"}
NAMES = {
    "again": "a call before it", "memory": "the layout of an operand in memory", "poison": "NaN in what is hidden",
    "cache": "a past", "biases": "a bias of a projection",
}  # fmt: skip
FAR = "logits far from zero"


@dataclass(frozen=True)
class Needs:
    """What it takes to fail, in words and as a test of other recipes."""

    options: tuple[str, ...]
    sizes: tuple[str, ...]
    dtypes: tuple[str, ...]
    free: tuple[str, ...]  # what it does not depend on

    def sentence(self) -> str:
        """`window and kv_lengths, kv_len a multiple of 16; float32 and bfloat16; not the batch, the heads`."""
        what = [
            *([joined([NAMES.get(name, name) for name in self.options])] if self.options else []),
            *self.sizes,
        ]
        parts = [", ".join(what) or "always", joined(self.dtypes)]
        if self.free:
            parts.append(f"it does not depend on {joined(self.free)}")
        return "; ".join(parts)


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def explain(reduction: Reduction, dtypes: Sequence[str], room: Callable[[Recipe], bool]) -> Needs:
    """Experiments around the smallest call: each option off, each size up, each dtype."""
    r = reduction.now
    options = tuple(name for name in smaller.given(r) if not _optional(name, r))
    sizes, free = [], []
    for name in SIZES:
        if not applies(name, r):
            continue
        found = _size(reduction, name, r, room)
        if found == "":
            free.append("the batch" if name == "batch" else name.replace("kv_heads", "key heads"))
        elif found:
            sizes.append(found)
    if any(r.family(name)[0] == "p" for name in ("query", "key")):
        sizes.append(FAR)
    elif {r.family(name) for name in ("query", "key")} <= {"Z"} and not r.layer:
        free.append("the numbers in query and key")
    failing = [d for d in dtypes if d == r.dtype or reduction.fails(replace(r, dtype=d))]
    return Needs(options, tuple(sizes), tuple(failing), tuple(free))


def _optional(name: str, r: Recipe) -> bool:
    """An offset that has to be given is no condition, nor are biases that were not tried off."""
    return name == "q_offset" and r.q_len != r.kv_len


def applies(name: str, r: Recipe) -> bool:
    """Whether a size means something for a recipe."""
    return not (name == "q_len" and r.q_len == r.kv_len and r.q_len > 1)


def resized(r: Recipe, name: str, size: int) -> Recipe:
    """The recipe with another size."""
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
    if name in ("d_k", "d_v"):
        return replace(r, d_k=size, d_v=size) if r.d_k == r.d_v else smaller.of_width(r, name, size)
    raise ValueError(name)


def size_of(r: Recipe, name: str) -> int:
    """A size of a recipe; that of `heads` is how many share a key head."""
    sizes = {"kv_len": r.kv_len, "q_len": r.q_len, "d_k": r.d_k, "d_v": r.d_v, "batch": r.entries}
    return {**sizes, "heads": r.heads // r.groups, "kv_heads": r.groups}[name]


def _size(reduction: Reduction, name: str, r: Recipe, room: Callable[[Recipe], bool]) -> str | None:
    """What is said of a size: nothing needed (empty), a condition, or None where it could not be found out."""
    m = size_of(r, name)
    tied = name == "d_v" and r.d_k == r.d_v
    if tied:
        return None
    label = {"kv_heads": "key heads", "batch": "batch entries"}.get(name, name)
    if name == "heads" and (r.groups > 1 or m > 1):
        label = "heads to a key head"
    if name == "d_k" and r.d_k == r.d_v:
        label = "d_k and d_v"
    asked: dict[int, bool] = {m: True}

    def fails(n: int) -> bool | None:
        made = resized(r, name, n)
        if n < 1 or not room(made):
            return None
        if n not in asked:
            asked[n] = reduction.fails(made)
        return asked[n]

    up = [m + 1, m + 2, 2 * m, 2 * m + 1, 3 * m, 4 * m] if m > 1 else [2, 3, 4, 8, 17]
    if m > 4:  # the same rest in tiles of up to 64
        up += [m + 32, m + 64]
    if name in ("heads", "kv_heads", "batch", "d_k", "d_v"):
        up = [m + 1, 2 * m, 4 * m] if m > 1 else [2, 3]
    for n in up:
        fails(n)
    beyond = {n: failed for n, failed in asked.items() if n > m}
    if not beyond:
        return None
    if all(beyond.values()):
        return "" if m <= 1 else f"{label} {m} or more"
    if not any(beyond.values()):
        return f"{label} {m}"
    passing, failing = (
        sorted(n for n, f in beyond.items() if not f),
        sorted(n for n, f in beyond.items() if f),
    )
    if m > 1 and all(n % m == 0 for n in failing) and all(n % m for n in passing):
        return f"{label} a multiple of {m}"
    if max(failing) < min(passing):  # up to somewhere
        low, high = max(failing), min(passing)
        while high - low > 1 and (middle := (low + high) // 2) not in asked:
            low, high = (middle, high) if fails(middle) else (low, middle)
        return f"{label} at most {low}" if m <= 1 else f"{label} from {m} to {low}"
    if min(failing) > max(passing):
        return f"{label} {m}, and {min(failing)} or more"
    for tile in (2, 4, 8, 16, 32, 64, 128, 256):
        rests = {n % tile for n in (m, *failing)}
        if len(rests) == 1 and all(n % tile not in rests for n in passing) and fails(m + tile) is not False:
            return f"{label} with a rest of {rests.pop()} in {tile}"
    return f"{label} {', '.join(map(str, [m, *failing]))} but not {', '.join(map(str, passing))}"
