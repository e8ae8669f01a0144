"""Small attention programs for NumPy, written from a table: 30 that are right, 60 that are wrong.

A style is a way to compute attention, with places where a fault can be put; a fault is what stands there instead.
Each program is `attention(query, key, value)`, arrays of any floating dtype, [..., H, L, d].
"""

from collections.abc import Mapping

HEAD = """
import math
import numpy as np


def attention(query, key, value):
    dtype = query.dtype
    q, k, v = (np.asarray(x).astype(np.{work}) for x in (query, key, value))
    scale = {scale}
    {before}
{body}
    {after}
    return out.astype(dtype)
"""

DENSE = """
    s = ({scores}) * np.{work}({factor})
    {logits}
    p = np.{exp}(s - {top})
    {weights}
    total = p.sum(axis=-1, keepdims=True)
    {total}
    out = ({average}) / total
"""

ONLINE = """
    kv_len = k.shape[-2]
    most = np.full((*q.shape[:-1], 1), {start}, np.{work})
    total = np.zeros_like(most)
    out = np.zeros((*q.shape[:-1], v.shape[-1]), np.{work})
    for first in range({begin}, {end}, {step}):
        s = q @ np.swapaxes(k[..., first:first + {tile}, :], -1, -2) * np.{work}(scale)
        {logits}
        new = np.maximum(most, s.max(axis=-1, keepdims=True))
        old = np.exp(most - new)
        p = np.exp(s - new)
        {weights}
        total = {rescaled_total} + p.sum(axis=-1, keepdims=True)
        out = {rescaled_out} + p @ v[..., first:first + {tile}, :]
        most = new
    out = out / total
"""

SPLIT = """
    kv_len = k.shape[-2]
    parts, tops, sums = [], [], []
    for number in range({splits}):
        first, end = kv_len * number // {splits}, kv_len * (number + 1) // {splits}
        if first == end:
            continue
        s = q @ np.swapaxes(k[..., first:end, :], -1, -2) * np.{work}(scale)
        top = s.max(axis=-1, keepdims=True)
        p = np.exp(s - top)
        parts.append(p @ v[..., first:end, :])
        tops.append(top)
        sums.append(p.sum(axis=-1, keepdims=True))
    {chosen}
    most = np.max(tops, axis=0)
    factors = [{factor} for top in tops]
    total = sum(f * x for f, x in zip(factors, {summed}))
    out = sum(f * x for f, x in zip(factors, parts)) / total
"""

ROWS = """
    share = 1
    out = np.{empty}((*q.shape[:-1], v.shape[-1]), np.{work})
    for row in range({rows}):
        s = np.einsum("...d,...kd->...k", q[..., {row}, :], k) * np.{work}(scale)
        {logits}
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        {weights}
        out[..., row, :] = np.einsum("...k,...kd->...d", p, v) / p.sum(axis=-1, keepdims=True)
"""

PADDED = """
    kv_len = k.shape[-2]
    more = -kv_len % {tile}
    width = [(0, 0)] * (k.ndim - 2) + [(0, more), (0, 0)]
    k, v = np.pad(k, width), np.pad(v, width)
    s = q @ np.swapaxes(k, -1, -2) * np.{work}(scale)
    {hide}
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    out = p @ v / p.sum(axis=-1, keepdims=True)
"""

STYLES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "dense": (
        DENSE,
        {
            "scores": "q @ np.swapaxes(k, -1, -2)", "factor": "scale", "logits": "pass", "exp": "exp",
            "weights": "pass",
            "top": "s.max(axis=-1, keepdims=True)", "total": "pass", "average": "p @ v",
        },
    ),
    "online": (
        ONLINE,
        {
            "start": "-np.inf", "begin": "0", "end": "kv_len", "step": "{tile}", "logits": "pass", "weights": "pass",
            "rescaled_total": "total * old", "rescaled_out": "out * old", "tile": "32",
        },
    ),
    "split": (
        SPLIT,
        {"splits": "3", "factor": "np.exp(top - most)", "summed": "sums", "chosen": "pass"},
    ),
    "rows": (
        ROWS,
        {"rows": "q.shape[-2]", "row": "row", "logits": "pass", "weights": "pass", "empty": "empty"},
    ),
    "padded": (PADDED, {"tile": "16", "hide": "s[..., kv_len:] = -np.inf"}),
}  # fmt: skip
COMMON = {"work": "float32", "scale": "1.0 / math.sqrt(query.shape[-1])", "before": "pass", "after": "pass"}


