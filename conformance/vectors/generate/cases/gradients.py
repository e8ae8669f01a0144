"""Gradients of attention: each option alone, then together, then sizes and numbers that round badly."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, gradient
from conformance.vectors.generate.random_inputs import Array, Draws, exact

# fmt: off

_SINKS = exact([0.5, -1.0, 2.0])


def drafts() -> Iterator[Draft]:
    """Simple cases first."""
    yield from _plain()
    yield from _masks()
    yield from _biases()
    yield from _logits()
    yield from _heads()
    yield from _together()
    yield from _numbers()
    yield from _independence()


def drafted(name: str, note: str, *covers: str, grad_output: Array | None = None, **given: Any) -> Draft:
    """A case of the gradients of attention; `given` as for `attend`."""
    bits = given.get("bits", 8)
    return gradient(attend(f"gradient/{name}", note, *covers, **given), bits=bits, grad_output=grad_output)


def every_option(draws: Draws) -> dict[str, Any]:
    """Every option that an operation on gradients has, and the sizes that go with them."""
    return {"heads": 4, "kv_heads": 2, "q_len": 6, "kv_len": 11, "past": 3, "d_v": 5, "is_causal": True,
        "q_offset": 2, "window": [6, None], "kv_lengths": np.array([9, 11]), "softcap": 2.0, "scale": 0.75,
        "sinks": exact([0.5, -1.0, 2.0, 0.25]), "attn_bias": draws.gauss(1, 4, 6, 11),
        "mask": draws.mask(2, 4, 6, 11, share=0.85)}


def _plain() -> Iterator[Draft]:
    yield drafted("plain", "The gradients of query, key and value, all sizes different.", "GRAD-1", "GRAD-2")
    yield drafted("hand-sized", "Small integers: can be followed with pencil and paper.", "GRAD-1",
        batch=(), heads=1, query=exact([[[1, 0], [2, 1], [0, -1]]]),
        key=exact([[[1, 1], [0, 2], [-1, 1], [2, -1]]]), value=exact([[[1, 0], [0, 1], [3, -2], [-1, 4]]]),
        grad_output=exact([[[1, 0], [-1, 2], [0, 3]]]), readable=True)
    yield drafted("square", "Equal lengths and widths: gradients that change places have the right shapes.",
        "GRAD-1", q_len=6, kv_len=6, sigma=1.5)
    yield drafted("value-dim", "d_v greater than d_k.", "GRAD-1", "GRAD-2", d_k=3, d_v=8, sigma=1.5)
    yield drafted("value-dim-small", "d_v smaller than d_k.", "GRAD-1", d_k=9, d_v=2, sigma=1.5)
    yield drafted("no-batch", "No batch axis at all.", "GRAD-2", batch=(), heads=2)
    yield drafted("two-batch-axes", "Two batch axes, each entry on its own.", "GRAD-2", batch=(2, 3), heads=2)
    yield drafted("one-key", "A single key: the weights are constant, only value has a gradient.", "GRAD-1",
        kv_len=1, q_len=6)
    yield drafted("one-query", "A single query over many keys.", "GRAD-1", q_len=1, kv_len=19)
    yield drafted("ones", "A gradient of ones of the output, the one that a sum over the output has.",
        "GRAD-1", grad_output=np.ones((2, 3, 5, 4)))
    yield drafted("zeros", "A gradient of zeros gives gradients of zeros.", "GRAD-1",
        grad_output=np.zeros((2, 3, 5, 4)))
    one = np.zeros((2, 3, 5, 4))
    one[1, 2, 3, 1] = 1.5
    yield drafted("one-element", "One element of the output alone: its query row, its head, its batch entry.",
        "GRAD-1", "GRAD-3", grad_output=one)
    yield drafted("no-queries", "No query: the gradients of key and value are zero.", "GRAD-2", q_len=0)
    yield drafted("no-keys", "No key: every row is empty.", "GRAD-2", "GRAD-4", kv_len=0)
    yield drafted("no-batch-entries",
        "A batch of zero: the gradients of a bias that it shares and of the sinks are zero.", "SHAPE-9",
        "GRAD-2", batch=(0,), attn_bias=Draws("gradient/no-batch-entries").gauss(1, 3, 5, 7), sinks=_SINKS)


def _masks() -> Iterator[Draft]:
    draws = Draws("gradient/masks")
    full = draws.mask(2, 3, 5, 7)
    full[..., 0] = True
    yield drafted("mask", "A mask of its own for every batch entry, head and query.", "GRAD-3", mask=full)
    square = draws.mask(5, 7)
    square[:, 3] = True
    square[:, 5] = False
    yield drafted("mask-rank-2", "A shared mask that hides one key from every query.", "GRAD-3", mask=square)
    row = draws.mask(2, 1, 1, 7)
    row[..., 2] = True
    yield drafted("mask-broadcast", "A padding mask that is shared by heads and queries.", "GRAD-3", mask=row)
    holes = full.copy()
    holes[0, :, 2], holes[1, 1, 4], holes[1, 2] = False, False, False
    yield drafted("mask-empty-rows",
        "Rows that may attend nothing, one whole head among them: no gradient from there.",
        "GRAD-4", "GRAD-15", mask=holes)
    yield drafted("causal", "Causal rows of equal lengths.", "GRAD-3", q_len=7, is_causal=True)
    yield drafted("causal-offset", "Causality with an offset.", "GRAD-3", is_causal=True, q_offset=2)
    yield drafted("causal-empty-rows", "A negative offset leaves the first queries without a key.",
        "GRAD-4", "GRAD-15", q_len=7, kv_len=5, is_causal=True, q_offset=-2)
    yield drafted("causal-offset-per-batch", "An offset for each batch entry.", "GRAD-3",
        is_causal=True, q_offset=np.array([1, 3]))
    yield drafted("window", "A window of two keys to the left and one to the right.", "GRAD-3",
        q_len=7, window=[2, 1])
    yield drafted("window-left", "A window that is open to the right, with an offset.", "GRAD-3",
        window=[1, None], q_offset=1)
    yield drafted("lengths", "Lengths of their own for each batch entry.", "GRAD-3",
        kv_lengths=np.array([4, 6]))
    yield drafted("lengths-zero", "A batch entry without a key.", "GRAD-4", "GRAD-15",
        kv_lengths=np.array([0, 5]))
    yield drafted("intersection",
        "Causality, a window, lengths and a mask: a key is seen if all of them show it.", "GRAD-3",
        q_len=7, is_causal=True, window=[4, None], kv_lengths=np.array([6, 7]),
        mask=draws.mask(2, 3, 7, 7, share=0.85))
    for kind, poison in (("nan", np.nan), ("infinity", np.inf)):
        key, value = draws.gauss(2, 3, 7, 4), draws.gauss(2, 3, 7, 4)
        key[0, :, 5:], value[0, :, 5:], key[1, :, 6], value[1, :, 6] = poison, poison, -poison, poison
        yield drafted(f"{kind}-behind-lengths", f"What does not exist holds {kind}: it reaches no gradient.",
            "GRAD-9", key=key, value=value, kv_lengths=np.array([5, 6]), needs=("strict_masking",))
        yield drafted(f"{kind}-behind-mask", f"Masked keys and values hold {kind}.", "GRAD-9",
            key=key, value=value, mask=(np.arange(7) < np.array([5, 6])[:, None])[:, None, None, :],
            needs=("strict_masking",))


def _biases() -> Iterator[Draft]:
    draws = Draws("gradient/biases")
    yield drafted("bias", "A bias of its own for every logit.", "GRAD-5", "GRAD-2",
        attn_bias=draws.gauss(2, 3, 5, 7))
    yield drafted("bias-rank-2", "A bias that batch and heads share: its gradient is summed over both.",
        "GRAD-5", attn_bias=draws.gauss(5, 7))
    for name, shape in (
        ("batch", (1, 3, 5, 7)),
        ("heads", (2, 1, 5, 7)),
        ("queries", (2, 3, 1, 7)),
        ("batch-and-queries", (1, 3, 1, 7)),
        ("all-but-keys", (1, 1, 1, 7)),
    ):
        yield drafted(f"bias-over-{name}",
            f"A bias of shape {shape}: its gradient is summed over its axes of one.", "GRAD-5",
            attn_bias=draws.gauss(*shape))
    yield drafted("bias-over-keys",
        "A bias that all keys of a row share changes nothing: its gradient is zero.", "GRAD-5",
        attn_bias=draws.gauss(2, 3, 5, 1))
    yield drafted("bias-over-keys-sinks",
        "The same beside a sink: its gradient is the sink's, with the other sign.", "GRAD-5", "GRAD-8",
        attn_bias=draws.gauss(2, 3, 5, 1), sinks=_SINKS)
    hidden = draws.gauss(2, 3, 5, 7)
    hidden[draws.mask(2, 3, 5, 7, share=0.3)] = -np.inf
    hidden[0, 1, 2] = -np.inf
    hidden[..., 0] = np.where(np.isneginf(hidden[..., 0]), 0.5, hidden[..., 0])
    hidden[0, 1, 2] = -np.inf
    yield drafted("bias-hides",
        "Entries of -inf mask: they have a gradient of zero, and one row sees nothing.",
        "GRAD-5", "GRAD-3", "GRAD-4", "GRAD-15", attn_bias=hidden)
    column = draws.gauss(1, 1, 1, 7)
    column[..., 3] = -np.inf
    yield drafted("bias-hides-broadcast", "A shared bias with one entry of -inf.", "GRAD-5", "GRAD-3",
        attn_bias=column)
    yield drafted("bias-and-mask", "A mask and a bias: what the mask hides has no gradient of the bias.",
        "GRAD-3", "GRAD-5", attn_bias=draws.gauss(2, 1, 5, 7), mask=draws.mask(2, 3, 5, 7, share=0.8))

    yield drafted("bias-wider",
        "A bias in float32 beside operands of 16 bits: its gradient is in float32, theirs are not.",
        "GRAD-2", "GRAD-5",
        attn_bias=draws.gauss(1, 3, 5, 7), dtype_of={"attn_bias": "float32"}, only=("float16", "bfloat16"))


def _logits() -> Iterator[Draft]:
    draws = Draws("gradient/logits")
    yield drafted("scale", "A given scale.", "GRAD-1", scale=0.75, sigma=1.5)
    yield drafted("scale-one", "A scale of one: nothing is divided.", "GRAD-1", scale=1.0)
    yield drafted("scale-negative", "A negative scale.", "GRAD-1", scale=-0.625)
    yield drafted("scale-zero", "A scale of zero: query and key have no gradient.", "GRAD-1", scale=0.0)
    yield drafted("scale-negative-causal", "Causality and a negative scale.", "GRAD-1", "MASK-6",
        q_len=5, kv_len=5, is_causal=True, scale=-0.625)
    yield drafted("scale-zero-causal", "Causality and a scale of zero: query and key have no gradient.",
        "GRAD-1", "MASK-6", q_len=2, kv_len=4, is_causal=True, q_offset=0, scale=0.0)
    yield drafted("softcap", "A softcap that bends most logits.", "GRAD-7", softcap=1.5, sigma=2.0)
    yield drafted("softcap-saturated", "A softcap that flattens most logits.", "GRAD-7", "GRAD-15",
        softcap=0.5, sigma=5.0, d_k=8)
    yield drafted("softcap-scale", "A softcap over logits of a given scale.", "GRAD-7",
        softcap=2.0, scale=0.375, sigma=3.0)
    yield drafted("sinks", "A sink for each head.", "GRAD-8", sinks=_SINKS)
    yield drafted("sinks-large", "Sinks that take nearly all, and nearly nothing.", "GRAD-8",
        sinks=exact([8.0, -12.0, 0.0]))
    holes = draws.mask(2, 3, 5, 7)
    holes[0, 0, 1], holes[1, 2, 4], holes[:, 1, 3] = False, False, False
    yield drafted("sinks-empty-rows", "Rows that see nothing do not move the sink.", "GRAD-8", "GRAD-4",
        sinks=_SINKS, mask=holes)


def _heads() -> Iterator[Draft]:
    yield drafted("grouped", "Three query heads read one key head: its gradients are sums.", "GRAD-6",
        heads=6, kv_heads=2)
    yield drafted("one-kv-head", "One key head serves all.", "GRAD-6", heads=4, kv_heads=1)
    yield drafted("past", "A past takes part and has no gradient of its own.", "GRAD-13", kv_len=9, past=4)
    yield drafted("past-grouped-causal", "A past, groups and causality.", "GRAD-13", "GRAD-6", "GRAD-3",
        heads=4, kv_heads=2, kv_len=9, past=4, is_causal=True, q_offset=4)
    yield drafted("past-only", "Nothing but the past: the gradients of key and value are empty.",
        "GRAD-13", "GRAD-2", kv_len=6, past=6)


def _together() -> Iterator[Draft]:
    draws = Draws("gradient/together")
    yield drafted("sinks-causal-empty", "Sinks and causality, with a row that sees nothing.",
        "GRAD-8", "GRAD-4", "GRAD-3", q_len=6, is_causal=True, q_offset=-1, sinks=_SINKS)
    hidden = Draws("gradient/softcap-hidden").gauss(2, 1, 5, 7)
    hidden[0, :, :, 2], hidden[1, :, 1, 4] = -np.inf, -np.inf
    yield drafted("softcap-hidden",
        "A softcap, causality, and a bias of -inf after it: the derivative is that of the logits before.",
        "GRAD-7", "GRAD-3", "GRAD-5", softcap=1.5, sigma=2.0, is_causal=True, q_offset=2, attn_bias=hidden)
    yield drafted("softcap-mask-bias", "A softcap, a bias after it, and a mask.",
        "GRAD-7", "GRAD-5", "GRAD-3",
        softcap=1.5, sigma=2.0, attn_bias=draws.gauss(1, 3, 5, 7), mask=draws.mask(2, 1, 5, 7, share=0.8))
    yield drafted("grouped-bias-over-batch-and-queries", "Groups, and a bias that batch and queries share.",
        "GRAD-6", "GRAD-5", heads=6, kv_heads=2, attn_bias=draws.gauss(1, 6, 1, 7))
    yield drafted("softcap-sinks-grouped", "A softcap, sinks and groups.", "GRAD-7", "GRAD-8", "GRAD-6",
        heads=4, kv_heads=2, softcap=1.0, sinks=exact([0.5, -1.0, 2.0, 0.25]), sigma=1.5)
    yield drafted("scale-bias-value-dim", "A given scale does not reach the gradient of the bias.",
        "GRAD-5", "GRAD-1", scale=3.0, d_v=6, attn_bias=draws.gauss(5, 7))
    yield drafted("window-sinks-past", "A window over a past, with sinks.", "GRAD-13", "GRAD-8", "GRAD-3",
        kv_len=9, past=4, window=[3, 0], q_offset=4, sinks=_SINKS)
    yield drafted("everything", "Every option at once.", "GRAD-1", "GRAD-3", "GRAD-4", "GRAD-5", "GRAD-6",
        "GRAD-7", "GRAD-8", "GRAD-13", **every_option(draws))


def _numbers() -> Iterator[Draft]:
    draws = Draws("gradient/numbers")
    yield drafted("gauss", "The signature of roundings that all go one way.", "GRAD-12", "GRAD-1",
        batch=(1,), heads=2, q_len=33, kv_len=48, d_k=16, sigma=1.0)
    yield drafted("small-logits", "All weights nearly equal.", "GRAD-1", q_len=9, kv_len=48, sigma=0.0625)
    yield drafted("huge-logits", "Logits beyond the range of exp: gradients are finite.", "GRAD-15",
        sigma=30.0, q_len=9, kv_len=11)
    yield drafted("peaked", "Weights near zero and one.", "GRAD-1", "GRAD-15", sigma=4.0, q_len=9, kv_len=17)
    yield drafted("value-offset", "Values far from zero: P (dP - Delta) is small beside its terms.", "GRAD-1",
        q_len=9, kv_len=17, value=exact(np.round(draws.gauss(2, 3, 17, 4, sigma=4.0)) + 64.0))
    yield drafted("large-cotangent", "A cotangent in the hundreds.", "GRAD-1",
        grad_output=draws.gauss(2, 3, 5, 4, sigma=128.0))
    hidden = np.ones((5, 7), dtype=bool)
    hidden[:, 2] = False
    note = "A key that no query sees, and a cotangent so large that a weight of 1e-9 shows in float16 too."
    yield gradient(attend("gradient/large-cotangent-mask", note, "GRAD-3", mask=hidden), sigma=128.0)
    yield drafted("small-cotangent", "A cotangent in the hundredths.", "GRAD-1",
        grad_output=draws.gauss(2, 3, 5, 4, sigma=2.0**-6))
    options: dict[str, Any] = {"softcap": 2.0, "sinks": draws.gauss(3, bits=24),
        "attn_bias": draws.gauss(1, 3, 5, 7, bits=24)}
    for name, given in (("", dict[str, Any]()), ("-options", options)):
        yield drafted(f"full-mantissa{name}", "Operands of 24 bits: none is cast to fewer on the way.",
            "GRAD-12", "GRAD-1", bits=24, only=("float64", "float32"), **given)


def _independence() -> Iterator[Draft]:
    for layout in ("transposed", "reversed", "readonly", "unaligned"):
        yield drafted(f"{layout}", f"The operands and grad_output lie {layout} in memory.", "GRAD-1", "IND-2",
            "IND-5", d_k=8, memory=dict.fromkeys(("query", "key", "value", "grad_output"), layout))
    yield drafted("repeated", "The third of three equal calls: nothing accumulates.", "GRAD-1", "IND-4",
        repeat=3)
