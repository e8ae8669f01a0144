"""Sizes that kernels have, one thing at a time: long decoding, widths, groups, entries, counts, whole tiles, layers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.vectors.generate.cases.kernels import given, poisoned
from conformance.vectors.generate.draft import Draft
from conformance.vectors.generate.seeding import Sizes, box, seed, seeded, spread, whole

# fmt: off

SINGLE, HALF = ("float32", "bfloat16"), ("float16", "bfloat16")


def drafts() -> Iterator[Draft]:
    """Forward, then gradients, then the layer."""
    yield from _decoding()
    yield from _widths()
    yield from _groups()
    yield from _entries()
    yield from _counts()
    yield from _tiles()
    yield from _gradients()
    yield from _layers()


def _case(name: str, note: str, *covers: str, sizes: Sizes, **more: Any) -> Draft:
    more.setdefault("rows", spread(sizes.q_len, 3))
    return seeded(f"kernels/{name}", note, *covers, sizes=sizes, **more)


def _gradient(name: str, note: str, *covers: str, sizes: Sizes, **more: Any) -> Draft:
    sampled = {"query": spread(sizes.q_len, 2)}
    sampled |= dict.fromkeys(("key", "value"), spread(sizes.kv_len - sizes.past, 2))
    if sizes.width:
        sampled |= dict.fromkeys(("w_q", "w_k", "w_v"), spread(sizes.width, 2))
        sampled["w_o"] = spread(sizes.d_v, 2)
    sampled |= more.pop("sampled", {})
    more.setdefault("only", ("float32",))
    return seeded(f"kernels/gradient-{name}", note, *covers,
        sizes=sizes, backward=True, sampled=sampled, **more)


def _decoding() -> Iterator[Draft]:
    """One query over keys that are read in parts, and a few."""
    long = Sizes(groups=2, kv_len=1024)
    for kv_len, dtypes in ((1023, ("float64", "float16")), (1024, SINGLE), (1025, ("float32", "float16"))):
        yield _case(f"decode-{kv_len}", f"One query over {kv_len} keys, in parts that are alike or not.",
            "ATT-1", "ATT-14", sizes=replace(long, kv_len=kv_len), only=dtypes, return_lse=True)
    yield _case("decode-4096-in-16-bits", "Sums over 4,096 keys, of operands of 16 bits.", "ATT-1", "NUM-3",
        sizes=Sizes((1,), 2, 1, 1, 4096, 8, 8), only=HALF)
    yield _case("decode-4097-lse", "One query over 4,097 keys.", "ATT-1", "ATT-14",
        sizes=Sizes((1,), 2, 1, 1, 4097, 8, 8), only=("float32",), return_lse=True)
    yield _case("decode-1024-large-logits", "Logits of hundreds: no part can be merged without its maximum.",
        "ATT-2", "ATT-14", sizes=long, only=("float32", "bfloat16", "float64"), return_lse=True,
        seeds={"query": seed("query", (2, 4, 1, 16), power=6)})
    yield _case("decode-1024-lengths-empty",
        "A length ends in the second of four parts; an empty entry stands before and after it.",
        "MASK-12", "MASK-3", sizes=replace(long, batch=(3,)), return_lse=True,
        arrays={"kv_lengths": whole(0, 300, 0)}, seeds=poisoned(replace(long, batch=(3,)), [0, 300, 0]))
    yield _case("decode-1024-window", "A window reads the last of four parts; the others show nothing.",
        "MASK-10", "MASK-8", sizes=long, return_lse=True, window=[100, 0], q_offset=1023)
    yield _case("decode-1024-window-of-300",
        "The left side of a window is 300, and the offset of each entry is its own.", "MASK-10", "MASK-8",
        sizes=long, is_causal=True, window=[300, None], arrays={"q_offset": whole(1023, 511)})
    yield _case("decode-1024-sinks", "A sink counts once, however many parts there are.", "ATT-12", "ATT-14",
        sizes=long, return_lse=True, seeds={"sinks": seed("sinks", (4,), power=2)})
    yield _case("decode-1024-mask-scale", "A mask hides the two parts in the middle.", "MASK-1", "ATT-4",
        sizes=long, scale=0.375,
        seeds={"mask": seed("mask", (2, 4, 1, 1024), boxes=(box((2, 4, 1, 1024), False, slice(256, 768)),))})
    yield _case("decode-1024-bias-window", "A bias of its own for each key, beside a window.",
        "ATT-7", "MASK-10", sizes=long, window=[600, 0], q_offset=1000,
        seeds={"attn_bias": seed("attn_bias", (2, 4, 1, 1024), power=2)})
    yield _case("decode-1024-softcap-lengths", "A softcap and lengths, with groups.",
        "ATT-5", "MASK-12", "HEAD-2",
        sizes=long, softcap=1.5, arrays={"kv_lengths": whole(1000, 513)}, seeds=poisoned(long, [1000, 513]))
    yield _case("decode-1024-past-sinks-lse", "The lse counts the sink, with a past of 1,023.",
        "ATT-12", "ATT-14", "CACHE-1", sizes=replace(long, past=1023),
        sampled=dict.fromkeys(("present_key", "present_value"), (0, 511, 1023)), return_lse=True,
        seeds={"sinks": seed("sinks", (4,), power=1)})
    yield _case("sixteen-1024-causal-lengths",
        "Sixteen queries over 1,024 keys, as in speculative decoding; entries differ.", "MASK-9", "MASK-12",
        sizes=replace(long, q_len=16), is_causal=True,
        arrays={"kv_lengths": whole(1024, 700), "q_offset": whole(1008, 684)},
        seeds=poisoned(replace(long, q_len=16), [1024, 700]))
    yield _case("four-4096-causal", "Four queries at the end of 4,096 keys.", "MASK-6", "MASK-8",
        sizes=Sizes((1,), 2, 1, 4, 4096, 8, 8), only=("float32",), is_causal=True, q_offset=4092)


def _widths() -> Iterator[Draft]:
    """Heads as wide as models have them."""
    for d_k, d_v in ((64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256), (576, 512), (64, 192)):
        name = f"{d_k}" if d_k == d_v else f"{d_k}-{d_v}"
        yield _case(f"width-{name}-causal",
            f"Keys of width {d_k} and values of width {d_v}, causal, over a whole tile.",
            "ATT-3", "MASK-6", "ATT-14", sizes=Sizes((1,), 2, 1, 16, 128, d_k, d_v), rows=(15,),
            is_causal=True, q_offset=112, return_lse=True)


def _groups() -> Iterator[Draft]:
    """Groups that fill no block of 16 heads, or more than one."""
    for group in (5, 16, 24, 48):
        yield _case(f"groups-of-{group}", f"Two key heads, each shared by {group} query heads; one query.",
            "HEAD-2", "ATT-14", sizes=Sizes((1,), 2 * group, 2, 1, 64, 16, 8), return_lse=True)
    yield _case("groups-of-24-mask-bias", "Each of 48 heads has a mask and a bias of its own.",
        "HEAD-2", "MASK-2", sizes=Sizes((1,), 48, 2, 4, 64, 16, 8), rows=(3,),
        seeds={"mask": seed("mask", (1, 48, 4, 64)), "attn_bias": seed("attn_bias", (1, 48, 4, 64))})


def _entries() -> Iterator[Draft]:
    """Batches whose entries differ, and many heads and entries."""
    five = Sizes((5,), 4, 2, 4, 128)
    lengths, offsets = [0, 128, 0, 45, 100], whole(124, 60, 3, 41, 96)
    yield _case("entries-of-five",
        "Five entries with lengths and offsets of their own, an empty one before and after a full one.",
        "MASK-12", "MASK-8", "MASK-3", sizes=five, return_lse=True, is_causal=True,
        arrays={"kv_lengths": whole(*lengths), "q_offset": offsets}, seeds=poisoned(five, lengths))
    yield _case("entries-equal-lengths", "The lengths of all entries are equal, and less than the keys.",
        "MASK-12", sizes=Sizes(groups=2, q_len=4, kv_len=128), arrays={"kv_lengths": whole(100, 100)},
        seeds=poisoned(Sizes(groups=2, q_len=4, kv_len=128), [100, 100]))
    yield _case("entries-whole-lengths", "Lengths of one tile and of two, within three.", "MASK-12",
        sizes=Sizes(groups=2, q_len=4, kv_len=192), arrays={"kv_lengths": whole(64, 128)},
        seeds=poisoned(Sizes(groups=2, q_len=4, kv_len=192), [64, 128]))
    yield _case("entries-lengths-window-offsets",
        "Lengths of 129 and 84 within 256, with a window that ends at the newest token of each entry.",
        "MASK-12", "MASK-10", "MASK-8", sizes=Sizes(groups=2, kv_len=256), window=[63, 0],
        arrays={"kv_lengths": whole(129, 84), "q_offset": whole(128, 83)})
    long = Sizes((2,), 3, 3, 300, 700, 8, 8)
    for name, kind, shape in (("bias", "attn_bias", (1, 3, 300, 700)), ("mask", "mask", long.full)):
        yield _case(f"entries-{name}-of-each-head",
            f"So many queries and keys that heads may go one at a time, each with a {name} of its own.",
            "ATT-7" if name == "bias" else "MASK-1", "HEAD-1",
            sizes=long, only=SINGLE, seeds={kind: seed(kind, shape)})
    two = Sizes((2, 3), 2, 2, 4, 64)
    yield _case("entries-two-batch-axes",
        "Two batch axes with offsets and lengths of each entry, and a window.",
        "SHAPE-6", "MASK-8", "MASK-10", sizes=two, window=[20, 2],
        arrays={"q_offset": np.array([[60, 7, 33], [12, 50, 25]]),
                "kv_lengths": np.array([[64, 30, 40], [16, 63, 31]])})
    yield _case("entries-four-batch-axes", "Four batch axes, of different sizes.", "SHAPE-6",
        sizes=Sizes((2, 3, 1, 2), 2, 1, 2, 16, 8, 8))
    for batch, heads in ((40, 2), (1, 65), (2, 129)):
        yield _case(f"entries-{batch}-heads-{heads}",
            f"{batch * heads} blocks of work: {batch} entries of {heads} heads.", "IND-3", "HEAD-1",
            sizes=Sizes((batch,), heads, heads, 1, 16, 4, 4))


def _counts() -> Iterator[Draft]:
    """One more than 16 bits count, of next to nothing."""
    yield _case("keys-65537", "One query over 65,537 keys of width 1.", "ATT-1",
        sizes=Sizes((1,), 1, 1, 1, 65537, 1, 1), only=("float32",))
    yield _case("queries-65537", "65,537 queries over three keys, causal from the end.", "MASK-6", "ATT-1",
        sizes=Sizes((1,), 1, 1, 65537, 3, 1, 1), only=("float32",), rows=(0, 4096, 32768, 65535, 65536),
        is_causal=True, q_offset=-32768)


def _tiles() -> Iterator[Draft]:
    """Self-attention whose lengths are whole tiles."""
    for size, dtypes in ((64, ("float64", "float16")), (256, SINGLE), (1024, ("float32", "float16"))):
        yield _case(f"tiles-{size}-causal", f"{size} queries and keys, causal.", "MASK-6",
            sizes=Sizes((1,), 2, 1, size, size), only=dtypes, is_causal=True)
    large = Sizes((1,), 2, 1, 1024, 1024)
    options: dict[str, tuple[str, dict[str, Any]]] = {
        "mask-bias": ("MASK-2", given(("mask", "bias"), replace(large, heads=2), 1)),
        "window-softcap": ("MASK-10", {"window": [300, 0], "softcap": 1.5}),
        "lengths-sinks": ("MASK-12",
            {"arrays": {"kv_lengths": whole(900)},
             "seeds": {**poisoned(large, [900]), "sinks": seed("sinks", (2,))}}),
    }
    for name, (covers, what) in options.items():
        yield _case(f"tiles-1024-{name}", f"1,024 queries and keys, with {' and '.join(name.split('-'))}.",
            covers, sizes=large, only=("float32",), **what)


def _gradients() -> Iterator[Draft]:
    """Wide heads, whole tiles, several entries, and biases that broadcast."""
    for d_k, d_v in ((64, 64), (64, 128), (96, 96), (192, 128), (256, 256)):
        name = f"{d_k}" if d_k == d_v else f"{d_k}-{d_v}"
        yield _gradient(f"width-{name}", f"Keys of width {d_k} and values of width {d_v}, over a whole tile.",
            "GRAD-1", sizes=Sizes((1,), 2, 1, 4, 64, d_k, d_v))
    yield _gradient("tiles-128-causal", "128 queries and keys, causal.", "GRAD-3",
        sizes=Sizes((1,), 1, 1, 128, 128), is_causal=True)
    yield _gradient("tiles-128-window", "128 queries and keys, with a window.", "GRAD-3",
        sizes=Sizes((1,), 1, 1, 128, 128), window=[40, 5])
    for name, shape in (
        ("queries", (1, 1, 4, 129)),
        ("heads", (1, 6, 1, 129)),
        ("keys", (1, 1, 1, 129)),
        ("rank-2", (4, 129)),
    ):
        yield _gradient(f"bias-of-{name}",
            f"A bias of shape {shape}: its gradient is a sum over six heads and over two entries.", "GRAD-5",
            sizes=Sizes((2,), 6, 6, 4, 129, 8, 8), seeds={"attn_bias": seed("attn_bias", shape)})
    for group in (5, 24):
        yield _gradient(f"groups-of-{group}", f"Two key heads, each shared by {group} query heads.", "GRAD-6",
            sizes=Sizes((1,), 2 * group, 2, 2, 64, 8, 8))
    five, lengths = Sizes((5,), 2, 1, 4, 64, 8, 8), [0, 64, 0, 45, 20]
    yield _gradient("entries-of-five",
        "Five entries with lengths and offsets of their own; NaN behind the lengths.",
        "GRAD-3", "GRAD-4", "GRAD-9", sizes=five, needs=("strict_masking",), is_causal=True,
        arrays={"kv_lengths": whole(*lengths), "q_offset": whole(60, 60, 3, 41, 16)},
        seeds=poisoned(five, lengths))
    yield _gradient("decode-1024-lengths-sinks",
        "One query over 1,024 keys, with lengths and sinks; NaN behind the lengths.",
        "GRAD-8", "GRAD-3", "GRAD-9", sizes=Sizes((2,), 2, 1, 1, 1024, 8, 8), needs=("strict_masking",),
        arrays={"kv_lengths": whole(1000, 300)},
        seeds={**poisoned(Sizes((2,), 2, 1, 1, 1024, 8, 8), [1000, 300]), "sinks": seed("sinks", (2,))})


def _layers() -> Iterator[Draft]:
    """A width of heads times d_k: square weights, many tokens."""
    yield _case("layer-1024-as-16-of-64", "Sums over a width of 1,024 in each projection.",
        "PROJ-1", "PROJ-3", sizes=Sizes((1,), 16, 16, 3, 3, 64, 64, width=1024, biases=""), rows=(2,))
    six = Sizes((6,), 4, 4, 5, 129, 16, 16, width=64)
    yield _case("layer-entries-of-six", "Six entries of 129 keys with lengths of their own.",
        "PROJ-1", "MASK-12", sizes=six, rows=(4,), arrays={"kv_lengths": whole(129, 0, 128, 64, 1, 65)},
        seeds=poisoned(six, [129, 0, 128, 64, 1, 65]))
    for kv_len in (129, 200):
        yield _gradient(f"layer-tokens-{kv_len}-causal", f"{kv_len} tokens of width 16, causal.", "GRAD-10",
            sizes=Sizes((1,), 2, 2, kv_len, kv_len, 8, 8, width=16), is_causal=True)
    yield _gradient("layer-tokens-129-mask", "129 tokens of width 16, with a mask and no biases.",
        "GRAD-10", "GRAD-3", sizes=Sizes((1,), 2, 2, 129, 129, 8, 8, width=16, biases=""),
        seeds={"mask": seed("mask", (1, 1, 129, 129))})
