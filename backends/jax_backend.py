"""mha_core as it is on JAX arrays, its own gradients too; for those that JAX derives see jax-jit."""

import jax

import mha_core
from mha_core import append_to_pages, merge_attention

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

name = "jax"
version = jax.__version__
array_type = "jax"
dtypes = mha_core.DTYPES
features = mha_core.FEATURES
accuracy = "fused"

in_full_precision = jax.default_matmul_precision("highest")  # accelerators round float32 operands unasked

scaled_dot_product_attention = in_full_precision(mha_core.scaled_dot_product_attention)
multi_head_attention = in_full_precision(mha_core.multi_head_attention)
packed_attention = in_full_precision(mha_core.packed_attention)
paged_attention = in_full_precision(mha_core.paged_attention)
latent_attention = in_full_precision(mha_core.latent_attention)
scaled_dot_product_attention_vjp = in_full_precision(mha_core.scaled_dot_product_attention_vjp)
multi_head_attention_vjp = in_full_precision(mha_core.multi_head_attention_vjp)
