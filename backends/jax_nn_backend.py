"""jax.nn.dot_product_attention, compiled; its layout has length before heads."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["scaled_dot_product_attention", "scaled_dot_product_attention_vjp"]

name = "jax-nn"
version = jax.__version__
array_type = "jax"
dtypes = ("float64", "float32", "float16", "bfloat16")
features = frozenset(
    [
        "mask",
        "attn_bias",
        "is_causal",
        "q_offset",
        "window",
        "kv_lengths",
        "scale",
        "return_lse",
        "gqa",
        "broadcast",
        "empty",
        "validation",
    ]
)
accuracy = "fused"
layout = "blhd"

_attend = jax.jit(
    functools.partial(jax.nn.dot_product_attention, implementation="xla"),
    static_argnames=("scale", "is_causal", "local_window_size", "return_residual"),
)


def scaled_dot_product_attention(
    query: Any,  # (..., q_len, H, d)
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    attn_bias: Any = None,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    kv_lengths: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Mapping[str, Any]:
    """Attention; query i stands at place i."""
    if query.ndim > 4:
        raise NotImplementedError("there is one batch axis or none")
    if (is_causal or window is not None) and q_offset is not None and np.any(np.asarray(q_offset) != 0):
        raise NotImplementedError("is_causal and local_window_size count from the upper left")
    open_side = query.shape[-3] + key.shape[-3]
    with jax.default_matmul_precision("highest"):  # accelerators round float32 operands unasked
        returned = _attend(
            query,
            key,
            value,
            attn_bias,
            mask,
            scale=scale,
            is_causal=is_causal,
            key_value_seq_lengths=None if kv_lengths is None else _lengths(kv_lengths),
            local_window_size=window and tuple(open_side if side is None else side for side in window),
            return_residual=return_lse,
        )
    if not return_lse:
        return {"output": returned}
    output, lse = returned
    return {"output": output, "lse": jnp.swapaxes(lse, -1, -2)}


def _lengths(kv_lengths: Any) -> Any:
    """(B,), of the one integer type that is taken."""
    lengths = jnp.reshape(kv_lengths, (-1,))
    return lengths.astype(jnp.int32) if jnp.issubdtype(lengths.dtype, jnp.integer) else lengths


def scaled_dot_product_attention_vjp(
    query: Any, key: Any, value: Any, grad_output: Any, *, attn_bias: Any = None, **options: Any
) -> Mapping[str, Any]:
    """Gradients, as jax.vjp computes them."""
    given = {"query": query, "key": key, "value": value, "attn_bias": attn_bias}
    operands = {name: x for name, x in given.items() if x is not None}
    _, back = jax.vjp(lambda x: scaled_dot_product_attention(**x, **options)["output"], operands)
    return dict(back(grad_output)[0])
