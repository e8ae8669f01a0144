"""The same call by another path: memory layout, neighbours, what else is asked for, a second call."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.vectors.generate.draft import Draft, attend, project
from conformance.vectors.generate.random_inputs import Draws

# fmt: off

_LAYOUTS = ("transposed", "reversed", "readonly", "unaligned")


def drafts() -> Iterator[Draft]:
    """Layouts, then neighbours, then what is asked for beside."""
    for layout in _LAYOUTS:
        yield attend(f"independence/{layout}", f"Query, key and value lie {layout} in memory.",
            "IND-2", "IND-5", d_k=8, memory=dict.fromkeys(("query", "key", "value"), layout))
    for operand in ("query", "key", "value"):
        yield attend(f"independence/transposed-{operand}",
            f"The {operand} alone lies transposed in memory: strides are read for each operand.", "IND-2",
            d_k=8, memory={operand: "transposed"})
    draws = Draws("independence/mask")
    yield attend("independence/transposed-mask-bias", "Mask and bias lie transposed in memory.", "IND-2",
        mask=draws.mask(2, 3, 5, 7, share=0.8) | (np.arange(7) == 0), attn_bias=draws.gauss(2, 3, 5, 7),
        memory={"mask": "transposed", "attn_bias": "transposed"})
    yield project("independence/layer-transposed",
        "The layer's operands and weights lie transposed in memory.", "IND-2",
        memory=dict.fromkeys(("query", "key", "value", "w_q", "w_k", "w_v", "w_o"), "transposed"))
    yield project("independence/layer-readonly", "The layer's operands and weights are read-only.", "IND-2",
        "IND-5", memory=dict.fromkeys(("query", "key", "value", "w_q", "w_k", "w_v", "w_o"), "readonly"))
    yield attend("independence/repeated",
        "The third of three equal calls gives what the first gave: no state, and no dropout.",
        "IND-4", "ATT-15", repeat=3, mask=draws.mask(5, 7, share=0.8) | (np.arange(7) == 0))
    yield attend("independence/repeated-past",
        "The third of three equal calls with a past: nothing was appended to it in place.",
        "IND-4", "IND-5", "CACHE-2", repeat=3, past=3)
    yield attend("independence/repeated-plain",
        "The third of three equal calls without an option gives what the first gave.", "IND-4",
        heads=2, q_len=3, kv_len=4, repeat=3)
    yield project("independence/layer-repeated",
        "The third of three equal calls of the layer gives what the first gave.", "IND-4",
        heads=2, q_len=3, kv_len=4, d_q=5, repeat=3)
    source = "independence/batch"
    both = attend(f"{source}-of-three",
        "Three batch entries, the middle one with values a thousand times larger.", "IND-3",
        batch=(3,), value=draws.gauss(3, 3, 7, 4) * np.array([1.0, 1024.0, 1.0])[:, None, None, None])
    yield both
    yield attend(f"{source}-of-one", "The last of those three entries alone gives the same.", "IND-3",
        batch=(1,), query=both.inputs["query"][2:], key=both.inputs["key"][2:],
        value=both.inputs["value"][2:])
    asked_for: dict[str, dict[str, Any]] = {"bare": {}, "weights": {"return_weights": True},
        "lse": {"return_lse": True}}
    for name, asked in asked_for.items():
        mask = Draws("independence/asked-mask").mask(2, 3, 7, 7, share=0.6)
        yield attend(f"independence/asked-{name}",
            f"Causal, masked, with an empty row; asked for beside the output: {name if asked else 'nothing'}.",
            "IND-1", "MASK-9", q_len=7, like="independence/asked", mask=mask, is_causal=True, **asked)
