"""Numbers as memory holds them, where JAX compiles.

JAX is never imported: the caller's arrays have put it into `sys.modules`.
"""

import sys
from typing import Any

from mha_core.result import Array


def stored(x: Array) -> Array:
    """`x` rounded to its dtype: a product that is fused with a subtraction is not, and less itself is not 0."""
    jax: Any = sys.modules.get("jax")
    return jax.lax.optimization_barrier(x) if jax is not None and isinstance(x, jax.Array) else x
