"""Boolean masks, what is hidden by them, and rows that may attend nothing."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, dropped, first, output, shown, turned
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array


def _filled(number: float) -> Change:
    """Hidden logits become a finite number, and everything is visible; slots beyond the lengths stay hidden."""

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        exists = s.intersect(c, (s.by_lengths(c),))
        number_ = max(number, float(np.finfo(c.wide).min))
        return R.softmax(s, c, np.where(visible | ~exists, logits, c.wide(number_)), exists)

    return {"softmax": softmax}


def _empty(fill: str) -> Change:
    """What an empty row is filled with."""

    def average(c: Call, weights: Array, value: Array, visible: Array) -> Any:
        heads: Any = R.average(c, weights, value, visible)
        mean = value.mean(axis=-2, keepdims=True) if c.kv_len else np.nan
        row: Any = {"nan": c.wide(np.nan), "mean": mean, "first": value[..., :1, :] if c.kv_len else 0}[fill]
        return np.where(visible.any(axis=-1, keepdims=True), heads, row).astype(c.wide)

    return {"average": average}


def _unmasked(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
    return R.softmax(s, c, logits, visible | ~visible.any(axis=-1, keepdims=True))


def _added(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
    """-inf is added where a key is hidden: NaN stays NaN, and +inf becomes it."""
    empty: Any = ~visible.any(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        added = logits + np.where(visible | empty, c.wide(0), c.wide(-np.inf))
    weights, lse = R.softmax(s, c, added, np.ones_like(visible))
    return np.where(empty, 0, weights), np.where(empty[..., 0], c.wide(-np.inf), lse)


def _after_softmax(renormalised: bool) -> Change:
    """The mask multiplies the weights of a softmax over all keys."""

    def softmax(s: Steps, c: Call, logits: Array, visible: Array) -> Any:
        weights, lse = R.softmax(s, c, logits, np.ones_like(visible))
        weights = np.where(visible, weights, 0)
        if renormalised:
            weights = np.where(visible, weights / weights.sum(axis=-1, keepdims=True), 0)
        return weights, lse

    return {"softmax": softmax}


def _padded(c: Call, x: Array) -> Array:
    """A last axis of one, filled up with False."""
    return x & (c.columns == 0) if x.shape[-1] == 1 else x


def _flat(c: Call, x: Array) -> Array:
    """A mask indexed by batch * H + head, as if no axis were broadcast."""
    if x.ndim < 4:
        return x
    planes = x.reshape(-1, *x.shape[-2:])
    count = int(np.prod(c.batch)) * c.heads
    return planes[np.minimum(np.arange(count), len(planes) - 1)].reshape(*c.batch, c.heads, *x.shape[-2:])


def _refused(c: Call) -> Call:
    if c.mask is not None and c.mask.shape != c.logits_shape:
        raise ValueError(f"mask has shape {c.mask.shape}, wanted {c.logits_shape}")
    return c


DEFECTS = (
    Defect("mask-inverted", "True in your mask hides the key: here True means that it may be attended.",
           ("MASK-1",), shown("by_mask", lambda c, x: ~x), "torch.nn.MultiheadAttention", ("mask",)),
    Defect("mask-ignored", "The mask is ignored.", ("MASK-1", "MASK-9"), dropped("mask"), features=("mask",)),
    Defect("mask-transposed",
           "Your mask acts on queries where it should act on keys, wherever the shapes allow it.",
           ("MASK-1", "SHAPE-8"), shown("by_mask", turned), "hyunwoongko/transformer#40", ("mask",)),
    *(Defect(f"mask-of-first-{name}", f"The mask of the first {name} serves all of them.",
             tuple(dict.fromkeys((requirement, "MASK-1"))), shown("by_mask", first(axis)), origin, ("mask",))
      for name, axis, requirement, origin in (("batch-entry", -4, "IND-3", "pytorch/pytorch#184180"),
              ("head", -3, "HEAD-1", "slip"), ("query", -2, "MASK-1", "slip"))),
    Defect("mask-indexed-as-if-full",
           "Your mask is indexed by batch entry and head as if neither were broadcast.",
           ("SHAPE-8",), shown("by_mask", _flat), "pytorch/pytorch#184180", ("mask", "broadcast")),
    Defect("mask-last-axis-padded", "A mask whose last axis is 1 is filled up with False and not broadcast.",
           ("SHAPE-8",), shown("by_mask", _padded), "pytorch/pytorch#128816", ("mask", "broadcast")),
    Defect("mask-must-be-full", "You refuse a mask that has to be broadcast.",
           ("SHAPE-8", "SHAPE-7"), {"accept": _refused}, "jax-ml/jax#28974", ("mask",)),
    Defect("mask-shifted-by-one", "Your mask is off by one key.",
           ("MASK-1",), shown("by_mask", lambda c, x: np.roll(x, 1, axis=-1)), features=("mask",)),
    Defect("mask-added-not-selected",
           "Your mask adds -inf at masked keys, so that a NaN or +inf in a masked key comes through: select instead.",
           ("MASK-4",), {"softmax": _added}, "pytorch/pytorch#101967"),
    Defect("mask-multiplies-logits", "Masked logits are multiplied by zero, which leaves them a weight.",
           ("MASK-1", "MASK-3"), _filled(0.0)),
    Defect("mask-after-softmax",
           "Masked weights are set to zero after the softmax, so that the others do not sum to one.",
           ("MASK-1", "ATT-6"), _after_softmax(renormalised=False)),
    Defect("mask-after-softmax-renormalised",
        "The softmax runs over masked keys too and is divided by what is left, which underflows beside a large one.",
        ("MASK-4", "MASK-3"), _after_softmax(renormalised=True)),
    Defect("mask-fills-minus-10", "Masked logits are set to -10, which is not far enough.",
           ("MASK-1", "MASK-3"), _filled(-10.0)),
    Defect("mask-fills-minus-10000",
           "Masked logits are set to -10000: a row that may attend nothing becomes the mean of the values.",
           ("MASK-3",), _filled(-10000.0), "hyunwoongko/transformer#40"),
    Defect("mask-fills-minus-1e10",
           "Masked logits are set to -1e10: a row that may attend nothing becomes the mean of the values.",
           ("MASK-3",), _filled(-1e10), "google/flax#982"),
    Defect("mask-fills-lowest",
           "Masked logits are set to the lowest finite number: an empty row becomes the mean of the values.",
           ("MASK-3",), _filled(-np.inf), "patrick-kidger/equinox#274"),
    Defect("empty-row-mean",
           "A query that may attend nothing yields the mean of the values: it has to be zero.",
           ("MASK-3",), _empty("mean"), "jax.nn.dot_product_attention", ("empty",)),
    Defect("empty-row-nan", "A query that may attend nothing yields NaN: it has to be zero.",
           ("MASK-3",), _empty("nan"), "Xilinx/brevitas#1591", ("empty",)),
    Defect("empty-row-first-value",
           "A query that may attend nothing yields the first value: it has to be zero.",
           ("MASK-3",), _empty("first"), features=("empty",)),
    Defect("empty-row-unmasked", "A query that may attend nothing attends everything.", ("MASK-3",),
           {"softmax": _unmasked, "average": lambda c, w, v, visible: R.average(c, w, v, visible | True)},
           "onnxruntime", ("empty",)),
    Defect("empty-head-spreads", "One head that may attend nothing makes the rows of all heads NaN.",
           ("MASK-3", "HEAD-1"),
           {"average": lambda c, w, v, visible: np.where(
                visible.any(axis=-1).all(axis=-2)[..., None, :, None], R.average(c, w, v, visible),
                c.wide(np.nan))}, "pytorch/pytorch#160064", ("empty",)),
    Defect("empty-row-by-size-of-logits", "Rows whose logits are all below -50 are taken for empty.",
           ("MASK-15",),
           {"softmax": lambda s, c, x, v: R.softmax(s, c, x,
                v & ~(np.where(v, x, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf) < -50))}),
    Defect("empty-row-by-infinite-logits",
           "A row whose visible logits are all -inf because of its operands is taken for empty: it has to be NaN.",
           ("MASK-15", "ATT-10"), {"softmax": lambda s, c, x, v: R.softmax(s, c, x, v & ~np.isneginf(x))}),
    Defect("bias-dropped-beside-mask", "The bias is ignored where a mask is given.", ("MASK-2",),
           dropped("attn_bias", when=lambda c: c.mask is not None), features=("mask", "attn_bias")),
    Defect("mask-dropped-beside-bias", "The mask is ignored where a bias is given.", ("MASK-2",),
           dropped("mask", when=lambda c: c.attn_bias is not None), features=("mask", "attn_bias")),
    Defect("mask-opens-minus-inf", "Where the mask is true, a bias of -inf is taken for 0.",
           ("MASK-2", "ATT-8"),
           {"accept": lambda c: replace(c,
                    attn_bias=np.where(c.mask & np.isneginf(c.attn_bias), 0, c.attn_bias))
                if c.mask is not None and c.attn_bias is not None else c}, features=("mask", "attn_bias")),
    Defect("mask-on-first-head-only", "The mask acts on the first head only.", ("MASK-1", "HEAD-1"),
           shown("by_mask", lambda c, x: x | (np.arange(c.heads) > 0)[:, None, None]), features=("mask",)),
    Defect("mask-on-first-batch-entry-only", "The mask acts on the first batch entry only.",
           ("MASK-1", "IND-3"),
           shown("by_mask", lambda c, x: x | (np.arange(c.batch[0]) > 0)[:, None, None, None],
                 lambda c: len(c.batch) == 1), features=("mask",)),
    Defect("mask-made-symmetric", "What query i may attend in key j is hidden unless j may attend i too.",
           ("MASK-1",),
           shown("by_mask", lambda c, x: x & x.swapaxes(-1, -2),
                 lambda c: c.mask.shape[-1] == c.mask.shape[-2]), features=("mask",)),
    Defect("mask-cuts-queries-at-keys",
           "A mask hides queries beyond kv_len, as if it were one of queries too.", ("MASK-1",),
           after("average", lambda c, x: x * (np.arange(c.q_len) < c.kv_len)[:, None],
                 lambda c: c.mask is not None), "huggingface/transformers#35032", ("mask",)),
    Defect("mask-of-true-left-out",
           "A mask that is true throughout is not applied at all, which changes nothing.",
           ("MASK-1",), dropped("mask", when=lambda c: c.mask is not None and bool(c.mask.all())),
           features=("mask",), equivalent="a mask that shows everything and no mask mean the same"),
    Defect("masked-value-leaks",
           "Zero times NaN is NaN: a masked value that holds NaN or infinity reaches your output.",
           ("MASK-5",), {"average": lambda c, w, v, visible: w @ v}, "pytorch/pytorch#101967"),
    Defect("no-keys-nan", "Without any key your output is NaN: it has to be zero.", ("MASK-14", "MASK-3"),
           output(lambda c, x: x * np.nan if c.kv_len == 0 else x, "output"), features=("empty",)),
    Defect("no-keys-refused", "You refuse a call without any key: every row is then empty, and zero.",
           ("MASK-14",),
           {"peak": lambda c, x, visible: x.max(axis=-1, keepdims=True) if not c.kv_len
                else R.peak(c, x, visible)}, features=("empty",)),
)  # fmt: skip
