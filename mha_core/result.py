"""What the operations return."""

from typing import Any, NamedTuple, TypeAlias

Array: TypeAlias = Any
"""An array of any library that the Array API describes: such arrays share no base class."""


class AttentionResult(NamedTuple):
    """The output and what was asked for in addition to it; None where it was not."""

    output: Array
    """(..., H, q_len, d_v), from the layer (..., q_len, d_out)."""
    weights: Array | None = None
    """(..., H, q_len, kv_len)."""
    lse: Array | None = None
    """(..., H, q_len), the log of the softmax denominator."""
    present_key: Array | None = None
    """(..., G, kv_len, d_k)."""
    present_value: Array | None = None
    """(..., G, kv_len, d_v)."""
