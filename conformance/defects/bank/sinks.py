"""Sinks: one more logit a head, in the denominator only."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import column


def _sinks(change: Any) -> Change:
    """Other sinks: c, sinks -> sinks."""
    return {
        "accept": lambda c: (
            c if c.sinks is None else replace(c, sinks=change(c, c.sinks).astype(c.sinks.dtype))
        )
    }


def _total(change: Any) -> Change:
    """Another denominator: c, summed, sinks, peak -> denominator."""
    return {
        "total": lambda c, e, peak: (
            R.total(c, e, peak)
            if c.sinks is None
            else change(c, e.sum(axis=-1, keepdims=True), column(c, c.sinks), peak)
        )
    }


DEFECTS = needing("sinks", (
    Defect("sinks-ignored", "The sinks are ignored.", ("ATT-12",), dropped("sinks")),
    Defect("sinks-added-raw", "The sink itself is added to the denominator, not its exponential.",
           ("ATT-12",), _total(lambda c, total, sink, peak: total + sink)),
    Defect("sinks-not-less-maximum",
           "The maximum is not subtracted from the sink before it is exponentiated.",
           ("ATT-12", "ATT-2"), _total(lambda c, total, sink, peak: total + np.exp(sink))),
    Defect("sinks-not-in-maximum",
        "The maximum that is subtracted leaves out the sink, so that a large sink overflows and the lse is infinite.",
        ("ATT-12", "ATT-2", "ATT-14"),
        {"peak": lambda c, x, visible: R.peak(replace(c, sinks=None), x, visible)}, features=("return_lse",)),
    Defect("sinks-divided-away",
           "The weights are divided by their sum after the sink took part, which takes it out again.",
           ("ATT-12", "ATT-13"),
           {"normalise": lambda c, e, total, visible: R.normalise(c, e, e.sum(axis=-1, keepdims=True),
                visible)}),
    Defect("sink-of-first-head", "The sink of the first head serves all heads.",
           ("ATT-12", "HEAD-1"), _sinks(lambda c, x: np.full_like(x, x[0]))),
    Defect("sinks-in-reverse", "The sinks are assigned to the heads in reverse.",
           ("ATT-12", "HEAD-1"), _sinks(lambda c, x: x[::-1])),
    Defect("sinks-by-key-head", "The sinks are indexed by key head, not by query head.", ("ATT-12", "HEAD-2"),
           _sinks(lambda c, x: x[np.arange(c.heads) // (c.heads // c.kv_heads)]), features=("gqa",)),
    Defect("sinks-scaled", "The sinks are multiplied by the scale.", ("ATT-12",),
           _total(lambda c, total, sink, peak: total + np.exp(sink * c.wide(R.scale(c)) - peak))),
    Defect("sinks-capped", "The sinks are bent by the softcap.", ("ATT-12", "ATT-6"),
           _total(lambda c, total, sink, peak: total + np.exp(R.cap(c, sink) - peak)), features=("softcap",)),
    Defect("sinks-negated", "The sign of the sinks is wrong.", ("ATT-12",), _sinks(lambda c, x: -x)),
    Defect("sinks-have-a-value",
           "The sink's share of the weight goes to the first value: a sink has no value.", ("ATT-12",),
           {"average": lambda c, w, v, visible: R.average(c, w, v, visible)
                + (0 if c.sinks is None else (1 - w.sum(-1, keepdims=True)) * v[..., :1, :])}),
    Defect("sinks-for-first-query", "The sink takes part in the row of the first query only.", ("ATT-12",),
           _total(lambda c, t, sink, peak: t + np.exp(sink - peak) * (np.arange(c.q_len) == 0)[:, None]),
           "ml-explore/mlx#3452"),
    Defect("sinks-not-for-last-query", "The sink does not take part in the row of the last query.",
           ("ATT-12",),
           _total(lambda c, t, sink, peak: t
                      + np.exp(sink - peak) * (np.arange(c.q_len) < c.q_len - 1)[:, None]),
           "ml-explore/mlx#3452"),
    Defect("sinks-for-each-key", "The sink is counted once for each key.",
           ("ATT-12",), _total(lambda c, total, sink, peak: total + c.kv_len * np.exp(sink - peak))),
    Defect("sinks-dropped-beside-mask", "The sinks are ignored where a mask is given.",
           ("ATT-12",), dropped("sinks", when=lambda c: c.mask is not None), features=("mask",)),
    Defect("sinks-as-bias", "The sinks are added to the logits, where they cancel.", ("ATT-12",),
           {"bias": lambda c, x: R.bias(c, x) + (0 if c.sinks is None else column(c, c.sinks))}
               | _total(lambda c, total, sink, peak: total)),
    Defect("sink-of-minus-inf-is-nan", "A sink of -inf makes the row NaN: it is no sink.", ("ATT-12",),
           _total(lambda c, total, sink, peak: total
                      + np.exp(sink - peak) * np.where(np.isneginf(sink), c.wide(np.nan), c.wide(1)))),
    Defect("lse-of-empty-row-loses-sink",
           "The lse of an empty row is -inf although it has a sink: it is the sink.", ("MASK-16",),
           {"log": lambda c, total, peak, visible: np.where(visible.any(axis=-1),
                R.log(c, total, peak, visible), c.wide(-np.inf))}, "this specification before 1.2",
           features=("return_lse", "empty")),
    Defect("lse-without-sinks", "Your lse leaves out the sinks.", ("ATT-14", "ATT-12"),
           {"log": lambda c, total, peak, visible: R.log(c,
                total - (0 if c.sinks is None else np.exp(column(c, c.sinks) - peak)), peak, visible)},
           features=("return_lse",)),
    Defect("sinks-doubled", "The sink is counted twice.",
           ("ATT-12",), _total(lambda c, total, sink, peak: total + 2 * np.exp(sink - peak))),
))  # fmt: skip
