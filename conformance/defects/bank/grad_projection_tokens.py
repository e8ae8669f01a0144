"""Gradients of the layer: which tokens, entries and heads count, how heads are merged, and what the past does."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.backward import only_finite
from conformance.defects.bank.grad_scaling import BIASES, PARAMETERS, WEIGHTS
from conformance.defects.blocks.back import delta_of_heads
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array

Keep = Callable[[Array], Array]
"""[..., length, width] -> the same with zeros for what does not count."""


def _counted(keep: Keep, *names: str) -> Change:
    """Gradients of weights and biases to which some tokens or entries give nothing, by name."""

    def projection(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
        found = R.grad_projection(c, name, x, gradient, weight, bias)
        less = R.grad_projection(c, name, x, keep(gradient), weight, bias)
        return {key: less[key] if key in names else y for key, y in found.items()}

    def output(c: Call, heads: Array) -> Any:
        found = R.grad_output_projection(c, heads)
        less = R.grad_output_projection(replace(c, grad_output=keep(c.grad_output)), heads)
        return {key: less[key] if key in names else y for key, y in found.items()}

    change: Change = {}
    if set(names) & {*WEIGHTS[:3], *BIASES[:3]}:
        change["grad_projection"] = projection
    if set(names) & {WEIGHTS[3], BIASES[3]}:
        change["grad_output_projection"] = output
    return change


def _without(part: slice) -> Keep:
    def keep(x: Array) -> Array:
        kept = x.copy()
        kept[..., part, :] = 0
        return kept

    return keep


def _only(part: slice) -> Keep:
    def keep(x: Array) -> Array:
        kept = np.zeros_like(x)
        kept[..., part, :] = x[..., part, :]
        return kept

    return keep


def _entry(part: slice) -> Keep:
    """One batch entry; a call without batch, or with one entry, stays as it is."""

    def keep(x: Array) -> Array:
        kept = np.zeros_like(x)
        kept[part] = x[part]
        return kept

    return keep


def _of_entry(part: slice, *names: str) -> Change:
    """Weights and biases of which one batch entry is counted."""

    def projection(c: Call, *given: Any) -> Any:
        step: Any = _counted(_entry(part), *names).get("grad_projection", R.grad_projection)
        return (step if c.batch else R.grad_projection)(c, *given)

    def output(c: Call, heads: Array) -> Any:
        step: Any = _counted(_entry(part), *names).get("grad_output_projection", R.grad_output_projection)
        return (step if c.batch else R.grad_output_projection)(c, heads)

    return {"grad_projection": projection, "grad_output_projection": output}


FIRST, LAST = slice(0, 1), slice(-1, None)


def _parameters(made: Mapping[str, Callable[..., Change]], here: str, leave: tuple[str, ...] = ()) -> Any:
    """By which parameters, and in which way, as fields of a Defect."""
    every = {
        f"{label}, {way}": make(*names)
        for way, make in made.items()
        for label, names in PARAMETERS.items()
        if f"{label}, {way}" not in leave
    }
    return varied(every, here)


def _with_past() -> Change:
    """Biases of key and value that are summed over the past as well."""

    def compute(s: Steps, c: Call) -> Any:
        sums: list[Array] = []

        def new(c: Call, x: Array) -> Any:
            sums.append(x.sum(axis=(*range(len(c.batch)), -2)))
            return s.new(c, x)

        def projection(c: Call, name: str, *given: Any) -> Any:
            found = dict(s.grad_projection(c, name, *given))
            changed = {"key": ("b_k", 0), "value": ("b_v", 1)}.get(name)
            if changed and changed[0] in found:
                found[changed[0]] = sums[changed[1]]
            return found

        return R.compute_gradients(replace(s, new=new, grad_projection=projection), c)

    return {"compute_gradients": compute}


def _other_input(**of: str) -> Change:
    """Weights whose gradient is formed with the tokens of another input, where the shapes are the same."""

    def projection(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
        found = R.grad_projection(c, name, x, gradient, weight, bias)
        other = getattr(c, of.get(name, name))
        if other.shape == x.shape:
            tokens = only_finite(c.widen(other))
            found[weight] = R.grad_projection(c, name, tokens, gradient, weight, bias)[weight]
        return found

    return {"grad_projection": projection}


def _summed_inputs(s: Steps, c: Call) -> Any:
    found = R.compute_gradients(s, c)
    if not c.layer or not c.query.shape == c.key.shape == c.value.shape:
        return found
    summed = (c.widen(found["query"]) + c.widen(found["key"]) + c.widen(found["value"])).astype(c.dtype)
    return {**found, **dict.fromkeys(("query", "key", "value"), summed)}


def _last_head(*names: str) -> Change:
    """Each head overwrites the gradient of an input."""

    def projection(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
        found = R.grad_projection(c, name, x, gradient, weight, bias)
        if name in names:
            w = c.widen(getattr(c, weight))
            found[name] = gradient[..., -1, :, :] @ w[-1].swapaxes(-1, -2)
        return found

    return {"grad_projection": projection}


def _rows(x: Array) -> Array:
    """[..., H, length, d] -> [..., length, H d], as it should be."""
    *batch, heads, length, d = x.shape
    return np.moveaxis(x, -3, -2).reshape(*batch, length, heads * d)


def _width_first(c: Call, x: Array) -> Any:
    """Split as (width, heads)."""
    rows = _rows(x)
    return np.moveaxis(rows.reshape(*rows.shape[:-1], c.d_v, c.heads), -1, -3)


def _not_moved(c: Call, x: Array) -> Any:
    """Split by a reshape alone: the axis of heads is not moved."""
    return _rows(x).reshape(x.shape)


def _split(change: Callable[[Call, Array], Any]) -> Change:
    """What reaches the heads, split otherwise."""
    return {"head_gradient": lambda c: change(c, R.head_gradient(c)) if c.layer else R.head_gradient(c)}


def _merged_heads(c: Call, heads: Array) -> Any:
    """Heads merged by a reshape alone."""
    split = heads.reshape(*c.batch, c.q_len, c.heads, c.d_v)
    return R.grad_output_projection(c, np.moveaxis(split, -2, -3))


def _merged_gradients(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
    """Gradients of the heads merged by a reshape alone, before they pass the projection."""
    *batch, heads, length, d = gradient.shape
    split = np.moveaxis(gradient.reshape(*batch, length, heads, d), -2, -3)
    return R.grad_projection(c, name, x, split, weight, bias)


def _value_without_bias(c: Call, v: Array) -> Array:
    """The projected values less b_v, those of the past as they are."""
    if c.b_v is None:
        return v
    bias = np.repeat(c.widen(c.b_v), c.heads // c.kv_heads, axis=0)[:, None, :]
    return np.where((c.columns >= c.past)[:, None], v - bias, v)


def _heads_without_bias() -> Change:
    """The heads of which w_o gets its gradient lack b_v."""
    kept: dict[str, Array] = {}

    def average(c: Call, p: Array, v: Array, visible: Array) -> Any:
        kept["heads"] = R.average(c, p, _value_without_bias(c, v), visible)
        return R.average(c, p, v, visible)

    def output(c: Call, heads: Array) -> Any:
        less = R.grad_output_projection(c, kept["heads"])["w_o"]
        return {**R.grad_output_projection(c, heads), "w_o": less}

    return {"average": average, "grad_output_projection": output}


def _new_keys(c: Call, x: Array) -> Array:
    return np.where(c.columns >= c.past, x, c.wide(0))


def _summed(c: Call, delta: Array, group: bool = False) -> Array:
    """Over all heads, or over those that share a key head."""
    parts = c.kv_heads if group else 1
    split = delta.reshape(*delta.shape[:-3], parts, c.heads // parts, *delta.shape[-2:])
    return np.broadcast_to(split.sum(axis=-3, keepdims=True), split.shape).reshape(delta.shape)


PAST = ("cache",)
LAYER = ("GRAD-10",)
DEFECTS = (
    Defect("grad-tokens-left-out", "Gradients of the projections' weights and biases leave out a token.", LAYER,
           **_parameters(
               {"the last token": lambda *n: _counted(_without(LAST), *n),
                "the first token": lambda *n: _counted(_without(FIRST), *n)},
               "w_q, w_k and w_v, the last token", leave=("w_q, the first token",))),
    Defect("grad-tokens-overwrite",
           "Each token overwrites the gradients of the projections' weights and biases.", LAYER,
           **_parameters({"the last one stays": lambda *n: _counted(_only(LAST), *n),
                          "the first one stays": lambda *n: _counted(_only(FIRST), *n)},
                         "b_q, b_k and b_v, the last one stays",
                         leave=("b_v, the first one stays", "b_o, the last one stays"))),
    Defect("grad-entries-overwrite",
           "Gradients of some of the projections' weights and biases are those of one batch entry.", LAYER,
           **_parameters(
               {"the first": lambda *n: _of_entry(FIRST, *n), "the last": lambda *n: _of_entry(LAST, *n)},
               "all weights, the first", leave=("weights and biases, the last",))),
    Defect("grad-biases-with-past", "The gradients of b_k and b_v are summed over the past as well.",
           ("GRAD-13", "GRAD-10"), _with_past(), features=PAST),
    Defect("grad-weights-of-other-input",
           "The gradient of a projection's weight is formed with the tokens of another input.",
           LAYER, _other_input(value="key"), detail="that of w_v with the key's",
           variants={"those of w_k and w_v with the query's": _other_input(key="query", value="query"),
                     "that of w_k with the query's": _other_input(key="query"),
                     "that of w_q with the key's": _other_input(query="key"),
                     "that of w_k with the value's": _other_input(key="value")}),
    Defect("grad-inputs-summed",
           "The gradients of query, key and value are all three their sum, as in self-attention.",
           LAYER, {"compute_gradients": _summed_inputs}),
    Defect("grad-input-last-head", "Each head overwrites the gradients of the layer's inputs: the last one stays.",
           LAYER, _last_head("query", "key", "value"), detail="query, key and value",
           variants={"query": _last_head("query"), "key and value": _last_head("key", "value"),
                     "key": _last_head("key"), "value": _last_head("value")}),
    Defect("grad-heads-split-width-first", "What w_o hands back is split as (width, heads), not as (heads, width).",
           LAYER, _split(_width_first)),
    Defect("grad-heads-split-without-transpose",
           "What w_o hands back is split into heads by a reshape: the axis of heads is not moved.",
           LAYER, _split(_not_moved)),
    Defect("grad-w-o-of-unmoved-heads",
           "The gradient of w_o is formed with heads that are merged by a reshape: their axis is not moved.",
           LAYER, {"grad_output_projection": _merged_heads}),
    Defect("grad-heads-merged-without-transpose",
           "Gradients of the heads are merged by a reshape before the projections: the axis of heads is not moved.",
           LAYER, {"grad_projection": _merged_gradients}),
    Defect("grad-w-o-without-b-v", "The gradient of w_o is formed with heads to which b_v was not added.",
           LAYER, _heads_without_bias),
    Defect("grad-products-without-b-v", "dP is formed with values to which b_v was not added; Delta has it.",
           LAYER,
           {"products": lambda c, g, v, visible: R.products(c, g, _value_without_bias(c, v), visible),
            "delta": delta_of_heads}),
    Defect("grad-query-without-past", "The keys of the past give nothing to the gradient of the query.",
           ("GRAD-13",), {"grad_query": lambda c, x, key, scale: R.grad_query(c, _new_keys(c, x), key, scale)},
           features=PAST),
    Defect("grad-delta-without-past", "Delta is summed over the new keys only, not over those of the past.",
           ("GRAD-13",),
           {"delta": lambda c, p, products, g, z: _new_keys(c, p * products).sum(axis=-1, keepdims=True)},
           features=PAST),
    Defect("grad-delta-summed-over-heads", "Delta is summed over all heads, where each has one of its own.",
           ("GRAD-1",), {"delta": lambda c, *given: _summed(c, R.delta(c, *given))}, detail="all heads",
           variants={"the heads of a group": {
                         "delta": lambda c, *given: _summed(c, R.delta(c, *given), True)}}),
)  # fmt: skip