def program(style: str, **faults: str) -> str:
    """The source of a style with something else in some of its places."""
    body, places = STYLES[style]
    filled = {**COMMON, **places, **faults}
    if "step" in filled:
        filled["step"] = filled["step"].replace("{tile}", filled["tile"])
    return HEAD.replace("{body}", body.strip("\n")).format_map(filled)


RIGHT: dict[str, str] = {
    "dense": program("dense"),
    "dense-scaled-query": program("dense", before="q = q * np.float32(scale)", factor="1.0"),
    "dense-scaled-both": program(
        "dense", before="q, k = q * np.float32(scale**0.5), k * np.float32(scale**0.5)", factor="1.0"
    ),
    "dense-exp2": program("dense", factor="scale * math.log2(math.e)", exp="exp2"),
    "dense-einsum": program("dense", scores='np.einsum("...qd,...kd->...qk", q, k)'),
    "dense-divides-first": program("dense", weights="p = p / p.sum(axis=-1, keepdims=True)"),
    "dense-float64": program("dense", work="float64"),
    "dense-reversed-keys": program("dense", before="k, v = k[..., ::-1, :], v[..., ::-1, :]"),
    "dense-transposed-answer": program(
        "dense", after="out = np.ascontiguousarray(np.swapaxes(out, -1, -2)).swapaxes(-1, -2)"
    ),
    "dense-columns-apart": program(
        "dense",
        average="np.concatenate([p @ v[..., :v.shape[-1] // 2], p @ v[..., v.shape[-1] // 2:]], axis=-1)",
    ),
    "dense-width-in-parts": program(
        "dense",
        scores="sum(q[..., i:i + 8] @ np.swapaxes(k[..., i:i + 8], -1, -2) for i in range(0, q.shape[-1], 8))",
    ),
    "dense-numpy-max-of-rows": program("dense", top="np.amax(s, axis=-1)[..., None]"),
    "online-16": program("online", tile="16"),
    "online-32": program("online"),
    "online-48": program("online", tile="48"),
    "online-64": program("online", tile="64"),
    "online-128": program("online", tile="128"),
    "online-1": program("online", tile="1"),
    "online-large-start": program("online", start="np.float32(-1e30)"),
    "online-float64": program("online", work="float64"),
    "split-2": program("split", splits="2"),
    "split-3": program("split"),
    "split-7": program("split", splits="7"),
    "split-float64": program("split", work="float64"),
    "rows": program("rows"),
    "rows-zeros": program("rows", empty="zeros"),
    "rows-backwards": program("rows", rows="q.shape[-2] - 1, -1, -1"),
    "padded-16": program("padded"),
    "padded-64": program("padded", tile="64"),
    "padded-large-negative": program("padded", hide="s[..., kv_len:] = np.float32(-1e30)"),
}

BF16 = "(({0}).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)"
"""Truncated to bfloat16."""
ROLL = "np.roll({0}, 1, axis=-2)"

