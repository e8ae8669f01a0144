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

    def _repr_html_(self) -> str:
        """Names, shapes and dtypes for a notebook, and a drawing of the weights where they are few."""
        from mha_core.notebook import result_html

        return result_html(self._asdict())
