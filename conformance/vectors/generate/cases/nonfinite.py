"""NaN and Inf: hidden they must not leak, visible they must not be swallowed."""

from collections.abc import Iterator

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Draws, round_to_bits

# fmt: off


def drafts() -> Iterator[Draft]:
    """Hidden first, then visible."""
    yield from _hidden()
    yield from _visible()


def _hidden() -> Iterator[Draft]:
    draws = Draws("nonfinite/hidden")
    mask = np.ones((5, 7), dtype=bool)
    mask[:, 2], mask[:, 5] = False, False
    for name, poison in (("nan", np.nan), ("inf", np.inf), ("minus-inf", -np.inf)):
        key = draws.gauss(2, 3, 7, 4)
        key[:, :, 2, :], key[0, 1, 5, 3] = poison, poison
        yield attend(f"nonfinite/masked-key-{name}", f"A masked key holds {poison}: its logit never enters.",
            "MASK-4", key=key, mask=mask)
    key = draws.gauss(2, 3, 7, 4)
    key[:, :, 2, 0], key[:, :, 5, 1] = np.nan, np.inf
    bias = np.where(mask, draws.gauss(2, 3, 5, 7), -np.inf)
    yield attend("nonfinite/key-behind-minus-inf-bias", "-inf in the bias masks a key that holds NaN or Inf.",
        "MASK-4", "ATT-8", key=key, attn_bias=bias)
    square_key = draws.gauss(2, 3, 7, 4)
    square_key[:, :, 6, :] = np.nan
    yield attend("nonfinite/future-key-nan",
        "The last key is NaN: under causality only the last query sees it.", "MASK-4", "MASK-6", "ATT-10",
        q_len=7, key=square_key, is_causal=True)
    for name, poison in (("nan", np.nan), ("inf", np.inf)):
        value = draws.gauss(2, 3, 7, 4)
        value[:, :, 2, :], value[1, 0, 5, 1] = poison, poison
        yield attend(f"nonfinite/masked-value-{name}", f"A masked value holds {poison}: it takes no part.",
            "MASK-5", value=value, mask=mask, needs=("strict_masking",))
    future = draws.gauss(2, 3, 7, 4)
    future[:, :, 4, 1] = np.nan
    future[:, :, 5, 2] = np.inf
    yield attend("nonfinite/future-value",
        "Values at later keys are NaN and Inf: earlier queries are not touched, later ones are, in that column.",
        "MASK-5", "ATT-11", q_len=7, value=future, is_causal=True, needs=("strict_masking",))
    empty = np.ones((5, 7), dtype=bool)
    empty[1] = False
    value = draws.gauss(2, 3, 7, 4)
    value[0, :, 3, 2] = np.nan
    yield attend("nonfinite/empty-row-nan-value", "An empty row is zero beside rows that see a NaN value.",
        "MASK-3", "MASK-5", "ATT-11", value=value, mask=empty, needs=("strict_masking",))


