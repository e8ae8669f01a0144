"""Gradients that are off by a constant: doubled, in another base, averaged, the scale in another power."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect, varied
from conformance.defects.reference import REFERENCE as R

Factor = Callable[[Call], float]
STEPS = {
    "query": "grad_query",
    "key": "grad_key",
    "value": "grad_value",
    "attn_bias": "grad_bias",
    "sinks": "grad_sinks",
}
"""Where a gradient is formed; those of the layer's weights and biases are changed at the end."""
ALL = ("query", "key", "value")
WEIGHTS, BIASES = ("w_q", "w_k", "w_v", "w_o"), ("b_q", "b_k", "b_v", "b_o")
OPERANDS = {
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
    "query and key": ("query", "key"),
    "key and value": ("key", "value"),
    "query, key and value": ALL,
    "attn_bias": ("attn_bias",),
    "sinks": ("sinks",),
}
PARAMETERS = {
    **{name: (name,) for name in (*WEIGHTS, *BIASES)},
    "w_q, w_k and w_v": WEIGHTS[:3],
    "all weights": WEIGHTS,
    "b_q, b_k and b_v": BIASES[:3],
    "all biases": BIASES,
    "weights and biases": (*WEIGHTS, *BIASES),
    "w_q, w_k, w_v and their biases": (*WEIGHTS[:3], *BIASES[:3]),
}


def times(factor: Factor, *names: str) -> Change:
    """Gradients that are multiplied by a number, by name."""
    change: Change = {}
    for name in names:
        if name in STEPS:
            change |= after(STEPS[name], lambda c, x: x * c.wide(factor(c)))
    late = [name for name in names if name not in STEPS]
    if late:
        change["finish_gradients"] = lambda c, found: R.finish_gradients(
            c, {name: x * c.wide(factor(c)) if name in late else x for name, x in found.items()}
        )
    return change


def named(
    factor: Factor, groups: Mapping[str, tuple[str, ...]], here: str, leave: tuple[str, ...] = ()
) -> Any:
    """A factor of one group of gradients, and of the others as variants, as fields of a Defect."""
    made = {label: times(factor, *names) for label, names in groups.items() if label not in leave}
    return varied(made, here)


def powers(**given: float) -> Change:
    """The scale to another power than one, by name."""

    def scaled(c: Call, scale: float, power: float) -> Any:
        size = abs(scale) ** power if scale else float(power == 0)
        return c.wide(size if scale > 0 or power % 2 == 0 else -size)

    change: Change = {}
    for name, power in given.items():
        if name == "query":
            change["grad_query"] = lambda c, x, key, scale, n=power: (x @ key) * scaled(c, scale, n)
        else:
            change["grad_key"] = lambda c, x, query, scale, n=power: (
                (x.swapaxes(-1, -2) @ query) * scaled(c, scale, n)
            )
    return change


def _heads(c: Call) -> float:
    return 1 / c.heads


def _group(c: Call) -> float:
    return c.kv_heads / c.heads


def _entries(c: Call) -> float:
    return 1 / max(int(np.prod(c.batch)), 1)


def _tokens(change: Mapping[str, Callable[[Call], int]]) -> Callable[..., Change]:
    """Averages over tokens, by name."""

    def make(*names: str) -> Change:
        return {
            "finish_gradients": lambda c, found: R.finish_gradients(
                c,
                {
                    name: x / c.wide(max(change[name](c), 1)) if name in names else x
                    for name, x in found.items()
                },
            )
        }

    return make


def _q_len(c: Call) -> int:
    return c.q_len


def _new(c: Call) -> int:
    return int(c.key.shape[-2])


def _both(length: Callable[[Call], int]) -> Callable[[Call], int]:
    return lambda c: length(c) * max(int(np.prod(c.batch)), 1)


LENGTHS: dict[str, Callable[[Call], int]] = {
    **dict.fromkeys(("w_q", "b_q", "w_o", "b_o"), _q_len),
    **dict.fromkeys(("w_k", "b_k", "w_v", "b_v"), _new),
}
OVER_TOKENS = _tokens(LENGTHS)
OVER_BOTH = _tokens({name: _both(length) for name, length in LENGTHS.items()})


def averaged(groups: Mapping[str, tuple[str, ...]], here: str) -> Any:
    """Averages over tokens, and over tokens and batch, as fields of a Defect; some are defects of their own."""
    made = {label: OVER_TOKENS(*names) for label, names in groups.items() if label not in ("b_q", "b_o")}
    made |= {f"{label}, over tokens and batch": OVER_BOTH(*names) for label, names in groups.items()}
    return varied(made, here)


