"""Gradients that are summed over blocks of queries or keys: what is overwritten, left out, or taken from one block."""

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.defects.blocks.edges import Edges, begin_of, end_of, family
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array

Chosen = Callable[[Array, int], tuple[int, int]]
"""Where blocks begin, length -> the part that counts."""


def _last(begins: Array, length: int) -> tuple[int, int]:
    return int(begins[-1]), length


def _first(begins: Array, length: int) -> tuple[int, int]:
    return 0, int(begins[1]) if len(begins) > 1 else length


def _whole(begins: Array, length: int) -> tuple[int, int]:
    """The whole blocks; all where there is one block only."""
    size = int(begins[1]) if len(begins) > 1 else length
    return 0, length // max(size, 1) * size


def _but_first(begins: Array, length: int) -> tuple[int, int]:
    return (int(begins[1]) if len(begins) > 1 else 0), length


def _queries(chosen: Chosen, *names: str) -> Callable[[Edges], Change]:
    """Gradients of key or value that some of the queries give."""

    def make(e: Edges) -> Change:
        def part(c: Call) -> slice:
            return slice(*chosen(e(c.q_len), c.q_len))

        both: Change = {
            "grad_key": lambda c, x, query, scale: R.grad_key(
                c, x[..., part(c), :], query[..., part(c), :], scale
            ),
            "grad_value": lambda c, p, g: R.grad_value(c, p[..., part(c), :], g[..., part(c), :]),
        }
        return {name: both[name] for name in names}

    return make


def _keys(chosen: Chosen) -> Callable[[Edges], Change]:
    """The gradient of the query, from some of the keys."""

    def make(e: Edges) -> Change:
        def part(c: Call) -> slice:
            return slice(*chosen(e(c.kv_len), c.kv_len))

        return {
            "grad_query": lambda c, x, key, scale: R.grad_query(
                c, x[..., part(c)], key[..., part(c), :], scale
            )
        }

    return make


def by_block(x: Array, begins: Array, length: int) -> Array:
    """Sums over each block of keys, at each of its keys."""
    sums = np.add.reduceat(x, begins, axis=-1) if length else x
    found: Array = np.repeat(sums, np.diff(np.append(begins, length)), axis=-1)
    return found


def _delta_of_block(e: Edges) -> Change:
    """Delta as a number for each key; the sinks keep that of the row."""

    def logits(c: Call, p: Array, products: Array, delta: Array, visible: Array) -> Any:
        return p * (products - by_block(p * products, e(c.kv_len), c.kv_len))

    return {"grad_logits": logits}


def _delta_of_one(chosen: Chosen) -> Callable[[Edges], Change]:
    def make(e: Edges) -> Change:
        def delta(c: Call, p: Array, products: Array, g: Array, heads: Array) -> Any:
            part = slice(*chosen(e(c.kv_len), c.kv_len))
            return (p * products)[..., part].sum(axis=-1, keepdims=True)

        return {"delta": delta}

    return make


def _weights_of_block(e: Edges) -> Change:
    """Weights that are computed anew add up to one in each block."""

    def anew(c: Call, p: Array) -> Array:
        sums = by_block(p, e(c.kv_len), c.kv_len)
        return np.where(p == 0, c.wide(0), p / np.where(sums == 0, 1, sums))

    return {
        "grad_logits": lambda c, p, products, delta, visible: anew(c, p) * (products - delta),
        "grad_value": lambda c, p, g: R.grad_value(c, anew(c, p), g),
    }


def _bias(axis: int, chosen: Chosen) -> Callable[[Edges], Change]:
    """The gradient of a bias that an axis shares, from one block of that axis."""

    def make(e: Edges) -> Change:
        def grad_bias(c: Call, x: Array) -> Any:
            if c.attn_bias.shape[axis] != 1 or x.shape[axis] == 0:
                return R.grad_bias(c, x)
            first, end = chosen(e(x.shape[axis]), x.shape[axis])
            return R.grad_bias(c, np.take(x, np.arange(first, end), axis=axis))

        return {"grad_bias": grad_bias}

    return make


def _sinks(chosen: Chosen) -> Callable[[Edges], Change]:
    def make(e: Edges) -> Change:
        def grad_sinks(c: Call, lse: Array, delta: Array, visible: Array) -> Any:
            part = slice(*chosen(e(c.q_len), c.q_len))
            return R.grad_sinks(c, lse[..., part], delta[..., part, :], visible[..., part, :])

        return {"grad_sinks": grad_sinks}

    return make


def _causal(shown: Callable[[Call, Edges, Array], Any]) -> Callable[[Edges], Change]:
    """Another triangle on the way back: the weights are cut, c, blocks, place -> bool."""

    def make(e: Edges) -> Change:
        def cut(c: Call, x: Array) -> Array:
            return x * shown(c, e, R.place(c)) if c.is_causal else x

        return {
            "grad_logits": lambda c, p, products, delta, visible: cut(
                c, R.grad_logits(c, p, products, delta, visible)
            ),
            "grad_value": lambda c, p, g: R.grad_value(c, cut(c, p), g),
        }

    return make


