"""Gradients by blocks: rows that are not written, blocks that count twice, sums that are not reset or not sums."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after
from conformance.defects.blocks.back import NONE_FULL, delta_of_heads, families
from conformance.defects.blocks.edges import Edges, begin_of, ends, family, size_of, whole
from conformance.defects.blocks.loop import every
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array

Counted = Callable[[Array, int], Array]
"""Where blocks begin, length -> how often each place counts."""
Lengths = Callable[[Call], int]


def _queries(c: Call) -> int:
    return c.q_len


def _keys(c: Call) -> int:
    return c.kv_len


def _both(*changes: Change) -> Change:
    return {name: step for change in changes for name, step in change.items()}


def _of_queries(counted: Callable[[Edges, int], Array], *names: str) -> Callable[[Edges], Change]:
    """How often each query counts in the gradients of key or value."""

    def make(e: Edges) -> Change:
        def times(c: Call) -> Any:
            return counted(e, c.q_len).astype(c.wide)[:, None]

        both: Change = {
            "grad_key": lambda c, x, query, scale: R.grad_key(c, x * times(c), query, scale),
            "grad_value": lambda c, p, g: R.grad_value(c, p * times(c), g),
        }
        return {name: both[name] for name in names}

    return make


def _of_keys(counted: Callable[[Edges, int], Array]) -> Callable[[Edges], Change]:
    """How often each key counts in the gradient of the query."""
    return lambda e: {
        "grad_query": lambda c, x, key, scale: R.grad_query(
            c, x * counted(e, c.kv_len).astype(c.wide), key, scale
        )
    }


def _whole(e: Edges, length: int) -> Array:
    return np.arange(length) < whole(e, length)


def _moved_back(e: Edges, length: int) -> Array:
    """The last block is made whole by what stands before it."""
    begins = e(length)
    size = int(ends(begins, length)[0])
    found = np.ones(length)
    if len(begins) > 1:
        found[max(length - size, 0) : int(begins[-1])] += 1
    return found


def _every_other(e: Edges, length: int) -> Array:
    begins = e(length)
    found: Array = np.searchsorted(begins, np.arange(length), side="right") % 2 == 1
    return found


def _averaged(e: Edges, length: int) -> Array:
    return np.full(length, 1 / max(len(e(length)), 1))


def _written(step: str, length: Lengths, always: bool) -> Callable[[Edges], Change]:
    """Rows of a gradient behind the last full block stay zero; all if none is full, where `always`."""

    def make(e: Edges) -> Change:
        def kept(c: Call, x: Array) -> Any:
            end = whole(e, length(c)) or (0 if always else length(c))
            return np.where((np.arange(length(c)) < end)[:, None], x, c.wide(0))

        return after(step, kept)

    return make


def _rows(always: bool) -> Callable[[Edges], Change]:
    return lambda e: _both(*(_written(step, _keys, always)(e) for step in ("grad_key", "grad_value")))


def _carried(step: str, length: Lengths) -> Callable[[Edges], Change]:
    """Each block begins with the sums of the one before, row by row."""

    def make(e: Edges) -> Change:
        def sums(c: Call, x: Array) -> Array:
            found = x.copy()
            blocks = list(every(e(length(c)), length(c)))
            for before, now in pairwise(blocks):
                size = min(len(before), len(now))
                found[..., now[:size], :] += found[..., before[:size], :]
            return found

        return after(step, sums)

    return make


def _carried_rows(e: Edges) -> Change:
    return _both(_carried("grad_key", _keys)(e), _carried("grad_value", _keys)(e))


def _over_heads(c: Call, x: Array) -> Any:
    return np.cumsum(x, axis=-3)


def _over_batch(c: Call, x: Array) -> Any:
    return np.cumsum(x, axis=0) if c.batch else x


def _carried_on(sums: Callable[[Call, Array], Any], *steps: str) -> Change:
    """Sums that go on from one head or batch entry to the next."""
    return _both(*(after(step, sums) for step in steps))


def _scaled_each_time(step: str, length: Lengths) -> Callable[[Edges], Change]:
    """The sum so far is multiplied by the scale in each block: the first ones more often."""

    def make(e: Edges) -> Change:
        def powers(c: Call, scale: float) -> Array:
            begins = e(length(c))
            number = np.searchsorted(begins, np.arange(length(c)), side="right") - 1
            return np.power(c.wide(scale), (len(begins) - 1 - number).astype(c.wide)).astype(c.wide)

        changes: Change = {
            "grad_query": lambda c, x, key, scale: R.grad_query(c, x * powers(c, scale), key, scale),
            "grad_key": lambda c, x, query, scale: R.grad_key(c, x * powers(c, scale)[:, None], query, scale),
        }
        return {step: changes[step]}

    return make


def _read(step: str, argument: int, length: Lengths) -> Callable[[Edges], Change]:
    """An argument of a step, of which each block reads the rows of the first block."""

    def make(e: Edges) -> Change:
        def changed(c: Call, *given: Any) -> Any:
            row = np.arange(length(c))
            local = row - begin_of(e(length(c)), row)
            return getattr(R, step)(
                c, *(np.take(x, local, axis=-2) if n == argument else x for n, x in enumerate(given))
            )

        return {step: changed}

    return make


def _products(argument: int, length: Lengths) -> Callable[[Edges], Change]:
    """DP of the rows of the first block, and a Delta that was formed from the heads before."""
    return lambda e: {**_read("products", argument, length)(e), "delta": delta_of_heads}


def _bias(axis: int, always: bool) -> Callable[[Edges], Change]:
    """The gradient of the bias behind the last full block stays zero."""

    def make(e: Edges) -> Change:
        def grad_bias(c: Call, x: Array) -> Any:
            length = x.shape[axis]
            end = whole(e, length) or (0 if always else length)
            kept = np.expand_dims(np.arange(length) < end, -1 if axis == -2 else 0)
            return R.grad_bias(c, np.where(kept, x, c.wide(0)))

        return {"grad_bias": grad_bias}

    return make


BOTH = ("grad_key", "grad_value")
KEY, VALUE = "the key only", "the value only"
ANYWHERE = (NONE_FULL, "of queries", f"of queries, {NONE_FULL}")


def _three(counted: Callable[[Edges, int], Array]) -> tuple[Any, dict[str, Any]]:
    """Both gradients, and each alone."""
    return _of_queries(counted, *BOTH), {
        KEY: _of_queries(counted, "grad_key"),
        VALUE: _of_queries(counted, "grad_value"),
    }


def _into_next_head(e: Edges) -> Change:
    """The last block of keys is written as a whole: of keys of zero, into the first rows of the next head."""

    def compute(s: Steps, c: Call) -> dict[str, Array]:
        lses: list[Array] = []

        def softmax(_: Steps, c: Call, logits: Array, visible: Array) -> Any:
            weights, lse = s.softmax(s, c, logits, visible)
            lses.append(lse)
            return weights, lse

        def grad_value(c: Call, weights: Array, gradient: Array) -> Array:
            found = np.array(s.grad_value(c, weights, gradient))
            beyond = -c.kv_len % size_of(e, c.kv_len)
            lse = lses[-1][..., None]
            raised = np.where(np.isfinite(lse), np.exp(-lse), c.wide(0))
            of_zero = (raised * gradient).sum(axis=-2, keepdims=True)  # [..., H, 1, d_v]
            found[..., 1:, :beyond, :] = of_zero[..., :-1, :, :]
            return found

        found: dict[str, Array] = R.compute_gradients(replace(s, softmax=softmax, grad_value=grad_value), c)
        return found

    return {"compute_gradients": compute}


def _record(
    name: str, sentence: str, make: Any, others: dict[str, Any], reach: str, features: tuple[str, ...] = ()
) -> Defect:
    violates = ("GRAD-5",) if "attn_bias" in features else ("GRAD-1",)
    return Defect(name, sentence, violates, features=features, **families(make, others, reach, ANYWHERE))


DEFECTS = (
    _record("grad-rows-of-key-not-written",
            "Gradients of key and value behind the last full block of keys stay zero.",
            _rows(False), {NONE_FULL: _rows(True)}, "kv_len"),
    _record("grad-rows-of-query-not-written",
            "The gradient of the query behind the last full block of queries stays zero.",
            _written("grad_query", _queries, False), {NONE_FULL: _written("grad_query", _queries, True)}, "q_len"),
    _record("grad-tail-of-queries-lost-always",
            "Queries behind the last full block give nothing to key and value; if no block is full, no query does.",
            *_three(_whole), ""),
    Defect("grad-query-tail-of-keys-lost-always",
           "Keys behind the last full block give nothing to the query's gradient; if no block is full, no key does.",
           ("GRAD-1",), **family(_of_keys(_whole), at=4, reach="")),
    _record("grad-last-block-of-queries-overlaps",
            "The last block of queries is moved back to be whole: some queries count twice in key and value.",
            *_three(_moved_back), "q_len"),
    Defect("grad-query-last-block-overlaps",
           "The last block of keys is moved back to be whole: some keys count twice in the gradient of the query.",
           ("GRAD-1",), **family(_of_keys(_moved_back), at=4, reach="kv_len")),
    _record("grad-every-other-block-of-queries", "Every other block of queries gives nothing to key and value.",
            *_three(_every_other), "q_len"),
    _record("grad-blocks-of-queries-averaged",
            "The gradients of key and value are averaged over the blocks of queries, not summed.",
            *_three(_averaged), "q_len"),
    Defect("grad-query-parts-averaged", "The gradient of the query is averaged over the parts of the keys, not summed.",
           ("GRAD-1",), **family(_of_keys(_averaged), at=4, reach="kv_len")),
    _record("grad-blocks-of-keys-not-reset",
            "The sums of the gradients of key and value are not set to zero before the next block of keys.",
            _carried_rows, {KEY: _carried("grad_key", _keys), VALUE: _carried("grad_value", _keys)}, "kv_len"),
    Defect("grad-query-blocks-not-reset",
           "The sum of the query's gradient is not set to zero before the next block of queries.",
           ("GRAD-1",), **family(_carried("grad_query", _queries), at=4, reach="q_len")),
    Defect("grad-heads-not-reset", "The sums of gradients are not set to zero before the next head.",
           ("GRAD-1",), _carried_on(_over_heads, "grad_query", "gather"), detail="query, key and value",
           variants={"key and value": _carried_on(_over_heads, "gather"),
               "query": _carried_on(_over_heads, "grad_query"),
               "query, key and value, batch entry by batch entry": _carried_on(_over_batch, "grad_query",
                   "gather"), "key and value, batch entry by batch entry": _carried_on(_over_batch, "gather"),
               "query, batch entry by batch entry": _carried_on(_over_batch, "grad_query")}),
    Defect("grad-value-tail-in-next-head",
           "The last block of the value's gradient is written beyond its keys, into the first rows of the next head.",
           ("GRAD-1",), origin="flagos-ai/FlagGems#898", **family(_into_next_head, at=64, reach="")),
    Defect("grad-query-scaled-in-each-block",
           "The sum of the query's gradient is multiplied by the scale in each block of keys, not once.",
           ("GRAD-1",), **family(_scaled_each_time("grad_query", _keys), at=4, reach="kv_len")),
    Defect("grad-key-scaled-in-each-block",
           "The sum of the key's gradient is multiplied by the scale in each block of queries, not once.",
           ("GRAD-1",), **family(_scaled_each_time("grad_key", _queries), at=4, reach="q_len")),
    Defect("grad-query-from-first-block-of-keys",
           "The gradient of the query is formed with the keys of the first block in every block.",
           ("GRAD-1",), **family(_read("grad_query", 1, _keys), at=4, reach="kv_len")),
    Defect("grad-key-from-first-block-of-queries",
           "The gradient of the key is formed with the queries of the first block in every block.",
           ("GRAD-1",), **family(_read("grad_key", 1, _queries), at=4, reach="q_len")),
    _record("grad-cotangent-of-first-block",
            "Every block of queries reads the gradient of the output of the first block.",
            lambda e: _both(_read("grad_value", 1, _queries)(e), _products(0, _queries)(e)),
            {"the value only": _read("grad_value", 1, _queries), "dP only": _products(0, _queries)}, "q_len"),
    Defect("grad-products-of-first-block", "dP is formed with the values of the first block of keys in every block.",
           ("GRAD-1",), **family(_products(1, _keys), at=4, reach="kv_len")),
    _record("grad-bias-tail-not-written",
            "The gradient of the bias behind the last full block of keys stays zero.", _bias(-1, False),
            {NONE_FULL: _bias(-1, True), "of queries": _bias(-2, False),
             f"of queries, {NONE_FULL}": _bias(-2, True)}, "kv_len", ("attn_bias",)),
)  # fmt: skip
