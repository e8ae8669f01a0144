"""What goes wrong only beside something else: options in pairs, edges of blocks, sizes, numbers far from zero."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.bank.grad_reductions import narrow_sum
from conformance.defects.bank.mutators import dropped, only
from conformance.defects.blocks.tile import Tile, full
from conformance.defects.call import Call
from conformance.defects.defect import HALF, NARROW, Change, Defect, at
from conformance.defects.reference import REFERENCE as R
from conformance.defects.reference import column
from conformance.vectors.case import Array

HEIGHT, WIDTH = 32, 64
"""Queries and keys of a tile."""
OF_TILES = f"in tiles of {HEIGHT} queries and {WIDTH} keys"


def given(c: Call, *names: str) -> bool:
    """Whether all of these options are given."""
    return all(getattr(c, name) is not None for name in names)


def free(c: Call, *names: str) -> bool:
    """Whether none of them is."""
    return all(getattr(c, name) is None for name in names)


def only_seen(c: Call, lse: Array, visible: Array) -> Array:
    """The lse, -inf where a row sees no key."""
    return np.where(visible.any(axis=-1), lse, c.wide(-np.inf))


def apart(c: Call) -> bool:
    """Whether batch entries have different offsets."""
    return np.ndim(c.q_offset) > 0 and np.unique(c.q_offset).size > 1


def tile(c: Call) -> Tile:
    """The tiles of a call."""
    return Tile(c, HEIGHT, WIDTH)


def places(c: Call, of: Callable[[Any], Any]) -> Array:
    """The places of the queries by one offset of all entries, [q_len, 1]."""
    offset = 0 if c.q_offset is None or not np.size(c.q_offset) else of(c.q_offset)
    found: Array = np.arange(c.q_len)[:, None] + offset
    return found


def left_edge(c: Call) -> Any:
    """Tiles that are skipped, whose last key is the first of the window of their first query."""
    if c.window is None or c.window[0] is None:
        return False
    return tile(c).end <= tile(c).above(places(c, np.min)) - c.window[0] + 1


def right_edge(c: Call) -> Any:
    """Tiles that are skipped, whose first key is the last of the window of their last query."""
    if c.window is None or c.window[1] is None:
        return False
    return tile(c).begin >= tile(c).below(places(c, np.max)) + c.window[1]


def read_bias(change: Callable[[Call, Array], Any]) -> Change:
    """A bias that is read otherwise, and is given its gradient as it should be: c, bias -> bias."""

    def other(c: Call) -> Call:
        return c if c.attn_bias is None else replace(c, attn_bias=change(c, c.attn_bias))

    return {"bias": lambda c, x: R.bias(other(c), x), "by_bias": lambda c: R.by_bias(other(c))}


def in_dtype(*names: str, of: Callable[[Call], Any] = lambda c: c.dtype) -> Change:
    """Numbers that are rounded to a dtype, that of the call if no other is named."""

    def accept(c: Call) -> Call:
        numbers: dict[str, Any] = {name: getattr(c, name) for name in names if given(c, name)}
        for name, x in numbers.items():
            numbers[name] = float(np.asarray(x).astype(of(c)))
        return replace(c, **numbers)

    return {"accept": accept}


def _skipped(skip: Callable[[Call], Any]) -> Change:
    return {"intersect": lambda c, rules: R.intersect(c, rules) & ~np.asarray(skip(c))}


def _by_first_head(c: Call) -> Array:
    shown = full(c, c.mask)
    return shown & tile(c).touched(shown[..., :1, :, :] if shown.ndim > 2 else shown)


def _repeated(c: Call, bias: Array) -> Array:
    """The entries of a bias one after the other, as often as it takes, whichever axis of the batch shares them."""
    count = int(np.prod(c.batch))
    if bias.ndim < 4 or not bias.size or not count:
        return bias
    entries = bias.reshape(-1, *bias.shape[-3:])
    return entries[np.arange(count) % len(entries)].reshape(*c.batch, *bias.shape[-3:])


def _of_smallest(c: Call, logits: Array, visible: Array) -> Any:
    """The largest product times a negative scale: the smallest logit."""
    found = -R.peak(replace(c, sinks=None), -logits, visible)
    return found if c.sinks is None else np.maximum(found, column(c, c.sinks))


def _over_slots(c: Call, logits: Array, visible: Array) -> Any:
    """Slots behind the length hold zeros, so their logits are zero."""
    found = R.peak(c, logits, visible)
    unused = c.kv_lengths[..., None, None, None] < c.kv_len
    return np.where(unused, np.maximum(found, c.wide(0)), found)


def _by_exponential(c: Call, x: Array) -> Any:
    cap = c.wide(c.softcap)
    return cap * (1 - 2 / (np.exp(2 * x / cap) + 1))


def _chunks(name: str) -> Callable[[Call], Array]:
    """A projection that goes by 16 columns of its input and keeps its sum in the dtype of the call."""

    def project(c: Call) -> Array:
        x, w, b = (getattr(c, n) for n in (name, f"w_{name[0]}", f"b_{name[0]}"))
        cut = [slice(i, i + 16) for i in range(0, max(x.shape[-1], 1), 16)]
        parts = [c.widen(x)[..., None, :, part] @ c.widen(w)[:, part] for part in cut]
        summed: Array = narrow_sum(np.stack(parts), 0, c.dtype)
        return summed if b is None else summed + c.widen(b)[:, None, :]

    return project


def _head_by_head(c: Call, heads: Array) -> Array:
    summed: Array = narrow_sum(heads @ c.widen(c.w_o), -3, c.dtype)
    return summed if c.b_o is None else summed + c.widen(c.b_o)


NO_PEAK: Change = {"peak": lambda c, logits, visible: c.wide(0)}
IN_RANGE = at("float64", "its exponentials are numbers where those of float32 overflow or underflow")

Row = tuple[str, str, tuple[str, ...], tuple[str, ...], Callable[[Call], Any], Change]
"""Id, sentence, requirements, features, where it acts, what is done there."""

PAIRS: tuple[Row, ...] = (
    ("decode-mask-dropped-beside-bias", "With a single query the mask is ignored where a bias is given.",
     ("MASK-2", "MASK-9"), ("mask", "attn_bias"),
     lambda c: c.q_len == 1 and given(c, "attn_bias"), dropped("mask")),
    ("lengths-dropped-beside-window-and-offsets",
     "kv_lengths are ignored beside a window where batch entries have different offsets.",
     ("MASK-9", "MASK-12"), ("kv_lengths", "window", "q_offset"),
     lambda c: given(c, "window") and apart(c), dropped("kv_lengths")),
    ("sinks-capped-beyond-64-keys",
     "Beyond 64 keys the sinks are bent by the softcap, where no bias is given.", ("ATT-12", "ATT-6"),
     ("sinks", "softcap"),
     lambda c: given(c, "sinks", "softcap") and free(c, "attn_bias") and c.kv_len > WIDTH,
     {"accept": lambda c: replace(c, sinks=R.cap(c, c.widen(c.sinks)).astype(c.sinks.dtype))}),
    ("layer-scale-by-d-v-beside-softcap",
     "The default scale of your layer comes from the width of the values where a softcap is given.",
     ("ATT-3", "PROJ-7"), ("softcap",),
     lambda c: c.layer and given(c, "softcap") and free(c, "scale"), {"scale": lambda c: c.d_v**-0.5}),
    ("bias-of-one-of-two-batch-axes-repeated",
     "A bias that one of several batch axes shares is flattened over them and repeated: entries get another's.",
     ("SHAPE-8", "SHAPE-4"), ("attn_bias",), lambda c: len(c.batch) > 1, read_bias(_repeated)),
    ("lse-of-causal-empty-row-loses-sink",
     "Under causality the lse of a row that sees nothing is -inf and not its sink.", ("MASK-16", "ATT-14"),
     ("sinks", "is_causal", "return_lse"), lambda c: c.is_causal and given(c, "sinks"),
     {"log": lambda c, total, peak, visible: only_seen(c, R.log(c, total, peak, visible), visible)}),
    ("bias-column-in-first-block-only", "A bias of one column is added in the first block of 64 keys only.",
     ("SHAPE-8", "ATT-8"), ("attn_bias",), lambda c: given(c, "attn_bias") and c.attn_bias.shape[-1] == 1,
     read_bias(lambda c, bias: np.where(c.columns < WIDTH, bias, bias.dtype.type(0)))),
    ("mask-row-in-first-block-only", "A mask of one row acts in the first block of 32 queries only.",
     ("SHAPE-8", "MASK-1"), ("mask",), lambda c: given(c, "mask") and c.mask.shape[-2] == 1,
     {"by_mask": lambda c: c.mask | (np.arange(c.q_len) >= HEIGHT)[:, None]}),
    ("mask-tile-skipped-by-first-head", f"What the mask hides from the first head is skipped for all, {OF_TILES}.",
     ("HEAD-1", "MASK-1"), ("mask",), lambda c: given(c, "mask") and c.q_len > 1, {"by_mask": _by_first_head}),
    ("groups-beyond-16-read-next", "In groups of more than 16 query heads each next 16 read the next key head.",
     ("HEAD-2",), ("gqa",), lambda c: c.heads // c.kv_heads > 16,
     {"repeat": lambda c, x: np.take(x, np.arange(c.heads) // 16 % c.kv_heads, axis=-3)}),
    ("key-width-beyond-256-lost", "Query and key are multiplied up to a width of 256 only.", ("ATT-1",), (),
     lambda c: c.d_k > 256, {"score": lambda c, q, k, scale: R.score(c, q[..., :256], k[..., :256], scale)}),
)  # fmt: skip

DEFECTS = (
    *(Defect(name, sentence, violates, only(change, when), features=features)
      for name, sentence, violates, features, when, change in PAIRS),
    Defect("window-left-tile-skipped-one-early",
           "Tiles are skipped whose last key is the first that the window of their first query shows.",
           ("MASK-10",), _skipped(left_edge), features=("window",), detail=OF_TILES),
    Defect("window-right-tile-skipped-one-early",
           "Tiles are skipped whose first key is the last that the window of their last query shows.",
           ("MASK-10",), _skipped(right_edge), features=("window",), detail=OF_TILES),
    Defect("softmax-maximum-of-unscaled-products",
           "The largest product is taken before a negative scale: it is that of the smallest logit.",
           ("ATT-2", "ATT-4"),
           only({"peak": _of_smallest},
                lambda c: given(c, "scale") and c.scale < 0 and free(c, "softcap", "attn_bias")),
           features=("scale",), unobservable=IN_RANGE),
    Defect("softmax-maximum-of-unused-slots",
           "The maximum is searched in slots of zeros behind the length too, so that rows far below zero underflow.",
           ("MASK-12", "ATT-2"), only({"peak": _over_slots}, lambda c: given(c, "kv_lengths")),
           features=("kv_lengths",)),
    Defect("softmax-without-maximum-beside-softcap",
           "No maximum is subtracted where a softcap bounds the logits, but neither bias nor sinks are given.",
           ("ATT-2", "ATT-5"), only(NO_PEAK, lambda c: given(c, "softcap") and free(c, "attn_bias", "sinks")),
           features=("softcap",), unobservable=IN_RANGE),
    Defect("softcap-tanh-by-exponential",
           "Your hyperbolic tangent is 1 - 2 / (exp(2 x) + 1), which loses digits of what is far below the cap.",
           ("ATT-5", "NUM-1"), only({"cap": _by_exponential}, lambda c: given(c, "softcap")),
           features=("softcap",),
           admitted=at(HALF, "the digits that are lost in float32 are beyond those of the dtype")),
    Defect("layer-options-in-dtype-of-call", "Scale and softcap of your layer are rounded to the dtype of the call.",
           ("ATT-4", "ATT-5", "PROJ-7"), only(in_dtype("scale", "softcap"), lambda c: c.layer), unobservable=NARROW),
    Defect("layer-options-in-float32", "Scale and softcap of your layer are rounded to float32 in a float64 call.",
           ("NUM-4",), only(in_dtype("scale", "softcap", of=lambda c: np.float32), lambda c: c.layer),
           unobservable=at(("float32", *HALF), "float32 is what these are computed in")),
    Defect("projections-in-narrow-chunks",
           "The projections go by 16 columns of the input and keep their sums in the dtype of the call.",
           ("NUM-3", "PROJ-1"),
           only({f"project_{name}": _chunks(name) for name in ("query", "key", "value")}, lambda c: c.layer),
           unobservable=NARROW),
    Defect("heads-summed-in-dtype-of-call",
           "The output projection adds head after head to an output in the dtype of the call.",
           ("NUM-3", "PROJ-3"), only({"merge": _head_by_head}, lambda c: c.layer), unobservable=NARROW),
)  # fmt: skip
