"""Call k of seed n at production size: a function of the two and of what the target claims; memory only leaves out."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from conformance.exploring.claims import Claims
from conformance.exploring.counter import Dice
from conformance.exploring.large.call import EVERY, LOUD, Large
from conformance.exploring.large.edges import BACKWARD
from conformance.exploring.large.sampling import affordable
from conformance.names import MHA, MHA_VJP, SDPA, SDPA_VJP

WIDTHS = ((64, 64), (128, 128), (64, 64), (128, 128), (256, 256), (192, 128), (576, 512), (96, 96))
GROUPS = ((8, 1), (8, 8), (32, 8), (16, 2), (4, 4), (5, 1), (1, 1))
EDGE = (-1, 0, 1)
MOST_MASK = 1 << 26
"""Places of a mask of rank 2."""
MOST_COUNTED = 1 << 22
"""Places of a mask over which keys are counted, whose sums are found anew for each row or entry."""
SCALE = 0.125
"""The usual one of 64 columns; of wider heads it sets the key that is asked for further apart from the others."""
TRIES = 8


@dataclass(frozen=True)
class Shape:
    """A kind of sizes that production has."""

    name: str
    make: Callable[[Dice], Large]
    gradients: bool = False
    layer: bool = False

    @property
    def operation(self) -> str:
        """What is asked."""
        return (MHA_VJP if self.gradients else MHA) if self.layer else SDPA_VJP if self.gradients else SDPA


def _around(dice: Dice, *sizes: int) -> int:
    """One of some sizes, or one beside it."""
    return dice.choice(sizes) + dice.choice(EDGE)


def _long(dice: Dice) -> Large:
    heads, groups = dice.choice(GROUPS)
    d_k, d_v = dice.choice(WIDTHS)
    kv_len = _around(dice, 131_072, 131_072, 65_536, 32_768)
    return Large(batch=dice.choice((1, 1, 2)), heads=heads, groups=groups, q_len=dice.choice((1, 1, 1, 2, 4, 7)),
                 kv_len=kv_len, d_k=d_k, d_v=d_v)  # fmt: skip


def _entries(dice: Dice) -> Large:
    return Large(batch=_around(dice, 65_536, 65_536, 131_072), heads=1, q_len=dice.between(1, 4),
                 kv_len=dice.between(1, 9))  # fmt: skip


def _both(dice: Dice) -> Large:
    heads = dice.choice((8, 16, 32, 256))
    return Large(batch=65_536 // heads + dice.between(0, 2), heads=heads, groups=dice.choice((1, heads)),
                 q_len=dice.between(1, 4), kv_len=dice.between(1, 9))  # fmt: skip


def _heads(dice: Dice) -> Large:
    heads = _around(dice, 256, 512, 65_536)
    length = dice.between(17, 300) if heads < 600 else dice.between(1, 9)
    return Large(batch=dice.choice((1, 2)), heads=heads, groups=dice.choice((1, heads)),
                 q_len=min(length, dice.choice((1, 4, 33))), kv_len=length)  # fmt: skip


def _square(dice: Dice) -> Large:
    length = _around(dice, 4096, 4096, 8192, 16_384)
    heads, groups = dice.choice(((1, 1), (2, 1), (4, 4)))
    d_k, d_v = dice.choice(WIDTHS)
    return Large(heads=heads, groups=groups, q_len=length, kv_len=length, d_k=d_k, d_v=d_v)


def _chunk(dice: Dice) -> Large:
    d_k, d_v = dice.choice(WIDTHS[:5])
    heads, groups = dice.choice(((1, 1), (4, 1), (8, 2)))
    return Large(heads=heads, groups=groups, q_len=_around(dice, 64, 128, 256),
                 kv_len=_around(dice, 16_384, 32_768, 65_536, 131_072), d_k=d_k, d_v=d_v)  # fmt: skip


def _tall(dice: Dice) -> Large:
    return Large(heads=dice.choice((1, 2)), q_len=_around(dice, 65_536, 131_072), kv_len=dice.between(2, 200))


def _served(dice: Dice) -> Large:
    heads, groups = dice.choice(((8, 1), (8, 2), (4, 4)))
    return Large(batch=_around(dice, 32, 64, 128), heads=heads, groups=groups, q_len=dice.choice((1, 1, 3)),
                 kv_len=_around(dice, 1024, 2048, 4096))  # fmt: skip


def _keys_beyond(dice: Dice) -> Large:
    return Large(heads=32, groups=32, q_len=1, kv_len=524_288 + dice.between(1, 9), d_k=128, d_v=128)


def _rows_beyond(dice: Dice) -> Large:
    return Large(
        heads=32, groups=32, q_len=524_288 + dice.between(1, 9), kv_len=dice.between(2, 9), d_k=128, d_v=128
    )


def _pairs_beyond(dice: Dice) -> Large:
    return Large(q_len=_around(dice, 65_536), kv_len=32_768 + dice.between(1, 300))


def _square_gradients(dice: Dice) -> Large:
    heads, groups = dice.choice(((1, 1), (2, 1)))
    return Large(heads=heads, groups=groups, q_len=(length := _around(dice, 1024, 2048, 4096)), kv_len=length,
                 d_k=(width := dice.choice((64, 64, 128))), d_v=width)  # fmt: skip


def _long_gradients(dice: Dice) -> Large:
    return Large(
        heads=4, groups=dice.choice((1, 4)), q_len=dice.between(1, 32), kv_len=_around(dice, 32_768, 65_536)
    )


def _many_gradients(dice: Dice) -> Large:
    heads = dice.choice((1, 8))
    return Large(batch=65_536 // heads + dice.between(0, 2), heads=heads, groups=heads, q_len=dice.between(1, 3),
                 kv_len=dice.between(2, 6))  # fmt: skip


def _long_layer(dice: Dice) -> Large:
    heads, groups = dice.choice(((4, 4), (4, 1), (8, 2), (16, 4)))
    return Large(heads=heads, groups=groups, q_len=dice.choice((1, 3, 64, 65)),
                 kv_len=_around(dice, 4096, 8192, 16_384))  # fmt: skip


def _square_layer(dice: Dice) -> Large:
    heads, groups = dice.choice(((4, 4), (4, 1), (8, 2)))
    return Large(heads=heads, groups=groups, q_len=(length := _around(dice, 2048, 4096)), kv_len=length)


def _headed_layer(dice: Dice) -> Large:
    heads = _around(dice, 64, 64, 96, 128)
    return Large(batch=dice.choice((1, 2)), heads=heads, groups=dice.choice((1, heads)), q_len=dice.between(1, 5),
                 kv_len=dice.between(9, 40))  # fmt: skip


def _many_layer(dice: Dice) -> Large:
    heads = dice.choice((1, 2))
    return Large(batch=65_536 // heads + dice.between(0, 2), heads=heads, groups=heads, q_len=dice.between(1, 2),
                 kv_len=dice.between(2, 4))  # fmt: skip


def _layer_gradients(dice: Dice) -> Large:
    heads, groups = dice.choice(((4, 4), (4, 2), (65, 65)))
    length = _around(dice, 1024, 2048) if heads == 4 else dice.between(5, 40)
    return Large(heads=heads, groups=groups, q_len=length, kv_len=length)


SHAPES = (
    Shape("65,536 entries", _entries),
    Shape("65,536 entries times heads", _both),
    Shape("many heads", _heads),
    Shape("many entries of thousands of keys", _served),
    Shape("65,536 queries and more", _tall),
    Shape("a chunk of queries over 16,384 keys and more", _chunk),
    Shape("one query over 131,072 keys", _long),
    Shape("4,096 to 16,384 queries and keys", _square),
    Shape("gradients of 65,536 entries times heads", _many_gradients, True),
    Shape("gradients of few queries over 32,768 keys and more", _long_gradients, True),
    Shape("gradients of 1,024 to 4,096 queries and keys", _square_gradients, True),
    Shape("keys of more than 2^31 numbers", _keys_beyond),
    Shape("queries of more than 2^31 numbers", _rows_beyond),
    Shape("more than 2^31 pairs of a query and a key", _pairs_beyond),
    Shape("a layer of 64 heads and more", _headed_layer, layer=True),
    Shape("a layer of few queries over 4,096 keys and more", _long_layer, layer=True),
    Shape("gradients of a layer", _layer_gradients, True, layer=True),
    Shape("a layer of 65,536 entries times heads", _many_layer, layer=True),
    Shape("a layer of 2,048 and 4,096 queries and keys", _square_layer, layer=True),
)
"""In the order of the first round, the cheapest first, those of layers last."""


def draw(claims: Claims, seed: int, number: int) -> tuple[Shape, Large] | None:
    """Call `number` of a seed and the kind of its sizes; None where the target claims too little for it."""
    shapes = tuple(s for s in SHAPES if s.operation in claims.operations)
    if not shapes:
        return None
    round_, place = divmod(number, len(shapes))
    order = shapes if round_ == 0 else Dice("shapes", seed, round_).order(shapes)
    shape = order[place]
    for attempt in range(TRIES):
        dice = Dice("large", seed, number, attempt)
        call = _optional(claims, shape.make(dice), dice)
        call = replace(call, dtype=_dtype(claims, dice), operation=shape.operation)
        call = _filled(claims, call, dice)
        needed = needs(call)
        if needed <= claims.features and (not claims.wanted or claims.wanted & needed):
            return shape, call
    return None


@cache
def _weighted(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of production more often."""
    return tuple(itertools.chain.from_iterable([d] * (1 if d == "float64" else 3) for d in dtypes))


