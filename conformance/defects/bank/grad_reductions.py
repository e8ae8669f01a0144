"""Gradients: sums over groups, broadcast axes, queries and keys; sinks and the past."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from conformance.defects.backward import to_shape
from conformance.defects.bank.mutators import after
from conformance.defects.defect import Change, Defect
from conformance.defects.reference import REFERENCE as R


def _last_of_group(c: Any, x: Any) -> Any:
    """Zero but for the last query head of each group; x is [..., H, length, d]."""
    last = np.arange(c.heads) % (c.heads // c.kv_heads) == c.heads // c.kv_heads - 1
    return np.where(last[:, None, None], x, c.wide(0))


def _gather(change: Any) -> Change:
    """Another sum over a group: c, x [..., G, group, length, d] -> [..., G, length, d]."""
    return {
        "gather": lambda c, x: change(
            c, x.reshape(*c.batch, c.kv_heads, c.heads // c.kv_heads, *x.shape[-2:])
        )
    }


def _tiled(c: Any, x: Any) -> Any:
    """Groups in the order of a tile, not of a repeat."""
    flat = x.reshape(*c.batch, c.heads, *x.shape[-2:])
    return flat.reshape(*c.batch, c.heads // c.kv_heads, c.kv_heads, *x.shape[-2:]).sum(axis=-4)


def _bias(change: Any) -> Change:
    """Another gradient of the bias: c, gradient of the logits, shape."""
    return {"grad_bias": lambda c, x: change(c, x, c.attn_bias.shape)}


def _mean(c: Any, x: Any, shape: tuple[int, ...]) -> Any:
    return to_shape(x, shape) / c.wide(max(x.size // max(int(np.prod(shape)), 1), 1))


def _last(axis: int) -> Any:
    """Of one broadcast axis only the last entry is kept."""

    def change(c: Any, x: Any, shape: tuple[int, ...]) -> Any:
        if len(shape) < -axis or shape[axis] != 1 or x.shape[axis] == 0:
            return to_shape(x, shape)
        return to_shape(np.take(x, [-1], axis=axis), shape)

    return change


def _last_of_batch(c: Any, x: Any, shape: tuple[int, ...]) -> Any:
    shared = bool(c.batch) and (len(shape) == 2 or shape[0] == 1)
    return to_shape(x[-1:] if shared else x, shape)


def narrow_sum(x: Any, axis: int, to: Any) -> Any:
    """A running sum that is stored in a narrow dtype after every term."""
    total = np.zeros(np.delete(np.array(x.shape), axis % x.ndim), dtype=to)
    wide = np.promote_types(to, np.float32)
    for term in np.moveaxis(x, axis, 0):
        total = (total.astype(wide) + term.astype(wide)).astype(to)
    return total.astype(x.dtype)


def _narrow(c: Any) -> Any:
    return c.dtype if c.dtype.itemsize == 2 else ml_dtypes.bfloat16 if c.dtype == np.float32 else np.float32


def _whole(length: int) -> int:
    """The length of the whole tiles of 64; all where there is none."""
    return length // 64 * 64 or length


def _before_last(length: int) -> int:
    """Where the last tile of 64 begins."""
    return max(length - 1, 0) // 64 * 64


GROUPED, BIASED, SUNK, PAST = ("gqa",), ("attn_bias",), ("sinks",), ("cache",)
SHARED = ("attn_bias", "broadcast")

DEFECTS = (
    Defect("grad-group-first-head",
           "The gradients of key and value are those of the first query head of the group.", ("GRAD-6",),
           _gather(lambda c, x: x[..., 0, :, :]), features=GROUPED, origin="marin-community/levanter#449"),
    Defect("grad-group-last-head",
           "The gradients of key and value are overwritten by each query head of the group: the last one stays.",
           ("GRAD-6",), _gather(lambda c, x: x[..., -1, :, :]), features=GROUPED,
           variants={"of the key only": {
                         "grad_key": lambda *given: _last_of_group(given[0], R.grad_key(*given))}}),
    Defect("grad-group-mean", "The gradients of key and value are averaged over the group.",
           ("GRAD-6",), _gather(lambda c, x: x.mean(axis=-3)), features=GROUPED),
    Defect("grad-group-tiled", "The heads of a group are gathered in the order of a tile.",
           ("GRAD-6",), _gather(_tiled), features=GROUPED),
    Defect("grad-group-max", "The largest gradient of the group is kept, by size.", ("GRAD-6",),
           _gather(lambda c, x: np.take_along_axis(x, np.abs(x).argmax(axis=-3, keepdims=True),
                       axis=-3)[..., 0, :, :]), features=GROUPED),
    Defect("grad-group-key-only",
           "The gradient of the value is that of the last head of the group; the key's is summed.",
           ("GRAD-6",),
           {"grad_value": lambda c, p, g: _last_of_group(c, R.grad_value(c, p, g))}, features=GROUPED),
    Defect("grad-bias-mean", "The gradient of a shared bias is averaged over what it is shared by.",
           ("GRAD-5",), _bias(_mean), features=SHARED),
    Defect("grad-bias-last-query", "The gradient of a bias that queries share is that of the last query.",
           ("GRAD-5",), _bias(_last(-2)), features=SHARED),
    Defect("grad-bias-last-head", "The gradient of a bias that heads share is that of the last head.",
           ("GRAD-5",), _bias(_last(-3)), features=SHARED),
    Defect("grad-bias-last-entry",
           "The gradient of a bias that the batch shares is that of the last batch entry.",
           ("GRAD-5",), _bias(_last_of_batch), features=BIASED),
    Defect("grad-bias-full-shape", "The gradient of a shared bias comes in the full shape.",
           ("GRAD-5", "GRAD-2"), _bias(lambda c, x, shape: x), features=SHARED),
    Defect("grad-bias-squeezed", "The gradient of a shared bias comes without its axes of one.",
           ("GRAD-5", "GRAD-2"), _bias(lambda c, x, shape: to_shape(x, shape).squeeze()), features=SHARED),
    Defect("grad-bias-scaled", "The gradient of the bias is multiplied by the scale.", ("GRAD-5", "GRAD-1"),
           _bias(lambda c, x, shape: to_shape(x, shape) * c.wide(R.scale(c))), features=BIASED),
    Defect("grad-bias-zero", "The bias gets no gradient.",
           ("GRAD-5",), _bias(lambda c, x, shape: np.zeros(shape, x.dtype)), features=BIASED),
    Defect("grad-bias-missing", "No gradient of the bias is returned.", ("GRAD-2", "GRAD-5"),
           after("finish_gradients", lambda c, o: {n: x for n, x in o.items() if n != "attn_bias"}),
           features=BIASED),
    Defect("grad-bias-of-keys-not-zero",
           "The gradient of a bias that all keys share is the sum of the weights.",
           ("GRAD-5",), _bias(lambda c, x, shape: to_shape(x, shape) + c.wide(1 if shape[-1] == 1 else 0)),
           features=SHARED),
    Defect("grad-bias-before-group", "The gradient of the bias is cut to the heads of the keys and repeated.",
           ("GRAD-5", "GRAD-6"),
           _bias(lambda c, x, shape: to_shape(
                   np.repeat(x[..., :: c.heads // c.kv_heads, :, :], c.heads // c.kv_heads, axis=-3), shape)),
           features=("attn_bias", "gqa")),
    Defect("grad-bias-narrow-sum",
           "The gradient of the bias is added up over the queries in the dtype of the call, 16 bits of it at most.",
           ("GRAD-12", "GRAD-5"),
           _bias(lambda c, x, shape: to_shape(narrow_sum(x, -2, _narrow(c))[..., None, :], shape)
                     if shape[-2] == 1 else to_shape(x, shape)), features=SHARED, origin="jax 0.10"),
    Defect("grad-key-narrow-sum",
           "The gradient of the key is added up over the queries in 16 bits (in float32 for float64).",
           ("GRAD-12",),
           {"grad_key": lambda c, x, query, scale: narrow_sum(
                x.swapaxes(-1, -2)[..., None] * query[..., None, :, :], -2, _narrow(c)) * c.wide(scale)}),
    Defect("grad-value-narrow-sum",
           "The gradient of the value is added up over the queries in 16 bits (in float32 for float64).",
           ("GRAD-12",),
           {"grad_value": lambda c, p, g: narrow_sum(p.swapaxes(-1, -2)[..., None] * g[..., None, :, :], -2,
                _narrow(c))}, origin="torch 2.13"),
    Defect("grad-query-narrow-sum",
           "The gradient of the query is added up over the keys in 16 bits (in float32 for float64).",
           ("GRAD-12",),
           {"grad_query": lambda c, x, key, scale: narrow_sum(x[..., None] * key[..., None, :, :], -2,
                _narrow(c)) * c.wide(scale)}),
    Defect("grad-delta-narrow-sum", "Delta is added up over the keys in 16 bits (in float32 for float64).",
           ("GRAD-12",),
           {"delta": lambda c, p, products, g, z: narrow_sum(p * products, -1, _narrow(c))[..., None]}),
    Defect("grad-query-tail-lost", "Queries beyond the last whole tile of 64 give nothing to key and value.",
           ("GRAD-12", "GRAD-1"),
           {"grad_value": lambda c, p, g: R.grad_value(c, p[..., : _whole(c.q_len), :],
                g[..., : _whole(c.q_len), :])}),
    Defect("grad-key-tail-lost",
           "Keys beyond the last whole tile of 64 give nothing to the gradient of the query.",
           ("GRAD-12", "GRAD-1"),
           {"grad_query": lambda c, x, key, scale: R.grad_query(c, x[..., : _whole(c.kv_len)],
                key[..., : _whole(c.kv_len), :], scale)}),
    Defect("grad-tiles-overwrite",
           "Each tile of 64 queries overwrites the gradient of the key: the last tile stays.",
           ("GRAD-12", "GRAD-1"),
           {"grad_key": lambda c, x, query, scale: R.grad_key(c, x[..., _before_last(c.q_len) :, :],
                query[..., _before_last(c.q_len) :, :], scale)}),
    Defect("grad-rescale-lost",
           "In an online softmax the rescaling of earlier tiles is lost on the way back.",
           ("GRAD-1", "GRAD-12"),
           {"grad_value": lambda c, p, g: R.grad_value(c,
                np.where((np.arange(c.kv_len) < 64) & (c.kv_len > 64), p * c.wide(1.5), p), g)}),
    Defect("grad-width-tail-lost", "The width beyond 32 has no gradient.", ("GRAD-1",),
           after("grad_query", lambda c, x: np.where(np.arange(x.shape[-1]) < 32, x, x.dtype.type(0)))),
    Defect("grad-sinks-missing", "No gradient of the sinks is returned.", ("GRAD-2", "GRAD-8"),
           after("finish_gradients", lambda c, o: {n: x for n, x in o.items() if n != "sinks"}),
           features=SUNK),
    Defect("grad-sinks-zero", "The sinks get no gradient.",
           ("GRAD-8",), after("grad_sinks", lambda c, x: np.zeros_like(x)), features=SUNK),
    Defect("grad-sinks-sign", "The gradient of the sinks has the wrong sign.",
           ("GRAD-8",), after("grad_sinks", lambda c, x: -x), features=SUNK),
    Defect("grad-sinks-without-delta", "The gradient of a sink is the sum of its weights.", ("GRAD-8",),
           {"grad_sinks": lambda c, lse, delta, visible: R.grad_sinks(c, lse, -np.ones_like(delta), visible)},
           features=SUNK),
    Defect("grad-sinks-without-weight",
           "The gradient of a sink is minus the sum of Delta, without the sink's weight.", ("GRAD-8",),
           {"grad_sinks": lambda c, lse, delta, visible: R.grad_sinks(
                replace(c, sinks=np.zeros_like(c.sinks)), np.zeros_like(lse), delta, visible)},
           features=SUNK),
    Defect("grad-sinks-mean", "The gradient of the sinks is averaged over the queries.",
           ("GRAD-8",), after("grad_sinks", lambda c, x: x / c.wide(max(c.q_len, 1))), features=SUNK),
    Defect(
        "grad-sinks-last-entry",
        "The gradient of the sinks is that of the last batch entry.",
        ("GRAD-8",),
        {
            "grad_sinks": lambda c, lse, delta, visible: R.grad_sinks(
                replace(c, query=c.query[-1:], key=c.key[-1:], value=c.value[-1:]) if c.batch else c,
                lse[-1:] if c.batch else lse,
                delta[-1:] if c.batch else delta,
                visible[-1:] if c.batch else visible,
            )
        },
        features=SUNK,
    ),
    Defect(
        "grad-sinks-empty-rows",
        "Rows that see nothing move the sink: their lse is taken to be zero and their Delta one.",
        ("GRAD-8", "GRAD-4"),
        {
            "grad_sinks": lambda c, lse, delta, visible: R.grad_sinks(
                c,
                np.where(visible.any(axis=-1), lse, c.wide(0)),
                np.where(visible.any(axis=-1, keepdims=True), delta, c.wide(1)),
                np.ones_like(visible),
            )
        },
        features=("sinks", "empty"),
    ),
    Defect("grad-sinks-in-reverse", "The gradients of the sinks are assigned to the heads in reverse.",
           ("GRAD-8",), after("grad_sinks", lambda c, x: x[::-1]), features=SUNK),
    Defect("grad-sinks-not-in-delta",
           "Delta is divided by what the sink leaves of the weights, as if there were no sink.",
           ("GRAD-8", "GRAD-1"),
           {"delta": lambda c, p, products, g, z: R.delta(c, p, products, g, z) / np.maximum(
                p.sum(axis=-1, keepdims=True), c.wide(1e-30))}, features=SUNK),
    Defect("grad-past-included", "The gradients of key and value include the past.",
           ("GRAD-13", "GRAD-2"), {"new": lambda c, x: x}, features=PAST),
    Defect("grad-past-first-part",
           "The gradients of key and value are those of the first rows, where the past stands.",
           ("GRAD-13",), {"new": lambda c, x: x[..., : c.kv_len - c.past, :]}, features=PAST),
    Defect(
        "grad-past-ignored",
        "The past takes no part on the way back.",
        ("GRAD-13",),
        {
            "compute_gradients": lambda s, c: R.compute_gradients(
                s,
                c
                if c.past_key is None
                or c.past == c.kv_len
                or any(x is not None for x in (c.mask, c.attn_bias, c.kv_lengths, c.window))
                or c.is_causal
                else replace(c, past_key=None, past_value=None),
            )
        },
        features=PAST,
    ),
    Defect("grad-past-returned", "Gradients of the past are returned as well.", ("GRAD-13", "GRAD-2"),
           {"compute_gradients": lambda s, c: {**R.compute_gradients(s, c),
                **({} if c.past_key is None else {"past_key": np.zeros_like(c.past_key)})}}, features=PAST),
)  # fmt: skip
