"""Layers for calls of production size: one that is right, and others with one mistake each, named after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import large_programs
import numpy as np


@dataclass(frozen=True)
class Layer:
    """Projections around tiled attention; each field is a place where it may go wrong."""

    weights: Callable[[Any], Any] = lambda heads: heads  # whose projections of queries each head has
    outputs: Callable[[Any], Any] = lambda heads: heads  # whose output projection
    kept: Callable[[Any], Any] = lambda columns: columns >= 0  # which columns of the tensors take part
    biased: bool = True
    inside: Any = large_programs.right
    times: float = 1.0

    def __call__(
        self, query: Any, key: Any, value: Any, *, w_q: Any, w_k: Any, w_v: Any, w_o: Any, b_q: Any = None,
        b_k: Any = None, b_v: Any = None, is_causal: bool = False, q_offset: Any = None,
    ) -> Any:  # fmt: skip
        heads = np.arange(len(w_q))
        w_q, w_o = w_q[self.weights(heads)], w_o[self.outputs(heads)]
        q, k, v = (
            self.projected(x, w, b if self.biased else None)
            for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
        )
        found = self.inside(q * np.float32(self.times), k, v, is_causal=is_causal, q_offset=q_offset)
        batch, _, rows, _ = found.shape
        merged = found.swapaxes(1, 2).reshape(batch, rows, -1) @ w_o.reshape(-1, w_o.shape[-1])
        return merged.astype(query.dtype)

    def projected(self, x: Any, w: Any, b: Any) -> Any:
        """[B, length, width] as heads."""
        x = x * self.kept(np.arange(x.shape[-1])).astype(x.dtype)
        heads, width, d = w.shape
        found = (x @ w.swapaxes(0, 1).reshape(width, heads * d)).reshape(*x.shape[:2], heads, d)
        return (found if b is None else found + b).swapaxes(1, 2)


def target(**mistake: Any) -> Any:
    """A target that has the layer alone."""
    layer = Layer(**mistake)

    class Target:
        def multi_head_attention(
            self, query: Any, key: Any, value: Any, *, w_q: Any, w_k: Any, w_v: Any, w_o: Any, b_q: Any = None,
            b_k: Any = None, b_v: Any = None, is_causal: bool = False, q_offset: Any = None,
        ) -> Any:  # fmt: skip
            return layer(
                query, key, value, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v,
                is_causal=is_causal, q_offset=q_offset,
            )  # fmt: skip

    return Target()


MISTAKES: dict[str, dict[str, Any]] = {
    "heads_from_64_wrap": {"weights": lambda h: h % 64},
    "output_of_heads_from_64_wraps": {"outputs": lambda h: h % 64},
    "columns_from_256_dropped": {"kept": lambda c: c < 256},
    "biases_ignored": {"biased": False},
    "layer_drops_a_tile": {"inside": large_programs.program(kept=lambda s, _: s // 256 != 5)},
    "layer_scale_off_by_2_percent": {"times": 1.02},
}
right = target()
