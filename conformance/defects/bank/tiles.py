"""Blocks, tails, running maxima and indices that wrap."""

from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, online, output
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array


def _keys(index: Any) -> Change:
    """Keys and values that are read at other places: c, j -> j."""
    return {"join": lambda c, k, v: _both(c, R.join(c, k, v), index)}


def _both(c: Call, whole: tuple[Array, Array], index: Any) -> Any:
    where = index(c, c.columns)
    return tuple(np.take(x, where, axis=-2) for x in whole)


def _queries(index: Any) -> Change:
    """Queries that are read at other places."""
    return {"project_query": lambda c: np.take(R.project_query(c), index(c, np.arange(c.q_len)), axis=-2)}


def _hidden(shown: Any) -> Change:
    """Keys that are lost: c -> bool."""
    return {"intersect": lambda c, rules: R.intersect(c, rules) & shown(c)}


def _widths(shown: Any) -> Change:
    """Features of query and key that are lost: d_k -> bool."""
    return after("project_query", lambda c, x: x * shown(c.d_k))


def _full_groups(size: int) -> Change:
    return _widths(lambda d: (np.arange(d) < d // size * size) | (d <= size))


DEFECTS = (
    Defect("keys-beyond-64-tail-lost", "Above 64 keys, those behind the last full block of 64 are lost.",
           ("ATT-1",), _hidden(lambda c: (c.columns < c.kv_len // 64 * 64) | (c.kv_len <= 64)),
           "pytorch/pytorch#169222"),
    Defect("keys-beyond-32-tail-lost", "Above 32 keys, those behind the last full block of 32 are lost.",
           ("ATT-1",), _hidden(lambda c: (c.columns < c.kv_len // 32 * 32) | (c.kv_len <= 32)),
           "pytorch/pytorch#169222"),
    Defect("keys-beyond-512-lost", "Keys beyond the first 512 are lost.",
           ("ATT-1",), _hidden(lambda c: c.columns < 512)),
    Defect("keys-beyond-1024-lost", "Keys beyond the first 1024 are lost.",
           ("ATT-1",), _hidden(lambda c: c.columns < 1024)),
    Defect("last-key-lost", "The last key is never read.",
           ("ATT-1",), _hidden(lambda c: (c.columns < c.kv_len - 1) | (c.kv_len == 1))),
    Defect("first-key-lost", "The first key is never read.",
           ("ATT-1",), _hidden(lambda c: (c.columns > 0) | (c.kv_len == 1))),
    Defect("key-index-wraps-at-128", "The index of a key is kept in 7 bits: key 128 is key 0 again.",
           ("ATT-1",), _keys(lambda c, j: j % 128), "ml-explore/mlx#2894"),
    Defect("key-index-wraps-at-256", "The index of a key is kept in 8 bits: key 256 is key 0 again.",
           ("ATT-1",), _keys(lambda c, j: j % 256), "ml-explore/mlx#2894"),
    Defect("query-index-wraps-at-128", "The index of a query is kept in 7 bits: query 128 is query 0 again.",
           ("ATT-1",), _queries(lambda c, i: i % 128)),
    Defect("queries-beyond-64-lost", "Queries beyond the first 64 come out as zero.",
           ("ATT-1",), after("average", lambda c, x: x * (np.arange(c.q_len) < 64)[:, None])),
    Defect("width-beyond-64-lost", "Features of query and key beyond the first 64 are lost.",
           ("ATT-1",), _widths(lambda d: np.arange(d) < 64)),
    Defect("width-tail-lost",
           "Features of query and key behind the last full group are lost, where there is a full one.",
           ("ATT-1",),
           **varied({f"in groups of {size}": _full_groups(size) for size in (3, 4, 8, 16, 32, 64)},
                    "in groups of 8")),
    Defect("odd-feature-lost", "The last of an odd number of features is lost.",
           ("ATT-1",), _widths(lambda d: (np.arange(d) < d // 2 * 2) | (d == 1))),
    Defect("value-width-beyond-64-lost", "Columns of the values beyond the first 64 come out as zero.",
           ("ATT-1", "SHAPE-3"), after("average", lambda c, x: x * (np.arange(c.d_v) < 64))),
    Defect("value-width-bounded-by-d-k", "Columns of the values beyond d_k come out as zero.",
           ("SHAPE-3",), after("average", lambda c, x: x * (np.arange(c.d_v) < c.d_k)),
           "XunhaoLai/native-sparse-attention-triton#27", ("value_dim",)),
    Defect("value-width-cut-to-d-k", "Your output has the width of the keys, not of the values.",
           ("SHAPE-3", "SHAPE-2"), output(lambda c, x: x if c.layer else x[..., : c.d_k], "output"),
           features=("value_dim",)),
    Defect("online-correct", "A softmax in blocks of 16 with a running maximum, as it should be.",
           ("ATT-2",), online(16), equivalent="another order of the same sums"),
    Defect("batch-beyond-four-reads-first", "Batch entries from the fifth on read the first one.",
           ("SHAPE-4", "IND-3"),
           after("project_query", lambda c, x: x[np.where(np.arange(len(x)) < 4, np.arange(len(x)), 0)],
                 lambda c: len(c.batch) == 1)),
    Defect("single-key-shortcut", "With a single key its value is returned without looking at anything else.",
           ("ATT-10", "MASK-3"),
           {"average": lambda c, w, v, visible: np.broadcast_to(v, (*w.shape[:-1], v.shape[-1]))
                if c.kv_len == 1 else R.average(c, w, v, visible)}),
    Defect("single-query-path-unscaled", "With a single query your logits are not scaled.",
           ("ATT-3", "ATT-1"), {"scale": lambda c: 1.0 if c.q_len == 1 and c.scale is None else R.scale(c)}),
    Defect("kv-len-taken-from-queries", "Only as many keys are read as there are queries.",
           ("ATT-1", "PROJ-5"), _hidden(lambda c: c.columns < c.q_len), "NVIDIA/TransformerEngine#399"),
)  # fmt: skip
