"""Which path a call takes."""

from typing import Any

from mha_core.arrays import is_traced
from mha_core.checks import check_operands, check_options, head_sizes
from mha_core.heads import with_past
from mha_core.options import Options
from mha_core.result import Array
from mha_core.torch_fused import is_fused


def path(query: Array, key: Array, value: Array, **options: Any) -> str:
    """The path of `scaled_dot_product_attention(query, key, value, **options)`: `fused` or `portable`.

    `fused` is a framework's own kernel, asked where by everything but values it means the same; a result of its
    that shows a NaN, an Inf or an empty row is not taken, and the portable path computes that call too. The
    environment variable MHA_CORE_PATH=portable, read when the core is imported, makes every call portable; its
    other value is auto, the default, and any else is a ValueError of the import.

    Args:
        query: (..., H, q_len, d_k).
        key: (..., G, kv_len, d_k).
        value: (..., G, kv_len, d_v).
        options: those of `scaled_dot_product_attention`, each with its shape and dtype.

    Returns:
        The name of the path.

    Raises:
        TypeError: what the call raises.
        ValueError: what the call raises.

    >>> import numpy as np
    >>> path(*[np.ones((1, 2, 3))] * 3)
    'portable'
    """
    given = Options(**{**dict.fromkeys(Options._fields[:11]), "is_causal": False, **options})
    xp = check_operands(
        {"query": query, "key": key, "value": value},
        {"past_key": given.past_key, "past_value": given.past_value, "sinks": given.sinks},
    )
    sizes = head_sizes(query, key, value, given)
    check_options(query, given, sizes)
    if is_traced(xp, query):
        return "portable"
    heads = query, with_past(xp, given.past_key, key), with_past(xp, given.past_value, value)
    return "fused" if is_fused(*heads, given, sizes) else "portable"
