"""Scores, scale, softcap, bias, sinks, weights and lse, each alone and in the order that they act."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from conformance.dtypes import NUMPY_DTYPES
from conformance.vectors.generate.draft import Draft, attend
from conformance.vectors.generate.random_inputs import Draws, exact, round_to_bits

# fmt: off


def drafts() -> Iterator[Draft]:
    """Every option that is not a mask."""
    yield from _plain()
    yield from _scales()
    yield from _softcaps()
    yield from _biases()
    yield from _sinks()
    yield from _weights_and_lse()


def _plain() -> Iterator[Draft]:
    yield attend("attention/plain", "Softmax of the scaled products over the keys, times the values.",
        "ATT-1", "ATT-3", "SHAPE-1", "SHAPE-2", "DTYPE-1", "HEAD-1")
    yield attend("attention/hand-sized", "Three small integers a row: can be followed with pencil and paper.",
        "ATT-1", "ATT-3", batch=(), heads=1, query=exact([[[1, 0], [2, 1], [0, -1]]]),
        key=exact([[[1, 1], [0, 2], [-1, 1], [2, -1]]]), value=exact([[[1, 0], [0, 1], [3, -2], [-1, 4]]]),
        readable=True)
    yield attend("attention/softmax-over-keys",
        "As many queries as keys: a softmax over the queries gives other values.", "ATT-2",
        q_len=6, kv_len=6, sigma=1.5)
    yield attend("attention/distinct-query-and-key",
        "Equal lengths, different query, key and value: a query taken from the keys shows.", "ATT-1",
        q_len=7, kv_len=7, d_k=8, sigma=2.0)
    yield attend("attention/value-dim", "d_v greater than d_k: the default scale comes from d_k.",
        "SHAPE-3", "ATT-3", d_k=4, d_v=9, sigma=1.5)
    yield attend("attention/value-dim-small", "d_v smaller than d_k: the output has the width of the values.",
        "SHAPE-3", "ATT-3", d_k=9, d_v=2, sigma=1.5)
    draws = Draws("attention/integers")
    yield attend("attention/integers", "Small integers, many equal logits: ties share their weight.",
        "ATT-1", "ATT-2", kv_len=19, query=draws.integers(2, 3, 5, 4, low=-3, high=3),
        key=draws.integers(2, 3, 19, 4, low=-3, high=3), value=draws.integers(2, 3, 19, 4, low=-8, high=8))
    draws = Draws("attention/cancelling-values")
    half = draws.gauss(2, 3, 8, 4, sigma=100.0)
    yield attend("attention/cancelling-values",
        "Values in pairs of opposite sign and all but equal keys: the output is small beside its terms.",
        "ATT-1",
        kv_len=16, key=draws.gauss(2, 3, 16, 4, sigma=0.05), value=np.concatenate([half, -half], axis=2))
    draws = Draws("attention/constant-rows")
    yield attend("attention/constant-rows",
        "Every key and value row is the same: the output is that row whatever the weights.", "ATT-2",
        kv_len=23, key=np.repeat(draws.gauss(2, 3, 1, 4), 23, axis=2),
        value=np.repeat(draws.gauss(2, 3, 1, 4), 23, axis=2))
    draws = Draws("attention/negative-values")
    yield attend("attention/negative-values", "All values negative: a clamp at zero shows.", "ATT-1",
        value=-np.abs(draws.gauss(2, 3, 7, 4)))
    yield attend("attention/negative-products",
        "Queries and keys of opposite sign: every logit is negative, and an absolute value or a clamp shows.",
        "ATT-1",
        query=np.abs(draws.gauss(2, 3, 5, 4, sigma=2.0)), key=-np.abs(draws.gauss(2, 3, 7, 4, sigma=2.0)))
    yield attend("attention/no-batch", "No batch axis at all.", "SHAPE-4", batch=(), heads=4, d_k=8)
    yield attend("attention/three-batch-axes", "Three batch axes in front of the heads.", "SHAPE-4",
        batch=(2, 1, 3), heads=2)


def _scales() -> Iterator[Draft]:
    scales = (
        ("given", 0.75),
        ("one", 1.0),
        ("zero", 0.0),
        ("negative", -0.5),
        ("two", 2.0),
        ("full-mantissa", 0.3),
    )
    for name, scale in scales:
        yield attend(f"attention/scale-{name}", f"A scale of {scale} is taken as it is, once.", "ATT-4",
            d_k=8, scale=scale)
    yield attend("attention/scale-small", "A scale far below the default flattens the weights.", "ATT-4",
        d_k=8, sigma=4.0, scale=1 / 64)


def _softcaps() -> Iterator[Draft]:
    yield attend("attention/softcap", "Logits of both signs bent by c tanh(x / c), c well below the largest.",
        "ATT-5", d_k=8, sigma=2.0, softcap=2.0)
    yield attend("attention/softcap-large",
        "A softcap far above the logits changes them little, not at all only if left out.", "ATT-5",
        d_k=8, sigma=2.5, softcap=24.0)
    yield attend("attention/softcap-60",
        "A softcap of 60 bends the largest logits a little: no softcap is too large to act.", "ATT-5",
        sigma=5.0, softcap=60.0)
    yield attend("attention/softcap-scale", "The scale comes before the softcap.", "ATT-5", "ATT-6",
        d_k=8, sigma=2.0, softcap=1.5, scale=0.75)
    draws = Draws("attention/softcap-mask-bias")
    yield attend("attention/softcap-mask-bias",
        "Scale, softcap, bias, mask, softmax: a mask before the softcap would lift masked keys to -c.",
        "ATT-6", "MASK-2", d_k=8, sigma=2.0, softcap=0.5, mask=draws.mask(2, 3, 5, 7),
        attn_bias=draws.gauss(2, 3, 5, 7, sigma=3.0))
    yield attend("attention/softcap-mask", "A masked key stays masked under a softcap.", "ATT-6", "MASK-1",
        softcap=0.5, sigma=2.0, mask=draws.mask(5, 7))
    yield attend("attention/softcap-bias", "The bias is added after the softcap and is not bent by it.",
        "ATT-6", "ATT-7", softcap=1.0, sigma=2.0, attn_bias=draws.gauss(5, 7, sigma=4.0))


def _biases() -> Iterator[Draft]:
    draws = Draws("attention/bias")
    yield attend("attention/bias",
        "A bias of its own for every batch entry, head, query and key is added to the logits.", "ATT-7",
        attn_bias=draws.gauss(2, 3, 5, 7))
    yield attend("attention/bias-rank-2", "A bias of rank 2 is shared by batch and heads.",
        "ATT-7", "SHAPE-7", attn_bias=draws.gauss(5, 7))
    for name, shape in (
        ("batch", (1, 3, 5, 7)),
        ("heads", (2, 1, 5, 7)),
        ("queries", (2, 3, 1, 7)),
        ("keys", (2, 3, 5, 1)),
        ("all-but-heads", (1, 3, 1, 1)),
    ):
        yield attend(f"attention/bias-broadcast-{name}",
            f"A bias of shape {shape} broadcasts over its axes of one.", "ATT-7", "SHAPE-8",
            attn_bias=draws.gauss(*shape, sigma=2.0))
    yield attend("attention/bias-zero-one", "A bias of zeros and ones is added, not read as a mask.", "ATT-7",
        attn_bias=draws.mask(5, 7).astype(np.float64))
    minus = np.where(draws.mask(2, 3, 5, 7), draws.gauss(2, 3, 5, 7), -np.inf)
    minus[..., 0] = 0.5
    yield attend("attention/bias-minus-inf", "-inf in the bias masks that entry, the finite rest is added.",
        "ATT-8", attn_bias=minus)
    lowest = np.full((5, 7), -16384.0)
    lowest[0, :] = 0.0
    lowest[1, 2:] = 0.0
    yield attend("attention/bias-large-negative-row",
        "A row whose bias is the same large negative number everywhere is shifted, not masked.",
        "ATT-9", "MASK-15", attn_bias=lowest, scale=0.5)
    for dtype in ("float32", "float16", "bfloat16"):
        smallest = float(ml_dtypes.finfo(NUMPY_DTYPES[dtype]).min)
        lowest = np.full((5, 7), smallest)
        lowest[0, :3] = 0.0
        yield attend(f"attention/bias-lowest-{dtype}",
            f"Rows whose bias is the lowest {dtype} everywhere are shifted: not empty, not NaN. The values lie far "
                "from zero, and rounding may flatten the weights.", "ATT-9", "MASK-15",
            attn_bias=lowest, value=round_to_bits(draws.gauss(2, 3, 7, 4) + 6.0))
    yield attend("attention/bias-float32",
        "A float32 bias beside operands of another dtype is brought to the logits, and the output keeps its dtype.",
        "DTYPE-3", "DTYPE-1", attn_bias=draws.gauss(2, 3, 5, 7), dtype_of={"attn_bias": "float32"})


def _sinks() -> Iterator[Draft]:
    draws = Draws("attention/sinks")
    yield attend("attention/sinks", "One extra logit a head joins the denominator and nothing else.",
        "ATT-12", sinks=exact([0.5, -1.0, 2.0]))
    yield attend("attention/sinks-large",
        "A sink far above every logit: the largest number to subtract is the sink.", "ATT-12", "ATT-2",
        sinks=exact([30.0, 20.0, -40.0]), sigma=2.0, return_lse=True)
    yield attend("attention/sinks-weights", "With a sink the weights of a row sum to less than one.",
        "ATT-12", "ATT-13", sinks=exact([0.5, 1.5, 2.0]), return_weights=True, return_lse=True)
    yield attend("attention/sinks-minus-inf", "A sink of -inf is no sink.", "ATT-12", "ATT-14",
        sinks=exact([0.5, -np.inf, 2.0]), return_lse=True)
    yield attend("attention/sinks-beyond-exp",
        "A sink of 1024 among small logits: exp of their difference overflows in every dtype unless it is subtracted.",
        "ATT-2", "ATT-12", "ATT-14",
        sinks=exact([1024.0, 0.5, -1024.0]), sigma=2.0, return_weights=True, return_lse=True)
    yield attend("attention/sinks-softcap-mask", "The sink is neither scaled, bent, biased nor masked.",
        "ATT-12", "ATT-6", sinks=exact([3.0, -2.0, 1.0]), softcap=1.0, sigma=2.0, mask=draws.mask(2, 3, 5, 7),
        attn_bias=draws.gauss(2, 3, 5, 7))


def _weights_and_lse() -> Iterator[Draft]:
    yield attend("attention/weights", "The weights of every head, not their average.", "ATT-13",
        return_weights=True)
    yield attend("attention/lse", "The logarithm of the denominator, with the largest logit put back.",
        "ATT-14", "DTYPE-6", return_lse=True, sigma=2.0)
    draws = Draws("attention/weights-and-lse")
    yield attend("attention/weights-and-lse", "Weights and lse together, under a mask and a bias.",
        "ATT-13", "ATT-14", return_weights=True, return_lse=True, mask=draws.mask(2, 3, 5, 7, share=0.8),
        attn_bias=draws.gauss(2, 3, 5, 7))
    yield attend("attention/lse-softcap",
        "The lse is that of the logits as they enter the softmax: after softcap and bias.", "ATT-14", "ATT-6",
        return_lse=True, softcap=1.0, sigma=2.0, attn_bias=draws.gauss(5, 7, sigma=2.0))
