"""The gradients of heads, as they travel from the ways that compute them."""

from typing import Any, NamedTuple

from mha_core.arrays import cast
from mha_core.options import Options
from mha_core.result import Array


class HeadGradients(NamedTuple):
    """The gradients of heads or of a block of them, in the dtype computed in; None for what was not given."""

    query: Array
    """(..., H, q_len, d_k)."""
    key: Array
    """(..., G, kv_len, d_k), the past included."""
    value: Array
    """(..., G, kv_len, d_v), the past included."""
    attn_bias: Array | None
    """In the shape of the bias."""
    sinks: Array | None
    """(H,)."""
    output: Array | None
    """(..., H, q_len, d_v), the output itself, where it is asked for."""

    def of_options(self, xp: Any, options: Options) -> dict[str, Array]:
        """Those of the options that have any, in their dtypes (GRAD-2)."""
        pairs = {"attn_bias": (options.attn_bias, self.attn_bias), "sinks": (options.sinks, self.sinks)}
        return {name: cast(xp, x, given.dtype) for name, (given, x) in pairs.items() if given is not None}
