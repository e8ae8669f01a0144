"""Gradients: the formula itself."""

from typing import Any

import numpy as np

from conformance.defects.backward import only_finite
from conformance.defects.bank.mutators import after
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R


def _delta(change: Any) -> Change:
    """Another Delta: c, weights, products, gradient, heads -> [..., H, q_len, 1]."""
    return {"delta": change}


def _logits(change: Any) -> Change:
    """Another gradient of the logits: c, weights, products, delta, visible."""
    return {"grad_logits": change}


def _softmax_over_queries(c: Any, weights: Any, products: Any, delta: Any, visible: Any) -> Any:
    return weights * (products - (weights * products).sum(axis=-2, keepdims=True))


def _slope(change: Any) -> Change:
    """Another derivative of the softcap: c, the tanh of the capped product."""
    return {
        "slope": lambda c, x: (
            R.slope(c, x) if c.softcap is None else change(c, np.tanh(only_finite(x) / c.wide(c.softcap)))
        )
    }


def _keys(c: Any) -> Any:
    """The projected keys by query head, the past in front."""
    return R.repeat(c, R.join(c, R.project_key(c), R.project_value(c))[0])


def _capped_bias() -> Change:
    """The slope of the call, kept for the bias."""
    kept: dict[str, Any] = {}

    def slope(c: Any, x: Any) -> Any:
        kept["slope"] = R.slope(c, x)
        return kept["slope"]

    return {"slope": slope, "grad_bias": lambda c, x: R.grad_bias(c, x * kept["slope"])}


