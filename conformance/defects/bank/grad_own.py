"""A way back that has rules of its own, whatever the way forward was."""

from typing import Any

import numpy as np

from conformance.defects.bank.mutators import back
from conformance.defects.blocks.back import anew
from conformance.defects.blocks.edges import Edges, family, whole
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.defects.visibility import visibility
from conformance.vectors.case import Array


def _causal(bottom: bool) -> Change:
    """Causality on the way back, whether it was asked for or not."""

    def shown(s: Steps, c: Call) -> Array:
        place = np.arange(c.q_len)[:, None] + (c.kv_len - c.q_len) if bottom else s.place(c)
        found: Array = visibility(s, c) & (c.columns <= place)
        return found

    return anew(shown=shown)


def _outside(c: Call, weights: Array, products: Array, delta: Array, visible: Array) -> Any:
    return np.where(visible, weights * products - delta, c.wide(0))


def _columns(c: Call, x: Array) -> Array:
    """The gradient of the value as far as the key is wide."""
    return np.where(np.arange(x.shape[-1]) < c.d_k, x, c.wide(0))


def _tail(e: Edges) -> Change:
    """Queries behind the last full block have no cotangent."""
    return back(
        {
            "head_gradient": lambda c: np.where(
                (np.arange(c.q_len) < whole(e, c.q_len))[:, None], R.head_gradient(c), c.wide(0)
            )
        }
    )


def _first_of_bias(c: Call, x: Array) -> Array:
    """The gradient of a shared bias, of the first of those that share it."""
    shape = c.attn_bias.shape
    for axis in range(x.ndim):
        own = axis - x.ndim + len(shape)
        if (own < 0 or shape[own] == 1) and x.shape[axis]:
            x = x.take([0], axis=axis)
    return R.grad_bias(c, x)


DEFECTS = (
    Defect("grad-tail-of-queries-dropped",
        "Your backward pass leaves out the queries behind the last full block, and all of them if no block is full.",
        ("GRAD-1",), **family(_tail, at=4, reach="")),
    Defect("grad-bias-of-first", "The gradient of a shared bias is that of the first of what shares it.",
           ("GRAD-5",), back({"grad_bias": _first_of_bias}), features=("attn_bias", "broadcast")),
    Defect("grad-causal-by-itself", "Your backward pass is causal although the forward pass is not.",
           ("GRAD-1",),
           **varied({"from the first key on": _causal(False), "up to the last key": _causal(True)},
                    "from the first key on")),
    Defect("grad-delta-of-cotangent",
           "Delta is the sum of the output's gradient, which is not multiplied by the output.",
           ("GRAD-1",), back({"delta": lambda c, p, dp, g, heads: g.sum(axis=-1, keepdims=True)})),
    Defect("grad-delta-outside",
           "Delta is subtracted from P dP: it has to be subtracted from dP, before P is multiplied.",
           ("GRAD-1",), back({"grad_logits": _outside})),
    Defect("grad-value-as-wide-as-key", "Columns of the gradient of value beyond d_k are zero.", ("GRAD-1",),
           back({"grad_value": lambda c, p, g: _columns(c, R.grad_value(c, p, g))}), features=("value_dim",)),
    Defect("grad-sinks-minus-weight",
           "The gradient of a sink is minus the sum of its weights, whatever the output's gradient.",
           ("GRAD-8",),
           back({"grad_sinks": lambda c, lse, delta, visible: R.grad_sinks(c, lse, np.ones_like(delta),
                     visible)}), features=("sinks",)),
)  # fmt: skip
