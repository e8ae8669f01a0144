"""Gradients of the layer: projections and biases; and what any gradient may get wrong in form, dtype and state."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.defects.bank.mutators import after
from conformance.defects.call import Call
from conformance.defects.checks import without
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps


def _projection(change: Any, *names: str) -> Change:
    """Gradients through a projection, changed by name: c, gradient -> gradient."""

    def changed(c: Call, name: str, x: Any, gradient: Any, weight: str, bias: str) -> Any:
        found = R.grad_projection(c, name, x, gradient, weight, bias)
        return {key: change(c, y) if key in names else y for key, y in found.items()}

    return {"grad_projection": changed}


def _of_tokens(operand: str, kind: str, tokens: slice) -> Change:
    """The gradient of one projection's weight (`w_`) or bias (`b_`), from some of the tokens only."""

    def changed(c: Call, name: str, x: Any, gradient: Any, weight: str, bias: str) -> Any:
        found = R.grad_projection(c, name, x, gradient, weight, bias)
        if name != operand:
            return found
        some = R.grad_projection(c, name, x[..., tokens, :], gradient[..., tokens, :], weight, bias)
        return {**found, **{key: y for key, y in some.items() if key.startswith(kind)}}

    return {"grad_projection": changed}


def _output(change: Any, name: str) -> Change:
    """The same of the output projection."""

    def changed(c: Call, heads: Any) -> Any:
        found = R.grad_output_projection(c, heads)
        return {key: change(c, y, heads) if key == name else y for key, y in found.items()}

    return {"grad_output_projection": changed}


def _per_entry(change: Any) -> Change:
    """The gradients of weights and biases of one batch entry: c -> c, with fewer entries in grad_output."""

    def compute(s: Steps, c: Call) -> Any:
        found = R.compute_gradients(s, c)
        if not c.layer or not c.batch or c.batch[0] < 2:
            return found
        less = R.compute_gradients(s, replace(c, grad_output=change(c.grad_output)))
        return {name: less[name] if name.startswith(("w_", "b_")) else x for name, x in found.items()}

    return {"compute_gradients": compute}


def _last_entry(g: Any) -> Any:
    kept = np.zeros_like(g)
    kept[-1] = g[-1]
    return kept


def _gradients(change: Any, *names: str) -> Change:
    """Gradients changed at the very end: c, name, x."""
    return {
        "finish_gradients": lambda c, o: {
            n: change(c, n, x) if not names or n in names else x for n, x in R.finish_gradients(c, o).items()
        }
    }


def _accumulating() -> Change:
    """Gradients are added to those of the call before."""
    kept: dict[str, Any] = {}

    def compute(s: Steps, c: Call) -> Any:
        found = R.compute_gradients(s, c)
        for name, x in found.items():
            if name in kept and kept[name].shape == x.shape and kept[name].dtype == x.dtype:
                x = x + kept[name]
            kept[name] = x
            found[name] = x
        return found

    return {"compute_gradients": compute}


def _stale() -> Change:
    """Delta is that of the call before, if its shape fits."""
    kept: list[Any] = []

    def delta(c: Call, *given: Any) -> Any:
        fresh = R.delta(c, *given)
        used = kept[-1] if kept and kept[-1].shape == fresh.shape else fresh
        kept.append(fresh)
        return used

    return {"delta": delta}


def _writing(s: Steps, c: Call) -> Any:
    found = R.compute_gradients(s, c)
    if c.grad_output.flags.writeable:
        c.grad_output[...] = 0
    return found


def _swapped_heads(c: Call, x: Any) -> Any:
    return x[::-1]


