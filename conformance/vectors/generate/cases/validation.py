"""Calls that the spec refuses: any exception but NotImplementedError passes, numbers do not."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Draws

# fmt: off

_D = Draws("validation")
_Q = _D.gauss(2, 3, 5, 4)
_K = _D.gauss(2, 3, 7, 4)
_V = _D.gauss(2, 3, 7, 4)


def drafts() -> Iterator[Draft]:
    """Attention first, then the layer."""
    yield from _shapes()
    yield from _masks()
    yield from _kinds()
    yield from _layer()


def _refused(name: str, note: str, *covers: str, **given: Any) -> Draft:
    given = {"query": _Q, "key": _K, "value": _V, **given}
    return attend(f"validation/{name}", note, *covers, raises=True, **given)


def _shapes() -> Iterator[Draft]:
    d = Draws("validation/shapes")
    yield _refused("key-width", "key has another d_k than query.", "SHAPE-5", key=d.gauss(2, 3, 7, 5))
    yield _refused("value-length", "value has another length than key.", "SHAPE-5", value=d.gauss(2, 3, 6, 4))
    yield _refused("batch", "key and value have another batch than query.", "SHAPE-5",
        key=d.gauss(1, 3, 7, 4))
    yield _refused("value-heads", "value has another number of heads than key.", "SHAPE-5",
        value=d.gauss(2, 1, 7, 4))
    yield _refused("rank", "query has an axis less than key and value.", "SHAPE-11", query=d.gauss(3, 5, 4))
    yield _refused("rank-2", "query, key and value without a head axis.", "SHAPE-11",
        query=d.gauss(5, 4), key=d.gauss(7, 4), value=d.gauss(7, 4))
    yield _refused("d-k-zero", "d_k of zero: the default scale is not defined.", "SHAPE-6",
        query=np.zeros((2, 3, 5, 0)), key=np.zeros((2, 3, 7, 0)))
    yield _refused("d-v-zero", "d_v of zero: there is nothing to average.", "SHAPE-6",
        value=np.zeros((2, 3, 7, 0)))
    yield _refused("no-heads", "No heads at all: groups are not defined.", "SHAPE-6",
        query=np.zeros((2, 0, 5, 4)), key=np.zeros((2, 0, 7, 4)), value=np.zeros((2, 0, 7, 4)))
    yield _refused("heads-not-divisible", "Five query heads over two key heads.", "HEAD-3",
        query=d.gauss(2, 5, 5, 4), key=d.gauss(2, 2, 7, 4), value=d.gauss(2, 2, 7, 4))
    yield _refused("past-alone", "past_key without past_value.", "CACHE-5", past_key=d.gauss(2, 3, 2, 4))
    yield _refused("past-batch", "A past of batch one beside keys of batch two.", "SHAPE-5",
        past_key=d.gauss(1, 3, 2, 4), past_value=d.gauss(1, 3, 2, 4))
    yield _refused("past-value-length", "past_value has another length than past_key.", "SHAPE-5",
        past_key=d.gauss(2, 3, 2, 4), past_value=d.gauss(2, 3, 3, 4))
    yield _refused("past-width", "past_key has another d_k than key.", "SHAPE-5",
        past_key=d.gauss(2, 3, 2, 5), past_value=d.gauss(2, 3, 2, 4))
    yield _refused("sinks-shape", "Two sinks for three heads.", "SHAPE-11", sinks=d.gauss(2))


def _masks() -> Iterator[Draft]:
    d = Draws("validation/masks")
    yield _refused("mask-rank-3", "A mask of rank 3 beside rank 4.", "SHAPE-7", mask=d.mask(3, 5, 7))
    yield _refused("mask-shape", "A mask whose last axis is neither kv_len nor one.", "SHAPE-11",
        mask=d.mask(5, 6))
    yield _refused("bias-shape", "A bias whose last axis is neither kv_len nor one.", "SHAPE-11",
        attn_bias=d.gauss(5, 6))
    yield _refused("bias-rank-3", "A bias of rank 3 beside rank 4.", "SHAPE-7", attn_bias=d.gauss(2, 5, 7))
    yield _refused("mask-of-integers", "A mask of zeros and ones as integers: it could mean either polarity.",
        "DTYPE-4", mask=d.mask(5, 7).astype(np.int64))
    yield _refused("mask-of-floats", "A mask of floats: it could be a bias.", "DTYPE-4", mask=d.gauss(5, 7))
    yield _refused("bias-of-bools", "A bias of bools: it could be a mask.", "DTYPE-5", attn_bias=d.mask(5, 7))
    yield _refused("causal-no-offset", "Causal with unequal lengths and no offset.", "MASK-7", is_causal=True)
    yield _refused("window-no-offset", "A window with unequal lengths and no offset.", "MASK-7",
        window=(1, 1))
    yield _refused("lengths-shape", "Three lengths for a batch of two.", "SHAPE-11",
        kv_lengths=np.array([3, 4, 5]))
    yield _refused("lengths-of-floats", "Lengths that are not integers.", "DTYPE-7",
        kv_lengths=np.array([3.5, 4.0]))
    yield _refused("offset-of-floats", "An offset for each batch entry that is not an integer.", "DTYPE-7",
        is_causal=True, q_offset=np.array([1.0, 2.0]))
    yield _refused("offset-shape", "Three offsets for a batch of two.", "SHAPE-11",
        is_causal=True, q_offset=np.array([0, 1, 2]))
    more = Draws("validation/more-masks")
    yield _refused("bias-of-integers", "A bias of integers: it could be a mask of zeros and ones.", "DTYPE-5",
        attn_bias=more.integers(5, 7, low=-1, high=1).astype(np.int64))
    yield _refused("mask-rank-1", "A mask of rank 1.", "SHAPE-7", mask=more.mask(7))
    yield _refused("bias-rank-1", "A bias of rank 1.", "SHAPE-7", attn_bias=more.gauss(7))


def _kinds() -> Iterator[Draft]:
    yield _refused("mixed-dtypes", "A float32 key beside a query of another dtype.", "DTYPE-2",
        dtype_of={"key": "float32"}, only=("float64", "float16", "bfloat16"))
    yield _refused("mixed-dtypes-wider", "A float64 key beside a query of another dtype.", "DTYPE-2",
        dtype_of={"key": "float64"}, only=("float32", "float16", "bfloat16"))
    yield _refused("offset-fraction", "An offset of one and a half.", "SHAPE-10",
        is_causal=True, q_offset=1.5)
    yield _refused("causal-of-two", "is_causal is a number, not a bool.", "SHAPE-10", is_causal=2, q_offset=0)
    yield _refused("scale-text", "A scale that is a word.", "SHAPE-10", scale="auto")
    yield _refused("softcap-true", "A softcap of True.", "SHAPE-10", softcap=True)
    yield _refused("window-fraction", "A window of one and a half.", "SHAPE-10", window=(1.5, 0), q_offset=0)
    yield _refused("softcap-zero", "A softcap of zero.", "SHAPE-10", softcap=0.0)
    yield _refused("softcap-negative", "A negative softcap.", "SHAPE-10", softcap=-2.0)
    yield _refused("window-negative", "A negative window.", "SHAPE-10", window=(-1, 2), q_offset=0)
    yield _refused("window-of-three", "A window of three numbers.", "SHAPE-10", window=(1, 2, 3), q_offset=0)


def _layer() -> Iterator[Draft]:
    d = Draws("validation/layer")
    refused: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("layer-w-q", "w_q reads another width than the query has.", {"w_q": d.gauss(3, 8, 4)}),
        ("layer-w-k-width", "w_k makes keys of another width than w_q makes queries.",
         {"w_k": d.gauss(3, 9, 5)}),
        ("layer-w-v-heads", "w_v has another number of heads than w_k.", {"w_v": d.gauss(1, 9, 4)}),
        ("layer-w-o", "w_o has another number of heads than w_q.", {"w_o": d.gauss(2, 4, 9)}),
        ("layer-b-k", "b_k has the shape of a flat bias.", {"b_k": d.gauss(12)}),
        ("layer-b-v", "b_v has no axis of heads.", {"b_v": d.gauss(4)}),
        ("layer-b-q", "b_q has the shape of a flat bias.", {"b_q": d.gauss(12)}),
        ("layer-b-o", "b_o has another width than w_o makes.", {"b_o": d.gauss(8)}),
    )
    for name, note, given in refused:
        yield project(f"validation/{name}", note, "PROJ-6", raises=True, **given)