WRONG: dict[str, str] = {
    # what is not attention at all
    "mean-of-value": program("dense", after="out = np.broadcast_to(v.mean(axis=-2, keepdims=True), out.shape).copy()"),
    "zeros": program("dense", after="out = np.zeros_like(out)"),
    "constant": program("dense", after="out = np.full_like(out, 0.5)"),
    "first-value": program("dense", after="out = np.broadcast_to(v[..., :1, :], out.shape).copy()"),
    "nearest-key-only": program("dense", weights="p = (p == p.max(axis=-1, keepdims=True)).astype(p.dtype)"),
    "linear-attention": program(
        "dense", logits="s = np.log(np.maximum(q, 0) @ np.swapaxes(np.maximum(k, 0), -1, -2) + np.float32(1e-6))"
    ),
    "sigmoid": program(
        "dense", weights="p = 1 / (1 + np.exp(-np.clip(s, -80, 80)))", total="total = np.ones_like(total)"
    ),
    "relu": program("dense", weights="p = np.maximum(s, 0) + np.float32(1e-9)"),
    # scale and logits
    "scale-by-width": program("dense", scale="1.0 / query.shape[-1]"),
    "no-scale": program("dense", scale="1.0"),
    "scale-off-by-2-percent": program("dense", scale="1.02 / math.sqrt(query.shape[-1])"),
    "scale-of-values-width": program("online", scale="1.0 / math.sqrt(key.shape[-2])"),
    "exp2-without-log2e": program("dense", exp="exp2"),
    "half-of-width": program("dense", scores="q[..., ::2] @ np.swapaxes(k[..., ::2], -1, -2)"),
    "last-columns-skipped": program(
        "dense", scores="q[..., :-4] @ np.swapaxes(k[..., :-4], -1, -2)"
    ),
    "logits-clipped": program("dense", logits="s = np.clip(s, -4, 4)"),
    "logits-capped": program("online", logits="s = 8 * np.tanh(s / 8)"),
    "logits-absolute": program("dense", logits="s = np.abs(s)"),
    # which keys
    "last-key-dropped": program("dense", logits="s[..., -1] = -np.inf if s.shape[-1] > 1 else s[..., -1]"),
    "first-key-dropped": program("rows", logits="s[..., 0] = -np.inf if s.shape[-1] > 1 else s[..., 0]"),
    "tail-tile-skipped": program("online", tile="16", end="max(kv_len - kv_len % 16, 1)"),
    "tail-tile-skipped-of-64": program("online", tile="64", end="max(kv_len - kv_len % 64, 1)"),
    "last-64-dropped": program("online", end="max(kv_len - 64, 1)"),
    "first-tile-only": program("online", end="min(kv_len, 32)"),
    "keys-in-tiles-twice": program("online", tile="33", step="32"),
    "tile-overlap-of-64": program("online", tile="65", step="64"),
    "causal": program(
        "dense", logits="s = np.where(np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None], s, -np.inf)"
    ),
    "window-of-64": program(
        "dense",
        logits="s = np.where(np.arange(s.shape[-1]) > s.shape[-1] - 65, s, -np.inf)",
    ),
    "top-16-keys": program(
        "dense", logits="s = np.where(s >= np.sort(s, axis=-1)[..., -min(16, s.shape[-1])][..., None], s, -np.inf)"
    ),
    "small-weights-skipped": program("dense", weights="p = np.where(p < 1e-2, 0, p)"),
    "keys-as-many-as-queries": program("dense", before="k, v = k[..., :q.shape[-2], :], v[..., :q.shape[-2], :]"),
    "padding-counted": program("padded", hide="pass"),
    "padding-counted-of-64": program("padded", tile="64", hide="pass"),
    # which rows, heads, entries
    "query-rows-shifted": program("dense", before=f"q = {ROLL.format('q')}"),
    "query-rows-shifted-by-rows": program("rows", row="row - 1"),
    "values-one-apart": program("dense", before=f"v = {ROLL.format('v')}"),
    "values-one-apart-online": program("online", before=f"v = {ROLL.format('v')}"),
    "last-head-reads-first": program("dense", after="out[..., -1, :, :] = out[..., 0, :, :]"),
    "heads-read-first-key-head": program("dense", before="k = np.broadcast_to(k[..., :1, :, :], k.shape)"),
    "last-entry-reads-first": program("dense", before="k = k.copy(); k[-1] = k[0]"),
    "last-row-unwritten": program("rows", rows="max(q.shape[-2] - 1, 1)"),
    "rows-beyond-tile-zero": program(
        "dense", after="out[..., max(out.shape[-2] // 16 * 16, 1):, :] = 0"
    ),
    "heads-and-rows-mixed": program(
        "dense",
        after="out = np.swapaxes(out, -2, -3).reshape(out.shape)",
    ),
    "softmax-over-queries": program("dense", weights="p = p / p.sum(axis=-2, keepdims=True)"),
    # sums and maxima
    "not-normalised": program("dense", total="total = np.ones_like(total)"),
    "one-more-in-the-sum": program("dense", total="total = total + 1"),
    "small-number-in-the-sum": program("dense", total="total = total + np.float32(1e-3)"),
    "no-maximum": program("dense", top="0"),
    "maximum-of-all-rows": program("dense", top="s.max()"),
    "maximum-starts-at-zero": program("online", start="np.float32(0)"),
    "sum-not-rescaled": program("online", rescaled_total="total"),
    "output-not-rescaled": program("online", rescaled_out="out"),
    "sum-not-rescaled-of-128": program("online", tile="128", rescaled_total="total"),
    "parts-averaged": program("split", factor="np.ones_like(top)", summed="sums"),
    "last-part-lost": program("split", chosen="parts, tops, sums = parts[:2], tops[:2], sums[:2]"),
    # precision
    "operands-in-bfloat16": program("dense", before=f"q, k, v = {', '.join(BF16.format(x) for x in 'qkv')}"),
    "weights-in-bfloat16": program("dense", weights=f"p = {BF16.format('p')}"),
    "sums-in-float16": program(
        "online", weights="total, out = (x.astype(np.float16).astype(np.float32) for x in (total, out))"
    ),
    "answer-through-float16": program("dense", after="out = out.astype(np.float16).astype(np.float32)"),
    "keys-in-8-bits": program(
        "dense", before="m = np.abs(k).max(axis=-1, keepdims=True) / 127 + np.float32(1e-9); k = np.round(k / m) * m"
    ),
}  # fmt: skip
