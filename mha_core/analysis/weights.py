"""What is measured of the weights of attention."""

from mha_core.analysis.wide import measured
from mha_core.result import Array


def entropy(weights: Array) -> Array:
    """H = -sum_j P_ij ln P_ij of the distribution of each query over the keys, in nats (DOC-87, DOC-115).

    The document says that each head has a distribution, which holds, and that heads yield diverse patterns, which
    holds if the projections are large and differ: near zero ones give ln kv_len everywhere.
    With sinks the weights sum to less than 1, and this is the part of the sum that the keys have.

    Args:
        weights: (..., q_len, kv_len), as `return_weights` gives them.

    Returns:
        (..., q_len), from 0 to ln kv_len; 0 for an empty row.

    Raises:
        ValueError: there are fewer than two axes.

    >>> import numpy as np
    >>> (entropy(np.asarray([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])) / np.log(2)).tolist()
    [2.0, 0.0]
    """
    xp, weights = measured("weights", weights, "(..., q_len, kv_len)", 2)
    logs = xp.log(xp.where(weights == 0, xp.ones_like(weights), weights))
    return 0.0 - xp.sum(weights * logs, axis=-1)
