"""Which heads matter to a loss, which to nothing, and the layer without some of them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import array_api_compat

from mha_core.analysis.wide import measured
from mha_core.layer_vjp import multi_head_attention_vjp
from mha_core.result import Array

OF_QUERY_HEADS = ("w_q", "b_q", "w_o", "sinks")
OF_KV_HEADS = ("w_k", "b_k", "w_v", "b_v")


def head_importance(
    query: Array,
    key: Array,
    value: Array,
    grad_output: Array,
    *,
    weights: Mapping[str, Array],
    **options: Any,
) -> Array:
    """|dL/dgate_h|, a gate of 1 being put behind each head: how a loss feels a head (DOC-68, GRAD-10).

    Head h enters the output through w_o[h] alone, so that the derivative is the product of w_o[h] with its
    gradient. Batch entries are summed before the absolute value is taken: for the mean of absolute values over
    examples, as the literature has it, call it for each and take the mean.
    That heads differ and many can be pruned is empirical in the documents; this measures one layer and one loss,
    and to the first order.

    Args:
        query: (..., q_len, d_q).
        key: (..., kv_len, d_kv).
        value: (..., kv_len, d_vv).
        grad_output: (..., q_len, d_out), the gradient of the loss by the layer's output.
        weights: w_q, w_k, w_v, w_o and those of b_q, b_k, b_v, b_o and sinks that there are.
        options: those of `multi_head_attention_vjp`.

    Returns:
        (H,), float32 for 16-bit operands.

    Raises:
        TypeError: what `multi_head_attention_vjp` raises.
        ValueError: what it raises.

    >>> import numpy as np
    >>> x, w = np.asarray([[2.0]]), np.ones((3, 1, 1))
    >>> weights = {"w_q": w, "w_k": w, "w_v": w, "w_o": np.reshape([1.0, 0.0, -3.0], (3, 1, 1))}
    >>> head_importance(x, x, x, np.ones((1, 1)), weights=weights).tolist()
    [2.0, 0.0, 6.0]
    """
    gradients = multi_head_attention_vjp(query, key, value, grad_output, **weights, **options)
    xp, w_o = measured("w_o", weights["w_o"], "(H, d_v, d_out)", 3)
    _, gradient = measured("w_o", gradients["w_o"], "(H, d_v, d_out)", 3)
    return xp.abs(xp.sum(w_o * gradient, axis=(-2, -1)))


def silent_heads(weights: Mapping[str, Array]) -> tuple[int, ...]:
    """The heads whose w_o is zero: they can be pruned without any change (DOC-68).

    Args:
        weights: those of the layer; w_o (H, d_v, d_out) is looked at.

    Returns:
        Their numbers.

    >>> import numpy as np
    >>> silent_heads({"w_o": np.reshape([1.0, 0.0, -3.0], (3, 1, 1))})
    (1,)
    """
    w_o = weights["w_o"]
    xp = array_api_compat.array_namespace(w_o)
    return tuple(h for h in range(w_o.shape[0]) if not bool(xp.any(w_o[h, ...] != 0)))


def prune_heads(weights: Mapping[str, Array], heads: Iterable[int]) -> dict[str, Array]:
    """The weights of the layer without some of its query heads, the others bit for bit (DOC-68, HEAD-2).

    The output is the same if the heads are silent; any other head takes its own term away. Masks and biases with an
    axis of heads lose the same heads, which is the caller's business.
    With grouped heads, a head of key and value that nobody reads goes too. If the others then are not read by
    equally many, they are repeated as often as it takes, for query head h to read h // (H // G) again: there
    can be more of them than before.

    Args:
        weights: w_q, w_k, w_v, w_o and those of b_q, b_k, b_v, b_o and sinks that there are.
        heads: the numbers of the query heads to take away.

    Returns:
        The same names, with fewer heads.

    Raises:
        ValueError: a number is no head, or no head would be left.

    >>> import numpy as np
    >>> w = np.ones((4, 3, 2))
    >>> weights = {"w_q": w, "w_k": w[:2], "w_v": w[:2], "w_o": np.ones((4, 2, 3)), "b_o": np.ones(3)}
    >>> {name: x.shape for name, x in prune_heads(weights, [2, 3]).items()}
    {'w_q': (2, 3, 2), 'w_k': (1, 3, 2), 'w_v': (1, 3, 2), 'w_o': (2, 2, 3), 'b_o': (3,)}
    """
    num_heads, num_kv_heads = weights["w_q"].shape[0], weights["w_k"].shape[0]
    gone = set(heads)
    for head in sorted(gone):
        if not 0 <= head < num_heads:
            raise ValueError(f"head {head} is to go but there are heads 0 to {num_heads - 1} (HEAD-1)")
    kept = [head for head in range(num_heads) if head not in gone]
    if not kept:
        raise ValueError(f"all {num_heads} heads are to go but one has to stay (SHAPE-6)")
    read = [head // (num_heads // num_kv_heads) for head in kept]  # the key head of each query head
    group = math.gcd(*(read.count(head) for head in set(read)))
    index = dict.fromkeys(OF_QUERY_HEADS, kept) | dict.fromkeys(OF_KV_HEADS, read[::group])
    xp = array_api_compat.array_namespace(weights["w_q"])
    return {
        name: x if name not in index else xp.stack([x[head, ...] for head in index[name]])
        for name, x in weights.items()
        if x is not None
    }
