"""Memory, state, neighbours and shapes: what the result may not depend on."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from conformance.defects.bank.mutators import after, output, refuse
from conformance.defects.call import Call
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps
from conformance.vectors.case import Array


def _raw(x: Any) -> Any:
    """The numbers in the order in which they lie in memory, whatever the strides say."""
    if not isinstance(x, np.ndarray) or x.ndim < 2 or x.flags.c_contiguous:
        return x
    return (
        np.flip(x).ravel("K").reshape(x.shape)
        if any(s < 0 for s in x.strides)
        else x.ravel("K").reshape(x.shape)
    )


def _unsigned(x: Any) -> Any:
    """Negative strides, read as positive ones."""
    return np.flip(x) if isinstance(x, np.ndarray) and any(s < 0 for s in x.strides) else x


def _shifted(x: Any) -> Any:
    """An array that starts at an odd address, read from the even one before."""
    if not isinstance(x, np.ndarray) or x.flags.aligned:
        return x
    return np.frombuffer(b"\0" + x.tobytes()[:-1], x.dtype).reshape(x.shape)


def each_operand(change: Any, *names: str) -> Change:
    """Operands, changed one by one."""
    return {
        "accept": lambda c: replace(
            c, **{f.name: change(getattr(c, f.name)) for f in fields(c) if not names or f.name in names}
        )
    }


def _scaled_in_place(c: Call) -> Call:
    c.query[...] = (c.query * c.dtype.type(0.5)).astype(c.dtype)
    return replace(c, query=(c.query / c.dtype.type(0.5)).astype(c.dtype))


def _cleared_in_place(c: Call) -> Call:
    if c.mask is not None and c.mask.shape == c.logits_shape and not c.layer and c.heads == c.kv_heads:
        c.value[~c.mask.any(axis=-2)] = 0
    return c


def _bias_in_place(c: Call) -> Call:
    if c.attn_bias is not None and c.mask is not None and c.attn_bias.shape == c.mask.shape:
        c.attn_bias[~c.mask] = -np.inf
    return c


def _past_in_place(c: Call) -> Call:
    if c.past:
        c.past_key[..., -1, :] = c.past_key[..., 0, :]
    return c


def _mask_in_place(c: Call) -> Call:
    if c.mask is not None and c.is_causal and c.mask.shape[-2:] == (c.q_len, c.kv_len):
        c.mask[...] &= R.by_causal(c, R.place(replace(c, q_offset=None)))
    return c


def _remembered_mask() -> Change:
    """The first mask of each shape serves every later call."""
    kept: dict[Any, Array] = {}
    return {"by_mask": lambda c: None if c.mask is None else kept.setdefault(c.mask.shape, c.mask.copy())}


def _remembered_triangle() -> Change:
    """The first triangle of each pair of lengths serves every later call."""
    kept: dict[Any, Array] = {}
    return {
        "by_causal": lambda c, p: (
            kept.setdefault((c.q_len, c.kv_len, p.shape), c.columns <= p) if c.is_causal else None
        )
    }


def _counting(wrong: Any) -> Any:
    """A change of the output that depends on how many equal calls came before: n, output -> output."""

    def change() -> Change:
        seen: dict[Any, int] = {}

        def compute(s: Steps, c: Call) -> Any:
            name = (c.operation, c.query.tobytes(), c.key.tobytes())
            seen[name] = seen.get(name, 0) + 1
            outputs: dict[str, Array] = R.compute(s, c)
            return outputs | {"output": wrong(seen[name], outputs["output"]).astype(c.dtype)}

        return {"compute": compute}

    return change


def _growing() -> Change:
    """Every call with a past appends to a cache of its own."""
    kept: dict[Any, tuple[Array, Array]] = {}

    def compute(s: Steps, c: Call) -> Any:
        if c.past_key is None:
            return R.compute(s, c)
        name = c.past_key.tobytes()
        past_key, past_value = kept.get(name, (c.past_key, c.past_value))
        outputs = R.compute(s, replace(c, past_key=past_key, past_value=past_value))
        kept[name] = outputs["present_key"], outputs["present_value"]
        return outputs

    return {"compute": compute}


def _dropping() -> Change:
    """Dropout that stays on."""
    random = np.random.default_rng(0)

    def normalise(c: Call, e: Array, total: Array, visible: Array) -> Any:
        weights = R.normalise(c, e, total, visible)
        return np.where(random.random(weights.shape) < 0.1, 0, weights / 0.9).astype(c.wide)

    return {"normalise": normalise}


def _noisy() -> Change:
    """Other noise at each call."""
    random = np.random.default_rng(2)
    return after("average", lambda c, x: x * (1 + 3e-3 * random.standard_normal(x.shape)).astype(c.wide))


def _entries(index: Any) -> Change:
    """Outputs of other batch entries: n -> which."""
    return after("merge", lambda c, x: x[index(len(x))], lambda c: bool(c.batch) and c.batch[0] > 0)


def _turned_batch(c: Call, x: Array) -> Array:
    """Two batch axes, flattened in the wrong order."""
    first, second = c.batch[0], int(np.prod(c.batch[1:]))
    rest = x.shape[len(c.batch) :]
    return x.reshape(first, second, *rest).swapaxes(0, 1).reshape(x.shape)


DEFECTS = (
    Defect("strides-ignored", "Your arrays are read in the order of memory, whatever their strides.",
           ("IND-2",), each_operand(_raw), "pytorch/pytorch#187506"),
    *(Defect(f"strides-of-{operand.replace('_', '-')}-ignored",
             f"{operand} is read in the order of memory, whatever its strides.", ("IND-2",),
             each_operand(_raw, operand), "pytorch/pytorch#163597",
             features=(operand,) if operand in ("mask", "attn_bias") else ())
      for operand in ("query", "key", "value", "mask", "attn_bias", "w_q", "w_k", "w_v", "w_o")),
    Defect("strides-without-sign", "Negative strides are read as positive ones.",
           ("IND-2",), each_operand(_unsigned)),
    Defect("unaligned-read-from-before", "Arrays at odd addresses are read from the even address before.",
           ("IND-2",), each_operand(_shifted)),
    Defect("unaligned-refused", "You refuse arrays at odd addresses.",
           ("IND-2",), refuse(lambda c: not c.query.flags.aligned, "query is not aligned")),
    Defect("readonly-refused", "You refuse read-only arrays.",
           ("IND-2", "IND-5"), refuse(lambda c: not c.query.flags.writeable, "query is read-only")),
    Defect("strided-refused", "You refuse arrays that are not contiguous.",
           ("IND-2",), refuse(lambda c: not c.query.flags.c_contiguous, "query is not contiguous")),
    Defect("query-scaled-in-place", "The query that you are given is scaled in place.",
           ("IND-5",), {"accept": _scaled_in_place}),
    Defect("masked-values-cleared-in-place", "Masked values are set to zero in the array that you are given.",
           ("IND-5",), {"accept": _cleared_in_place}, features=("mask",)),
    Defect("mask-written-into-bias", "The mask is written into the bias that you are given.",
           ("IND-5",), {"accept": _bias_in_place}, "jax-ml/jax#28974", features=("mask", "attn_bias")),
    Defect("causality-written-into-mask", "The triangle is written into the mask that you are given.",
           ("IND-5",), {"accept": _mask_in_place}, features=("mask", "is_causal")),
    Defect("past-written-to", "The past that you are given is written to.",
           ("IND-5", "CACHE-2"), {"accept": _past_in_place}, features=("cache",)),
    Defect("mask-remembered-by-shape",
           "The mask is remembered by its shape, and serves later calls with other masks.",
           ("IND-4",), _remembered_mask, features=("mask",), stateful=True),
    Defect("triangle-remembered-by-lengths",
           "The triangle is remembered by the lengths, and serves later calls with other offsets.",
           ("IND-4", "MASK-8"), _remembered_triangle, features=("is_causal",), stateful=True),
    Defect("second-call-differs", "From the second equal call on your output is another one.",
           ("IND-4",), _counting(lambda n, x: x if n == 1 else x * x.dtype.type(1.5)), stateful=True),
    Defect("third-call-zero", "The third equal call gives zeros.",
           ("IND-4",), _counting(lambda n, x: x if n < 3 else 0 * x), stateful=True),
    Defect("output-accumulates", "Outputs of equal calls are added up in one buffer.",
           ("IND-4",), _counting(lambda n, x: n * x), stateful=True),
    Defect("past-grows-between-calls",
           "Each call appends to a cache that it keeps, whatever past it is given.",
           ("IND-4", "CACHE-1"), _growing, features=("cache",), stateful=True),
    Defect("dropout-left-on", "Dropout is active: the operations contain none.",
           ("ATT-15", "IND-4"), _dropping, "pytorch/pytorch#124464", stateful=True),
    Defect("dropout-always-the-same", "Dropout is active, with the same seed in each call.", ("ATT-15",),
           {"normalise": lambda c, e, total, v: np.where(np.random.default_rng(1).random(v.shape) < 0.1, 0,
                R.normalise(c, e, total, v) / 0.9).astype(c.wide)}, "suno-ai/bark#662"),
    Defect("first-batch-entry-only", "All batch entries but the first come out as zero.",
           ("SHAPE-4", "IND-3"),
           after("average", lambda c, x: x * (np.arange(len(x)) == 0).reshape(-1, *[1] * (x.ndim - 1)),
                 lambda c: len(c.batch) > 0), "pytorch/pytorch#139462"),
    Defect("first-batch-entry-for-all", "Every batch entry gets the output of the first.",
           ("SHAPE-4", "IND-3"), _entries(lambda n: [0] * n)),
    Defect("batch-in-reverse", "The batch entries come out in reverse order.",
           ("SHAPE-4", "IND-3"), _entries(lambda n: slice(None, None, -1))),
    Defect("batch-axes-flattened-wrongly", "Several batch axes are flattened in the wrong order.",
           ("SHAPE-4",), after("merge", _turned_batch, lambda c: len(c.batch) > 1), "pytorch/pytorch#161310"),
    Defect("batch-averaged-into-values", "The mean of the values over the batch is subtracted.", ("IND-3",),
           after("project_value",
                 lambda c, x: x - x.mean(axis=0) if len(c.batch) == 1 and len(x) > 1 else x)),
    Defect("no-batch-refused", "You refuse operands without a batch axis.",
           ("SHAPE-4",), refuse(lambda c: not c.batch, "no batch axis")),
    Defect("many-batch-axes-refused", "You refuse operands with more than one batch axis.",
           ("SHAPE-4",), refuse(lambda c: len(c.batch) > 1, "more than one batch axis")),
    Defect("batch-axes-merged", "Several batch axes come out as one.", ("SHAPE-2", "SHAPE-4"),
           output(lambda c, x: x.reshape(-1, *x.shape[len(c.batch) :]), "output",
                  when=lambda c: len(c.batch) > 1)),
    Defect("axes-of-one-squeezed", "Axes of length 1 are missing in your output.",
           ("SHAPE-2",), output(lambda c, x: np.squeeze(x), "output")),
    Defect("batch-axis-added", "Without a batch axis your output has one all the same.",
           ("SHAPE-2", "SHAPE-4"), output(lambda c, x: x if c.batch else x[None], "output")),
    Defect("empty-batch-refused", "You refuse a batch of zero entries: the result is empty.", ("SHAPE-9",),
           refuse(lambda c: 0 in c.batch, "empty batch"), "pytorch/pytorch#141218", features=("empty",)),
    Defect("no-queries-refused", "You refuse a call without queries: the result is empty.", ("SHAPE-9",),
           refuse(lambda c: c.q_len == 0, "no queries"), "pytorch/pytorch#141218", features=("empty",)),
    Defect("no-queries-flat", "Without queries your result is empty but has the wrong shape.",
           ("SHAPE-9", "SHAPE-2"), output(lambda c, x: x.reshape(-1) if c.q_len == 0 else x, "output"),
           features=("empty",)),
    Defect("empty-result-float64", "An empty result is float64, whatever the operands are.",
           ("SHAPE-9", "DTYPE-1"), output(lambda c, x: x.astype(np.float64) if x.size == 0 else x, "output"),
           features=("empty",), unobservable={"float64": "it is right there"}),
    Defect("noise-added", "Random noise of one per mille is added to your output.",
           ("IND-4", "NUM-1", "NUM-2"), _noisy,
           admitted={"bfloat16/eager": "less than a rounding of the logits"}, stateful=True),
)  # fmt: skip
