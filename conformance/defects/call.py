"""What one call was given, and the sizes that follow from it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from conformance.names import MHA, MHA_VJP
from conformance.vectors.case import Array


@dataclass(frozen=True)
class Call:
    """What one call was given, and the sizes that follow from it."""

    operation: str
    query: Array
    key: Array
    value: Array
    grad_output: Any = None
    grad_lse: Any = None
    w_q: Any = None
    w_k: Any = None
    w_v: Any = None
    w_o: Any = None
    b_q: Any = None
    b_k: Any = None
    b_v: Any = None
    b_o: Any = None
    mask: Any = None
    attn_bias: Any = None
    is_causal: Any = False
    q_offset: Any = None
    window: Any = None
    kv_lengths: Any = None
    q_segments: Any = None
    kv_segments: Any = None
    scale: Any = None
    softcap: Any = None
    sinks: Any = None
    past_key: Any = None
    past_value: Any = None
    return_weights: Any = False
    return_lse: Any = False

    @cached_property
    def layer(self) -> bool:
        """Whether projections stand around the attention."""
        return self.operation in (MHA, MHA_VJP)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the call."""
        return self.query.dtype

    @cached_property
    def wide(self) -> type:
        """The dtype that is computed in."""
        return np.float64 if self.dtype == np.float64 else np.float32

    @cached_property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.query.shape[: -2 if self.layer else -3]

    @cached_property
    def heads(self) -> int:
        """H."""
        return int(self.w_q.shape[0] if self.layer else self.query.shape[-3])

    @cached_property
    def kv_heads(self) -> int:
        """G."""
        return int(self.w_k.shape[0] if self.layer else self.key.shape[-3])

    @cached_property
    def q_len(self) -> int:
        """Number of queries."""
        return int(self.query.shape[-2])

    @cached_property
    def past(self) -> int:
        """Number of keys in the past."""
        return 0 if self.past_key is None else int(self.past_key.shape[-2])

    @cached_property
    def kv_len(self) -> int:
        """Number of keys, the past included."""
        return self.past + int(self.key.shape[-2])

    @cached_property
    def d_k(self) -> int:
        """Width of a projected query."""
        return int(self.w_q.shape[-1] if self.layer else self.query.shape[-1])

    @cached_property
    def d_v(self) -> int:
        """Width of a projected value."""
        return int(self.w_v.shape[-1] if self.layer else self.value.shape[-1])

    @cached_property
    def columns(self) -> Array:
        """The numbers of the keys."""
        return np.arange(self.kv_len)

    @cached_property
    def logits_shape(self) -> tuple[int, ...]:
        """The full shape of a mask."""
        return (*self.batch, self.heads, self.q_len, self.kv_len)

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        if self.layer:
            return (*self.batch, self.q_len, self.w_o.shape[-1])
        return (*self.batch, self.heads, self.q_len, self.d_v)

    def widen(self, array: Array) -> Array:
        """An array in the dtype that is computed in."""
        return array.astype(self.wide)
