"""mha_core under jax.jit with TensorFloat-32 asked for and declared."""

import functools
from collections.abc import Callable
from typing import Any

import jax

import mha_core

__all__ = ["multi_head_attention", "scaled_dot_product_attention"]

name = "jax-tf32"
version = jax.__version__
array_type = "jax"
dtypes = ("float32",)
features = mha_core.FEATURES - {"packed", "paged", "append", "latent", "merge", "grad_lse"}
based_on = "mha_core"
accuracy = "tf32t"  # tensor cores drop the bits that they do not read


def _coarse(operation: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(operation)
    def call(*operands: Any, **options: Any) -> Any:
        arrays = {name: x for name, x in options.items() if isinstance(x, jax.Array)}
        rest = {name: x for name, x in options.items() if name not in arrays}
        with jax.default_matmul_precision("tensorfloat32"):
            return jax.jit(functools.partial(operation, **rest))(*operands, **arrays)

    return call


scaled_dot_product_attention = _coarse(mha_core.scaled_dot_product_attention)
multi_head_attention = _coarse(mha_core.multi_head_attention)
