"""The layer: projections, biases, and options that do not reach the heads."""

from dataclasses import replace

import numpy as np

from conformance.defects.bank.mutators import after, dropped, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import project
from conformance.vectors.case import Array

_INPUT = {"q": "query", "k": "key", "v": "value"}


def _full(w: Array) -> Array:
    """The matrices of all heads side by side, (width, heads * d)."""
    return np.moveaxis(w, 0, 1).reshape(w.shape[1], -1)


def _apart(full: Array, w: Array) -> Array:
    """And back."""
    return np.moveaxis(full.reshape(w.shape[1], w.shape[0], w.shape[2]), 1, 0)


def _transposed(w: Array) -> Array:
    full = _full(w)
    return _apart(full.T, w) if full.shape[0] == full.shape[1] else w


def _transposed_out(w: Array) -> Array:
    full = w.reshape(-1, w.shape[-1])
    return full.T.reshape(w.shape) if full.shape[0] == full.shape[1] else w


def _interleaved(w: Array) -> Array:
    return np.moveaxis(_full(w).reshape(w.shape[1], w.shape[2], w.shape[0]), 2, 0)


def _reshaped(w: Array) -> Array:
    return _apart(w.reshape(w.shape[1], -1), w)


def _with(**changes: object) -> Change:
    """Operands of the layer, each made from itself: name -> function."""
    return {
        "accept": lambda c: (
            replace(c, **{n: f(getattr(c, n)) for n, f in changes.items() if getattr(c, n) is not None})  # type: ignore[operator]
            if c.layer
            else c
        )
    }


def _from(operand: str, other: str) -> Change:
    """One operand taken from another, wherever the shapes allow it."""
    return {
        "accept": lambda c: (
            replace(c, **{operand: getattr(c, other)})
            if getattr(c, operand).shape == getattr(c, other).shape
            else c
        )
    }


def _swapped(c: Call) -> Call:
    fits = c.key.shape == c.value.shape and c.d_k == c.d_v
    return replace(c, key=c.value, value=c.key) if fits else c


def _narrow(c: Call) -> Call:
    """As if all inputs had the width of the narrowest."""
    width = min(x.shape[-1] for x in (c.query, c.key, c.value))
    given = {n: getattr(c, n)[..., :width] for n in _INPUT.values()}
    return (
        replace(c, **given, **{f"w_{x}": getattr(c, f"w_{x}")[:, :width] for x in _INPUT}) if c.layer else c
    )