DEFECTS = (
    Defect("grad-w-q-missing-tokens", "The gradient of w_q leaves out the first token.",
           ("GRAD-10",), _of_tokens("query", "w_", slice(1, None))),
    Defect("grad-weights-of-last-entry",
           "Weights and biases get the gradient of the last batch entry: each overwrites the one before.",
           ("GRAD-10", "GRAD-12"), _per_entry(_last_entry)),
    Defect("grad-weights-batch-mean", "The gradients of weights and biases are averaged over the batch.",
           ("GRAD-10", "GRAD-12"), _per_entry(lambda g: g / g.dtype.type(g.shape[0]))),
    Defect("grad-w-q-heads-exchanged", "The gradients of w_q are assigned to the heads in reverse.",
           ("GRAD-10",), _projection(_swapped_heads, "w_q")),
    Defect("grad-w-k-heads-exchanged", "The gradients of w_k are assigned to the heads in reverse.",
           ("GRAD-10",), _projection(_swapped_heads, "w_k")),
    Defect("grad-w-v-zero", "w_v gets no gradient.",
           ("GRAD-10",), _projection(lambda c, x: np.zeros_like(x), "w_v")),
    Defect("grad-w-k-zero", "w_k gets no gradient.",
           ("GRAD-10",), _projection(lambda c, x: np.zeros_like(x), "w_k")),
    Defect("grad-w-q-transposed", "The gradient of w_q is transposed where that does not change its shape.",
           ("GRAD-10", "GRAD-2"), _projection(lambda c, x: x.swapaxes(-1, -2), "w_q")),
    Defect("grad-w-o-transposed", "The gradient of w_o is transposed.",
           ("GRAD-10", "GRAD-2"), _output(lambda c, x, heads: x.swapaxes(-1, -2), "w_o")),
    Defect("grad-w-o-heads-exchanged", "The gradients of w_o are assigned to the heads in reverse.",
           ("GRAD-10",), _output(lambda c, x, heads: x[::-1], "w_o")),
    Defect("grad-w-o-first-head", "Every head's part of w_o gets the gradient of the first.",
           ("GRAD-10",), _output(lambda c, x, heads: np.broadcast_to(x[:1], x.shape), "w_o")),
    Defect("grad-w-o-zero", "w_o gets no gradient.",
           ("GRAD-10",), _output(lambda c, x, heads: np.zeros_like(x), "w_o")),
    Defect("grad-b-q-mean", "The gradient of b_q is averaged over the tokens.",
           ("GRAD-10",), _projection(lambda c, x: x / c.wide(max(c.q_len, 1)), "b_q")),
    Defect("grad-b-q-zero", "b_q gets no gradient.",
           ("GRAD-10",), _projection(lambda c, x: np.zeros_like(x), "b_q")),
    Defect("grad-b-k-not-zero",
           "b_k gets a gradient where none can be: the rows of its logits do not add up to zero.",
           ("GRAD-10",), _projection(lambda c, x: x + c.wide(0.125), "b_k")),
    Defect("grad-b-k-zero", "b_k gets no gradient, although a softcap, sinks or a past give it one.",
           ("GRAD-10", "GRAD-13"), _projection(lambda c, x: np.zeros_like(x), "b_k")),
    Defect("grad-b-v-once-per-entry", "The gradient of b_v is that of the first token.",
           ("GRAD-10",), _of_tokens("value", "b_", slice(1))),
    Defect("grad-b-o-mean", "The gradient of b_o is averaged over the queries.",
           ("GRAD-11", "GRAD-10"), _output(lambda c, x, heads: x / c.wide(max(c.q_len, 1)), "b_o")),
    Defect("grad-b-o-batch-mean", "The gradient of b_o is averaged over the batch.", ("GRAD-11",),
           after("finish_gradients",
                 lambda c, o: {n: x / max(int(np.prod(c.batch)), 1) if n == "b_o" else x
                                   for n, x in o.items()})),
    Defect("grad-key-without-b-q", "The gradient of the key takes the projected queries without b_q.",
           ("GRAD-10",),
           {"grad_key": lambda c, x, query, scale: R.grad_key(c, x,
                query if c.b_q is None else query - c.widen(c.b_q)[:, None, :], scale)}),
    Defect("grad-b-o-last-query", "The gradient of b_o is that of the last query.", ("GRAD-11", "GRAD-10"),
           _output(lambda c, x, heads: c.widen(c.grad_output)[..., -1, :].sum(axis=tuple(range(len(c.batch))))
                       if c.q_len else x, "b_o")),
    Defect("grad-b-o-through-w-o", "The gradient of b_o is doubled, once for each of two paths.",
           ("GRAD-11", "GRAD-10"), _output(lambda c, x, heads: 2 * x, "b_o")),
    Defect("grad-biases-missing", "No gradients of the biases are returned.", ("GRAD-2", "GRAD-10"),
           after("finish_gradients", lambda c, o: {n: x for n, x in o.items() if not n.startswith("b_")})),
    Defect(
        "grad-input-first-head",
        "The gradient of the layer's query is that of its first head.",
        ("GRAD-10",),
        {
            "grad_projection": lambda c, name, x, gradient, weight, bias: {
                **R.grad_projection(c, name, x, gradient, weight, bias),
                **(
                    {name: gradient[..., 0, :, :] @ c.widen(getattr(c, weight))[0].swapaxes(-1, -2)}
                    if name == "query"
                    else {}
                ),
            }
        },
    ),
    Defect("grad-input-mean-of-heads", "The gradients of the layer's inputs are averaged over the heads.",
           ("GRAD-10",), _projection(lambda c, x: x / c.wide(c.heads), "query", "key", "value")),
    Defect(
        "grad-input-of-key-from-value",
        "The gradients of the layer's key and value are both their sum, as in self-attention.",
        ("GRAD-10",),
        {
            "compute_gradients": lambda s, c: (
                (lambda d: {**d, "key": d["key"] + d["value"], "value": d["key"] + d["value"]})(
                    R.compute_gradients(s, c)
                )
                if c.layer and c.key.shape == c.value.shape
                else R.compute_gradients(s, c)
            )
        },
    ),
    Defect("grad-through-w-o-transposed", "What reaches the heads passes w_o of the reversed heads.",
           ("GRAD-10",),
           {"head_gradient": lambda c: R.head_gradient(replace(c, w_o=c.w_o[::-1]) if c.layer else c)}),
    Defect("grad-heads-detached",
           "The gradient of w_o is formed from heads that are not divided by their weights' sum.",
           ("GRAD-10",),
           {"grad_output_projection": lambda c, heads: {**R.grad_output_projection(c, heads),
                "w_o": R.grad_output_projection(c, heads * c.wide(max(c.kv_len, 1)))["w_o"]}}),
    # -- form, dtype, state -------------------------------------------------------------------------
    Defect("grad-in-float32", "Gradients come in float32 whatever the dtype of their argument.",
           ("GRAD-2",), _gradients(lambda c, n, x: x.astype(np.float32)),
           unobservable={"float32": "it is the dtype of the arguments"}),
    Defect("grad-in-float64", "Gradients come in float64.",
           ("GRAD-2",), _gradients(lambda c, n, x: x.astype(np.float64))),
    Defect("grad-of-bias-in-operand-dtype",
           "The gradient of a bias in float32 comes in the dtype of the operands.",
           ("GRAD-2",), _gradients(lambda c, n, x: x.astype(c.dtype), "attn_bias"),
           features=("attn_bias",), unobservable={"float32": "the bias has the dtype of the operands there"}),
    Defect("grad-through-bfloat16", "Gradients pass through bfloat16 on their way out.",
           ("GRAD-12", "GRAD-1"), _gradients(lambda c, n, x: x.astype(ml_dtypes.bfloat16).astype(x.dtype)),
           unobservable={"bfloat16": "it is the dtype of the call"}),
    Defect("grad-output-through-float16", "grad_output is cast to float16 on its way in.",
           ("GRAD-12", "GRAD-1"),
           {"accept": lambda c: c if c.grad_output is None
                else replace(c, grad_output=c.grad_output.astype(np.float16).astype(c.dtype))},
           unobservable={"float16": "it is the dtype of the call"}),
    Defect("grad-float64-in-float32", "Gradients in float64 are computed in float32.",
           ("GRAD-12",), _gradients(lambda c, n, x: x.astype(np.float32).astype(x.dtype)),
           unobservable=dict.fromkeys(("float32", "float16", "bfloat16"), "float32 is wide enough")),
    Defect("grad-forward-returned", "The output is returned beside the gradients.",
           ("GRAD-2",), after("finish_gradients", lambda c, o: {**o, "output": c.grad_output})),
    Defect("grad-of-value-missing", "No gradient of the value is returned.",
           ("GRAD-2",), after("finish_gradients", lambda c, o: {n: x for n, x in o.items() if n != "value"})),
    Defect("grad-flattened-batch", "Gradients of operands come with their batch axes flattened to one.",
           ("GRAD-2",),
           _gradients(lambda c, n, x: x.reshape(-1, *x.shape[len(c.batch) :]) if len(c.batch) != 1 else x,
                      "query")),
    Defect("grad-length-before-heads", "The gradient of the query comes with length before heads.",
           ("GRAD-2", "SHAPE-1"), _gradients(lambda c, n, x: x if c.layer else x.swapaxes(-2, -3), "query")),
    Defect("grad-accumulates", "Gradients are added to those of the call before.",
           ("IND-4", "GRAD-1"), _accumulating, stateful=True),
    Defect("grad-stale-delta", "Delta is kept from the call before.", ("GRAD-1",), _stale, stateful=True),
    Defect("grad-output-written", "grad_output is overwritten.", ("IND-5",), {"compute_gradients": _writing}),
    Defect("grad-unchecked-cotangent-shape", "A grad_output of another shape is broadcast.", ("GRAD-14",),
           {"checks": without("grad_output shape"),
            "accept": lambda c: c if c.grad_output is None or c.grad_output.shape == c.output_shape
                else replace(c, grad_output=np.resize(c.grad_output, c.output_shape))},
           features=("validation",)),
    Defect("grad-unchecked-cotangent-dtype", "A grad_output of another dtype is taken.",
           ("GRAD-14",), {"checks": without("grad_output dtype")},
           features=("validation",), unobservable={"float64": "no wider dtype is given there"}),
    Defect("grad-unchecked-call", "The backward operation checks nothing but grad_output.", ("GRAD-14",),
           {"compute_gradients": lambda s, c: R.compute_gradients(
                replace(s, checks=()) if c.key.shape[-1] == c.query.shape[-1] and c.mask is None else s, c)},
           features=("validation",)),
)  # fmt: skip
