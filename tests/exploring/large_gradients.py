"""Gradients for calls of production size, with one mistake each, named after it; right but for that."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.names import MHA_VJP, SDPA_VJP
from conformance.running.target import Target, adopt, load

TILE = 64
Gradients = Mapping[str, Any]
Mistake = Callable[[Callable[..., Gradients], dict[str, Any]], Gradients]
"""The right gradients and the arguments of a call -> what is given."""


def _last_tile_of_keys(right: Callable[..., Gradients], given: dict[str, Any]) -> Gradients:
    """The last tile of keys has no gradient."""
    found = dict(right(**given))
    length = found["key"].shape[-2]
    found["key"] = np.where(np.arange(length)[:, None] < (length - 1) // TILE * TILE, found["key"], 0)
    return {**found, "key": found["key"].astype(given["key"].dtype)}


def _last_tile_of_queries(right: Callable[..., Gradients], given: dict[str, Any]) -> Gradients:
    """The gradients of keys and values lack the last tile of queries."""
    rows = given["grad_output"].shape[-2]
    cut = np.where(np.arange(rows)[:, None] < (rows - 1) // TILE * TILE, given["grad_output"], 0)
    less = right(**{**given, "grad_output": cut.astype(given["grad_output"].dtype)})
    return {**right(**given), "key": less["key"], "value": less["value"]}


MISTAKES: dict[str, Mistake] = {
    "last_tile_of_dk_dropped": _last_tile_of_keys,
    "last_tile_of_queries_left_out_of_dk": _last_tile_of_queries,
}


def target(operation: str, mistake: Mistake, dtype: str = "float32") -> Target:
    """A target that has the gradients of one operation alone, with a mistake."""
    right = load("numpy").calls[operation].function

    class Attention:
        features, dtypes = ("gqa",), (dtype,)

        def scaled_dot_product_attention_vjp(self, query: Any, key: Any, value: Any, grad_output: Any) -> Any:
            return mistake(right, {"query": query, "key": key, "value": value, "grad_output": grad_output})

    class Layer:
        def multi_head_attention_vjp(
            self, query: Any, key: Any, value: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, grad_output: Any
        ) -> Any:
            given = {"query": query, "key": key, "value": value, "grad_output": grad_output}
            return mistake(right, {**given, "w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o})

    return adopt({SDPA_VJP: Attention, MHA_VJP: Layer}[operation](), operation)