DEFECTS = (
    *(Defect(f"w-{letter}-transposed", f"w_{letter} is applied transposed, wherever that fits.", ("PROJ-1",),
             _with(**{f"w_{letter}": _transposed}))
      for letter in "qkv"),
    Defect("w-o-transposed", "w_o is applied transposed, wherever that fits.",
           ("PROJ-3",), _with(w_o=_transposed_out)),
    *(Defect(f"w-{letter}-interleaved",
             f"The columns of w_{letter} are dealt out to the heads one by one, not in blocks.", ("PROJ-1",),
             _with(**{f"w_{letter}": _interleaved}))
      for letter in "qkv"),
    Defect("heads-merged-interleaved",
           "The heads are interleaved, not concatenated, before the output projection.",
           ("PROJ-3",), _with(w_o=lambda w: w.reshape(w.shape[1], w.shape[0], w.shape[2]).swapaxes(0, 1))),
    Defect("one-projection-for-all-heads", "All heads share the projections of the first one.",
           ("PROJ-1", "HEAD-1"),
           _with(w_q=lambda w: w[[0] * len(w)], w_k=lambda w: w[[0] * len(w)], w_v=lambda w: w[[0] * len(w)]),
           "MarcoMeter/episodic-transformer-memory-ppo#22"),
    Defect("one-query-projection-for-all-heads", "All heads share the query projection of the first one.",
           ("PROJ-1", "HEAD-1"), _with(w_q=lambda w: w[[0] * len(w)]),
           "MarcoMeter/episodic-transformer-memory-ppo#22"),
    Defect("w-k-used-for-values", "The values are projected by w_k where it fits.", ("PROJ-1",),
           {"project_value": lambda c: project(c, c.value, c.w_k, c.b_v) if c.layer
                and c.w_k.shape == c.w_v.shape else R.project_value(c)}),
    Defect("w-q-used-for-keys", "The keys are projected by w_q where it fits.", ("PROJ-1",),
           {"project_key": lambda c: project(c, c.key, c.w_q, c.b_k) if c.layer and c.w_k.shape == c.w_q.shape
                else R.project_key(c)}),
    *(Defect(f"b-{letter}-left-out", f"b_{letter} is given and not added.", ("PROJ-2",),
             dropped(f"b_{letter}", when=lambda c: c.layer),
             "pytorch/pytorch#97128" if letter == "q" else "slip")
      for letter in "qkvo"),
    *(Defect(f"b-{letter}-subtracted", f"b_{letter} is subtracted, not added.", ("PROJ-2",),
             _with(**{f"b_{letter}": lambda b: -b}))
      for letter in "qkvo"),
    Defect("biases-all-or-none", "The biases are added only if all four are given.", ("PROJ-2",),
           dropped("b_q", "b_k", "b_v", "b_o",
                   when=lambda c: any(x is None for x in (c.b_q, c.b_k, c.b_v, c.b_o))),
           "pytorch/pytorch#97128"),
    Defect("b-k-takes-b-q", "b_q is added to the keys as well, in place of b_k.", ("PROJ-2",),
           {"accept": lambda c: replace(c, b_k=c.b_q) if c.b_q is not None and c.b_k is not None
                and c.b_q.shape == c.b_k.shape else c}),
    Defect("projection-bias-of-first-head", "The projection biases of the first head serve all heads.",
           ("PROJ-2", "HEAD-1"), _with(**{f"b_{x}": lambda b: b[[0] * len(b)] for x in "qkv"})),
    Defect("b-v-after-attention",
           "b_v is added to the averages and not to the values, so that empty rows get it too.",
           ("PROJ-4", "PROJ-2", "MASK-3"),
           {"project_value": lambda c: project(c, c.value, c.w_v, None),
            "average": lambda c, w, v, visible: R.average(c, w, v, visible) + (0 if c.b_v is None
                        else np.repeat(c.widen(c.b_v), c.heads // c.kv_heads, axis=0)[:, None, :])},
           features=("empty",)),
    Defect("b-o-not-on-empty-rows", "An empty row of every head comes out as zero, without b_o.", ("PROJ-4",),
           {"finish": lambda c, o, w, lse, k, v: R.finish(c,
                np.where((w != 0).any(axis=(-3, -1))[..., None], o, 0) if c.layer else o, w, lse, k, v)},
           features=("empty",)),
    Defect("b-o-for-each-head", "b_o is added once for each head.", ("PROJ-3", "PROJ-2"),
           {"merge": lambda c, x: R.merge(c, x) + (0 if c.b_o is None else (c.heads - 1) * c.widen(c.b_o))}),
    Defect("output-averaged-over-heads", "The heads are averaged, not summed, in the output projection.",
           ("PROJ-3",), {"merge": lambda c, x: R.merge(c, x / c.heads) if c.layer else R.merge(c, x)}),
    Defect("output-projection-left-out",
           "The concatenated heads are returned without the output projection, wherever that fits.",
           ("PROJ-3",),
           {"merge": lambda c, x: np.moveaxis(x, -3, -2).reshape(*c.batch, c.q_len, c.heads * c.d_v)
                if c.layer and c.w_o.shape[-1] == c.heads * c.d_v else R.merge(c, x)}),
    Defect("w-o-rows-by-width",
           "The rows of w_o are ordered by width and then head, the merged heads by head and then width.",
           ("PROJ-3",),
           {"merge": lambda c, heads: R.merge(
                replace(c, w_o=c.w_o.swapaxes(0, 1).reshape(c.w_o.shape)) if c.layer else c, heads)}),
    Defect("w-o-of-first-head", "Every head is projected back by the w_o of the first one.",
           ("PROJ-3", "HEAD-1"), _with(w_o=lambda w: w[[0] * len(w)])),
    Defect("heads-merged-without-moving",
           "The heads are reshaped into the width without moving their axis behind the length.",
           ("PROJ-3", "SHAPE-1"),
           {"merge": lambda c, x: R.merge(c,
                np.moveaxis(x.reshape(*c.batch, c.q_len, c.heads, c.d_v), -2, -3) if c.layer else x)}),
    Defect("query-from-keys", "The query is taken from the key, wherever the shapes allow it.",
           ("ATT-1", "PROJ-5"), _from("query", "key")),
    Defect("key-from-query", "The key is taken from the query, as in self-attention.",
           ("ATT-1",), _from("key", "query")),
    Defect("value-from-key", "The value is taken from the key.", ("ATT-1",), _from("value", "key")),
    Defect("key-from-value", "The key is taken from the value.", ("ATT-1",), _from("key", "value")),
    Defect("key-and-value-swapped", "Key and value are swapped: the order here is query, key, value.",
           ("ATT-1",), {"accept": _swapped}, "keras"),
    Defect("one-width-for-all-inputs",
           "Only the first columns of the wider inputs are read, as if query, key and value had one width.",
           ("PROJ-5",), {"accept": _narrow}, "PaddlePaddle/PaddleNLP#1906"),
    Defect("relu-after-projection", "The projected queries and keys pass a relu.",
           ("PROJ-1",), after("project_query", lambda c, x: np.maximum(x, 0), lambda c: c.layer)),
    Defect("query-added-to-layer", "The layer adds its input to its output.", ("PROJ-3",),
           output(lambda c, x: (x + c.query).astype(x.dtype) if x.shape == c.query.shape else x, "output",
                  when=lambda c: c.layer)),
    *(Defect(f"layer-drops-{option.replace('_', '-')}",
             f"Your layer takes {option} and does not hand it on to the attention.", ("PROJ-7", requirement),
             dropped(option, when=lambda c: c.layer), features=(option,))
      for option, requirement in (("mask", "MASK-1"), ("attn_bias", "ATT-7"), ("is_causal", "MASK-6"),
              ("window", "MASK-10"), ("kv_lengths", "MASK-12"), ("scale", "ATT-4"), ("softcap", "ATT-5"),
              ("sinks", "ATT-12"))),
    Defect("layer-offset-ignored", "Your layer ignores q_offset.",
           ("PROJ-7", "MASK-8"), dropped("q_offset", when=lambda c: c.layer), features=("q_offset",)),
    Defect("projections-reshaped-without-moving",
           "The weights (heads, width, d) are reshaped to (width, heads * d) without moving the width to the front.",
           ("PROJ-1",), _with(**{f"w_{x}": _reshaped for x in "qkv"}),
           variants={f"w_{x} only": _with(**{f"w_{x}": _reshaped}) for x in "qkv"}),
    Defect("projections-interleaved",
           "The columns of all three projections are dealt out to the heads one by one, not in blocks.",
           ("PROJ-1",),
           _with(**{f"w_{x}": _interleaved for x in "qkv"},
                 **{f"b_{x}": lambda b: b.reshape(b.shape[::-1]).T for x in "qkv"})),
)  # fmt: skip
