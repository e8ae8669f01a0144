"""One thing taken for another."""

from dataclasses import replace

import numpy as np

from conformance.defects.bank.mutators import after
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.vectors.case import Array


def _in_layer(**changes: object) -> Change:
    """Operands of the layer, each made from the call: name -> function."""
    return {
        "accept": lambda c: (
            replace(c, **{n: f(c) for n, f in changes.items() if getattr(c, n) is not None})  # type: ignore[operator]
            if c.layer
            else c
        )
    }


def _first_entry(c: Call, x: Array) -> Array:
    """The first batch entry for all of them, over every batch axis."""
    return np.broadcast_to(x.reshape(-1, *x.shape[-3:])[:1], x.shape) if x.size else x


def _key_from_query(c: Call, query: Array, key: Array, scale: float) -> Array:
    """Products of keys with queries, where there are as many of both."""
    if query.shape != key.shape:
        return np.asarray(R.score(c, query, key, scale))
    return np.asarray(R.score(c, key, query, scale))


def _unmoved(c: Call, x: Array) -> Array:
    """Heads cut out of the width and never moved in front of the length, [..., L, H * d] read as [..., H, L, d]."""
    return np.moveaxis(x, -3, -2).reshape(x.shape)


def _swapped(c: Call) -> Call:
    """w_q and w_k in each other's place, where that fits."""
    fits = c.layer and c.w_q.shape == c.w_k.shape and (c.b_q is None) == (c.b_k is None)
    return replace(c, w_q=c.w_k, w_k=c.w_q, b_q=c.b_k, b_k=c.b_q) if fits else c


def _by_entries(c: Call, name: str) -> Call:
    """A mask or bias [entries, keys], where one of rank 2 could be that."""
    x = getattr(c, name)
    if (
        x is None
        or x.ndim != 2
        or len(c.batch) != 1
        or x.shape != (*c.batch, c.kv_len)
        or c.q_len != x.shape[0]
    ):
        return c
    return replace(c, **{name: x[:, None, None]})


def _square_transposed(c: Call, name: str) -> Call:
    w = getattr(c, name)
    return replace(c, **{name: w.swapaxes(-1, -2)}) if c.layer and w.shape[-1] == w.shape[-2] else c


DEFECTS = (
    Defect("logits-transposed",
           "Your logits have keys before queries, where there are as many of both: multiply query by key, transposed.",
           ("ATT-1",), {"score": _key_from_query}),
    Defect("keys-of-first-batch-entry", "Every batch entry attends the keys and values of the first.",
           ("IND-3", "SHAPE-4"), after("repeat", _first_entry)),
    Defect("last-feature-lost", "The last feature of query and key is never read.", ("ATT-1",),
           {"score": lambda c, query, key, scale: R.score(c, query[..., :-1], key[..., :-1], scale)
                if c.d_k > 1 else R.score(c, query, key, scale)}),
    Defect("output-of-last-head-lost", "The output projection leaves out the last head.", ("PROJ-3",),
           _in_layer(w_o=lambda c: c.w_o * (
                         np.arange(c.heads) < max(c.heads - 1, 1))[:, None, None].astype(c.dtype))),
    Defect("w-o-in-reverse", "The heads meet the parts of w_o in reverse order.",
           ("PROJ-3",), _in_layer(w_o=lambda c: c.w_o[::-1])),
    Defect("b-q-twice", "b_q is added twice to the queries.",
           ("PROJ-2",), _in_layer(b_q=lambda c: c.b_q * 2)),
    Defect("w-q-and-w-k-swapped", "w_q projects the key and w_k the query, wherever that fits.",
           ("PROJ-1",), {"accept": _swapped}),
    Defect("heads-split-without-moving",
           "The projected width is reshaped into heads without moving their axis in front of the length.",
           ("PROJ-1", "SHAPE-1"),
           {**after("project_query", _unmoved, when=lambda c: c.layer),
            **after("project_key", _unmoved, when=lambda c: c.layer),
            **after("project_value", _unmoved, when=lambda c: c.layer)}),
    Defect("keys-averaged", "Your weights average the keys and not the values, wherever that fits.",
           ("ATT-1",),
           {"attend": lambda s, c, q, k, v: R.attend(s, c, q, k, k if k.shape == v.shape else v)}),
    Defect("scale-default-of-one", "Where no scale is given your logits are not scaled.",
           ("ATT-3",), {"scale": lambda c: 1.0 if c.scale is None else R.scale(c)}),
    Defect("mask-added-as-one", "A mask is added to the logits as zeros and ones.", ("MASK-1",),
           {"by_mask": lambda c: None,
            **after("bias", lambda c, x: x + c.mask.astype(c.wide), when=lambda c: c.mask is not None)},
           "ml-explore/mlx#2626", ("mask",)),
    *(Defect(f"{word}-of-rank-2-by-entries",
          f"Where there are as many batch entries as queries, the rows of a {word} of rank 2 are read as entries.",
          ("SHAPE-7", requirement), {"accept": lambda c, name=name: _by_entries(c, name)}, features=(name,))
      for word, name, requirement in (("mask", "mask", "MASK-1"), ("bias", "attn_bias", "ATT-7"))),
    *(Defect(f"square-w-{letter}-transposed",
             f"Where w_{letter} is square for each head, it is applied transposed.",
             ("PROJ-3" if letter == "o" else "PROJ-1",),
             {"accept": lambda c, name=f"w_{letter}": _square_transposed(c, name)})
      for letter in "qkvo"),
)  # fmt: skip