CAP = ("softcap",)
DEFECTS = (
    Defect("grad-scale-not-in-query", "The gradient of the query is not multiplied by the scale.",
           ("GRAD-1",), {"grad_query": lambda c, x, key, scale: x @ key}),
    Defect("grad-scale-not-in-key", "The gradient of the key is not multiplied by the scale.",
           ("GRAD-1",), {"grad_key": lambda c, x, query, scale: x.swapaxes(-1, -2) @ query}),
    Defect("grad-scale-twice-in-query", "The gradient of the query is multiplied by the scale twice.",
           ("GRAD-1",), after("grad_query", lambda c, x: x * c.wide(R.scale(c)))),
    Defect("grad-scale-twice-in-key",
           "The gradient of the key is multiplied by the scale twice: the query was scaled already.",
           ("GRAD-1",), after("grad_key", lambda c, x: x * c.wide(R.scale(c)))),
    Defect("grad-scale-default-always",
           "The gradients of query and key use the default scale whatever scale was given.", ("GRAD-1",),
           {"grad_query": lambda c, x, key, scale: R.grad_query(c, x, key, c.d_k**-0.5),
            "grad_key": lambda c, x, query, scale: R.grad_key(c, x, query, c.d_k**-0.5)},
           features=("scale",)),
    Defect("grad-scale-absolute", "The gradients of query and key use the absolute value of the scale.",
           ("GRAD-1",),
           {"grad_query": lambda c, x, key, scale: R.grad_query(c, x, key, abs(scale)),
            "grad_key": lambda c, x, query, scale: R.grad_key(c, x, query, abs(scale))}, features=("scale",)),
    Defect("grad-scale-from-value-width", "The gradients of query and key take the scale from d_v.",
           ("GRAD-1",),
           {"grad_query": lambda c, x, key, scale: R.grad_query(c, x, key,
                c.d_v**-0.5 if c.scale is None else scale),
            "grad_key": lambda c, x, query, scale: R.grad_key(c, x, query,
                c.d_v**-0.5 if c.scale is None else scale)}, features=("value_dim",)),
    Defect("grad-scale-in-value", "The gradient of the value is multiplied by the scale as well.",
           ("GRAD-1",), after("grad_value", lambda c, x: x * c.wide(R.scale(c)))),
    Defect("grad-delta-missing",
           "The gradient of the logits is P dP: the row's sum of P dP is not subtracted.", ("GRAD-1",),
           _logits(lambda c, p, products, delta, visible: p * products), origin="tinygrad/tinygrad#2425"),
    Defect("grad-delta-mean", "Delta is the mean of dP over the keys, not the weighted sum.", ("GRAD-1",),
           _delta(lambda c, p, products, g, z: products.mean(axis=-1, keepdims=True) if c.kv_len
                      else R.delta(c, p, products, g, z))),
    Defect("grad-delta-added", "Delta is added where it has to be subtracted.",
           ("GRAD-1",), _logits(lambda c, p, products, delta, visible: p * (products + delta))),
    Defect("grad-delta-of-first-row", "Every row uses the Delta of the first.", ("GRAD-1",),
           after("delta", lambda c, x: np.broadcast_to(x[..., :1, :], x.shape) if c.q_len else x)),
    Defect("grad-delta-over-all-heads", "Delta is averaged over the heads.", ("GRAD-1",),
           after("delta", lambda c, x: np.broadcast_to(x.mean(axis=-3, keepdims=True), x.shape))),
    Defect("grad-delta-unweighted-sum", "Delta is the plain sum of dP.",
           ("GRAD-1",), _delta(lambda c, p, products, g, z: products.sum(axis=-1, keepdims=True))),
    Defect("grad-delta-from-rounded-weights-squared",
           "Delta is the sum of P P dP: the weight is applied twice.",
           ("GRAD-1",), _delta(lambda c, p, products, g, z: (p * p * products).sum(axis=-1, keepdims=True))),
    Defect("grad-delta-of-cotangent-squared",
           "Delta is the sum of the squared gradient of the output, not of its product with the output.",
           ("GRAD-1",),
           _delta(lambda c, p, products, g, z: (g * g).sum(axis=-1,
                      keepdims=True) * p.any(axis=-1, keepdims=True))),
    Defect("grad-logits-without-weights",
           "The gradient of the logits is dP less Delta, not multiplied by the weights.",
           ("GRAD-1",), _logits(lambda c, p, products, delta, visible: (products - delta) * visible)),
    Defect("grad-logits-weights-twice", "The gradient of the logits is multiplied by the weights twice.",
           ("GRAD-1",), _logits(lambda c, p, products, delta, visible: p * p * (products - delta))),
    Defect("grad-logits-sign", "The gradient of the logits has the wrong sign.",
           ("GRAD-1",), _logits(lambda c, p, products, delta, visible: p * (delta - products))),
    Defect("grad-logits-elementwise-softmax",
           "The softmax is differentiated element by element, P (1 - P) dP: the other keys of the row are forgotten.",
           ("GRAD-1",), _logits(lambda c, p, products, delta, visible: p * (1 - p) * products)),
    Defect("grad-softmax-over-queries", "The softmax is differentiated over the queries, not the keys.",
           ("GRAD-1",), _logits(_softmax_over_queries)),
    Defect("grad-logits-zero", "The softmax is detached: query and key get no gradient.",
           ("GRAD-1",), _logits(lambda c, p, products, delta, visible: np.zeros_like(p))),
    Defect("grad-query-from-query",
           "The gradient of the query is formed with the query instead of the key, where the shapes allow it.",
           ("GRAD-1",),
           {"compute_gradients": lambda s, c: {**R.compute_gradients(s, c),
                    "query": R.compute_gradients(s, c)["key"]} if not c.layer and c.query.shape == c.key.shape
                else R.compute_gradients(s, c)}),
    Defect("grad-query-key-exchanged",
           "The gradients of query and key are exchanged, where the shapes allow it.", ("GRAD-1",),
           {"compute_gradients": lambda s, c: (
                    lambda d: {**d, "query": d["key"], "key": d["query"]})(R.compute_gradients(s, c))
                if c.query.shape == c.key.shape else R.compute_gradients(s, c)}),
    Defect("grad-key-value-exchanged",
           "The gradients of key and value are exchanged, where the shapes allow it.", ("GRAD-1", "GRAD-2"),
           {"compute_gradients": lambda s, c: (
                    lambda d: {**d, "key": d["value"], "value": d["key"]})(R.compute_gradients(s, c))
                if c.key.shape == c.value.shape else R.compute_gradients(s, c)}),
    Defect("grad-value-unnormalised",
           "The gradient of the value uses exponentials that are not divided by their sum.", ("GRAD-1",),
           {"grad_value": lambda c, p, g: R.grad_value(c,
                p / np.maximum(p.max(axis=-1, keepdims=True, initial=0), c.wide(1e-30)), g)}),
    Defect("grad-value-from-products",
           "The gradient of the value takes the first row's weights for every query.", ("GRAD-1",),
           {"grad_value": lambda c, p, g: R.grad_value(c,
                np.broadcast_to(p[..., :1, :], p.shape) if c.q_len else p, g)}),
    Defect("grad-value-zero", "The value gets no gradient.",
           ("GRAD-1",), after("grad_value", lambda c, x: np.zeros_like(x))),
    Defect("grad-value-one-query-late",
           "The gradient of the value pairs the weights of each query with the gradient of the next.",
           ("GRAD-1",), {"grad_value": lambda c, p, g: R.grad_value(c, p, np.roll(g, -1, axis=-2))}),
    Defect("grad-cotangent-ones",
           "grad_output is taken to be ones: the gradients are those of the sum of the output.",
           ("GRAD-1",), after("head_gradient", lambda c, x: np.ones_like(x))),
    Defect("grad-cotangent-mean",
           "The loss is averaged over the batch: every gradient is divided by the number of batch entries.",
           ("GRAD-1",), after("head_gradient", lambda c, x: x / c.wide(max(int(np.prod(c.batch)), 1)))),
    Defect("grad-cotangent-of-head-zero", "Every head is given the gradient of the first head's output.",
           ("GRAD-1",), after("head_gradient", lambda c, x: np.broadcast_to(x[..., :1, :, :], x.shape))),
    Defect("grad-cotangent-of-entry-zero", "Every batch entry is given the gradient of the first.",
           ("GRAD-1",),
           after("head_gradient", lambda c, x: np.broadcast_to(x[:1], x.shape) if c.batch else x)),
    Defect("grad-products-with-key",
           "dP is formed with the key instead of the value, where the widths allow it.", ("GRAD-1",),
           {"products": lambda c, g, v, visible: R.products(c, g, _keys(c) if c.d_k == c.d_v else v,
                visible)}),
    Defect("grad-softcap-missing", "The derivative of the softcap is forgotten.",
           ("GRAD-7",), _slope(lambda c, t: np.ones_like(t)), features=CAP),
    Defect("grad-softcap-not-squared", "The derivative of the softcap is 1 - tanh, not 1 - tanh squared.",
           ("GRAD-7",), _slope(lambda c, t: 1 - t), features=CAP),
    Defect("grad-softcap-squared-twice", "The derivative of the softcap is applied twice.",
           ("GRAD-7",), _slope(lambda c, t: (1 - t * t) ** 2), features=CAP),
    Defect("grad-softcap-of-capped",
           "The derivative of the softcap is taken at the capped value instead of at the value that enters.",
           ("GRAD-7",), _slope(lambda c, t: 1 - np.tanh(t) ** 2), features=CAP),
    Defect("grad-softcap-of-capped-logit",
           "The derivative of the softcap is 1 less the square of the capped logit, which is not divided by the cap.",
           ("GRAD-7",),
           {"slope": lambda c, x: R.slope(c, x) if c.softcap is None
                else 1 - (c.wide(c.softcap) * np.tanh(only_finite(x) / c.wide(c.softcap))) ** 2},
           features=CAP),
    Defect("grad-softcap-uncapped-tanh", "The derivative of the softcap forgets to divide by the cap.",
           ("GRAD-7",),
           {"slope": lambda c, x: R.slope(c, x) if c.softcap is None else 1 - np.tanh(only_finite(x)) ** 2},
           features=CAP),
    Defect("grad-softcap-times-cap", "The gradient is multiplied by the cap once more.",
           ("GRAD-7",), _slope(lambda c, t: (1 - t * t) * c.wide(c.softcap)), features=CAP),
    Defect("grad-softcap-in-bias",
           "The derivative of the softcap is applied to the gradient of the bias as well.",
           ("GRAD-7", "GRAD-5"), _capped_bias, features=("softcap", "attn_bias")),
)  # fmt: skip
