"""Rows that are keys, and values by their first channels; and partial results that are merged."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.names import LATENT
from conformance.vectors.generate.cases.serving_packed import whole
from conformance.vectors.generate.draft import Draft, drafted
from conformance.vectors.generate.random_inputs import Draws
from conformance.vectors.generate.serving_drafts import latent, merge

# fmt: off

OF = "serving/latent-"
JOIN = "serving/merge-"


def drafts() -> Iterator[Draft]:
    """Latent rows, then merges, then what of both is refused."""
    yield from _rows()
    yield from _merges()
    yield from _empty_parts()
    yield from _refused()


def _rows() -> Iterator[Draft]:
    yield latent(f"{OF}rows",
        "Keys are rows of six channels, values their first four; three heads share them.", "LAT-1", "LAT-2",
        return_lse=True)
    yield latent(f"{OF}no-rotary", "Values are whole rows.", "LAT-2", rotary=0)
    yield latent(f"{OF}one-channel", "Values are one channel.", "LAT-2", value_dim=1, rotary=5)
    yield latent(f"{OF}one-head", "One head alone reads the rows.", "LAT-1", heads=1)
    yield latent(f"{OF}no-batch", "There is no batch axis.", "LAT-1", batch=())
    yield latent(f"{OF}two-batch-axes", "There are two batch axes.", "LAT-1", batch=(2, 3), kv_len=4)
    yield latent(f"{OF}no-keys", "There is no row at all.", "LAT-1", kv_len=0, return_lse=True)
    for name, scale in {
        "scale-of-one": 1.0,
        "scale-of-the-value-width": 0.5,
        "negative-scale": -0.25,
    }.items():
        yield latent(f"{OF}{name}", f"A scale of {scale} is taken as it is.", "LAT-3", scale=scale, rotary=5)
    yield latent(f"{OF}causal", "Causality with an offset for each entry.", "LAT-1",
        q_len=3, kv_len=6, is_causal=True, q_offset=whole(3, 1))
    yield latent(f"{OF}window", "A window over latent rows.", "LAT-1",
        q_len=3, kv_len=6, window=(2, 0), q_offset=3)
    d = Draws(f"{OF}lengths:rows")
    rows = d.gauss(2, 6, 6)
    rows[0, 4:] = np.nan
    rows[1, 1:, 4:] = np.nan
    yield latent(f"{OF}lengths",
        "Rows behind a length are NaN, of one entry in the channels that values lack alone.",
        "LAT-1", "LAT-2", latent=rows, kv_lengths=whole(4, 1), return_lse=True)
    yield latent(f"{OF}mask-bias", "A mask and a bias over latent rows.", "LAT-1",
        mask=d.mask(2, 3, 2, 5, share=0.8) | (np.arange(5) == 0), attn_bias=d.gauss(2, 3, 2, 5))
    yield latent(f"{OF}softcap", "Softcap over latent rows.", "LAT-1", softcap=1.5)
    yield latent(f"{OF}sinks", "A sink for each head over latent rows.", "LAT-1",
        sinks=d.gauss(3), return_lse=True)
    far = d.gauss(2, 5, 6)
    far[..., 4:] *= 32.0
    yield latent(f"{OF}large-rotary",
        "The channels that values lack are large: they decide the weights and are in no value.",
        "LAT-1", "LAT-2", latent=far, return_lse=True)
    yield latent(f"{OF}digits", "Queries and rows of 24 bits.", "LAT-1", bits=24, only=("float64", "float32"))
    yield latent(f"{OF}decode-wide", "One query of four heads over 129 rows of 64 and 16 channels.",
        "LAT-1", "LAT-2",
        batch=(1,), heads=4, q_len=1, kv_len=129, value_dim=64, rotary=16, scale=0.0625, return_lse=True)
    yield latent(f"{OF}chunk-wide", "Several queries over 70 rows of 64 and 16 channels, causal.", "LAT-1",
        heads=2, q_len=5, kv_len=70, value_dim=64, rotary=16, scale=0.125, is_causal=True, q_offset=65)


def _merges() -> Iterator[Draft]:
    yield merge(f"{JOIN}two", "Two partial results weigh as their lses say; the lse of both is returned.",
        "MERGE-1")
    yield merge(f"{JOIN}one", "One partial result stays what it is.", "MERGE-1", parts=1)
    yield merge(f"{JOIN}three", "Three partial results.", "MERGE-1", "MERGE-5", parts=3, d_v=5)
    yield merge(f"{JOIN}seven", "Seven partial results, of a split over many blocks.", "MERGE-1",
        parts=7, heads=2, q_len=1)
    yield merge(f"{JOIN}no-batch", "There is no batch axis.", "MERGE-1", batch=(), parts=3)
    yield merge(f"{JOIN}two-batch-axes", "There are two batch axes.", "MERGE-1",
        batch=(2, 3), heads=2, q_len=1)
    yield merge(f"{JOIN}no-rows", "There is no row at all.", "MERGE-1", q_len=0)
    yield merge(f"{JOIN}large-lses", "Lses near 200 and -200: their exponentials overflow and vanish.",
        "MERGE-1", "ATT-2", parts=3,
        lses=Draws(f"{JOIN}large:lses").gauss(3, 2, 3, 2)
            + np.array([-192.0, 192.0, 192.0]).reshape(3, 1, 1, 1))
    yield merge(f"{JOIN}low-lses",
        "All lses are near -200, so that none of their exponentials is a number of float32.",
        "MERGE-1", "MERGE-2", "ATT-2", lses=Draws(f"{JOIN}low:lses").gauss(2, 2, 3, 2) - 192.0)
    yield merge(f"{JOIN}far-apart",
        "One part outweighs the other by far, in some rows the first and in others the second.", "MERGE-1",
        sigma=24.0)
    yield merge(f"{JOIN}fine-lses",
        "Lses near 64 of many bits beside outputs of 8: an lse that is cast to 16 bits loses what decides.",
        "MERGE-1", "MERGE-2",
        lses=64.0 + np.round(1024 * Draws(f"{JOIN}fine:lses").gauss(2, 2, 3, 2, sigma=2.0, bits=24)) / 1024)
    yield merge(f"{JOIN}wide", "Rows of 128 channels from four parts.", "MERGE-1",
        parts=4, batch=(1,), heads=2, q_len=3, d_v=128)
    sinks = Draws(f"{JOIN}sinks:sinks").gauss(3, sigma=2.0)
    yield merge(f"{JOIN}sinks", "The sink counts once, and not once a part.", "MERGE-3", parts=3, sinks=sinks)
    yield merge(f"{JOIN}sinks-of-minus-infinity",
        "A sink of -inf adds nothing; a large one takes nearly all.", "MERGE-3",
        sinks=np.array([-np.inf, 6.0, 0.5]))


def _empty(parts: int, gone: Any, nan: bool = False, name: str = "") -> dict[str, Any]:
    """Operands of which the parts that are gone are empty: zero and -inf, or NaN and -inf."""
    draws = Draws(f"{JOIN}{name}")
    outputs, lses = draws.gauss(parts, 2, 3, 2, 4), draws.gauss(parts, 2, 3, 2, sigma=1.5)
    hidden = np.zeros(lses.shape, bool)
    gone(hidden)
    lses[hidden] = -np.inf
    outputs[hidden] = np.nan if nan else (0.0 if not hidden.all() else outputs[hidden])
    return {"parts": parts, "outputs": outputs, "lses": lses}


def _empty_parts() -> Iterator[Draft]:
    def first(hidden: Any) -> None:
        hidden[0] = True

    def last(hidden: Any) -> None:
        hidden[-1] = True

    def some(hidden: Any) -> None:
        hidden[0, 0], hidden[1, :, 1], hidden[:, 1, 2], hidden[2, :, :, 1] = True, True, True, True

    def every(hidden: Any) -> None:
        hidden[:] = True

    yield merge(f"{JOIN}empty-first", "The first part is empty.", "MERGE-4", **_empty(2, first, name="order"))
    yield merge(f"{JOIN}empty-last", "The last part is empty.", "MERGE-4", **_empty(2, last, name="order"))
    yield merge(f"{JOIN}empty-in-any-order", "In each row other parts are empty, in some all of them.",
        "MERGE-4", "MERGE-5", **_empty(3, some, name="any"))
    yield merge(f"{JOIN}empty-is-nan", "The outputs of empty parts are NaN: nothing of them is read.",
        "MERGE-4", **_empty(3, some, nan=True, name="nan"))
    yield merge(f"{JOIN}all-empty", "Every part is empty, whatever it holds: zeros and -inf.", "MERGE-4",
        **_empty(2, every, name="all"))
    bad = Draws(f"{JOIN}nan-lse").gauss(2, 2, 3, 2)
    bad[0, 0, 1, 0] = np.nan
    yield merge(f"{JOIN}nan-lse", "An lse that is NaN makes its row NaN and no other.", "MERGE-1", "ATT-10",
        lses=bad)


def _refused() -> Iterator[Draft]:
    d = Draws(f"{OF}refused-shapes")
    rows = {"query": d.gauss(2, 3, 2, 6), "latent": d.gauss(2, 5, 6)}
    for name, note, width in (
        ("zero", "value_dim is 0, which is no value.", 0),
        ("too-large", "value_dim is more than a row has.", 7),
        ("kind", "value_dim is no integer.", 2.5),
    ):
        yield drafted(f"serving/refused-latent-value-dim-{name}", note,
            ("LAT-3",), LATENT, rows, {"value_dim": width, "scale": 0.5, "raises": True})
    yield latent("serving/refused-latent-rank", "The rows have a head axis.", "SHAPE-11",
        raises=True, latent=d.gauss(2, 1, 5, 6))
    yield latent("serving/refused-latent-key-width", "Rows have another width than queries.", "SHAPE-5",
        raises=True, latent=d.gauss(2, 5, 7))
    yield merge("serving/refused-merge-shapes", "Lses of another shape than outputs.", "MERGE-6",
        raises=True, lses=d.gauss(2, 2, 3, 3))
    yield merge("serving/refused-merge-counts", "Three lses for two outputs.", "MERGE-6",
        raises=True, lses=d.gauss(3, 2, 3, 2))
    yield merge("serving/refused-merge-sinks", "More sinks than heads.", "MERGE-6",
        raises=True, sinks=d.gauss(4))
    yield merge("serving/refused-merge-nothing", "There is nothing to merge.", "MERGE-6",
        raises=True, parts=0)
