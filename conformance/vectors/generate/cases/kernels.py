"""Options together where kernels take other paths: one query, few, many; at a whole tile, one less, one more.

Which options meet is designed (covering.py): no cell of option x size x path x dtype is empty, all pairs meet on each
path, all triples somewhere; of attention, of its gradients, and of the layer that people have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from conformance.vectors.case import Array
from conformance.vectors.generate.covering import Meeting, Wish, meetings
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.seeding import Sizes, box, seed, seeded, shapes, spread, whole
from conformance.vectors.seeded import Seed

# fmt: off

FORWARD = (
    *("mask", "bias", "causal", "offset", "window", "lengths", "scale", "softcap", "sinks", "weights", "lse"),
    *("past", "grouped", "value-dim", "broadcast", "empty"))
"""What may meet, as the IDs of cases say it."""
BACKWARD = tuple(option for option in FORWARD if option not in ("weights", "lse"))
NEEDS = {"offset": ("causal", "window"), "broadcast": ("mask", "bias"), "empty": ("lengths", "mask")}
DTYPES = (("float32", "bfloat16"), ("float64", "float16"))
TILES = {"whole": 0, "less": -1, "more": 1}
PATHS = ("decode", "chunk", "prompt")
QUERIES = {"decode": "One query", "chunk": "Four queries", "prompt": "As many queries as keys"}

WORDS = {"mask": "a mask", "bias": "a bias", "causal": "causality", "offset": "an offset",
    "window": "a window", "lengths": "lengths", "scale": "a scale", "softcap": "a softcap", "sinks": "sinks",
    "weights": "weights", "lse": "lse", "past": "a past", "grouped": "groups", "value-dim": "narrow values",
    "broadcast": "broadcasting", "empty": "empty rows"}
COVERS = {"mask": "MASK-1", "bias": "ATT-7", "causal": "MASK-6", "offset": "MASK-8", "window": "MASK-10",
    "lengths": "MASK-12", "scale": "ATT-4", "softcap": "ATT-5", "sinks": "ATT-12", "weights": "ATT-13",
    "lse": "ATT-14", "past": "CACHE-1", "grouped": "HEAD-2", "value-dim": "SHAPE-3", "broadcast": "SHAPE-8",
    "empty": "MASK-3"}
BACKWARD_COVERS = {"bias": "GRAD-5", "softcap": "GRAD-7", "sinks": "GRAD-8", "past": "GRAD-13",
    "grouped": "GRAD-6", "empty": "GRAD-4", "mask": "GRAD-3", "causal": "GRAD-3", "window": "GRAD-3",
    "lengths": "GRAD-3"}


_OF_SINK = {"sinks", "lse", "empty"}
"""Where these meet, the lse of some row is its sink; before 1.2 it was -inf, under a name without that."""


@dataclass(frozen=True)
class Kind:
    """One of the four operations, as this chapter asks it."""

    name: str  # how its cases begin
    options: tuple[str, ...]
    tiles: Mapping[str, int]  # path -> the tile that the keys fill
    rows: int  # that are stored
    heads: int = 4
    d_k: int = 16
    width: int = 0
    backward: bool = False
    always: tuple[str, ...] = ()

    @property
    def wish(self) -> Wish:
        """What has to meet."""
        places = [(tile, path) for path in self.tiles for tile in TILES]
        return Wish(self.options, places, DTYPES, NEEDS)


KINDS = (
    Kind("", FORWARD, {"decode": 256, "chunk": 128, "prompt": 128}, 3, always=("ATT-1",)),
    Kind("gradient-", BACKWARD, {"decode": 256, "chunk": 128, "prompt": 64}, 2,
         backward=True, always=("GRAD-1",)),
    Kind("layer-", FORWARD, {"decode": 128, "prompt": 128}, 2, width=64, always=("PROJ-1", "PROJ-3")),
    Kind("layer-gradient-", BACKWARD, {"prompt": 64}, 2, 2, 8, width=16, backward=True, always=("GRAD-10",)),
)


def drafts() -> Iterator[Draft]:
    """Every meeting of every kind."""
    for kind in KINDS:
        for meeting in meetings(kind.wish):
            yield _draft(kind, meeting)


def name_of(kind: Kind, meeting: Meeting) -> str:
    """The ID of the case of a meeting."""
    tile, path = meeting.place
    kv_len = kind.tiles[path] + TILES[tile]
    of_sink = ("of-sink",) if set(meeting.options) >= _OF_SINK else ()
    return "-".join((f"kernels/{kind.name}{path}", str(kv_len), *meeting.options, *of_sink))


def _draft(kind: Kind, meeting: Meeting) -> Draft:
    tile, path = meeting.place
    options, kv_len = meeting.options, kind.tiles[path] + TILES[tile]
    q_len = {"decode": 1, "chunk": 4, "prompt": kv_len}[path]
    sizes = Sizes(heads=kind.heads, groups=kind.heads // (2 if "grouped" in options else 1), q_len=q_len,
        kv_len=kv_len, d_k=kind.d_k, d_v=kind.d_k // 2 if "value-dim" in options else kind.d_k,
        past=(48 if path == "prompt" else kv_len - q_len) if "past" in options else 0, width=kind.width)
    covers = dict.fromkeys(kind.always)
    known = BACKWARD_COVERS if kind.backward else COVERS
    covers |= dict.fromkeys(known[option] for option in options if option in known)
    if set(options) >= _OF_SINK:
        covers["MASK-16"] = None
    words = " and ".join(", ".join(WORDS[o] for o in options).rsplit(", ", 1))
    return seeded(name_of(kind, meeting), f"{QUERIES[path]} over {kv_len} keys, with {words}.", *covers,
        sizes=sizes, backward=kind.backward, only=meeting.dtypes,
        **_rows(kind, sizes, options, meeting.number % 2),
        **given(options, sizes, meeting.number, kind.backward))


def _rows(kind: Kind, sizes: Sizes, options: tuple[str, ...], odd: int) -> dict[str, Any]:
    """Which rows of each result are stored."""
    if not kind.backward:
        rows = spread(sizes.q_len, kind.rows)
        sampled = {"weights": rows[-1:]} if "weights" in options else {}
        if "past" in options:
            sampled |= dict.fromkeys(("present_key", "present_value"), spread(sizes.kv_len, 4))
        return {"rows": rows, "sampled": sampled}
    new = sizes.kv_len - sizes.past
    sampled = {"query": spread(sizes.q_len, kind.rows)}
    sampled |= dict.fromkeys(("key", "value"), spread(new, kind.rows))
    if "bias" in options and not ("broadcast" in options and odd):
        sampled["attn_bias"] = spread(sizes.q_len, kind.rows)
    if kind.width:
        sampled |= dict.fromkeys(("w_q", "w_k", "w_v"), spread(kind.width, kind.rows))
        sampled["w_o"] = spread(sizes.d_v, kind.rows)
    return {"sampled": sampled}


def given(options: tuple[str, ...], sizes: Sizes, number: int, backward: bool = False) -> dict[str, Any]:
    """Seeds, stored operands and options of a call that has all of these."""
    found: dict[str, Any] = {}
    seeds: dict[str, Seed] = {}
    arrays: dict[str, Array] = {}
    odd = number % 2
    for flag, name in (("causal", "is_causal"), ("weights", "return_weights"), ("lse", "return_lse")):
        if flag in options:
            found[name] = True
    if "scale" in options:
        found["scale"] = 0.375
    if "softcap" in options:
        found["softcap"] = 2.0
    if "window" in options:
        found["window"] = [29, None] if odd else [40, 5]
    if "sinks" in options:
        seeds["sinks"] = seed("sinks", (sizes.heads,))
    if "lengths" in options:
        arrays["kv_lengths"] = _lengths(options, sizes.kv_len, odd)
    if "offset" in options or (sizes.q_len < sizes.kv_len and {"causal", "window"} & set(options)):
        first = sizes.kv_len - sizes.q_len - 11 if sizes.q_len < sizes.kv_len else 5
        if "offset" in options and not odd:
            arrays["q_offset"] = whole(first, first - 3)
        else:
            found["q_offset"] = first
    if "mask" in options:
        seeds["mask"] = _mask(options, sizes, odd)
    if "bias" in options:
        seeds["attn_bias"] = seed("attn_bias", _shared(sizes, "broadcast" in options, not odd))
    if "lengths" in options and not backward and not sizes.past:  # what a past returns is numbers
        seeds |= poisoned(sizes, [int(n) for n in arrays["kv_lengths"]])
    return {**found, "seeds": seeds, "arrays": arrays}


def _lengths(options: tuple[str, ...], kv_len: int, odd: int) -> Array:
    """They differ; with an empty entry before or after the other; a window still sees something."""
    long, short = kv_len - 9, kv_len - 17 if "window" in options else kv_len // 3 + 1
    if "empty" in options and "mask" not in options:
        short = 0
    return whole(short, long) if odd else whole(long, short)


def _mask(options: tuple[str, ...], sizes: Sizes, odd: int) -> Seed:
    """Some keys of each row; every row but the empty ones sees more than one."""
    broadcast = "broadcast" in options
    shape = (1, sizes.heads, sizes.q_len, sizes.kv_len) if broadcast and odd else sizes.full
    if broadcast and not odd:
        shape = (sizes.batch[0], 1, sizes.q_len, sizes.kv_len)
    boxes = [box(shape, True, slice(0, 8), slice(0, 12))]  # where causality shows few keys, all of them
    if "empty" in options:  # of one entry, or of all
        entry = slice(None) if shape[0] == 1 else slice(odd, odd + 1)
        rows = slice(sizes.q_len // 2, sizes.q_len // 2 + 1)
        boxes.append(box(shape, False, entry, slice(0, 1), rows, slice(None)))
    return seed("mask", shape, boxes=tuple(boxes))


def _shared(sizes: Sizes, broadcast: bool, rows: bool) -> tuple[int, ...]:
    """The shape of a bias: of everything, or shared by the batch and the queries or heads."""
    if not broadcast:
        return sizes.full
    return (1, 1, sizes.q_len, sizes.kv_len) if rows else (1, sizes.heads, 1, sizes.kv_len)


def poisoned(sizes: Sizes, lengths: list[int]) -> dict[str, Seed]:
    """Key and value with NaN behind the length of each entry, as far as they are new."""
    found = {}
    for name in ("key", "value"):
        shape = shapes(sizes, False)[name]
        boxes = []
        for entry, length in enumerate(lengths):
            first = max(length - sizes.past, 0)
            sides = [slice(entry, entry + 1), slice(first, None), slice(None)]
            if not sizes.width:
                sides.insert(1, slice(None))
            boxes.append(box(shape, float("nan"), *sides))
        made = seed(name, shape)
        found[name] = replace(made, boxes=tuple(boxes))
    return found
