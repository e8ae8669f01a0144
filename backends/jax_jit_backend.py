"""mha_core on JAX under jax.jit, its gradients too: arrays are traced, scalar options are static."""

import functools
from collections.abc import Callable
from typing import Any

import jax

import mha_core
from backends.jax_backend import autodiff

__all__ = [
    "multi_head_attention",
    "multi_head_attention_vjp",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
]

name = "jax-jit"
version = jax.__version__
array_type = "jax"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"


@functools.lru_cache(maxsize=None, typed=True)  # typed: is_causal=1 is refused, and must not find True here
def _compiled(operation: Callable[..., Any], **static: Any) -> Any:
    """The operation with its scalar options bound, compiled once for each choice of them."""
    return jax.jit(functools.partial(operation, **static))


def _jit(operation: Callable[..., Any]) -> Callable[..., Any]:
    """The operation as it is called eagerly."""

    @functools.wraps(operation)
    def call(*operands: Any, **options: Any) -> Any:
        traced = {key: x for key, x in options.items() if isinstance(x, jax.Array)}
        static = {
            key: tuple(x) if isinstance(x, list) else x for key, x in options.items() if key not in traced
        }
        with jax.default_matmul_precision("highest"):  # accelerators round float32 operands unasked
            return _compiled(operation, **static)(*operands, **traced)

    return call


scaled_dot_product_attention = _jit(mha_core.scaled_dot_product_attention)
multi_head_attention = _jit(mha_core.multi_head_attention)
scaled_dot_product_attention_vjp = _jit(
    autodiff(mha_core.scaled_dot_product_attention, mha_core.scaled_dot_product_attention_vjp)
)
multi_head_attention_vjp = _jit(autodiff(mha_core.multi_head_attention, mha_core.multi_head_attention_vjp))
