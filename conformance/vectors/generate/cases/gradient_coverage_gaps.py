"""Gradients where a backward pass of its own goes wrong: what it decides anew, and where it stops short."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.cases.gradients import drafted
from conformance.vectors.generate.draft import Draft, gradient, project
from conformance.vectors.generate.random_inputs import Array, Draws, exact

# fmt: off


def drafts() -> Iterator[Draft]:
    """What is visible, biases and sinks, numbers far out, sizes beyond, and sums that are long."""
    yield from _windows()
    yield from _offsets_and_lengths()
    yield from _pairs()
    yield from _biases_and_sinks()
    yield from _far_out()
    yield from _sizes()
    yield from _sums()


def _edge(name: str, note: str, *covers: str, grad_output: Array | None = None, **given: object) -> Draft:
    """Two heads, three queries and five keys, unless given."""
    sizes: dict[str, object] = {"heads": 2, "q_len": 3, "kv_len": 5}
    return drafted(name, note, *covers, grad_output=grad_output, **{**sizes, **given})


def _windows() -> Iterator[Draft]:
    yield _edge("window-open-left",
        "A window open to the left ends at the query, at an offset of each batch entry, one negative.",
        "GRAD-3", "GRAD-4", "MASK-11", "MASK-8", window=[None, 0], q_offset=np.array([-1, 2]), d_v=3)
    yield _edge("window-from-query",
        "A window begins at the query, with nothing to the left, at an offset of each batch entry.",
        "GRAD-3", "MASK-10", "MASK-8", window=[0, None], q_offset=np.array([2, 1]), d_v=6)
    yield _edge("window-of-one", "A window of (0, 0): each query sees the one key at its place.",
        "GRAD-3", "MASK-10", window=[0, 0], q_offset=1, q_len=4, kv_len=6)
    yield _edge("window-beyond-keys",
        "The queries lie beyond the last key, and the window reaches back to fewer and fewer.",
        "GRAD-3", "GRAD-4", "MASK-8", window=[2, None], q_offset=5, d_v=3)


def _offsets_and_lengths() -> Iterator[Draft]:
    yield _edge("causal-offsets-two-batch-axes",
        "Causal, an offset for each entry of two batch axes, two of them negative.", "GRAD-3", "GRAD-4",
        "MASK-8", batch=(2, 3), is_causal=True, q_offset=np.array([[-1, 2, 0], [3, 1, -2]]), d_k=3, d_v=2)
    yield _edge("lengths-two-batch-axes",
        "A length for each entry of two batch axes: one below zero hides all, one beyond the keys nothing.",
        "GRAD-3", "GRAD-4", "MASK-12",
        batch=(2, 3), kv_lengths=np.array([[1, 4, -2], [3, 9, 2]]), d_k=3, d_v=2)


def _pairs() -> Iterator[Draft]:
    """Each hides what another shows: none stands for another."""
    draws = Draws("gradient/pairs")
    yield _edge("lengths-mask-bias-past",
        "Lengths that count the past, beside a mask and a bias: all of them act.",
        "GRAD-3", "GRAD-13", "MASK-9", "MASK-12", kv_len=7, past=2, kv_lengths=np.array([4, 5]),
        mask=draws.mask(2, 2, 3, 7, share=0.7), attn_bias=draws.gauss(2, 1, 3, 7))
    yield _edge("causal-mask-bias", "Causality beside a mask and a bias: all of them act.",
        "GRAD-3", "GRAD-5", "MASK-9",
        is_causal=True, q_offset=1, mask=draws.mask(1, 2, 3, 5, share=0.7), attn_bias=draws.gauss(1, 2, 3, 5))
    yield _edge("mask-of-queries-causal",
        "A mask of shape (q_len, 1) hides every key from one query, beside causality.",
        "GRAD-4", "MASK-9", "SHAPE-8", is_causal=True, q_offset=2, mask=np.array([[True], [False], [True]]))
    query = draws.gauss(2, 2, 3, 4)
    query[0, :, 1], query[1, 1, 1] = np.nan, np.inf
    yield _edge("nan-query-of-empty-row",
        "A query that sees nothing holds NaN or infinity: it reaches the gradients of no key.",
        "GRAD-4", "GRAD-9",
        query=query, mask=np.array([[True] * 5, [False] * 5, [True] * 5]), needs=("strict_masking",))
    cotangent = draws.gauss(2, 2, 3, 4)
    cotangent[0, :, 1], cotangent[1, 1, 1] = np.nan, -np.inf
    yield _edge("nan-cotangent-of-empty-row",
        "The cotangent of an output that sees nothing holds NaN or infinity: it reaches the gradients of no value.",
        "GRAD-4", "GRAD-9", grad_output=cotangent, mask=np.array([[True] * 5, [False] * 5, [True] * 5]),
        needs=("strict_masking",))


def _biases_and_sinks() -> Iterator[Draft]:
    draws = Draws("gradient/edges")
    yield _edge("bias-over-outer-batch",
        "Two batch axes, and a bias that only the first of them shares: summed over that one alone.",
        "GRAD-5", batch=(2, 3), d_k=3, d_v=2, attn_bias=draws.gauss(1, 3, 2, 3, 5))
    yield gradient(project("gradient/layer-bias-over-keys-sinks",
            "In the layer, a bias that all keys of a row share moves the row against its sink.", "GRAD-5",
            "GRAD-8", "GRAD-10", heads=2, q_len=3, kv_len=5, d_q=5, d_k=3, attn_bias=draws.gauss(2, 2, 3, 1),
            sinks=exact([1.0, -0.5])))
    for name, note, bias in (
        ("low", "All keys of two rows at -30208: large, and still no mask.", -30208.0),
        ("lowest", "All keys of two rows at the lowest number of float16, which is still no mask.", -65504.0),
    ):
        low = draws.gauss(1, 2, 3, 5)
        low[0, 0, 1], low[0, 1, 0] = bias, bias
        yield _edge(f"bias-{name}-is-no-mask", note, "GRAD-1", "GRAD-5", "ATT-9", attn_bias=low)


def _far_out() -> Iterator[Draft]:
    yield _edge("sink-of-40",
        "A sink of 40 beside a bias of 38: large, and within what any dtype tells apart.", "GRAD-8",
        sinks=exact([40.0, 1.0]), attn_bias=exact([38.0, 0.0]).reshape(1, 2, 1, 1))
    yield _edge("sink-that-takes-nothing",
        "A sink of -inf has no weight, and its gradient is 0; that of the other head is not.",
        "GRAD-8", "ATT-12", sinks=exact([-np.inf, 1.0]), d_v=3)
    bias = Draws("gradient/far-out").gauss(1, 2, 1, 5)
    bias[0, 1, 0, 2] = -60.0
    yield _edge("tiny-weights",
        "A sink of 40 that leaves weights of 1e-18, and a key at -60: small, and not zero.",
        "GRAD-1", "GRAD-8", sinks=exact([40.0, 1.0]), attn_bias=bias, q_len=2)
    yield _edge("bias-in-the-ten-thousands",
        "Biases of 20,000 to 20,002: only their differences count, and no logit is clamped.",
        "GRAD-1", "GRAD-5", "GRAD-15",
        q_len=2, attn_bias=np.array([20000.0, 20001.0, 20000.5, 20002.0, 20000.0]).reshape(1, 1, 1, 5),
        only=("float64", "float32"))
    yield _edge("softcap-60", "A softcap of 60 over logits up to 60.", "GRAD-7", softcap=60.0, sigma=5.0)


def _sizes() -> Iterator[Draft]:
    draws = Draws("gradient/edges/sizes")
    yield _edge("wider-than-128", "d_k of 136 and d_v of 72: the last of them has a gradient too.", "GRAD-1",
        batch=(1,), heads=1, q_len=2, kv_len=3, d_k=136, d_v=72)
    yield _edge("bias-of-520-keys-causal",
        "A bias for each of 520 keys, the last of which the first queries do not see, and the last queries do.",
        "GRAD-3", "GRAD-5", batch=(1,), heads=1, q_len=11, kv_len=520, d_k=1, is_causal=True, q_offset=509,
        attn_bias=draws.gauss(1, 1, 1, 520))
    yield _edge("sinks-of-520-rows", "520 queries move one sink, all of them down.", "GRAD-8", "GRAD-12",
        batch=(1,), heads=1, q_len=520, kv_len=3, d_k=2, d_v=1, value=_positive(draws, 1, 1, 3, 1),
        grad_output=_positive(draws, 1, 1, 520, 1), sinks=exact([0.5]))


def _positive(draws: Draws, *shape: int) -> Array:
    """From 0.5 on, so that what is summed has one sign."""
    return exact(np.round(np.abs(draws.gauss(*shape)) * 32 + 16) / 32)


def _sums() -> Iterator[Draft]:
    """Terms of one sign, so many that their sum shows in which precision it was formed."""
    draws = Draws("gradient/edges/sums")
    yield _edge("group-of-32", "32 query heads read one key head, and move it the same way.",
        "GRAD-6", "GRAD-12", batch=(1,), heads=32, kv_heads=1, q_len=2, kv_len=9, d_k=3, d_v=4,
        query=_positive(draws, 1, 32, 2, 3), grad_output=_positive(draws, 1, 32, 2, 4))
    yield _edge("rows-of-one-sign",
        "The gradients of 1,500 rows, all of one sign, add up in eight keys, their values and their bias.",
        "GRAD-5", "GRAD-12",
        batch=(1,), heads=1, q_len=1500, kv_len=8, d_k=1, d_v=3, query=_positive(draws, 1, 1, 1500, 1),
        value=_positive(draws, 1, 1, 8, 3) * np.array([1.0, 2.0, 0.5, 4.0, 1.0, 0.25, 2.0, 0.5])[:, None],
        grad_output=_positive(draws, 1, 1, 1500, 3), only=("float16", "bfloat16"),
        attn_bias=draws.gauss(1, 1, 1, 8))
    fall = np.array([1.0, 0.25])[:, None]  # the first token of every entry weighs more than the second
    yield gradient(project("gradient/layer-many-entries",
            "130 batch entries of three queries, all of one sign, add up in every weight and bias.",
            "GRAD-10", "GRAD-12", batch=(130,), heads=1, q_len=3, kv_len=2, d_q=2, d_kv=1, d_k=3, d_v=4,
            query=_positive(draws, 130, 3, 2), key=_positive(draws, 130, 2, 1) * fall,
            value=_positive(draws, 130, 2, 1) * fall, only=("float16", "bfloat16"),
            w_o=_positive(draws, 1, 4, 2)), grad_output=_positive(draws, 130, 3, 2) / 64)
