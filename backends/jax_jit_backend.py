"""mha_core on JAX under jax.jit, with JAX's own gradients: arrays are traced, scalar options are static.

What starts, tables, lengths and slots hold is checked here, outside of what is compiled.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import mha_core
from mha_core.checks import check_grad_lse, check_grad_output
from mha_core.serving_checks import check_values_of_slots, check_values_of_starts, check_values_of_table

__all__ = [
    "append_to_pages",
    "latent_attention",
    "merge_attention",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "packed_attention",
    "paged_attention",
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


def _is_traced(x: Any) -> bool:
    """Whether an argument is an array, or a list of some."""
    return isinstance(x, jax.Array) or (isinstance(x, list) and len(x) > 0 and all(map(_is_traced, x)))


def _jit(operation: Callable[..., Any]) -> Callable[..., Any]:
    """The operation as it is called eagerly."""

    @functools.wraps(operation)
    def call(*operands: Any, **options: Any) -> Any:
        traced = {key: x for key, x in options.items() if _is_traced(x)}
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
    def vjp(
        query: Any, key: Any, value: Any, grad_output: Any, *, grad_lse: Any = None, **options: Any
    ) -> Any:
        operands = {"query": query, "key": key, "value": value, **options}
        variables = {
            name: x
            for name, x in operands.items()
            if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.numpy.floating)
        }
        variables = {name: x for name, x in variables.items() if name not in PAST}

        def results_of(variables: dict[str, jax.Array]) -> list[Any]:
            result = operation(**operands | variables, return_lse=grad_lse is not None)
            output = result.output if isinstance(result, mha_core.AttentionResult) else result
            return [output] if grad_lse is None else [output, result.lse]

        results, pull_back = jax.vjp(results_of, variables)
        check_grad_output(grad_output, results[0], results[0].shape)
        grads = [grad_output]
        if grad_lse is not None:
            check_grad_lse(jnp, grad_lse, query, results[1].shape)
            grads.append(grad_lse.astype(results[1].dtype))
        return pull_back(grads)[0]

    return vjp


scaled_dot_product_attention = _jit(mha_core.scaled_dot_product_attention)
multi_head_attention = _jit(mha_core.multi_head_attention)
scaled_dot_product_attention_vjp = _jit(
    _autodiff(mha_core.scaled_dot_product_attention, mha_core.scaled_dot_product_attention_vjp)
)
multi_head_attention_vjp = _jit(_autodiff(mha_core.multi_head_attention, mha_core.multi_head_attention_vjp))

latent_attention = _jit(mha_core.latent_attention)
merge_attention = _jit(mha_core.merge_attention)
_packed = _jit(mha_core.packed_attention)
_paged = _jit(mha_core.paged_attention)
_append = _jit(mha_core.append_to_pages)


@functools.wraps(mha_core.packed_attention)
def packed_attention(
    query: Any, key: Any, value: Any, *, q_starts: Any, kv_starts: Any, q_offset: Any = None, **options: Any
) -> Any:
    """The core's, compiled; what it cannot read there is checked here."""
    if q_offset is None and q_starts.shape == kv_starts.shape:  # compiled it cannot tell equal lengths
        q_offset = 0 if bool((jnp.diff(q_starts) == jnp.diff(kv_starts)).all()) else None
    result = _packed(query, key, value, q_starts=q_starts, kv_starts=kv_starts, q_offset=q_offset, **options)
    check_values_of_starts("q_starts", q_starts.tolist(), query.shape[1])  # nor what it cannot read
    check_values_of_starts("kv_starts", kv_starts.tolist(), key.shape[1])
    return result


@functools.wraps(mha_core.paged_attention)
def paged_attention(
    query: Any, key_pages: Any, value_pages: Any, *, page_table: Any, kv_lengths: Any, **options: Any
) -> Any:
    """The core's, compiled; what it cannot read there is checked here."""
    result = _paged(query, key_pages, value_pages, page_table=page_table, kv_lengths=kv_lengths, **options)
    pages, size = key_pages.shape[:2]
    check_values_of_table(page_table.tolist(), kv_lengths.tolist(), pages, size, page_table.shape[1] * size)
    if options.get("slots") is not None:
        check_values_of_slots(options["slots"].tolist(), pages * size)
    return result


@functools.wraps(mha_core.append_to_pages)
def append_to_pages(key_pages: Any, value_pages: Any, new_key: Any, new_value: Any, *, slots: Any) -> Any:
    """The core's, compiled; what it cannot read there is checked here."""
    result = _append(key_pages, value_pages, new_key, new_value, slots=slots)
    check_values_of_slots(slots.tolist(), key_pages.shape[0] * key_pages.shape[1])
    return result
