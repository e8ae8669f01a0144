"""Heads, and which keys each of them reads."""

from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, output, weighed
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array


def _reading(index: Any) -> Change:
    """Which key head each query head reads: c, h -> g."""
    return {
        "repeat": lambda c, x: np.take(x, np.minimum(index(c, np.arange(c.heads)), c.kv_heads - 1), axis=-3)
    }


def _misread(c: Call, x: Array) -> Array:
    """An array of heads before lengths, read as lengths before heads."""
    heads, length = x.shape[-3:-1]
    return x if c.layer else x.reshape(*x.shape[:-3], length, heads, x.shape[-1]).swapaxes(-3, -2)


DEFECTS = (
    Defect("groups-tiled", "Key heads are tiled over the query heads (h % G), not repeated (h // (H // G)).",
           ("HEAD-2",), _reading(lambda c, h: h % c.kv_heads), "ekzhang/jax-js#180", ("gqa",)),
    Defect("groups-divided-by-key-heads", "Query head h reads key head h // G, not h // (H // G).",
           ("HEAD-2",), _reading(lambda c, h: h // c.kv_heads), "XunhaoLai/native-sparse-attention-triton#27",
           ("gqa",)),
    Defect("groups-read-first-head", "Every query head reads the first key head.",
           ("HEAD-2", "HEAD-1"), _reading(lambda c, h: 0 * h)),
    Defect("groups-in-reverse", "The groups of query heads are assigned to the key heads in reverse.",
           ("HEAD-2",), _reading(lambda c, h: c.kv_heads - 1 - h // (c.heads // c.kv_heads))),
    Defect("groups-averaged", "Every query head reads the average of the key heads.", ("HEAD-2", "HEAD-1"),
           {"repeat": lambda c, x: np.repeat(x.mean(axis=-3, keepdims=True), c.heads, axis=-3)}),
    Defect("groups-shifted-by-one", "Query head h reads key head (h + 1) // (H // G).",
           ("HEAD-2",), _reading(lambda c, h: (h + 1) // (c.heads // c.kv_heads)), features=("gqa",)),
    Defect("values-tiled-keys-repeated",
           "Key heads are repeated over the query heads, but value heads are tiled.", ("HEAD-2",),
           {"average": lambda c, w, v, visible: R.average(c, w,
                np.take(v, np.arange(c.heads) % c.kv_heads * (c.heads // c.kv_heads), axis=-3), visible)},
           features=("gqa",)),
    Defect("heads-share-weights", "All heads use the weights of the first.",
           ("HEAD-1",), weighed(lambda c, w, visible: np.repeat(w[..., :1, :, :], c.heads, axis=-3))),
    Defect("heads-share-average-weights", "All heads use the average of their weights.", ("HEAD-1",),
           weighed(lambda c, w, visible: np.repeat(w.mean(axis=-3, keepdims=True), c.heads, axis=-3))),
    Defect("heads-share-denominator", "The weights are normalised over all heads together.",
           ("HEAD-1", "ATT-2"),
           {"total": lambda c, e, peak: R.total(c, e, peak).sum(axis=-3, keepdims=True) + 0 * peak}),
    Defect("heads-share-maximum",
           "The maximum that is subtracted is that of all heads, so that heads of small logits underflow.",
           ("HEAD-1", "ATT-2"), after("peak", lambda c, x: x.max(axis=-3, keepdims=True) + 0 * x)),
    Defect("last-head-lost", "The last of an odd number of heads is not computed.", ("HEAD-1",),
           weighed(lambda c, w, visible: w * (np.arange(c.heads) < c.heads // 2 * 2)[:, None, None]
                       if c.heads > 1 else w)),
    Defect("heads-beyond-four-wrap",
           "Query heads beyond the fourth read the queries of the first ones again.",
           ("HEAD-1",), after("project_query", lambda c, x: np.take(x, np.arange(c.heads) % 4, axis=-3))),
    Defect("heads-in-reverse", "The heads come out in reverse order.",
           ("HEAD-1",), {"merge": lambda c, x: R.merge(c, x[..., ::-1, :, :])}),
    Defect("single-head-path-unscaled", "With one head your logits are not scaled.",
           ("HEAD-1", "ATT-3"), {"scale": lambda c: 1.0 if c.heads == 1 and c.scale is None else R.scale(c)}),
    Defect("lengths-before-heads",
        "Your arrays are read as (batch, length, heads, width): the heads come first here, or declare layout 'blhd'.",
        ("SHAPE-1",),
        {"project_query": lambda c: _misread(c, R.project_query(c)),
         "project_key": lambda c: _misread(c, R.project_key(c)),
         "project_value": lambda c: _misread(c, R.project_value(c))}, "jax-ml/jax#35916"),
    Defect("query-alone-lengths-before-heads", "The query alone is read as (batch, length, heads, width).",
           ("SHAPE-1",), {"project_query": lambda c: _misread(c, R.project_query(c))}),
    Defect("output-lengths-before-heads",
           "Your output is (batch, length, heads, width): the heads come first here.",
           ("SHAPE-1", "SHAPE-2"), output(lambda c, x: x if c.layer else x.swapaxes(-2, -3), "output")),
    Defect("heads-merged-in-output",
           "Your output has its heads merged into the width, which is the layer's business.", ("SHAPE-2",),
           output(lambda c, x: x if c.layer
                      else x.swapaxes(-2, -3).reshape(*c.batch, c.q_len, c.heads * c.d_v), "output")),
)  # fmt: skip
