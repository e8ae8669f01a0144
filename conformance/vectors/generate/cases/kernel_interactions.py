"""What kernels treat apart: wide heads, a past, sinks far away, logits that rise, layers and entries."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from conformance.vectors.generate.cases.kernel_numbers import far
from conformance.vectors.generate.cases.kernels import given, poisoned
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.seeding import Sizes, box, seed, seeded, shapes, spread, whole
from conformance.vectors.seeded import Seed

# fmt: off


def drafts() -> Iterator[Draft]:
    """Wide heads, then a past, then numbers, then layers, gradients and entries."""
    yield from _wide()
    yield from _past()
    yield from _sinks()
    yield from _rising()
    yield from _values()
    yield from _layers()
    yield from _gradients()
    yield from _entries()


def _case(name: str, note: str, *covers: str, sizes: Sizes, **more: Any) -> Draft:
    more.setdefault("rows", spread(sizes.q_len, 2))
    return seeded(f"kernels/{name}", note, *covers, sizes=sizes, **more)


def _wide() -> Iterator[Draft]:
    """Each option where heads are so wide that a kernel takes other tiles, over several of them."""
    sizes = Sizes((2,), 2, 1, 5, 150, 160, 160)
    meetings: dict[tuple[str, ...], tuple[str, ...]] = {
        ("mask", "sinks", "lse"): ("MASK-1", "ATT-12"),
        ("bias", "window", "scale"): ("ATT-7", "MASK-10"),
        ("causal", "lengths", "softcap", "empty"): ("MASK-12", "ATT-5"),
        ("mask", "bias", "broadcast", "past"): ("MASK-2", "CACHE-1"),
    }
    for number, (options, covers) in enumerate(meetings.items()):
        of = replace(sizes, past=100) if "past" in options else sizes
        sampled = dict.fromkeys(("present_key", "present_value"), (149,)) if of.past else {}
        yield _case("-".join(("width-160", *options)),
            f"Heads of width 160 over 150 keys, with {' and '.join(options)}.", *covers,
            sizes=of, rows=(4,), only=("float32", "bfloat16") if number % 2 else ("float32", "float16"),
            sampled=sampled, **given(options, of, number))


def _past() -> Iterator[Draft]:
    """A past is no part of its own: causality, a window and the maximum go through it."""
    sizes = Sizes((2,), 4, 2, 4, 96, past=70)
    present = dict.fromkeys(("present_key", "present_value"), (0, 70))
    options: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
        "causal-inside": ("Queries that stand inside the past, as where positions are scored again",
            ("MASK-6", "MASK-8"), {"is_causal": True, "arrays": {"q_offset": whole(20, 51)}}),
        "window-inside": ("A window of queries that stand inside the past", ("MASK-10", "MASK-8"),
            {"window": [9, 3], "q_offset": 33}),
        "window-wider": ("A window that is wider than the past, of queries far behind it",
            ("MASK-10", "MASK-8"), {"window": [75, None], "q_offset": 90}),
        "window-of-new": ("A window that shows new keys alone", ("MASK-10", "MASK-8"),
            {"window": [10, 0], "q_offset": 86}),
        "mask-of-new": (
            "A mask that hides all of the past from one entry, and all that is new from the other",
            ("MASK-1",),
            {"seeds": {"mask": seed("mask", sizes.full,
                           boxes=(box(sizes.full, False, 0, slice(None), slice(None), slice(0, 70)),
                                  box(sizes.full, False, 1, slice(None), slice(None), slice(70, None))))}}),
    }
    for name, (words, covers, what) in options.items():
        yield _case(f"past-{name}", f"{words}; with the lse.", "CACHE-1", *covers,
            sizes=sizes, only=("float32", "float64") if "window" in name else ("float32", "bfloat16"),
            return_lse=True, sampled=present, **what)
    for power, sign, where in ((5, 1, "256"), (5, -1, "minus-256")):
        yield _case(f"past-logits-of-{where}",
            f"All logits lie about {where.replace('minus-', '-')}, those of the past and the new ones.",
            "CACHE-1", "ATT-2", "ATT-14", sizes=sizes, only=("float32", "bfloat16"), return_lse=True,
            sampled=present, seeds=_far_past(sizes, power, sign))


def _far_past(sizes: Sizes, power: int, sign: int) -> dict[str, Seed]:
    """`far`, of the past as well."""
    shape = shapes(sizes, False)["past_key"]
    past = seed("past_key", shape, boxes=(box(shape, sign * 2.0**power, slice(0, 1)),))
    return {**far(sizes, power, sign), "past_key": past}


def _sinks() -> Iterator[Draft]:
    """Sinks far above and far below all logits, over one part of the keys and over several."""
    for kv_len in (40, 300):
        for value, where in ((160.0, "above"), (-160.0, "below")):
            yield _case(f"sinks-far-{where}-{kv_len}",
                f"The sink of one head in two lies far {where} all logits; {kv_len} keys.",
                "ATT-12", "ATT-14", "ATT-2",
                sizes=Sizes((1,), 4, 2, 3, kv_len, 8, 8), only=("float32", "bfloat16"), return_lse=True,
                seeds={"sinks": seed("sinks", (4,), boxes=tuple(box((4,), value, h) for h in (1, 3)))})


def _rising() -> Iterator[Draft]:
    """Logits that rise from one part of the keys to the next, by little more than a kernel might let pass."""
    sizes = Sizes((1,), 2, 1, 4, 600, 8, 8)
    query, key = shapes(sizes, False)["query"], shapes(sizes, False)["key"]
    ones = seed("query", query, boxes=(box(query, 4.0, slice(0, 1)),))
    for step in (2.0, 16.0):
        steps = tuple(
            box(key, step * part, slice(100 * part, 100 * (part + 1)), slice(0, 1)) for part in range(6))
        yield _case(f"logits-rise-by-{step * 2**0.5:.0f}",
            f"The logits of each hundred keys lie {step * 2**0.5:.0f} above those before, six times.",
            "ATT-2", "ATT-14", sizes=sizes, only=("float32", "float16", "bfloat16"), return_lse=True,
            seeds={"query": ones, "key": seed("key", key, boxes=steps)})


def _values() -> Iterator[Draft]:
    """Values whose sum, before it is divided by the denominator, is more than float16 holds."""
    sizes = Sizes((1,), 2, 1, 3, 640, 8, 8)
    query, value = shapes(sizes, False)["query"], shapes(sizes, False)["value"]
    yield _case("values-of-256-640",
        "Half of the columns of 640 values are 256, and all weights are much alike: their sum is beyond 65,504.",
        "ATT-1", "NUM-3", sizes=sizes, only=("float16", "bfloat16"),
        seeds={"query": seed("query", query, power=-3),
               "value": seed("value", value, boxes=(box(value, 256.0, slice(0, 4)),))})


def _layers() -> Iterator[Draft]:
    """A layer whose path depends on its masks, its sizes of one, and on which operands are one array."""
    past = Sizes((2,), 4, 2, 6, 90, 8, 8, past=60, width=32)
    for name, more in (("mask", ("mask",)), ("bias", ("bias",)), ("mask-of-keys", ())):
        what = given(("window", *more), past, 1)
        if not more:
            what["seeds"] = {"mask": seed("mask", (2, 1, 1, 90))}
        yield _case(f"layer-past-window-{name}",
            f"A window begins behind the first key, in a past, with a {name.replace('-', ' ')}.", "CACHE-2",
            "MASK-10", "ATT-7" if name == "bias" else "MASK-1", sizes=past, only=("float32", "bfloat16"),
            sampled=dict.fromkeys(("present_key", "present_value"), (0, 60)), **what)
    layer = Sizes((2,), 4, 4, 5, 20, 8, 8, width=16)
    for name, sizes in (
        ("d_v", replace(layer, d_v=1)),
        ("d_k", replace(layer, d_k=1)),
        ("d_k-and-d_v", replace(layer, d_k=1, d_v=1, groups=2)),
        ("width", replace(layer, width=1)),
    ):
        yield _case(f"layer-{name.replace('_', '')}-of-one",
            f"A layer whose {name.replace('-', ' ')} is one, and no other axis.", "PROJ-1", "PROJ-3",
            sizes=sizes, only=("float32", "float16"))
    wide: tuple[tuple[str, Sizes, dict[str, Any]], ...] = (
        ("values-of-72", replace(layer, d_v=72), {}),
        ("groups-of-3", replace(layer, heads=12, groups=4), {}),
        ("width-200", replace(layer, width=200), {}),
        ("two-batch-axes-mask", replace(layer, batch=(2, 3)),
         {"seeds": {"mask": seed("mask", (2, 1, 4, 5, 20))}}),
    )
    for name, sizes, options in wide:
        yield _case(f"layer-{name}",
            f"A layer of {name.replace('-', ' ')}, where a kernel may have room for less.", "PROJ-1",
            "SHAPE-8" if "mask" in name else "PROJ-3", sizes=sizes, only=("float32", "bfloat16"), **options)
    yield _case("layer-mask-of-keys-lengths",
        "Lengths and a mask that heads and queries share, each of which hides keys that the other shows.",
        "MASK-12", "MASK-9", sizes=layer, only=("float32", "float16"), arrays={"kv_lengths": whole(13, 17)},
        seeds={"mask": seed("mask", (2, 1, 1, 20))})
    yield _case("layer-queries-70-offsets", "Causality over 70 queries, with an offset for each entry.",
        "MASK-6", "MASK-8", sizes=Sizes((2,), 2, 2, 70, 74, 8, 8, width=16), only=("float32", "bfloat16"),
        is_causal=True, arrays={"q_offset": whole(4, 1)})
    own = Sizes((2,), 4, 4, 24, 24, 8, 8, width=32)
    yield _case("layer-shared-key",
        "Query and key are one array, and the value is another of the same shape.", "PROJ-1", "IND-2",
        sizes=own, only=("float32", "bfloat16"), memory={"key": "shared"},
        seeds={"key": seed("query", shapes(own, False)["query"])})
    alike = {name: seed("query", shapes(own, True)["query"]) for name in ("query", "key", "value")}
    shared = dict.fromkeys(("key", "value"), "shared")
    ways: tuple[tuple[str, bool, dict[str, Any]], ...] = (
        ("layer-shared-causal", False, {"is_causal": True}),
        ("gradient-layer-shared-causal", True, {"is_causal": True}),
        ("gradient-layer-shared-scale", True, {"scale": 0.375}),
    )
    for name, backward, options in ways:
        of_rows = dict.fromkeys(("query", "key", "value", "w_q", "w_k", "w_v"), (0, 23))
        sampling: dict[str, Any] = {"sampled": {**of_rows, "w_o": (0, 7)}, "rows": None} if backward else {}
        yield _case(name, "Self-attention with every bias: query, key and value are one array.",
            "GRAD-10" if backward else "PROJ-1", "IND-2", sizes=own, backward=backward,
            only=("float32", "float16"), memory=shared, seeds=alike, **sampling, **options)


def _gradients() -> Iterator[Draft]:
    """A window over several blocks of queries, and a layer with NaN behind its lengths."""
    long = Sizes((1,), 2, 1, 150, 40, 8, 8)
    yield _case("gradient-queries-150-window",
        "A window over 150 queries, of which the last see the last keys.", "GRAD-3", "MASK-10",
        sizes=long, rows=None, backward=True, only=("float32", "float64"),
        sampled={"query": (20, 131, 149), "key": (0, 39), "value": (0, 39)}, window=[9, 3], q_offset=-110)
    layer, lengths = Sizes((3,), 2, 2, 5, 24, 8, 8, width=16), [10, 24, 0]
    yield _case("gradient-layer-nan-behind-lengths",
        "Tokens behind the length of each entry are NaN, which no gradient of a weight may show.",
        "GRAD-9", "GRAD-10", sizes=layer, rows=None, backward=True, only=("float32", "float16"),
        needs=("strict_masking",), sampled={"key": (0, 23), "value": (0, 23)},
        arrays={"kv_lengths": whole(*lengths)}, seeds=poisoned(layer, lengths))


def _entries() -> Iterator[Draft]:
    """One more than 16 bits count: few different operands, many entries."""
    sizes = Sizes((65537,), 1, 1, 1, 2, 1, 1)
    few = {name: seed(name, shape, bits=1, power=0) for name, shape in shapes(sizes, False).items()}
    yield _case("entries-65537", "65,537 entries of one query and two keys of width 1.", "ATT-1", "IND-3",
        sizes=sizes, rows=None, only=("float32",), seeds=few)
