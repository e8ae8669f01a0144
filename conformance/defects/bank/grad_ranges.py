"""Gradients that stop short: numbers far out, sizes beyond a tile, axes, and sums in the dtype of the call."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.grad_reductions import narrow_sum
from conformance.defects.bank.mutators import after, back, logits, refuse
from conformance.defects.call import Call
from conformance.defects.defect import NARROW, Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array


def _over_all_batch_axes(c: Call, x: Array) -> Any:
    """A bias that some of several batch axes share is taken for one that all of them share."""
    found, shape = R.grad_bias(c, x), c.attn_bias.shape
    batch = shape[:-3] if len(shape) > 4 else ()
    if 1 not in batch:
        return found
    return np.broadcast_to(found.sum(axis=tuple(range(len(batch))), keepdims=True), shape)


def _up_to(end: int) -> Callable[[Call, Array], Any]:
    """Zero beyond a number of columns."""
    return lambda c, x: np.where(np.arange(x.shape[-1]) < end, x, c.wide(0))


def _sinks_of_queries(end: int) -> Change:
    def sinks(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
        return R.grad_sinks(c, lse, np.where(np.arange(c.q_len)[:, None] < end, delta, c.wide(0)), visible)

    return {"grad_sinks": sinks}


def _query_of_empty_row(s: Steps, c: Call) -> Any:
    """A product with zero, where the query is not finite."""
    query = s.project_query(c)
    return R.compute_gradients(
        replace(s, grad_key=lambda c, x, finite, scale: R.grad_key(c, x, query, scale)), c
    )


def _group(c: Call, x: Array) -> Any:
    grouped = x.reshape(*c.batch, c.kv_heads, c.heads // c.kv_heads, *x.shape[-2:])
    return narrow_sum(grouped, -3, c.dtype)


def _weight_of_entries(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
    found = R.grad_projection(c, name, x, gradient, weight, bias)
    terms = x[..., None, :, :].swapaxes(-1, -2) @ gradient
    return {**found, weight: narrow_sum(terms.reshape(-1, *found[weight].shape), 0, c.dtype)}


def _w_o_of_entries(c: Call, heads: Array) -> Any:
    found = R.grad_output_projection(c, heads)
    terms = heads.swapaxes(-1, -2) @ c.widen(c.grad_output)[..., None, :, :]
    return {**found, "w_o": narrow_sum(terms.reshape(-1, *found["w_o"].shape), 0, c.dtype)}


def _b_q_of_tokens(c: Call, name: str, x: Array, gradient: Array, weight: str, bias: str) -> Any:
    found = R.grad_projection(c, name, x, gradient, weight, bias)
    if bias != "b_q" or bias not in found:
        return found
    terms = np.moveaxis(gradient, -3, -2).reshape(-1, *found[bias].shape)
    return {**found, bias: narrow_sum(terms, 0, c.dtype)}


def _mean_times_count(empty: Callable[[Call], bool]) -> Change:
    """NaN where there is nothing to take a mean of."""

    def finish(c: Call, gradients: dict[str, Array]) -> dict[str, Array]:
        found = R.finish_gradients(c, gradients)
        summed = {"attn_bias", "sinks", *(n for n in found if n[:2] in ("w_", "b_"))}
        return {n: np.full_like(x, np.nan) if n in summed and empty(c) else x for n, x in found.items()}

    return {"finish_gradients": finish}


DEFECTS = (
    Defect("grad-logits-clamped-at-10000", "On the way back logits are clamped to plus and minus 10000.",
           ("GRAD-1", "GRAD-15"), back(logits(lambda c, x: np.clip(x, -10000, 10000)))),
    Defect("grad-weights-below-1e-20-dropped", "On the way back weights below 1e-20 are taken for zero.",
           ("GRAD-1", "GRAD-15"),
           back(after("normalise", lambda c, p: np.where(p < 1e-20, c.wide(0), p))),
           admitted={"float16": "weights may be stored in the dtype of the call, which holds none so small"}),
    Defect("grad-sinks-clipped-at-30", "On the way back sinks are clipped at 30.", ("GRAD-1", "GRAD-8"),
           back({"accept": lambda c: c if c.sinks is None
                 else replace(c, sinks=np.minimum(c.sinks, c.sinks.dtype.type(30)))}),
           features=("sinks",)),
    Defect("grad-nan-query-of-empty-row",
           "NaN or infinity in a query that sees nothing reaches the gradient of the key.",
           ("GRAD-4", "GRAD-9"), {"compute_gradients": _query_of_empty_row},
           features=("strict_masking", "empty")),
    Defect("grad-nan-cotangent-of-empty-row",
           "NaN or infinity in the cotangent of an output that sees nothing reaches the gradient of the value.",
           ("GRAD-4", "GRAD-9"), {"grad_value": lambda c, p, g: R.grad_value(c, p, R.head_gradient(c))},
           features=("strict_masking", "empty")),
    Defect("grad-bias-over-all-batch-axes",
           "The gradient of a bias that one of two batch axes shares is summed over both.",
           ("GRAD-5",), {"grad_bias": _over_all_batch_axes}, features=("attn_bias",)),
    Defect("grad-layer-bias-of-keys-zero",
           "In the layer a bias that all keys of a row share has a gradient of zero, although there are sinks.",
           ("GRAD-5", "GRAD-10"),
           after("grad_bias", lambda c, x: np.zeros_like(x),
                 when=lambda c: c.layer and c.attn_bias.shape[-1] == 1),
           features=("attn_bias", "sinks")),
    Defect("grad-empty-batch-refused",
           "You refuse to give gradients of a batch of zero entries: those of what it shares are zero.",
           ("GRAD-2", "SHAPE-9"), back(refuse(lambda c: 0 in c.batch, "empty batch")), features=("empty",)),
    Defect("grad-empty-batch-nan",
           "The gradients of what an empty batch shares are NaN, as a mean over it is: they are zero.",
           ("GRAD-2", "SHAPE-9"), _mean_times_count(lambda c: 0 in c.batch), features=("empty",)),
    Defect("grad-no-queries-nan",
           "Without queries the gradients of the weights are NaN, as a mean over them is: they are zero.",
           ("GRAD-2", "SHAPE-9"), _mean_times_count(lambda c: c.q_len == 0), features=("empty",)),
    Defect("grad-width-beyond-64-lost", "The gradients of query and key end at a width of 64.", ("GRAD-1",),
           {**after("grad_query", _up_to(64)), **after("grad_key", _up_to(64))}),
    Defect("grad-value-width-beyond-64-lost", "The gradient of the value ends at a width of 64.", ("GRAD-1",),
           after("grad_value", _up_to(64))),
    Defect("grad-bias-keys-beyond-256-lost", "The gradient of the bias ends at 256 keys.", ("GRAD-5",),
           {"grad_bias": lambda c, x: R.grad_bias(c, _up_to(256)(c, x))}, features=("attn_bias",)),
    Defect("grad-sinks-queries-beyond-64-lost", "Queries beyond the first 64 give nothing to the sinks' gradient.",
           ("GRAD-8",), _sinks_of_queries(64), features=("sinks",)),
    Defect("grad-group-narrow-sum", "The gradients of key and value are summed over a group in the dtype of the call.",
           ("GRAD-12", "GRAD-6"), {"gather": _group}, features=("gqa",), unobservable=NARROW),
    Defect("grad-weights-narrow-sum",
           "The gradients of the projections' weights are summed over the batch in the dtype of the call.",
           ("GRAD-12", "GRAD-10"),
           {"grad_projection": _weight_of_entries, "grad_output_projection": _w_o_of_entries},
           unobservable=NARROW),
    Defect("grad-b-q-narrow-sum", "The gradient of b_q is summed over tokens in the dtype of the call.",
           ("GRAD-12", "GRAD-10"), {"grad_projection": _b_q_of_tokens}, unobservable=NARROW),
)  # fmt: skip
