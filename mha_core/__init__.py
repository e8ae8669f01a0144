"""Multi-head attention as the specification defines it, for every library of the Array API.

No framework is imported: the arrays that come in say which library computes. The module is itself a target
of the suite, so it carries what one declares.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mha_core.arrays import DTYPES
from mha_core.attention import scaled_dot_product_attention
from mha_core.attention_vjp import scaled_dot_product_attention_vjp
from mha_core.layer import multi_head_attention
from mha_core.layer_vjp import multi_head_attention_vjp
from mha_core.merge import merge_attention
from mha_core.paths import path
from mha_core.pool import threads
from mha_core.result import AttentionResult

if TYPE_CHECKING:
    from mha_core.explaining import explain
    from mha_core.latent import latent_attention
    from mha_core.packed import packed_attention
    from mha_core.paged import PagedResult, paged_attention
    from mha_core.pages import Pages, append_to_pages

__all__ = [
    "DTYPES",
    "FEATURES",
    "AttentionResult",
    "PagedResult",
    "Pages",
    "accuracy",
    "append_to_pages",
    "dtypes",
    "explain",
    "features",
    "latent_attention",
    "merge_attention",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "name",
    "packed_attention",
    "paged_attention",
    "path",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
    "threads",
    "version",
]

FEATURES = frozenset(
    {
        "mask",
        "attn_bias",
        "is_causal",
        "q_offset",
        "window",
        "kv_lengths",
        "scale",
        "softcap",
        "sinks",
        "return_weights",
        "return_lse",
        "cache",
        "gqa",
        "value_dim",
        "broadcast",
        "empty",
        "segments",
        "grad_lse",
        "packed",
        "paged",
        "append",
        "latent",
        "merge",
        "validation",
        "strict_masking",
    }
)
"""Every feature of the specification."""

LATER = {
    "explain": "explaining",
    "latent_attention": "latent",
    "packed_attention": "packed",
    "paged_attention": "paged",
    "PagedResult": "paged",
    "Pages": "pages",
    "append_to_pages": "pages",
}
"""Public names of modules that are imported when one is first wanted."""

name = "mha_core"
dtypes = DTYPES
features = FEATURES
accuracy = "fused"


def __dir__() -> list[str]:
    """The public names, and no more."""
    return sorted(__all__)


def __getattr__(attribute: str) -> Any:
    """`version` and the names of LATER, looked up when first wanted: most imports need none."""
    if attribute in LATER:
        return getattr(importlib.import_module(f"mha_core.{LATER[attribute]}"), attribute)
    if attribute != "version":
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    from importlib import metadata

    try:
        return metadata.version("mha-conformance")
    except metadata.PackageNotFoundError:
        return "unknown"
