"""A whole call on JAX arrays whose values are at hand, compiled as one.

JAX compiles each operation for each shape: step by step a call is twenty programs, to compile and to call.
An offset is given to the program as an array where few rows read it, so that the next token compiles nothing.

JAX is never imported: the caller's arrays have put it into `sys.modules`.
"""

import functools
import math
import numbers
import sys
from collections.abc import Callable
from typing import Any

from mha_core.arrays import is_spread
from mha_core.attend import attend
from mha_core.jax_blocks import ARRAYS, LARGE
from mha_core.options import Options, Sizes
from mha_core.result import Array, AttentionResult

PAST = ("past_key", "past_value")

Operands = tuple[Any, ...]
"""Query, key, value and what else is no option."""
Body = Callable[[Any, Operands, Options, Sizes], Any]
"""What is left of a call after its checks."""


def at_once(body: Body, xp: Any, operands: Operands, options: Options, sizes: Sizes) -> Any:
    """`body(xp, operands, options, sizes)`, compiled where the query is an array of JAX that is not traced."""
    jax: Any = sys.modules.get("jax")
    query = operands[0]
    if (
        jax is None
        or not isinstance(query, jax.Array)
        or isinstance(query, jax.core.Tracer)
        or is_spread(query)
    ):
        return body(xp, operands, options, sizes)
    arrays = {name: x for name in (*ARRAYS, *PAST) if hasattr(x := getattr(options, name), "shape")}
    if isinstance(options.q_offset, numbers.Integral) and math.prod(sizes.logits) < LARGE:
        arrays["q_offset"] = xp.asarray(max(-sizes.q_len, min(sizes.kv_len, int(options.q_offset))))
    window = None if options.window is None else tuple(options.window)
    nothing: dict[str, Any] = dict.fromkeys(arrays)
    scalars = options._replace(window=window, **nothing)
    return _program(jax, body, xp, scalars, sizes)(operands, arrays)


def attend_at_once(xp: Any, operands: Operands, options: Options, sizes: Sizes) -> AttentionResult:
    """`attend` of query, key and value that the caller has laid out."""
    result: AttentionResult = at_once(_attended, xp, operands, options, sizes)
    return result


def _attended(xp: Any, operands: Operands, options: Options, sizes: Sizes) -> AttentionResult:
    query, key, value = operands
    return attend(xp, query, key, value, options, sizes)


@functools.lru_cache(maxsize=256)
def _program(jax: Any, body: Body, xp: Any, scalars: Options, sizes: Sizes) -> Callable[..., Any]:
    """What JAX compiles for arrays of some sizes."""

    def compute(operands: Operands, arrays: dict[str, Array]) -> Any:
        return body(xp, operands, scalars._replace(**arrays), sizes)

    return jax.jit(compute)
