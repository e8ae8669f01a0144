"""Rivals that need nothing but NumPy: the textbook's expression, and the two products alone."""

import math
from typing import Any

import numpy as np

from conformance.vectors.case import Array


def _causal(logits: Array, q_offset: int) -> Array:
    """Logits with -inf where a key is later than its query."""
    q_len, kv_len = logits.shape[-2:]
    return np.where(np.tri(q_len, kv_len, q_offset, dtype=bool), logits, -np.inf)


def _weights(
    query: Array, key: Array, is_causal: bool, q_offset: int | None, mask: Array | None = None
) -> Array:
    logits = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if is_causal:
        logits = _causal(logits, q_offset or 0)
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _joined(heads: Array) -> Array:
    """(B, H, n, d) as (B, n, H * d)."""
    return heads.swapaxes(-3, -2).reshape(*heads.shape[:-3], heads.shape[-2], -1)


class Naive:
    """What everybody writes first: all logits at once, of as many heads on both sides."""

    name = "naive-numpy"
    version = np.__version__
    dtypes = ("float64", "float32")
    features = ("mask", "is_causal", "q_offset")

    @staticmethod
    def scaled_dot_product_attention(
        query: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | None = None,
        is_causal: bool = False,
        q_offset: int | None = None,
    ) -> Array:
        """softmax(query @ key^T / sqrt(d)) @ value, (B, H, n, d)."""
        return _weights(query, key, is_causal, q_offset, mask) @ value

    @staticmethod
    def scaled_dot_product_attention_vjp(
        query: Array,
        key: Array,
        value: Array,
        grad_output: Array,
        *,
        mask: Array | None = None,
        is_causal: bool = False,
        q_offset: int | None = None,
    ) -> dict[str, Array]:
        """Its gradients by name, each in the shape of its argument."""
        weights = _weights(query, key, is_causal, q_offset, mask)
        d_weights = grad_output @ value.swapaxes(-1, -2)
        d_logits = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
        d_logits /= math.sqrt(query.shape[-1])
        return {
            "query": d_logits @ key,
            "key": d_logits.swapaxes(-1, -2) @ query,
            "value": weights.swapaxes(-1, -2) @ grad_output,
        }

    @staticmethod
    def multi_head_attention(
        query: Array,
        key: Array,
        value: Array,
        *,
        w_q: Array,
        w_k: Array,
        w_v: Array,
        w_o: Array,
        is_causal: bool = False,
        q_offset: int | None = None,
    ) -> Array:
        """The layer of (B, n, E) by (H, E, d) and (H, d, E)."""
        heads = [x[..., None, :, :] @ w for x, w in ((query, w_q), (key, w_k), (value, w_v))]
        weights = _weights(heads[0], heads[1], is_causal, q_offset)
        return _joined(weights @ heads[2]) @ w_o.reshape(-1, w_o.shape[-1])


class Products:
    """Not attention: its two matrix products alone, tile by tile, which any attention by BLAS takes at least."""

    name = "products-numpy"
    version = np.__version__
    dtypes = ("float64", "float32")
    features = ()

    ROWS, COLUMNS = 256, 1024

    @classmethod
    def scaled_dot_product_attention(cls, query: Array, key: Array, value: Array) -> Array:
        """(query @ key^T) @ value, (B, H, n, d)."""
        output = np.zeros(query.shape[:-1] + value.shape[-1:], query.dtype)
        for place in np.ndindex(query.shape[:-2]):
            q, k, v, out = (x[place] for x in (query, key, value, output))
            for i in range(0, len(q), cls.ROWS):
                for j in range(0, len(k), cls.COLUMNS):
                    out[i : i + cls.ROWS] += (q[i : i + cls.ROWS] @ k[j : j + cls.COLUMNS].T) @ v[
                        j : j + cls.COLUMNS
                    ]
        return output


REFERENCES: dict[str, Any] = {reference.name: reference for reference in (Naive, Products)}
"""Their names, as `--against` takes them."""
NO_ATTENTION = (Products.name,)
"""Those whose output is another."""
