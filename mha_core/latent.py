"""Attention over latent rows, which are keys and, in their first channels, values."""

from collections.abc import Sequence

from mha_core.arrays import quiet
from mha_core.checks import check_operands, check_options
from mha_core.heads import result_of
from mha_core.jax_at_once import attend_at_once
from mha_core.options import Options
from mha_core.reductions import latent_heads
from mha_core.result import Array, AttentionResult
from mha_core.serving_checks import check_value_dim, latent_sizes


def latent_attention(
    query: Array,
    latent: Array,
    *,
    value_dim: int,
    scale: float,
    mask: Array | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    q_offset: int | Array | None = None,
    window: Sequence[int | None] | None = None,
    kv_lengths: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
) -> Array | AttentionResult:
    """`scaled_dot_product_attention` of all heads with one key, the rows, and one value, their first channels (LAT-1).

    The absorbed form of multi-head latent attention: a row has c channels of keys and values, and r of keys alone.
    What these hold reaches the output by the weights alone (LAT-2).

    Args:
        query: (..., H, q_len, c + r).
        latent: (..., kv_len, c + r).
        value_dim: c, from 1 to the width of the rows (LAT-3).
        scale: factor of the logits, required: rows do not say how wide the heads were (LAT-3).
        mask: see `scaled_dot_product_attention`, as for all that follow.
        attn_bias: see there.
        is_causal: see there.
        q_offset: see there.
        window: see there.
        kv_lengths: see there.
        softcap: see there.
        sinks: see there.
        return_lse: see there.

    Returns:
        The output, (..., H, q_len, c); with return_lse an AttentionResult.

    Raises:
        TypeError: something is no array, of another library, or of a wrong dtype (DTYPE-2 to DTYPE-5).
        ValueError: shapes disagree or an option is wrong (LAT-1, LAT-3, SHAPE-5 to SHAPE-11, MASK-7).

    >>> import numpy as np
    >>> latent, query = np.asarray([[1.0, 0.0, 9.0], [3.0, 2.0, 9.0]]), np.zeros((1, 1, 3))
    >>> latent_attention(query, latent, value_dim=2, scale=1.0)
    array([[[2., 1.]]])
    """
    options = Options(
        mask=mask,
        attn_bias=attn_bias,
        is_causal=is_causal,
        q_offset=q_offset,
        window=window,
        kv_lengths=kv_lengths,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        past_key=None,
        past_value=None,
        return_lse=return_lse,
    )
    xp = check_operands({"query": query, "latent": latent}, {"sinks": sinks})
    check_value_dim(latent, value_dim, scale)
    sizes = latent_sizes(query, latent, value_dim, options)
    check_options(query, options, sizes)
    key, value = latent_heads(latent, value_dim)
    with quiet(xp):
        result = attend_at_once(xp, (query, key, value), options, sizes)
        return result_of(xp, result, key, value, query.dtype, options)
