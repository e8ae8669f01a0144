"""What the tests of the ledger share: layers and their heads, computed by the core on NumPy arrays."""

import numpy as np

import mha_core


def attend_heads(x, w_q, w_k, w_v, source=None):
    """Outputs (H, n, d_v) and weights (H, n, m) of the heads, before any output projection."""
    source = x if source is None else source
    return mha_core.scaled_dot_product_attention(x @ w_q, source @ w_k, source @ w_v, return_weights=True)


def layer(x, w_q, w_k, w_v, w_o, source=None, **options):
    """The whole layer, (n, d_out)."""
    source = x if source is None else source
    return mha_core.multi_head_attention(x, source, source, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, **options)


def concatenated(outputs):
    """Heads (H, n, d_v) side by side, (n, H * d_v)."""
    return np.concatenate(list(outputs), axis=-1)


def draw(seed, heads, d_model, d_k, d_v=None, d_out=None):
    """Gaussian w_q, w_k, w_v, w_o of a layer."""
    random = np.random.default_rng(seed)
    d_v, d_out = d_v or d_k, d_out or d_model
    shapes = [(heads, d_model, d_k)] * 2 + [(heads, d_model, d_v), (heads, d_v, d_out)]
    return tuple(random.standard_normal(shape) for shape in shapes)


def tokens(seed, n, d_model):
    return np.random.default_rng(seed).standard_normal((n, d_model))


def stack(*matrices):
    """One matrix a head, as float64 (H, rows, columns)."""
    return np.stack([np.asarray(matrix, np.float64) for matrix in matrices])