OF_WEIGHTS = {label: names for label, names in PARAMETERS.items() if "w_q" in names or names[0] in WEIGHTS}
OF_BIASES = {label: names for label, names in PARAMETERS.items() if names[0] in BIASES}
LAYER, TRUE = ("GRAD-10",), ("GRAD-1",)

DEFECTS = (
    Defect("grad-biases-averaged-over-tokens",
           "The gradients of the projections' biases are averaged over the tokens, not summed.",
           LAYER, **averaged(OF_BIASES, "b_q, b_k and b_v")),
    Defect("grad-weights-averaged-over-tokens",
           "The gradients of the projections' weights are averaged over the tokens, not summed.",
           LAYER, **averaged(OF_WEIGHTS, "w_q, w_k and w_v")),
    Defect("grad-parameters-averaged-over-batch",
           "Gradients of some of the projections' weights and biases are averaged over the batch, not summed.",
           LAYER, **named(_entries, PARAMETERS, "b_q, b_k and b_v", leave=("b_o", "weights and biases"))),
    Defect("grad-parameters-divided-by-heads",
           "Gradients of the projections' weights and biases are divided by the number of heads.",
           LAYER, **named(_heads, PARAMETERS, "all weights")),
    Defect("grad-b-o-for-each-head", "The gradient of b_o is added once for each head.", ("GRAD-11", "GRAD-10"),
           times(lambda c: c.heads, "b_o")),
    Defect("grad-parameters-doubled",
           "Gradients of the projections' weights and biases are doubled: they are added twice.",
           LAYER, **named(lambda c: 2, PARAMETERS, "weights and biases", leave=("b_o",))),
    Defect("grad-parameters-negated", "Gradients of the projections' weights and biases have the wrong sign.",
           LAYER, **named(lambda c: -1, PARAMETERS, "weights and biases")),
    Defect("grad-doubled", "Gradients are doubled: they are added twice.",
           TRUE, **named(lambda c: 2, OPERANDS, "key and value")),
    Defect("grad-halved", "Gradients are halved.", TRUE, **named(lambda c: 0.5, OPERANDS, "query and key")),
    Defect("grad-negated", "Gradients have the wrong sign.",
           TRUE, **named(lambda c: -1, OPERANDS, "query, key and value", leave=("sinks",))),
    Defect("grad-times-log2-e", "Gradients are multiplied by log2(e): that unit of a kernel in base 2 is not undone.",
           TRUE, **named(lambda c: 1 / np.log(2), OPERANDS, "query and key")),
    Defect("grad-times-ln-2", "Gradients are multiplied by ln(2) once too often, as in a kernel in base 2.",
           TRUE, **named(lambda c: np.log(2), OPERANDS, "query and key")),
    Defect("grad-divided-by-heads", "Gradients are divided by the number of heads.", TRUE,
           **named(_heads, OPERANDS, "key and value", leave=("query, key and value",))),
    Defect("grad-divided-by-group",
           "Some gradients are divided by the number of query heads that share a key head.", ("GRAD-6",),
           features=("gqa",), **named(_group, OPERANDS, "key", leave=("key and value",))),
    Defect("grad-averaged-over-queries", "Gradients of key and value are averaged over the queries, not summed.",
           TRUE, **named(lambda c: 1 / max(c.q_len, 1),
                         {label: OPERANDS[label] for label in ("key and value", "key", "value", "attn_bias")},
                         "key and value")),
    Defect("grad-averaged-over-keys", "The gradient of the query is averaged over the keys, not summed.",
           TRUE, times(lambda c: 1 / max(c.kv_len, 1), "query")),
    Defect("grad-scale-in-wrong-power", "The gradients of query and key have the scale in a wrong power.",
           TRUE, powers(query=-1, key=-1), detail="-1: they are divided by it",
           variants={"-1: the query's is divided by it": powers(query=-1),
               "-1: the key's is divided by it": powers(key=-1),
               "1/2: its root, both": powers(query=0.5, key=0.5),
               "1/2: its root, the query's": powers(query=0.5), "1/2: its root, the key's": powers(key=0.5),
               "3/2: its root once too often, both": powers(query=1.5, key=1.5),
               "3/2: its root once too often, the query's": powers(query=1.5),
               "3/2: its root once too often, the key's": powers(key=1.5),
               "0: it is left out of both": powers(query=0, key=0),
               "2: twice in both": powers(query=2, key=2),
               "0 in the query's, 2 in the key's": powers(query=0, key=2),
               "2 in the query's, 0 in the key's": powers(query=2, key=0)}),
)  # fmt: skip
