"""Gradients of the layer, through its projections, and calls of both operations that are refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.cases.gradients import every_option
from conformance.vectors.generate.draft import Draft, attend, gradient, project
from conformance.vectors.generate.random_inputs import Array, Draws, exact

# fmt: off


def drafts() -> Iterator[Draft]:
    """What is computed, then what is refused."""
    yield from _layer()
    yield from _refused()


def _gradient(name: str, note: str, *covers: str, grad_output: Array | None = None, **given: Any) -> Draft:
    bits = given.get("bits", 8)
    draft = project(f"gradient/layer-{name}", note, *covers, **given)
    return gradient(draft, bits=bits, grad_output=grad_output)


def _layer() -> Iterator[Draft]:
    draws = Draws("layer-gradient")
    yield _gradient("plain", "Every operand, projection and bias has a gradient.",
        "GRAD-10", "GRAD-11", "GRAD-2")
    yield _gradient("no-biases", "Without biases there are no gradients of them.", "GRAD-10", "GRAD-2",
        biases="")
    for letter in "qkvo":
        yield _gradient(f"bias-{letter}-alone", f"b_{letter} is the only bias.", "GRAD-10", "GRAD-2",
            biases=letter)
    yield _gradient("cross", "All widths differ.", "GRAD-10", "GRAD-2",
        d_q=6, d_kv=5, d_vv=8, d_k=4, d_v=3, d_out=7)
    yield _gradient("grouped", "Groups: gradients of w_k and w_v are sums over the heads of a group.",
        "GRAD-10", "GRAD-6", heads=4, kv_heads=2)
    yield _gradient("one-head", "A single head.", "GRAD-10", heads=1, d_k=5)
    yield _gradient("square", "d_model of heads times d_k, and equal lengths.", "GRAD-10",
        heads=3, d_k=4, d_q=12, q_len=6, kv_len=6)
    yield _gradient("no-batch", "No batch axis.", "GRAD-10", batch=())
    yield _gradient("two-batch-axes", "Weights add up the gradients of both batch axes.",
        "GRAD-10", "GRAD-12", batch=(2, 2), heads=2, q_len=3, kv_len=4, d_q=5)
    yield _gradient("scale-softcap", "Scale and softcap act on the projected heads.", "GRAD-10", "GRAD-7",
        scale=1.5, softcap=1.0)
    yield _gradient("bias-of-logits", "A bias of the logits beside those of the projections.",
        "GRAD-10", "GRAD-5", attn_bias=draws.gauss(1, 3, 5, 7))
    yield _gradient("sinks", "Sinks: the gradient of b_k is not zero.", "GRAD-10", "GRAD-8",
        sinks=exact([0.5, -1.0, 2.0]))
    mask = draws.mask(2, 3, 5, 7)
    mask[0, :, 2], mask[1, 1, 3] = False, False
    yield _gradient("mask-empty-rows", "Rows that see nothing move b_o and nothing else.",
        "GRAD-11", "GRAD-4", "GRAD-3", mask=mask)
    yield _gradient("no-keys", "No key: b_o alone moves.", "GRAD-11", "GRAD-4", "GRAD-2", kv_len=0)
    yield _gradient("no-queries", "No query: the gradients of every weight are zero.", "SHAPE-9", "GRAD-2",
        q_len=0)
    yield _gradient("no-batch-entries", "A batch of zero: the gradients of every weight are zero.",
        "SHAPE-9", "GRAD-2", batch=(0,))
    yield _gradient("causal", "Causal self-attention.", "GRAD-10", "GRAD-3", q_len=7, is_causal=True)
    yield _gradient("lengths", "Lengths for each batch entry.", "GRAD-10", "GRAD-3",
        kv_lengths=np.array([4, 6]))
    yield _gradient("past",
        "A past of projected heads: w_k and w_v move by the new part alone, and b_k moves.",
        "GRAD-13", "GRAD-10", kv_len=9, past=4)
    yield _gradient("past-grouped", "Groups behind a past that is longer than the new part.",
        "GRAD-13", "GRAD-6", heads=4, kv_heads=2, kv_len=11, past=8, is_causal=True, q_offset=8, q_len=3)
    yield _gradient("grouped-bias-scale",
        "Groups of three, a bias for each query head and key, and a scale that its gradient knows nothing of.",
        "GRAD-10", "GRAD-5", "GRAD-6", heads=6, kv_heads=2, scale=1.25,
        attn_bias=Draws("layer-gradient/grouped-bias-scale").gauss(1, 6, 5, 7))
    key, value = draws.gauss(2, 7, 9), draws.gauss(2, 7, 9)
    key[0, 5:], value[0, 5:], key[1, 6], value[1, 6] = np.nan, np.inf, -np.inf, np.nan
    yield _gradient("nan-behind-lengths",
        "Tokens that do not exist hold NaN and infinity: they reach no gradient.", "GRAD-9", "GRAD-10",
        key=key, value=value, kv_lengths=np.array([5, 6]), needs=("strict_masking",))
    yield _gradient("many-tokens", "Three hundred tokens add up in every weight.", "GRAD-12", "GRAD-10",
        batch=(3,), heads=2, q_len=101, kv_len=9, d_q=6, d_k=3)
    yield _gradient("full-mantissa", "Operands of 24 bits.", "GRAD-12", "GRAD-10",
        bits=24, only=("float64", "float32"))
    yield _gradient("peaked", "Weights near zero and one.", "GRAD-10", "GRAD-15", scale=6.0)
    yield _gradient("everything", "Every option at once.", "GRAD-10", "GRAD-11", "GRAD-3", "GRAD-5", "GRAD-6",
        "GRAD-7", "GRAD-8", "GRAD-13", d_out=7, **every_option(draws))
    yield _gradient("transposed", "Operands, weights and grad_output lie transposed in memory.",
        "GRAD-10", "IND-2",
        memory=dict.fromkeys(("query", "key", "value", "w_q", "w_k", "w_v", "w_o", "grad_output"),
            "transposed"))
    yield _gradient("readonly", "Everything is read-only, and called twice.", "GRAD-10", "IND-4", "IND-5",
        repeat=2,
        memory=dict.fromkeys(("query", "key", "value", "w_q", "w_k", "w_v", "w_o", "grad_output"),
            "readonly"))


def _refused() -> Iterator[Draft]:
    draws = Draws("gradient-validation")
    for name, note, shape in (
        ("rows", "grad_output has another length than query.", (2, 3, 6, 4)),
        ("width", "grad_output has another width than value.", (2, 3, 5, 3)),
        ("heads", "grad_output has an axis of one instead of the heads.", (2, 1, 5, 4)),
        ("rank", "grad_output has an axis less.", (3, 5, 4)),
    ):
        yield gradient(attend(f"gradient/refused-{name}", note, "GRAD-14", raises=True),
            grad_output=draws.gauss(*shape))
    yield gradient(attend("gradient/refused-dtype", "grad_output has another dtype.", "GRAD-14", raises=True,
            dtype_of={"grad_output": "float64"}, only=("float32", "float16", "bfloat16")))
    yield gradient(attend("gradient/refused-key-width", "key has another d_k than query.", "GRAD-14",
            raises=True, key=draws.gauss(2, 3, 7, 5)))
    yield gradient(attend("gradient/refused-offset", "Causal, lengths differ, and no offset is given.",
            "GRAD-14", raises=True, is_causal=True))
    yield gradient(attend("gradient/refused-mask-dtype", "An integer mask.", "GRAD-14", raises=True,
            mask=np.ones((5, 7), dtype=np.int64)))
    yield gradient(project("gradient/layer-refused-width", "grad_output has another width than the output.",
            "GRAD-14", raises=True), grad_output=draws.gauss(2, 5, 8))
    yield gradient(project("gradient/layer-refused-weight", "w_k has another number of heads than w_v.",
            "GRAD-14", raises=True, w_k=draws.gauss(2, 9, 4)))