def _visible() -> Iterator[Draft]:
    draws = Draws("nonfinite/visible")
    query = draws.gauss(2, 3, 5, 4)
    query[0, 1, 2, 3] = np.nan
    yield attend("nonfinite/query-nan", "A NaN in one query makes that row of that head NaN, and no other.",
        "ATT-10", "NUM-6", query=query)
    short = draws.gauss(2, 3, 5, 4)
    short[1, 2, 0, 1] = np.nan
    yield attend("nonfinite/query-nan-one-key",
        "A NaN query row with a single key: NaN, though a softmax over one key is one.", "ATT-10",
        kv_len=1, query=short)
    key = draws.gauss(2, 3, 7, 4)
    key[1, 0, 3, 2] = np.nan
    yield attend("nonfinite/key-nan",
        "A visible NaN key makes every row that sees it NaN: that head of that batch entry.",
        "ATT-10", "IND-3", key=key)
    infinite = np.abs(draws.gauss(2, 3, 5, 4)) * np.where(np.arange(5) % 2, 1.0, -1.0)[:, None]
    yield attend("nonfinite/logit-plus-inf",
        "A +inf key gives +inf logits, so NaN rows, for positive queries and -inf logits, weight zero, for others.",
        "ATT-10", "NUM-6", query=np.where(infinite == 0, 1.0, infinite),
        key=np.concatenate([draws.gauss(2, 3, 6, 4), np.full((2, 3, 1, 4), np.inf)], axis=2))
    positive = draws.gauss(2, 3, 5, 4)
    positive[0, 1] = np.abs(positive[0, 1]) + 0.125
    below = draws.gauss(2, 3, 7, 4)
    below[0, 1, :, 2] = -np.inf
    yield attend("nonfinite/logits-all-minus-inf",
        "Every visible logit of some rows is -inf because of the operands: NaN, for the rows are not empty.",
        "MASK-15", "ATT-10", "NUM-6", query=round_to_bits(positive), key=below, needs=("empty",))
    yield attend("nonfinite/lse-of-logits-all-minus-inf",
        "The lse of rows whose visible logits are all -inf is NaN, and of rows without a visible key -inf.",
        "ATT-10", "ATT-14", "MASK-15", query=round_to_bits(positive), key=below,
        mask=np.arange(7) >= np.array([0, 3, 7, 0, 2])[:, None], return_lse=True)
    yield attend("nonfinite/logits-all-minus-inf-sink",
        "The same with sinks: the sink takes all the weight, and these rows are zero.", "ATT-10", "ATT-12",
        query=round_to_bits(positive), key=below, sinks=np.array([0.5, -1.0, 2.0]))
    infinite = draws.gauss(2, 3, 7, 4)
    infinite[:, :, 3, 1], infinite[0, :, 5, 1] = np.inf, -np.inf
    yield attend("nonfinite/softcap-of-inf",
        "A softcap turns an infinite logit into plus or minus c, which is a number.", "ATT-5", "ATT-10",
        query=np.where(draws.gauss(2, 3, 5, 4) < 0, -1.5, 0.75), key=infinite, softcap=2.0)
    hidden_query = draws.gauss(2, 3, 5, 4)
    hidden_query[:, :, 2, 1] = np.nan
    rows = np.ones((5, 7), dtype=bool)
    rows[2] = False
    yield attend("nonfinite/query-nan-in-empty-row",
        "A NaN query that may attend nothing yields zeros like any other.", "MASK-3", "MASK-4",
        query=hidden_query, mask=rows)
    outside = draws.gauss(2, 3, 7, 4)
    outside[:, :, 6, :] = np.nan
    yield attend("nonfinite/key-nan-behind-window",
        "A NaN key outside the window of the first queries does not reach them.",
        "MASK-4", "MASK-10", "ATT-10", q_len=7, key=outside, window=(2, 1))
    bias = draws.gauss(2, 3, 5, 7)
    bias[0, 0, 1, 2], bias[1, 2, 4, 6] = np.nan, np.inf
    yield attend("nonfinite/bias-nan-inf", "NaN or +inf in the bias makes its row NaN.", "ATT-10", "ATT-7",
        attn_bias=bias)
    yield attend("nonfinite/lse-nan", "The lse of a NaN row is NaN.", "ATT-10", "ATT-14",
        query=query, return_lse=True)
    value = draws.gauss(2, 3, 7, 4)
    value[0, 1, 3, 0] = np.nan
    value[0, 2, 1, 1] = np.inf
    value[1, 0, 6, 2] = -np.inf
    value[1, 1, 2, 3], value[1, 1, 5, 3] = np.inf, -np.inf
    yield attend("nonfinite/value",
        "NaN, Inf and opposite Infs in visible values reach their own column and nothing else.",
        "ATT-11", "NUM-6", value=value)
    layer_query = draws.gauss(2, 5, 9)
    layer_query[1, 3, 4] = np.nan
    yield project("nonfinite/layer-query",
        "A NaN in one token's query makes that token's output NaN, through every head, and no other.",
        "ATT-10", "IND-3", query=layer_query)
    layer_key = draws.gauss(2, 7, 9)
    layer_key[0, 5, 2] = np.nan
    mask = np.ones((2, 1, 5, 7), dtype=bool)
    mask[0, ..., 5] = False
    yield project("nonfinite/layer-masked-key",
        "A padded token's key is NaN: masked, it does not leak through the projection.", "MASK-4", "PROJ-7",
        key=layer_key, mask=mask)
    layer_value = draws.gauss(2, 7, 9)
    layer_value[0, 5, 2] = np.nan
    yield project("nonfinite/layer-masked-value",
        "A padded token's value is NaN: masked, it takes no part in the layer either.", "MASK-5", "PROJ-7",
        value=layer_value, mask=mask, needs=("strict_masking",))
