"""What the drawn calls met, and what they did not in the time that they had."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from conformance.exploring.claims import PATHS, Claims
from conformance.exploring.laid import UNUSUAL
from conformance.exploring.recipe import Recipe
from conformance.names import APPEND, MERGE, OPERATIONS, PAGED

NAMED = 6
"""What was not met and is named."""
ON: dict[str, Callable[[Recipe], object]] = {
    "mask": lambda r: r.mask, "attn_bias": lambda r: r.bias, "is_causal": lambda r: r.causal,
    "window": lambda r: r.window is not None, "kv_lengths": lambda r: r.lengths is not None,
    "scale": lambda r: r.scale is not None, "softcap": lambda r: r.softcap is not None, "sinks": lambda r: r.sinks,
    "segments": lambda r: r.segments,
    "returned": lambda r: r.weights or (r.lse and not r.gradients), "grad_lse": lambda r: r.lse and r.gradients,
    "cache": lambda r: r.past, "gqa": lambda r: r.groups < r.heads,
    "value_dim": lambda r: r.d_k != r.d_v, "several": lambda r: r.entries > 1,
}  # fmt: skip
"""Option -> whether a recipe has it."""
SIZES: dict[str, Callable[[Recipe], object]] = {
    "whole tiles of 16 keys": lambda r: r.kv_len >= 16 and r.kv_len % 16 == 0,
    "one key beyond a tile": lambda r: r.kv_len > 16 and r.kv_len % 16 == 1,
    "more than 1,024 keys": lambda r: r.kv_len > 1024,
    "more than 128 queries": lambda r: r.q_len > 128,
    "widths above 128": lambda r: max(r.d_k, r.d_v) > 128,
    "widths above 256": lambda r: max(r.d_k, r.d_v) > 256,
    "more than 64 heads": lambda r: r.heads > 64,
    "more than 32 entries": lambda r: r.entries > 32,
    "operands that are not contiguous": lambda r: r.memory,
    "a call after another": lambda r: r.again,
    "far logits": lambda r: any(family[0] == "p" for _, family in r.data),
}
"""Size class -> whether a recipe is of it."""


PAGES = (1, 16, 64, 256)


def unusual(operations: Iterable[str]) -> list[str]:
    """What the operands of operations with parts or pages may have in how they lie."""
    found = [words for operation in operations for words in UNUSUAL.get(operation, {}).values()]
    pages = [f"pages of {size}" for size in PAGES if PAGED in operations]
    return [*dict.fromkeys(found), *pages]


def path_of(r: Recipe) -> str:
    """How queries and keys stand to each other."""
    if r.q_len <= 1:
        return "one"
    if r.q_len == r.kv_len:
        return "square"
    if r.q_len <= 8:
        return "few"
    return "chunk" if r.q_len < r.kv_len else "long"


def options_on(r: Recipe) -> list[str]:
    """The options of a recipe."""
    return [name for name, on in ON.items() if on(r)]


@dataclass
class Coverage:
    """What was met so far."""

    options: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str, str, str]] = field(default_factory=set)  # operation, path, two options
    sizes: set[str] = field(default_factory=set)

    def add(self, recipe: Recipe) -> None:
        """Takes in a call that was judged."""
        on = options_on(recipe)
        self.options |= set(on)
        self.pairs |= {
            (recipe.operation, path_of(recipe), *pair) for pair in itertools.combinations(sorted(on), 2)
        }
        self.sizes |= {name for name, of in SIZES.items() if of(recipe)}
        self.sizes |= {UNUSUAL[recipe.operation][letter] for letter in recipe.layout} | {
            f"pages of {recipe.page}"
        }

    def line(self, claims: Claims) -> str:
        """How much of what is claimed was met, and what was not."""
        operations = [name for name in OPERATIONS if name in claims.operations]
        options = {name for operation in operations for name in claims.options(operation)}
        wanted = {
            (operation, path, *pair)
            for operation in operations
            if operation not in (APPEND, MERGE)  # which have no queries that stand to keys
            for path in PATHS
            for pair in itertools.combinations(sorted(claims.options(operation)), 2)
        }
        kinds = [*SIZES, *unusual(operations)]
        lacking = [*sorted(options - self.options), *(name for name in kinds if name not in self.sizes)]
        said = f"met {len(options & self.options)} of {len(options)} options"
        if wanted:
            said += f", {len(wanted & self.pairs)} of {len(wanted)} pairs of them on a path of an operation"
        return (
            f"{said}; not met in this time: {_named(lacking)}"
            if lacking
            else f"{said}, and every kind of size"
        )


def _named(names: Iterable[str]) -> str:
    names = list(names)
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])
