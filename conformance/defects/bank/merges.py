"""Latent rows whose first channels are the values; partial results, and how much each weighs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.defect import NARROW, Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.serving.call import Served
from conformance.defects.serving.checks import without
from conformance.vectors.case import Array

LATENT, MERGE = ("latent",), ("merge",)


def _rows(change: Callable[[Served, Array, Array], tuple[Array, Array]]) -> Change:
    """Other keys and values of latent rows."""
    return {"rows_of": lambda p: change(p, *R.rows_of(p))}


def _scaled(scale: Callable[[Served], float]) -> Change:
    return {"latent": lambda s, p: R.latent(s, replace(p, scale=scale(p)))}


def _zeros_behind(p: Served, key: Array, value: Array) -> tuple[Array, Array]:
    """Keys of the width of values."""
    kept = np.arange(key.shape[-1]) < p.value_dim
    return np.where(kept, key, key.dtype.type(0)), value


def _spoilt(s: Any, p: Served) -> dict[str, Array]:
    """A NaN in the channels that values lack reaches every row of its entry, hidden or not."""
    found: dict[str, Array] = R.latent(s, p)
    bad: Any = np.isnan(p.latent[..., p.value_dim :]).any(axis=(-1, -2))[..., None, None, None]
    return {**found, "output": np.where(bad, np.asarray(np.nan, p.query.dtype), found["output"])}


def _merging(change: Callable[[Served, Array, Array, Array], Array]) -> Change:
    """Other terms: what each part weighs before it is divided."""
    return {"merge_terms": lambda p, lses, peak: change(p, lses, peak, R.merge_terms(p, lses, peak))}


def _sink(p: Served) -> Any:
    return p.sinks.astype(p.wide)[:, None]


def _sink_each(p: Served, terms: Array, peak: Array) -> Array:
    """Once a part."""
    total: Array = terms.sum(axis=0)
    return total if p.sinks is None else total + len(terms) * np.exp(_sink(p) - peak)


def _sink_in_lse_only(s: Any, p: Served) -> dict[str, Array]:
    """The sink is in the lse and not in the output."""
    found: dict[str, Array] = R.merged(s, p)
    return {**found, "output": R.merged(s, replace(p, sinks=None))["output"]}


def _sink_in_output_only(s: Any, p: Served) -> dict[str, Array]:
    found: dict[str, Array] = R.merged(s, p)
    return {**found, "lse": R.merged(s, replace(p, sinks=None))["lse"]}


def _in_turn(p: Served, lses: Array, peak: Array, terms: Array) -> Array:
    """The lse of the first two is not updated before the third is taken in."""
    for i in range(2, len(terms)):
        terms[i] = terms[i] / np.maximum(terms[i] + terms[0], np.finfo(p.wide).tiny) * terms[:i].sum(axis=0)
    return terms


def _pairs_only(p: Served, lses: Array, peak: Array, terms: Array) -> Array:
    return np.where((np.arange(len(terms)) < 2).reshape(-1, *[1] * peak.ndim), terms, p.wide(0))


def _no_peak(p: Served, lses: Array) -> Array:
    return np.zeros(lses.shape[1:], p.wide)


def _first_peak(p: Served, lses: Array) -> Array:
    return np.where(np.isneginf(lses[0]), p.wide(0), lses[0])


def _nan_when_all_empty(s: Any, p: Served) -> dict[str, Array]:
    """0 / 0 where every part is empty."""
    found: dict[str, Array] = R.merged(s, p)
    gone: Any = np.isneginf(np.stack(list(p.lses))).all(axis=0)
    return {
        "output": np.where(gone[..., None], np.asarray(np.nan, found["output"].dtype), found["output"]),
        "lse": np.where(gone, np.asarray(np.nan, found["lse"].dtype), found["lse"]),
    }


def _nan_when_empty(s: Any, p: Served) -> dict[str, Array]:
    """Outputs of empty parts are multiplied by zero."""
    found: dict[str, Array] = R.merged(s, p)
    spoilt = np.isnan(np.stack(list(p.outputs))).any(axis=0)
    return {**found, "output": np.where(spoilt, np.asarray(np.nan, found["output"].dtype), found["output"])}


def _lse_cast(p: Served, lses: Array, peak: Array, terms: Array) -> Array:
    narrow: Any = lses.astype(p.first.dtype).astype(p.wide)
    return np.asarray(R.merge_terms(p, narrow, R.merge_peak(p, narrow)))


def _finished(change: Callable[[Served, Array, Array], tuple[Array, Array]]) -> Change:
    return {"merge_finish": lambda p, output, lse: R.merge_finish(p, *change(p, output, lse))}


def _accepting(*checks: str, then: Callable[[Served], Served] = lambda p: p) -> Change:
    return {
        "serving_checks": without(*checks),
        "merged": lambda s, p: R.merged(s, then(p)),
        "latent": lambda s, p: R.latent(s, then(p)),
    }


def _shortest(p: Served) -> Served:
    count = min(len(p.outputs), len(p.lses))
    return replace(p, outputs=p.outputs[:count], lses=p.lses[:count])


def _within(p: Served) -> Served:
    return replace(p, value_dim=int(np.clip(p.value_dim, 1, p.latent.shape[-1])))


def _heads(p: Served) -> Served:
    return replace(p, sinks=p.sinks[: p.outputs[0].shape[-3]])


DEFECTS = (
    Defect("latent-values-as-wide-as-keys",
           "Values are taken from the last channels of a row, as if they were as many as those of a key.",
           ("LAT-2",), _rows(lambda p, key, value: (key, key[..., key.shape[-1] - p.value_dim :])),
           features=LATENT),
    Defect("latent-keys-as-wide-as-values", "Keys lack the channels that values lack.",
           ("LAT-1",), _rows(_zeros_behind), features=LATENT),
    Defect("latent-whole-rows-returned", "The output is as wide as a row.",
           ("LAT-2",), _rows(lambda p, key, value: (key, key)), features=LATENT),
    Defect("latent-scale-of-the-value-width",
           "The scale is one over the square root of value_dim, whatever was given.",
           ("LAT-3", "ATT-4"), _scaled(lambda p: float(p.value_dim**-0.5)), features=LATENT),
    Defect("latent-scale-of-the-row-width",
           "The scale is one over the square root of the width of a row, whatever was given.",
           ("LAT-3", "ATT-4"), _scaled(lambda p: float(p.latent.shape[-1] ** -0.5)), features=LATENT),
    Defect("latent-scale-of-one", "The scale is left at one.", ("LAT-3", "ATT-4"), _scaled(lambda p: 1.0),
           origin="MetaX-MACA/vLLM-metax#113", features=LATENT),
    Defect("latent-rotary-channels-first", "The channels that values lack are taken to stand first.",
           ("LAT-2",),
           _rows(lambda p, key, value: (key,
                     np.roll(key, p.value_dim - key.shape[-1], axis=-1)[..., : p.value_dim])),
           features=LATENT),
    Defect("latent-nan-of-hidden-rows-reaches-the-output",
           "A NaN in the channels that values lack reaches the output, though its row is hidden.",
           ("LAT-2", "MASK-4"), {"latent": _spoilt}, features=LATENT),
    Defect("latent-value-dim-out-of-range-accepted",
           "A value_dim that is no number of channels of a row is cut to one.",
           ("LAT-3",), _accepting("value_dim", then=_within), features=(*LATENT, "validation")),
    Defect("merge-averages-parts", "Partial results are averaged, whatever their lses.",
           ("MERGE-1",), _merging(lambda p, lses, peak, terms: np.ones_like(terms)), features=MERGE),
    Defect("merge-by-powers-of-two", "Natural lses are taken for logarithms to base 2.",
           ("MERGE-1",), _merging(lambda p, lses, peak, terms: np.exp2(lses - peak)),
           origin="sgl-project/sglang#35045", features=MERGE),
    Defect("merge-lses-scaled-to-base-two", "Lses are divided by ln 2 and then taken as natural.",
           ("MERGE-1",), _merging(lambda p, lses, peak, terms: np.exp((lses - peak) / np.log(p.wide(2)))),
           origin="sgl-project/sglang#35045", features=MERGE),
    Defect("merge-lse-in-base-two", "The lse that is returned is the logarithm to base 2.",
           ("MERGE-1",), _finished(lambda p, output, lse: (output, lse / np.log(p.wide(2)))), features=MERGE),
    Defect("merge-weighs-by-lse", "Partial results weigh as their lses and not as the exponentials of them.",
           ("MERGE-1",), _merging(lambda p, lses, peak, terms: np.where(np.isfinite(lses), lses, p.wide(0))),
           features=MERGE),
    Defect(
        "merge-without-dividing",
        "The weighed results are added up and not divided by the sum of the weights.",
        ("MERGE-1",),
        {
            "merged": lambda s, p: {
                **R.merged(s, p),
                "output": np.asarray(
                    sum(
                        np.where(np.isneginf(x)[..., None], 0, np.exp(x.astype(p.wide))[..., None] * o)
                        for x, o in zip(p.lses, p.outputs, strict=True)
                    )
                ).astype(p.first.dtype),
            }
        },
        features=MERGE,
    ),
    Defect("merge-lse-is-the-largest", "The lse that is returned is the largest of the parts.", ("MERGE-1",),
           {"merge_log": lambda p, total, peak, lses: R.merge_log(p, np.ones_like(total), peak, lses)},
           features=MERGE),
    Defect("merge-largest-part-only", "The part of the largest lse is taken for the whole.", ("MERGE-1",),
           _merging(lambda p, lses, peak, terms: np.where(lses == lses.max(axis=0), terms, p.wide(0))),
           features=MERGE),
    Defect("merge-exponentials-without-a-peak",
           "Exponentials of the lses themselves are added up, which overflow and vanish.",
           ("MERGE-1", "ATT-2"), {"merge_peak": _no_peak}, origin="SHI-Labs/NATTEN#202", features=MERGE,
           unobservable={"float64": "exponentials of a few hundred are numbers of float64"}),
    Defect("merge-peak-of-the-first-part",
           "What is subtracted is the lse of the first part, so that a much larger one overflows.",
           ("MERGE-1", "ATT-2"), {"merge_peak": _first_peak},
           features=MERGE, unobservable={"float64": "exponentials of a few hundred are numbers of float64"}),
    Defect("merge-parts-behind-the-second-dropped", "Only the first two parts are merged.",
           ("MERGE-1", "MERGE-5"), _merging(_pairs_only), features=MERGE),
    Defect("merge-in-turn-by-the-first-lse",
           "Parts are merged in turn, and the lse of the first is used again for each.",
           ("MERGE-1", "MERGE-5"), _merging(_in_turn), features=MERGE),
    Defect("merge-sink-once-a-part", "The sink counts once a part.",
           ("MERGE-3",), {"merge_total": _sink_each}, features=(*MERGE, "sinks")),
    Defect("merge-sink-left-out", "Sinks are left out of a merge.", ("MERGE-3",),
           {"merged": lambda s, p: R.merged(s, replace(p, sinks=None))}, features=(*MERGE, "sinks")),
    Defect("merge-sink-in-the-lse-only", "The sink is in the lse that is returned and not in the output.",
           ("MERGE-3",), {"merged": _sink_in_lse_only}, features=(*MERGE, "sinks")),
    Defect("merge-sink-in-the-output-only", "The sink is in the output and not in the lse that is returned.",
           ("MERGE-3",), {"merged": _sink_in_output_only}, features=(*MERGE, "sinks")),
    Defect("merge-of-empty-parts-is-nan",
           "Where every part is empty, -inf is subtracted from -inf, and output and lse are NaN.",
           ("MERGE-4",), {"merged": _nan_when_all_empty},
           origin="flashinfer-ai/flashinfer#4051", features=MERGE),
    Defect("merge-empty-output-times-zero",
           "The output of an empty part is multiplied by zero, so that a NaN in it is in the result.",
           ("MERGE-4",), {"merged": _nan_when_empty}, features=MERGE),
    Defect("merge-empty-part-weighs-one", "An lse of -inf is taken for 0, so that an empty part takes part.",
           ("MERGE-4",),
           _merging(lambda p, lses, peak, terms: np.where(np.isneginf(lses), np.exp(-peak), terms)),
           features=MERGE),
    Defect("merge-lse-of-empty-parts-is-zero", "The lse of a row of which every part is empty is 0.",
           ("MERGE-4",),
           _finished(lambda p, output, lse: (output, np.where(np.isneginf(lse), p.wide(0), lse))),
           features=MERGE),
    Defect("merge-lses-in-the-dtype-of-the-outputs",
           "Lses are cast to the 16-bit dtype of the outputs before they decide.",
           ("MERGE-2",), _merging(_lse_cast), features=MERGE, unobservable=NARROW),
    Defect("merge-lists-of-two-lengths-accepted",
           "More lses than outputs are accepted, and those left over dropped.", ("MERGE-6",),
           _accepting("as many lses", "partial shapes", then=_shortest), features=(*MERGE, "validation")),
    Defect("merge-sinks-of-another-length-accepted",
           "More sinks than heads are accepted, and those left over dropped.",
           ("MERGE-6",), _accepting("merged sinks", then=_heads), features=(*MERGE, "validation")),
)  # fmt: skip
