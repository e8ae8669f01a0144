"""What one call of an operation on packed, paged, latent or partial operands was given."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from conformance.names import APPEND, LATENT, MERGE, PAGED


@dataclass(frozen=True)
class Served:
    """What one call was given, and the sizes that follow from it."""

    operation: str
    query: Any = None
    key: Any = None
    value: Any = None
    key_pages: Any = None  # [N, P, G, d_k]
    value_pages: Any = None  # [N, P, G, d_v]
    new_key: Any = None  # [T, G, d_k]
    new_value: Any = None  # [T, G, d_v]
    latent: Any = None  # [..., kv_len, c + r]
    outputs: Any = None  # [P, ..., H, q_len, d_v], or a list of P
    lses: Any = None  # [P, ..., H, q_len], or a list of P
    q_starts: Any = None  # [n + 1]
    kv_starts: Any = None  # [n + 1]
    page_table: Any = None  # [B, M]
    kv_lengths: Any = None  # [B]
    slots: Any = None  # [T]
    value_dim: Any = None
    mask: Any = None
    attn_bias: Any = None
    is_causal: Any = False
    q_offset: Any = None
    window: Any = None
    scale: Any = None
    softcap: Any = None
    sinks: Any = None
    return_lse: Any = False

    @cached_property
    def first(self) -> Any:
        """The operand whose dtype is that of the call."""
        if self.operation == APPEND:
            return self.key_pages
        return self.outputs[0] if self.operation == MERGE else self.query

    @cached_property
    def wide(self) -> type:
        """The dtype that is computed in."""
        return np.float64 if self.first.dtype == np.float64 else np.float32

    @cached_property
    def parts(self) -> int:
        """Number of parts of a packed call."""
        return len(self.q_starts) - 1

    @cached_property
    def page(self) -> int:
        """P, slots of a page."""
        return int(self.key_pages.shape[1])

    @cached_property
    def cells(self) -> int:
        """N P, all slots."""
        return int(self.key_pages.shape[0]) * self.page

    @cached_property
    def pages(self) -> bool:
        """Whether there are pages."""
        return self.operation in (PAGED, APPEND)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options that mean in the call of attention what they mean here."""
        names: tuple[str, ...] = (
            "is_causal",
            "q_offset",
            "window",
            "scale",
            "softcap",
            "sinks",
            "return_lse",
        )
        names += ("mask", "attn_bias") if self.operation in (PAGED, LATENT) else ()
        names += ("kv_lengths",) if self.operation == LATENT else ()
        return {name: getattr(self, name) for name in names}
