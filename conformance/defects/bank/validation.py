"""What has to be refused, taken for something instead."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.checks import without
from conformance.defects.defect import Change, Defect, needing
from conformance.defects.reference import REFERENCE as R
from conformance.defects.steps import Steps


def _accepting(*checks: str, then: Any = lambda c: c) -> Change:
    """Checks that are missing, and what is made of the call."""
    return {"checks": without(*checks), "accept": then}


def _cut(axis: int, *names: str) -> Any:
    """Operands cut to the shortest of them along an axis."""

    def then(c: Call) -> Call:
        size = min(getattr(c, name).shape[axis] for name in names)
        cut: dict[str, Any] = {n: np.take(getattr(c, n), np.arange(size), axis=axis) for n in names}
        return replace(c, **cut)

    return then


def _with(name: str, change: Any) -> Any:
    """One argument, changed where it is given."""
    return lambda c: c if getattr(c, name) is None else replace(c, **{name: change(c, getattr(c, name))})


def _expanded(c: Call) -> Call:
    """Batches of one, repeated."""
    n = max(len(x) for x in (c.query, c.key, c.value))
    given = {name: getattr(c, name) for name in ("query", "key", "value")}
    repeated: dict[str, Any] = {name: np.resize(x, (n, *x.shape[1:])) for name, x in given.items()}
    return replace(c, **repeated)


def _ranked(c: Call) -> Call:
    """Missing axes in front, filled in."""
    rank = max(3, *(x.ndim for x in (c.query, c.key, c.value)))
    given = {n: getattr(c, n) for n in ("query", "key", "value")}
    return _expanded(replace(c, **{n: x.reshape(*[1] * (rank - x.ndim), *x.shape) for n, x in given.items()}))


def _zeros(c: Call) -> dict[str, Any]:
    return {"output": np.zeros((*c.query.shape[:-1], c.value.shape[-1]), c.dtype)}


def _of_the_call(c: Call, x: Any) -> Any:
    """Integers as numbers of the dtype of the call."""
    return x.astype(c.dtype) if x.dtype.kind == "i" else x


def _fit(x: Any, *shape: int) -> Any:
    return np.resize(x, shape)


def _padded(c: Call, x: Any) -> Any:
    """A last axis that is too short, filled up by its end."""
    return np.take(x, np.minimum(c.columns, x.shape[-1] - 1), axis=-1)


def _fitting(c: Call) -> Call:
    """A past, repeated or cut to what the new keys and values need."""
    if c.past_key is None:
        return c
    shape = (*c.batch, c.kv_heads, c.past)
    return replace(c, past_key=_fit(c.past_key, *shape, c.d_k), past_value=_fit(c.past_value, *shape, c.d_v))


def _answered(s: Steps, c: Call) -> Any:
    """Zeros where there should be an error."""
    try:
        return R.compute(s, c)
    except (TypeError, ValueError):
        return _zeros(c)


DEFECTS = needing("validation", (
    Defect("key-width-cut",
           "You accept a key of another d_k than the query and read the first features of the wider one.",
           ("SHAPE-5",), _accepting("key width", then=_cut(-1, "query", "key"))),
    Defect("value-length-cut",
           "You accept a value of another length than the key and read past its end, or not to it.",
           ("SHAPE-5",), _accepting("value length", then=_cut(-2, "key", "value")),
           "torch.nn.functional.scaled_dot_product_attention"),
    Defect("batch-broadcast", "You broadcast operands of different batch sizes: they have to agree.",
           ("SHAPE-5",), _accepting("batch", then=lambda c: c if c.layer else _expanded(c))),
    Defect("value-heads-broadcast", "You accept a value with another number of heads than the key.",
           ("SHAPE-5",),
           _accepting("value heads",
               then=lambda c: c if c.layer else replace(c, value=c.value[..., [0] * c.kv_heads, :, :]))),
    Defect("ranks-expanded", "You accept operands of different rank and add axes to the smaller ones.",
           ("SHAPE-11",),
           _accepting("rank", "ranks differ", "batch", "value heads",
                      then=lambda c: c if c.layer else _ranked(c))),
    Defect("rank-of-two-accepted", "You accept query, key and value without an axis of heads.", ("SHAPE-11",),
           {"checks": without("rank"),
            "compute": lambda s, c: R.compute(s,
                c if c.layer or c.query.ndim != 2
                    else replace(c, query=c.query[None], key=c.key[None], value=c.value[None]))}),
    Defect("d-k-of-zero-accepted", "You accept d_k of zero.",
           ("SHAPE-6",), _accepting("d_k of zero") | {"scale": lambda c: 1.0 if c.d_k == 0 else R.scale(c)}),
    Defect("d-v-of-zero-accepted", "You accept d_v of zero.", ("SHAPE-6",), _accepting("d_v of zero")),
    Defect("no-heads-accepted", "You accept operands without heads.", ("SHAPE-6",),
           {"checks": without("no heads", "groups"),
            "compute": lambda s, c: _zeros(c) if not c.layer and c.query.ndim > 2 and c.heads == 0
                else R.compute(s, c)}),
    Defect("groups-not-divisible-accepted",
           "You accept a number of query heads that the number of key heads does not divide.", ("HEAD-3",),
           _accepting("groups")
               | {"repeat": lambda c, x: np.take(x, np.arange(c.heads) * c.kv_heads // c.heads, axis=-3)}),
    Defect("half-a-past-ignored", "past_key without past_value, or the reverse, is ignored.", ("CACHE-5",),
           _accepting("half a past",
               then=lambda c: replace(c, past_key=None, past_value=None) if c.past_value is None else c)),
    Defect("half-a-past-filled-with-zeros", "past_key without past_value is taken to have values of zero.",
           ("CACHE-5",),
           _accepting("half a past",
                      then=lambda c: replace(c, past_value=np.zeros((*c.past_key.shape[:-1], c.d_v), c.dtype))
                          if c.past_key is not None and c.past_value is None else c)),
    Defect("sinks-of-wrong-length-accepted", "You accept a number of sinks other than that of the heads.",
           ("SHAPE-11",), _accepting("sinks", then=_with("sinks", lambda c, x: _fit(x, c.heads)))),
    Defect("mask-of-rank-3-accepted",
           "You accept a mask of rank 3 beside operands of rank 4, whose meaning is anybody's guess.",
           ("SHAPE-7",), _accepting("mask rank")),
    Defect("bias-of-rank-3-accepted",
           "You accept a bias of rank 3 beside operands of rank 4, whose meaning is anybody's guess.",
           ("SHAPE-7",),
           _accepting("bias rank", "bias shape",
               then=_with("attn_bias", lambda c, x: x[:, None] if x.ndim == 3 and len(c.batch) == 1 else x))),
    Defect("mask-of-wrong-shape-padded", "A mask that is too short is filled up.",
           ("SHAPE-11",), _accepting("mask shape", then=_with("mask", _padded))),
    Defect("mask-of-integers-read-as-bool", "A mask of integers is read as boolean.",
           ("DTYPE-4",), _accepting("mask dtype", then=_with("mask", lambda c, x: x.astype(bool)))),
    Defect("mask-of-numbers-added", "A mask of numbers is added to the logits.", ("DTYPE-4",),
           _accepting("mask dtype",
                      then=lambda c: c if c.mask is None or c.mask.dtype == np.bool_
                          else replace(c, mask=None, attn_bias=c.mask))),
    Defect("bias-of-bools-read-as-mask", "A bias of booleans is read as a mask.", ("DTYPE-5",),
           _accepting("bias dtype",
                      then=lambda c: replace(c, mask=c.attn_bias, attn_bias=None) if c.attn_bias is not None
                          and c.attn_bias.dtype == np.bool_ else c)),
    Defect("bias-of-integers-added", "A bias of integers is added.",
           ("DTYPE-5",), _accepting("bias dtype", then=_with("attn_bias", _of_the_call))),
    *(Defect(f"{word}-of-rank-1-broadcast", f"A {word} of rank 1 is broadcast to every query.", ("SHAPE-7",),
             _accepting(f"{word} rank", f"{word} shape",
                        then=_with(name, lambda c, x: x[None] if x.ndim == 1 else x)))
      for word, name in (("mask", "mask"), ("bias", "attn_bias"))),
    Defect("bias-of-bools-added", "A bias of booleans is added as zeros and ones.",
           ("DTYPE-5",), _accepting("bias dtype")),
    Defect("causal-without-offset-top-left",
           "is_causal with different lengths and no q_offset is aligned with the first key, without a word.",
           ("MASK-7",), _accepting("causal without offset"),
           "torch.nn.functional.scaled_dot_product_attention"),
    Defect("causal-without-offset-bottom-right",
           "is_causal with different lengths and no q_offset is aligned with the last key, without a word.",
           ("MASK-7",),
           _accepting("causal without offset", "window without offset") | {"place": lambda c: R.place(
                       c if c.q_offset is not None else replace(c, q_offset=c.kv_len - c.q_len))},
           "FlashAttention"),
    Defect("window-without-offset-top-left",
           "A window with different lengths and no q_offset is aligned with the first key, without a word.",
           ("MASK-7",), _accepting("window without offset")),
    Defect("lengths-of-wrong-shape-cut", "You accept more or fewer kv_lengths than batch entries.",
           ("SHAPE-11",), _accepting("lengths", then=_with("kv_lengths", lambda c, x: _fit(x, *c.batch)))),
    Defect("offsets-of-wrong-shape-cut", "You accept more or fewer entries of q_offset than batch entries.",
           ("SHAPE-11",),
           _accepting("offsets",
                      then=_with("q_offset", lambda c, x: _fit(x, *c.batch) if np.ndim(x) else x))),
    Defect("lengths-of-floats-accepted", "You accept kv_lengths that are no integers.",
           ("DTYPE-7",), _accepting("lengths dtype")),
    Defect("offsets-of-floats-accepted", "You accept an array q_offset that holds no integers.",
           ("DTYPE-7",), _accepting("offsets dtype")),
    Defect("mixed-dtypes-promoted", "Operands of different dtypes are promoted: they have to agree.",
           ("DTYPE-2",), _accepting("operands of two dtypes")),
    Defect("softcap-of-zero-is-none", "A softcap of 0 is taken for none.", ("SHAPE-10",),
           _accepting("softcap of zero", then=lambda c: replace(c, softcap=c.softcap or None))),
    Defect("negative-softcap-accepted", "You accept a negative softcap.",
           ("SHAPE-10",), _accepting("negative softcap")),
    Defect("negative-window-is-open", "A negative side of a window is taken for open.", ("SHAPE-10",),
           _accepting("negative window",
               then=_with("window", lambda c, x: tuple(None if n is not None and n < 0 else n for n in x))),
           "FlashAttention"),
    Defect("window-of-three-cut", "You accept a window of three numbers and read the first two.",
           ("SHAPE-10",), _accepting("window of two", then=_with("window", lambda c, x: x[:2]))),
    Defect("w-q-width-cut", "You accept a w_q that reads another width than the query has.", ("PROJ-6",),
           _accepting("w_q",
                      then=lambda c: c if not c.layer
                          else replace(c, query=_fit(c.query, *c.query.shape[:-1], c.w_q.shape[1])))),
    Defect("w-k-width-cut", "You accept a w_k that makes keys of another width than w_q makes queries.",
           ("PROJ-6",),
           _accepting("w_k",
                      then=lambda c: c if not c.layer
                          else replace(c, w_k=_fit(c.w_k, *c.w_k.shape[:-1], c.d_k), b_k=None))),
    Defect("w-v-heads-broadcast", "You accept a w_v with another number of heads than w_k.", ("PROJ-6",),
           _accepting("w_v", "b_v",
                      then=lambda c: c if not c.layer
                          else replace(c, w_v=_fit(c.w_v, c.kv_heads, *c.w_v.shape[1:])))),
    Defect("w-o-heads-cut", "You accept a w_o with another number of heads than w_q.", ("PROJ-6",),
           _accepting("w_o",
               then=lambda c: c if not c.layer else replace(c, w_o=_fit(c.w_o, c.heads, *c.w_o.shape[1:])))),
    Defect("flat-b-q-accepted", "You accept a b_q that is flat over the heads.",
           ("PROJ-6",), _accepting("b_q", then=_with("b_q", lambda c, x: x.reshape(c.heads, c.d_k)))),
    Defect("b-o-cut", "You accept a b_o of another width than w_o makes.",
           ("PROJ-6",), _accepting("b_o", then=_with("b_o", lambda c, x: _fit(x, c.w_o.shape[-1])))),
    Defect("flat-b-k-accepted", "You accept a b_k that is flat over the heads.",
           ("PROJ-6",), _accepting("b_k", then=_with("b_k", lambda c, x: x.reshape(c.kv_heads, c.d_k)))),
    Defect("b-v-broadcast", "You accept a b_v (d_v,) and add it to every head.",
           ("PROJ-6",), _accepting("b_v", then=_with("b_v", lambda c, x: _fit(x, c.kv_heads, c.d_v)))),
    Defect("past-of-other-batch-repeated", "You accept a past of another batch size and repeat it.",
           ("SHAPE-5",), _accepting("past", "past values", then=_fitting)),
    Defect("past-values-of-other-length-cut", "You accept past_value of another length than past_key.",
           ("SHAPE-5",), _accepting("past values", then=_fitting)),
    Defect("bias-of-wrong-shape-padded", "A bias that is too short is filled up.",
           ("SHAPE-11",), _accepting("bias shape", then=_with("attn_bias", _padded))),
    Defect("offset-of-a-fraction-cut", "You accept a q_offset that is no integer, and cut it to one.",
           ("SHAPE-10",),
           _accepting("offset kind", then=_with("q_offset", lambda c, x: x if np.ndim(x) else int(x)))),
    Defect("flags-of-any-kind-accepted", "You accept an is_causal that is neither true nor false.",
           ("SHAPE-10",), _accepting("flags")),
    Defect("scale-of-any-kind-is-default", "A scale that is no number is taken for 'not given'.",
           ("SHAPE-10",),
           _accepting("scale", then=_with("scale", lambda c, x: x if isinstance(x, float | int) else None))),
    Defect("softcap-of-any-kind-accepted", "You accept a softcap that is no finite number.",
           ("SHAPE-10",), _accepting("softcap kind")),
    Defect("window-of-fractions-accepted", "You accept a window whose sides are no integers.",
           ("SHAPE-10",), _accepting("window kind")),
    Defect("nothing-refused", "Wrong calls give a result of zeros, not an error.",
           ("SHAPE-5", "SHAPE-6", "SHAPE-7", "SHAPE-10", "SHAPE-11", "DTYPE-2", "DTYPE-4", "DTYPE-5",
            "MASK-7", "HEAD-3", "PROJ-6", "CACHE-5"), {"compute": _answered}),
))  # fmt: skip
