"""Gradients: what is masked, empty rows, and what is not finite."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps


def _seen_backward(*options: str) -> Change:
    """Options that act on the way forward and are forgotten on the way back."""

    def compute(s: Steps, c: Call) -> Any:
        held = {name: getattr(c, name) for name in options}
        if all(value is None or value is False for value in held.values()):
            return R.compute_gradients(s, c)
        forgotten: dict[str, Any] = {name: False if name == "is_causal" else None for name in options}
        return R.compute_gradients(s, replace(c, **forgotten))

    return {"compute_gradients": compute}


def _off(**changed: Any) -> Change:
    """Options that are moved on the way back: name -> a function of their value."""

    def compute(s: Steps, c: Call) -> Any:
        moved = {name: change(c) for name, change in changed.items() if getattr(c, name) is not None}
        return R.compute_gradients(s, replace(c, **moved))

    return {"compute_gradients": compute}


def _leak(amount: float) -> Change:
    """Masked entries that keep a little weight."""
    return {
        "grad_value": lambda c, p, g: R.grad_value(c, p + c.wide(amount) * (p == 0), g),
    }


def _empty(change: Any) -> Change:
    """What becomes of the gradient of the logits in empty rows: c, logits, empty."""
    return {
        "grad_logits": lambda c, p, products, delta, visible: change(
            c, R.grad_logits(c, p, products, delta, visible), ~visible.any(axis=-1, keepdims=True)
        )
    }


def _without_empty_rows(c: Call, heads: Any) -> Any:
    """The rows of which no head holds anything are left out of b_o."""
    some = heads.any(axis=(-1, -3))[..., None]
    return R.grad_output_projection(replace(c, grad_output=c.grad_output * some.astype(c.dtype)), heads)


def _nan_empty(c: Call, x: Any, empty: Any) -> Any:
    return np.where(empty, c.wide(np.nan), x)


DEFECTS = (
    Defect("grad-mask-forgotten", "The mask is forgotten on the way back.",
           ("GRAD-3",), _seen_backward("mask"), features=("mask",), origin="ekzhang/jax-js#180"),
    Defect("grad-causal-forgotten", "Causality is forgotten on the way back.",
           ("GRAD-3",), _seen_backward("is_causal"), features=("is_causal",)),
    Defect("grad-window-forgotten", "The window is forgotten on the way back.",
           ("GRAD-3",), _seen_backward("window"), features=("window",)),
    Defect("grad-lengths-forgotten", "The lengths are forgotten on the way back.",
           ("GRAD-3",), _seen_backward("kv_lengths"), features=("kv_lengths",)),
    Defect(
        "grad-bias-forgotten",
        "The bias is forgotten on the way back: the weights are computed anew without it.",
        ("GRAD-1", "GRAD-5"),
        {
            "compute_gradients": lambda s, c: (
                R.compute_gradients(s, c)
                if c.attn_bias is None
                else R.compute_gradients(
                    s,
                    replace(
                        c,
                        attn_bias=np.where(np.isneginf(c.attn_bias), c.attn_bias, c.attn_bias.dtype.type(0)),
                    ),
                )
            )
        },
        features=("attn_bias",),
    ),
    Defect("grad-softcap-forgotten",
           "The softcap is forgotten on the way back: the weights are computed anew without it.",
           ("GRAD-7", "GRAD-1"), _seen_backward("softcap"), features=("softcap",)),
    Defect("grad-sinks-forgotten", "The sinks are forgotten when the weights are computed anew.",
           ("GRAD-8", "GRAD-1"),
           {"compute_gradients": lambda s, c: R.compute_gradients(s, c) if c.sinks is None else {
                    **R.compute_gradients(s, replace(c, sinks=None)),
                    "sinks": R.compute_gradients(s, c)["sinks"]}}, features=("sinks",)),
    Defect("grad-causal-one-too-far", "On the way back each query sees one key more than on the way forward.",
           ("GRAD-3",),
           {"by_causal": lambda c, place: R.by_causal(c, place + (1 if c.grad_output is not None else 0))
                if c.is_causal else None}, features=("is_causal",)),
    Defect("grad-causal-one-too-short", "On the way back each query misses its last key.", ("GRAD-3",),
           {"by_causal": lambda c, place: R.by_causal(c, place - (1 if c.grad_output is not None else 0))
                if c.is_causal else None}, features=("is_causal",)),
    Defect("grad-offset-ignored", "On the way back the offset is taken to be zero.", ("GRAD-3",),
           {"place": lambda c: R.place(replace(c, q_offset=None) if c.grad_output is not None else c)},
           features=("q_offset",)),
    Defect("grad-offset-of-first-entry", "On the way back every batch entry uses the offset of the first.",
           ("GRAD-3",),
           {"place": lambda c: R.place(replace(c, q_offset=np.full_like(c.q_offset, c.q_offset.flat[0]))
                    if c.grad_output is not None and np.ndim(c.q_offset) else c)}, features=("q_offset",)),
    Defect("grad-window-sides-exchanged", "On the way back the sides of the window are exchanged.",
           ("GRAD-3",), _off(window=lambda c: (c.window[1], c.window[0])), features=("window",)),
    Defect("grad-window-one-wider", "On the way back the window is one key wider on its left.", ("GRAD-3",),
           _off(window=lambda c: (None if c.window[0] is None else c.window[0] + 1, c.window[1])),
           features=("window",)),
    Defect("grad-lengths-one-longer", "On the way back one slot beyond the length is read.", ("GRAD-3",),
           _off(kv_lengths=lambda c: np.minimum(c.kv_lengths + 1, c.kv_len)), features=("kv_lengths",)),
    Defect("grad-lengths-of-first-entry", "On the way back every batch entry has the length of the first.",
           ("GRAD-3",),
           _off(kv_lengths=lambda c: np.full_like(c.kv_lengths, c.kv_lengths.flat[0]) if c.kv_lengths.size
                    else c.kv_lengths), features=("kv_lengths",)),
    Defect("grad-mask-of-first-head", "On the way back the mask of the first head serves all.", ("GRAD-3",),
           _off(mask=lambda c: np.broadcast_to(c.mask[..., :1, :, :], c.mask.shape) if c.mask.ndim > 2
                    else c.mask), features=("mask",)),
    Defect("grad-mask-of-first-entry", "On the way back the mask of the first batch entry serves all.",
           ("GRAD-3",),
           _off(mask=lambda c: np.broadcast_to(c.mask[:1], c.mask.shape) if c.mask.ndim > 3 else c.mask),
           features=("mask",)),
    Defect("grad-mask-inverted", "On the way back the mask is inverted.",
           ("GRAD-3",), _off(mask=lambda c: ~c.mask), features=("mask",)),
    Defect("grad-leak-small", "Masked keys keep a weight of 1e-9, so that their values get a gradient.",
           ("GRAD-3",), _leak(1e-9), features=("mask",)),
    Defect("grad-leak-logits", "The gradient of masked logits is not set to zero.", ("GRAD-3",),
           {"grad_logits": lambda c, p, products, delta, visible: np.where(visible,
                R.grad_logits(c, p, products, delta, visible), c.wide(0.125) * delta)}, features=("mask",)),
    Defect("grad-bias-of-masked", "What the mask hides has a gradient of the bias.", ("GRAD-3", "GRAD-5"),
           {"grad_bias": lambda c, x: R.grad_bias(c,
                x if c.mask is None else np.where(c.mask, x, c.wide(1e-3)))}, features=("mask", "attn_bias")),
    Defect("grad-bias-of-infinity", "An entry of -inf in the bias has a gradient of NaN.",
           ("GRAD-5", "GRAD-15"),
           {"grad_bias": lambda c, x: np.where(np.isneginf(c.attn_bias), c.wide(np.nan), R.grad_bias(c, x))},
           features=("attn_bias",)),
    Defect("grad-bias-of-infinity-uniform",
           "An entry of -inf in the bias is given the row's Delta as its gradient.", ("GRAD-5", "GRAD-3"),
           {"grad_bias": lambda c, x: np.where(np.isneginf(c.attn_bias), c.wide(0.25), R.grad_bias(c, x))},
           features=("attn_bias",)),
    Defect("grad-empty-nan", "An empty row gives NaN: a softmax over nothing is differentiated.",
           ("GRAD-4", "GRAD-15"), _empty(_nan_empty), features=("empty",), origin="pytorch/pytorch#153799"),
    Defect("grad-empty-uniform-value",
           "An empty row spreads its gradient evenly over all values, as a softmax over equal logits does.",
           ("GRAD-4",),
           {"grad_value": lambda c, p, g: R.grad_value(c,
                p + c.wide(1) / c.wide(max(c.kv_len, 1)) * (p.sum(axis=-1, keepdims=True) == 0), g)},
           features=("empty",), origin="jax 0.10"),
    Defect("grad-empty-logits", "An empty row gives a gradient to its logits.",
           ("GRAD-4",), _empty(lambda c, x, empty: x + c.wide(0.5) * empty), features=("empty",)),
    Defect("grad-empty-bias-o-skipped", "Rows that see nothing are left out of the gradient of b_o.",
           ("GRAD-11",), {"grad_output_projection": _without_empty_rows}, features=("empty",)),
    Defect("grad-empty-call-refused", "A call without keys gives gradients of NaN.", ("GRAD-4", "GRAD-15"),
           {"compute_gradients": lambda s, c: {name: np.full_like(x, np.nan) if c.kv_len == 0 else x
                    for name, x in R.compute_gradients(s, c).items()}}, features=("empty",)),
    Defect("grad-nan-behind-mask-in-query",
           "NaN in a masked key reaches the gradient of the query: zero is multiplied by NaN.", ("GRAD-9",),
           {"grad_query": lambda c, x, key, scale: R.grad_query(c, x, key, scale)
                + np.where(np.isnan(c.widen(c.key)).any(), c.wide(np.nan), c.wide(0))},
           features=("strict_masking",), origin="torch 2.13"),
    Defect("grad-nan-behind-mask-in-products",
           "dP of a masked value that holds NaN is multiplied by its weight of zero.", ("GRAD-9",),
           {"products": lambda c, g, v, visible: g @ v.swapaxes(-1, -2)}, features=("strict_masking",)),
    Defect("grad-infinity-behind-mask", "Infinity in a masked value reaches the gradients.", ("GRAD-9",),
           {"products": lambda c, g, v, visible: R.products(c, g, v, visible)
                + np.where(np.isinf(v).any(), c.wide(np.nan), c.wide(0))}, features=("strict_masking",)),
    Defect("grad-nan-behind-mask-in-weight",
           "NaN in a token that no query sees reaches the gradients of w_k and w_v.", ("GRAD-9", "GRAD-10"),
           {"grad_projection": lambda c, name, x, gradient, weight, bias: R.grad_projection(c, name,
                c.widen(getattr(c, name)), gradient, weight, bias)}, features=("strict_masking",)),
    Defect("grad-huge-logits-nan",
           "The weights are computed anew without subtracting the maximum: huge logits give NaN.",
           ("GRAD-15",),
           {"peak": lambda c, x, visible: R.peak(c, x, visible) * 0 if c.grad_output is not None
                else R.peak(c, x, visible)}),
    Defect("grad-products-clamped", "dP is clamped to 8 on its way.",
           ("GRAD-1", "GRAD-15"), after("products", lambda c, x: np.clip(x, -8, 8))),
    Defect("grad-clipped", "Gradients are clipped to one.",
           ("GRAD-1",), after("finish_gradients", lambda c, o: {n: np.clip(x, -1, 1) for n, x in o.items()})),
    Defect("grad-small-weights-dropped", "Weights below one in a thousand have no gradient.",
           ("GRAD-1", "GRAD-15"),
           {"grad_logits": lambda c, p, products, delta, visible: R.grad_logits(c, p, products, delta,
                visible) * (p > 1e-3)}),
)  # fmt: skip