def _end(c: Call, e: Edges) -> Array:
    return end_of(e(c.kv_len), c.kv_len, c.columns)


def _begin(c: Call, e: Edges) -> Array:
    return begin_of(e(c.kv_len), c.columns)


BOTH = ("grad_key", "grad_value")
SUMS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Edges], Change], str], ...] = (
    ("grad-blocks-overwrite", "Each block of queries overwrites the gradients of key and value: the last one stays.",
     ("GRAD-1",), (), _queries(_last, *BOTH), "q_len"),
    ("grad-key-blocks-overwrite", "Each block of queries overwrites the gradient of the key: the last one stays.",
     ("GRAD-1",), (), _queries(_last, "grad_key"), "q_len"),
    ("grad-value-blocks-overwrite", "Each block of queries overwrites the gradient of the value: the last one stays.",
     ("GRAD-1",), (), _queries(_last, "grad_value"), "q_len"),
    ("grad-first-block-of-queries", "Only the first block of queries gives anything to the gradients of key and value.",
     ("GRAD-1",), (), _queries(_first, *BOTH), "q_len"),
    ("grad-first-block-of-queries-lost", "The first block of queries gives nothing to the gradients of key and value.",
     ("GRAD-1",), (), _queries(_but_first, *BOTH), "q_len"),
    ("grad-tail-of-queries-lost", "Queries behind the last full block give nothing to the gradients of key and value.",
     ("GRAD-1",), (), _queries(_whole, *BOTH), "q_len"),
    ("grad-key-tail-of-queries-lost", "Queries behind the last full block give nothing to the gradient of the key.",
     ("GRAD-1",), (), _queries(_whole, "grad_key"), "q_len"),
    ("grad-value-tail-of-queries-lost", "Queries behind the last full block give nothing to the gradient of the value.",
     ("GRAD-1",), (), _queries(_whole, "grad_value"), "q_len"),
    ("grad-query-blocks-overwrite", "Each block of keys overwrites the gradient of the query: the last one stays.",
     ("GRAD-1",), (), _keys(_last), "kv_len"),
    ("grad-query-first-block", "Only the first block of keys gives anything to the gradient of the query.",
     ("GRAD-1",), (), _keys(_first), "kv_len"),
    ("grad-query-first-block-lost", "The first block of keys gives nothing to the gradient of the query.",
     ("GRAD-1",), (), _keys(_but_first), "kv_len"),
    ("grad-query-tail-of-keys-lost", "Keys behind the last full block give nothing to the gradient of the query.",
     ("GRAD-1",), (), _keys(_whole), "kv_len"),
    ("grad-delta-of-block", "Delta is summed over the keys of the block alone, not over the row.",
     ("GRAD-1",), (), _delta_of_block, "kv_len"),
    ("grad-delta-of-last-block", "Delta is that of the last block of keys.", ("GRAD-1",), (),
     _delta_of_one(_last), "kv_len"),
    ("grad-delta-of-first-block", "Delta is that of the first block of keys.", ("GRAD-1",), (),
     _delta_of_one(_first), "kv_len"),
    ("grad-weights-of-block", "On the way back the weights are normalised in each block of keys, not over the row.",
     ("GRAD-1",), (), _weights_of_block, "kv_len"),
    ("grad-bias-block-of-queries", "The gradient of a bias that queries share is that of the last block of queries.",
     ("GRAD-5",), ("attn_bias", "broadcast"), _bias(-2, _last), "q_len"),
    ("grad-sinks-block-of-queries", "The gradient of the sinks is that of the last block of queries.",
     ("GRAD-8",), ("sinks",), _sinks(_last), "q_len"),
    ("grad-sinks-first-block-of-queries", "The gradient of the sinks is that of the first block of queries.",
     ("GRAD-8",), ("sinks",), _sinks(_first), "q_len"),
    ("grad-causal-block-of-diagonal-lost", "On the way back the block of keys that holds the diagonal is skipped.",
     ("GRAD-1",), ("is_causal",), _causal(lambda c, e, p: _end(c, e) <= p + 1), ""),
    ("grad-causal-block-without-offset",
     "On the way back blocks of keys behind the query's own number are skipped: that forgets q_offset.",
     ("GRAD-1",), ("is_causal", "q_offset"),
     _causal(lambda c, e, p: _begin(c, e) <= np.arange(c.q_len)[:, None]), ""),
)  # fmt: skip

DEFECTS = tuple(
    Defect(name, sentence, violates, features=features, **family(make, at=4, reach=reach))
    for name, sentence, violates, features, make, reach in SUMS
)