def _dtype(claims: Claims, dice: Dice) -> str:
    return dice.choice(_weighted(claims.dtypes))


def _optional(claims: Claims, call: Large, dice: Dice) -> Large:
    """Some of the options that the target claims."""
    c, features = call, claims.features
    if c.groups < c.heads and "gqa" not in features:
        c = replace(c, groups=c.heads) if c.heads <= 8 else replace(c, heads=c.groups)
    if c.d_k != c.d_v and "value_dim" not in features:
        c = replace(c, d_v=c.d_k)
    if "kv_lengths" in features and dice.chance(40):
        c = replace(c, lengths=True)
    if "is_causal" in features and dice.chance(50):
        c = replace(c, causal=True)
    if {"window", "q_offset"} <= features and dice.chance(25):
        left = dice.choice((0, 127, 128, 1023, 4095, 4096, c.kv_len // 2))
        c = replace(c, window=(left, dice.choice((0, 0, None, 64))))
    if c.causal or c.window is not None:
        last = max(c.kv_len - c.q_len, 0)
        if "q_offset" in features:
            c = replace(c, offset=EVERY if c.lengths and dice.chance(70) else last)
        elif c.q_len != c.kv_len:
            c = replace(c, causal=False, window=None)
    hiding = [name for name in ("mask", "attn_bias") if name in features]
    if hiding and dice.chance(20):
        kinds = ["k"] if "broadcast" in features or c.q_len == c.heads == 1 else []
        kinds += ["q"] if c.q_len * c.kv_len <= MOST_MASK else []
        mask = dice.choice(kinds) if kinds else ""
        c = replace(c, mask=mask, biased=bool(mask) and dice.choice(hiding) == "attn_bias")
    if "scale" in features and dice.chance(15):
        c = replace(c, scale=SCALE)
    if "return_lse" in features and dice.chance(30):
        c = replace(c, lse=True)
    return c


def _filled(claims: Claims, call: Large, dice: Dice) -> Large:
    """What the numbers are made for."""
    kind, stream = dice.below(100), dice.below(2**24)
    c = replace(call, stream=stream)
    if c.gradients:
        c = replace(c, lse=False, mask="" if c.biased else c.mask, biased=False)
        sampled = replace(c, family="sampled")
        if kind >= 75 and affordable(sampled):
            long = c.group * c.q_len * c.kv_len > BACKWARD
            return replace(sampled, few=long and dice.chance(50))
        c = replace(c, bias=c.layer and dice.chance(50))
        return replace(c, members=2, strided=dice.chance(60) or c.layer)
    c = _more(claims, c, dice)
    if c.layer:
        c = replace(c, past=0)
    counted = {"": 0, "k": c.batch * c.kv_len, "q": c.q_len * c.kv_len}[c.mask]
    if kind < 15 and counted <= MOST_COUNTED:
        return _capped(replace(c, family="counts", levels=dice.choice((1, 4))))
    if kind < 35 and c.dtype != "float64" and (affordable(c) or not c.layer):
        return _capped(replace(c, family="sampled", levels=dice.choice((1, 4))))
    members = dice.choice((1, 1, 2, LOUD, LOUD))
    if c.layer:
        c = replace(c, bias=dice.chance(50))
    if c.kv_len < members or (c.d_v < LOUD + 16 and members == LOUD):
        members = 1
    return _capped(replace(c, members=members, strided=members > 1 and dice.chance(50)))


CAPS = {"counts": 2.0, "sampled": 30.0, "address": 256.0}
"""Softcaps that show in the weights, and one that leaves the key that is asked for alone."""


def _more(claims: Claims, call: Large, dice: Dice) -> Large:
    """Options that gradients in closed form have not; which softcap it is follows from the family."""
    c, features = call, claims.features
    if "softcap" in features and dice.chance(20):
        c = replace(c, softcap=1.0)
    if "sinks" in features and dice.chance(20):
        c = replace(c, sinks=True)
    if "cache" in features and c.kv_len > 1 and dice.chance(20):
        c = replace(c, past=dice.choice((1, c.kv_len // 2, c.kv_len - 1, max(c.kv_len - c.q_len, 1))))
    return c


def _capped(call: Large) -> Large:
    return call if call.softcap is None else replace(call, softcap=CAPS[call.family])


def needs(call: Large) -> frozenset[str]:
    """The features that a call needs."""
    c = call
    first = offset_least(c)
    beyond = c.offset != EVERY and (c.lengths or first + c.q_len > c.kv_len)
    found = {
        "mask": bool(c.mask) and not c.biased, "attn_bias": bool(c.mask) and c.biased,
        "softcap": c.softcap is not None, "sinks": c.sinks, "cache": c.past > 0, "scale": c.scale is not None,
        "broadcast": c.mask == "k" and (c.heads > 1 or c.q_len > 1), "is_causal": c.causal,
        "q_offset": c.offset is not None, "window": c.window is not None, "kv_lengths": c.lengths,
        "return_lse": c.lse, "gqa": c.groups < c.heads, "value_dim": c.d_k != c.d_v,
        "empty": bool(c.mask) or (c.causal and first < 0) or (c.window is not None and (first < 0 or beyond)),
    }  # fmt: skip
    return frozenset(name for name, needed in found.items() if needed)


def offset_least(call: Large) -> int:
    """Where the first query stands at least."""
    if call.offset == EVERY:
        return min(call.q_len, call.kv_len) - call.q_len
    return int(call.offset or 0)
