"""What a bench is asked for, as it travels to the process that measures."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from conformance.names import SDPA

MASKS = {
    "padding": "a mask of (B, 1, 1, keys): each entry sees the first half of the keys",
    "random": "a mask of (B, 1, queries, keys): half of the entries are hidden",
    "bias": "an attn_bias of (1, H, queries, keys)",
    "lengths": "kv_lengths of half of the keys",
    "window": "a window: each query sees the 256 keys up to its own",
}
"""What may hide keys in a bench."""


@dataclass(frozen=True)
class Request:
    """One bench: a target against rivals, on one or several sizes."""

    targets: tuple[str, ...]
    """The target, then its rivals."""
    operation: str = SDPA
    dtype: str = "float32"
    shape: tuple[int, int, int, int] = (4, 8, 512, 64)
    """Batch, heads, query length and width of a head."""
    kv_len: int | None = None
    """None for the query length."""
    kv_heads: int | None = None
    """None for as many as heads."""
    is_causal: bool = False
    mask: str | None = None
    """One of MASKS; None for none."""
    lengths: tuple[int, ...] = ()
    """Query lengths to measure one after the other, in place of the shape's."""
    rounds: int = 15
    seed: int = 0
    memory: bool = True
    threads: int | None = None
    """None for one, or what the environment says."""

    def at(self, length: int) -> "Request":
        """The same at one length."""
        batch, heads, _, width = self.shape
        return dataclasses.replace(self, shape=(batch, heads, length, width), lengths=())

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, data: dict[str, Any]) -> "Request":
        """From JSON."""
        fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}
        return cls(**fields)
