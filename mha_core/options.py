"""The options of an operation and the sizes of its heads, as they travel from the checks to the algorithm."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from mha_core.result import Array


class Options(NamedTuple):
    """Every option of both operations, as the caller gave it."""

    mask: Array | None
    attn_bias: Array | None
    is_causal: bool
    q_offset: int | Array | None
    window: Sequence[int | None] | None
    kv_lengths: Array | None
    scale: float | None
    softcap: float | None
    sinks: Array | None
    past_key: Array | None
    past_value: Array | None
    return_weights: bool = False
    return_lse: bool = False
    q_segments: Array | None = None
    kv_segments: Array | None = None

    @property
    def hides(self) -> bool:
        """Whether anything may hide a key from a query."""
        bare = self.mask is None and self.attn_bias is None and self.window is None
        return self.is_causal or not bare or self.kv_lengths is not None or self.q_segments is not None

    @property
    def only_output(self) -> bool:
        """Whether nothing was asked for beside the output."""
        return not (self.return_weights or self.return_lse) and self.past_key is None


class Sizes(NamedTuple):
    """The sizes of the heads; `kv_len` is the total, the past included (CACHE-3)."""

    batch: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    q_len: int
    kv_len: int
    d_k: int
    d_v: int

    @property
    def logits(self) -> tuple[int, ...]:
        """The shape of the logits: (..., H, q_len, kv_len)."""
        return (*self.batch, self.num_heads, self.q_len, self.kv_len)

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of the output: (..., H, q_len, d_v)."""
        return (*self.batch, self.num_heads, self.q_len, self.d_v)

    def with_rows(self, q_len: int) -> "Sizes":
        """The sizes with another number of query rows."""
        return self if q_len == self.q_len else self._replace(q_len=q_len)


def scale_of(options: Options, sizes: Sizes) -> float:
    """The factor of the logits: 1 / sqrt(d_k), or what was given, taken literally (ATT-3, ATT-4)."""
    return 1 / math.sqrt(sizes.d_k) if options.scale is None else float(options.scale)
