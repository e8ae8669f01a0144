"""mha_core on JAX under jax.jit, with JAX's own gradients: arrays are traced, scalar options are static."""

import functools
from collections.abc import Callable
from typing import Any

import jax

import mha_core
from mha_core.checks import check_grad_output

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


PAST = ("past_key", "past_value")
"""Operands without a gradient (GRAD-13)."""


def _autodiff(operation: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """The gradients of an operation by jax.vjp, called as the core's own `like`."""

    @functools.wraps(like)
    def vjp(query: Any, key: Any, value: Any, grad_output: Any, **options: Any) -> Any:
        operands = {"query": query, "key": key, "value": value, **options}
        variables = {
            name: x
            for name, x in operands.items()
            if isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.numpy.floating)
        }
        variables = {name: x for name, x in variables.items() if name not in PAST}

        def output_of(variables: dict[str, jax.Array]) -> Any:
            result = operation(**operands | variables)
            return result.output if isinstance(result, mha_core.AttentionResult) else result

        output, pull_back = jax.vjp(output_of, variables)
        check_grad_output(grad_output, output, output.shape)
        return pull_back(grad_output)[0]

    return vjp


scaled_dot_product_attention = _jit(mha_core.scaled_dot_product_attention)
multi_head_attention = _jit(mha_core.multi_head_attention)
scaled_dot_product_attention_vjp = _jit(
    _autodiff(mha_core.scaled_dot_product_attention, mha_core.scaled_dot_product_attention_vjp)
)
multi_head_attention_vjp = _jit(_autodiff(mha_core.multi_head_attention, mha_core.multi_head_attention_vjp))
