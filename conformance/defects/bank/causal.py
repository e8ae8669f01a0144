"""Causality and its offset."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import dropped, first, shown
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R


def _causal(rule: Any) -> Change:
    """Another rule: c, columns, place -> bool."""
    return {"by_causal": lambda c, place: rule(c, c.columns, place) if c.is_causal else None}


def _offset(change: Any) -> Change:
    """Another offset: c, offset -> offset."""
    return {
        "place": lambda c: R.place(
            replace(c, q_offset=change(c, np.asarray(0 if c.q_offset is None else c.q_offset)))
        )
    }


def _or(c: Call, rules: tuple[Any, ...]) -> Any:
    """Causality or the mask, and the rest."""
    mask, bias, causal, *rest = rules
    if mask is None or causal is None:
        return R.intersect(c, rules)
    return R.intersect(c, (mask | causal, bias, *rest))


DEFECTS = (
    Defect("causal-ignored", "is_causal is ignored.", ("MASK-6", "MASK-9"), dropped("is_causal"),
           features=("is_causal",)),
    Defect("causal-always", "Every call is causal, whether is_causal is given or not.",
           ("MASK-6",), {"accept": lambda c: replace(c, is_causal=True)}),
    Defect("causal-strict", "A query does not see its own key: j <= i + q_offset includes it.",
           ("MASK-6",), _causal(lambda c, j, p: j < p), features=("is_causal",)),
    Defect("causal-one-ahead", "A query sees one key of the future.",
           ("MASK-6",), _causal(lambda c, j, p: j <= p + 1), features=("is_causal",)),
    Defect("causal-reversed", "A query sees the future and not the past.",
           ("MASK-6",), _causal(lambda c, j, p: j >= p), features=("is_causal",)),
    Defect("causal-transposed", "The triangle is transposed: keys see earlier queries.",
           ("MASK-6",), _causal(lambda c, j, p: j >= np.arange(c.q_len)[:, None]), features=("is_causal",)),
    Defect("causal-always-bottom-right", "The triangle is aligned with the last key, whatever the q_offset.",
           ("MASK-8", "MASK-6"), _offset(lambda c, o: c.kv_len - c.q_len), "FlashAttention", ("is_causal",)),
    Defect("causal-always-top-left", "The triangle is aligned with the first key, whatever the q_offset.",
           ("MASK-8",), _offset(lambda c, o: 0), "torch.nn.functional.scaled_dot_product_attention",
           ("is_causal", "q_offset")),
    Defect("offset-counted-from-last-key",
           "Queries are aligned with the last key, and q_offset is added to that: it counts from the first key.",
           ("MASK-8", "MASK-6"), _offset(lambda c, o: o + c.kv_len - c.q_len), "FlashAttention"),
    Defect("causal-alignment-flips",
           "The triangle is aligned with the last key where there are fewer queries than keys, else with the first.",
           ("MASK-6", "MASK-8"), _offset(lambda c, o: max(c.kv_len - c.q_len, 0)), "ml-explore/mlx#2967",
           ("is_causal",)),
    Defect("offset-not-below-zero", "A negative q_offset is taken for 0.",
           ("MASK-8",), _offset(lambda c, o: np.maximum(o, 0)), "ml-explore/mlx#2967", ("q_offset",)),
    Defect("offset-without-sign", "The sign of q_offset is lost.",
           ("MASK-8",), _offset(lambda c, o: np.abs(o)), features=("q_offset",)),
    Defect("offset-subtracted", "q_offset is subtracted from the place of the query, not added.",
           ("MASK-8",), _offset(lambda c, o: -o), features=("q_offset",)),
    Defect("offset-not-beyond-keys", "q_offset is limited so that the last query stands at the last key.",
           ("MASK-8",), _offset(lambda c, o: np.minimum(o, max(c.kv_len - c.q_len, 0))),
           features=("q_offset",)),
    Defect("offset-of-first-batch-entry", "The q_offset of the first batch entry serves all of them.",
           ("MASK-8", "IND-3"), _offset(lambda c, o: o.reshape(-1)[0] if o.size else 0),
           features=("q_offset",)),
    Defect("largest-offset-for-all", "The largest q_offset of the batch serves all entries.",
           ("MASK-8", "IND-3"), _offset(lambda c, o: o.max() if o.size else 0), features=("q_offset",)),
    Defect("offset-off-by-one", "q_offset counts from one.",
           ("MASK-8",), _offset(lambda c, o: o if c.q_offset is None else o - 1), features=("q_offset",)),
    Defect("offset-only-when-lengths-differ", "q_offset is ignored where there are as many queries as keys.",
           ("MASK-8",), _offset(lambda c, o: 0 if c.q_len == c.kv_len else o), features=("q_offset",)),
    Defect("causal-keeps-first-key", "A query that stands before the first key sees that key all the same.",
           ("MASK-8", "MASK-3"), _causal(lambda c, j, p: j <= np.maximum(p, 0)),
           features=("is_causal", "q_offset")),
    Defect("causal-dropped-beside-mask", "is_causal is ignored where a mask is given.",
           ("MASK-9",), dropped("is_causal", when=lambda c: c.mask is not None), "keras-team/keras#23038",
           ("is_causal", "mask")),
    Defect("mask-dropped-beside-causal", "The mask is ignored where is_causal is given.",
           ("MASK-9",), dropped("mask", when=lambda c: c.is_causal), features=("is_causal", "mask")),
    Defect("bias-dropped-beside-causal", "The bias is ignored where is_causal is given.", ("MASK-9", "ATT-7"),
           dropped("attn_bias", when=lambda c: c.is_causal), features=("is_causal", "attn_bias")),
    Defect("lengths-dropped-beside-causal", "kv_lengths are ignored where is_causal is given.",
           ("MASK-9", "MASK-12"), dropped("kv_lengths", when=lambda c: c.is_causal),
           features=("is_causal", "kv_lengths")),
    Defect("causal-dropped-beside-lengths", "is_causal is ignored where kv_lengths are given.",
           ("MASK-9", "MASK-6"), dropped("is_causal", when=lambda c: c.kv_lengths is not None),
           features=("is_causal", "kv_lengths")),
    Defect("causal-or-mask", "A key is visible where causality or the mask allows it: it needs both.",
           ("MASK-9",), {"intersect": _or}, features=("is_causal", "mask")),
    Defect("causal-dropped-with-weights", "is_causal is ignored where the weights are asked for.",
           ("IND-1", "MASK-6"), dropped("is_causal", when=lambda c: c.return_weights),
           "pytorch/pytorch#99282", ("is_causal", "return_weights")),
    Defect("causal-by-blocks", "Causality is decided for blocks of 16 keys and not within them.",
           ("MASK-6",), _causal(lambda c, j, p: j // 16 <= p // 16), features=("is_causal",)),
    Defect("causal-single-query-sees-all", "A single query sees every key, whatever its offset.",
           ("MASK-6",), dropped("is_causal", when=lambda c: c.q_len == 1), features=("is_causal",)),
    Defect("causal-single-query-sees-first", "A single query sees the first key only: its offset is ignored.",
           ("MASK-8", "CACHE-3"), _offset(lambda c, o: 0 if c.q_len == 1 else o), "flax.nnx",
           ("is_causal", "q_offset")),
    Defect("causal-last-row-open", "The last query sees the future where there are fewer queries than keys.",
           ("MASK-6",),
           _causal(lambda c, j, p: (j <= p)
                       | ((np.arange(c.q_len) == c.q_len - 1)[:, None] & (c.q_len < c.kv_len))),
           "onnxruntime", ("is_causal",)),
    Defect("causal-false-taken-for-true", "is_causal given as False is taken for given.", ("MASK-6",),
           {"compute": lambda s, c: R.compute(s,
                replace(c, is_causal=True) if c.is_causal is not None and c.q_len == c.kv_len else c)}),
    Defect("causal-first-head-only", "Causality acts on the first head only.",
           ("MASK-6", "HEAD-1"), shown("by_causal", lambda c, x: x | (np.arange(c.heads) > 0)[:, None, None]),
           features=("is_causal",)),
    Defect("causal-first-batch-entry-only", "The triangle of the first batch entry serves all of them.",
           ("MASK-8", "IND-3"), shown("by_causal", first(-4)), features=("is_causal", "q_offset")),
    Defect("causal-assumes-equal-lengths",
           "The triangle is that of as many queries as keys: with fewer queries its last rows are used.",
           ("MASK-6", "MASK-8"),
           _causal(lambda c, j, p: j <= np.arange(c.q_len)[:, None] + c.kv_len - c.q_len),
           "NVIDIA/TransformerEngine#399", ("is_causal", "q_offset")),
)  # fmt: skip
