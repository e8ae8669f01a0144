"""Parameters, operations and memory of a layer, counted exactly."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from mha_core.checks import shape_of
from mha_core.result import Array


class Counts(NamedTuple):
    """How much a layer takes; numbers of numbers, for their bytes multiply by the size of the dtype."""

    parameters: int
    """The numbers in w_* and b_*."""
    projections: int
    """Multiplications of the four projections."""
    attention: int
    """Multiplications of the logits and of the weighted means."""
    exponentials: int
    """One for each logit."""
    memory: int
    """The numbers in queries, keys, values, weights and heads, the past included."""
    cache: int
    """Those of them that a cache keeps: keys and values."""

    @property
    def multiplications(self) -> int:
        """All multiplications of matrix products; as many additions go with them."""
        return self.projections + self.attention


def count_layer(
    weights: Mapping[str, Array | None], q_len: int, kv_len: int, *, past: int = 0, batch: int = 1
) -> Counts:
    """What one call of `multi_head_attention` takes, without masks (DOC-60, DOC-76, DOC-100 to DOC-102).

    The document's O(n^2 d_k + n m d_k) for a head does not hold, for the projections are missing and n^2 is wrong
    for cross attention. The count is that of the ledger, with grouped heads G <= H:
    H n d_q d_k + G m d_kv d_k + G m d_vv d_v + H n m (d_k + d_v) + H n d_v d_out.
    Its h (3 n d_k + m d_k + n m) numbers of memory hold if m = n and d_v = d_k; in general they are
    H n d_k + G m d_k + G m d_v + H n m + H n d_v. That the parameters are 4 d_model^2 holds if there are no biases
    and H d_k = H d_v = d_model.

    Args:
        weights: w_q, w_k, w_v, w_o and those of b_q, b_k, b_v, b_o that there are; only shapes are looked at.
        q_len: n.
        kv_len: m, the past included.
        past: how many of kv_len need no projection any more.
        batch: the product of the batch axes.

    Raises:
        ValueError: past is not between 0 and kv_len.

    >>> import numpy as np
    >>> w = np.ones((2, 4, 2))
    >>> counts = count_layer({"w_q": w, "w_k": w, "w_v": w, "w_o": np.ones((2, 2, 4))}, q_len=3, kv_len=3)
    >>> counts.parameters, counts.multiplications, counts.exponentials, counts.memory
    (64, 264, 18, 66)
    """
    if not 0 <= past <= kv_len:
        raise ValueError(f"past={past} but it is a part of kv_len={kv_len} (CACHE-3)")
    shapes = {name: shape_of(x) for name, x in weights.items() if x is not None}
    heads, d_q, d_k = shapes["w_q"]
    groups, d_kv, _ = shapes["w_k"]
    _, d_vv, d_v = shapes["w_v"]
    d_out = shapes["w_o"][-1]
    new = kv_len - past
    into = heads * q_len * d_q * d_k + groups * new * (d_kv * d_k + d_vv * d_v)
    kept = groups * kv_len * (d_k + d_v)
    logits = heads * q_len * kv_len
    return Counts(
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        projections=batch * (into + heads * q_len * d_v * d_out),
        attention=batch * logits * (d_k + d_v),
        exponentials=batch * logits,
        memory=batch * (heads * q_len * (d_k + d_v) + kept + logits),
        cache=batch * kept,
    )
