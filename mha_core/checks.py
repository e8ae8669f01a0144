"""What is refused: all that shapes, dtypes and Python scalars can tell. Each message names the rule."""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import array_api_compat

from mha_core.arrays import DTYPES, compute_dtype, dtype_name, namespace_of
from mha_core.options import Options, Sizes
from mha_core.result import Array


def check_operands(needed: Mapping[str, Array], optional: Mapping[str, Array | None]) -> Any:
    """The namespace of the operands, which share one library and one floating dtype."""
    given = {**needed, **{name: x for name, x in optional.items() if x is not None}}
    first, wanted = next(iter(given.items()))
    _check_is_array(first, wanted, "DTYPE-2")
    shared = dtype_name(wanted.dtype)
    if shared not in DTYPES:
        raise TypeError(f"{first} has dtype {shared} but operands need one of {', '.join(DTYPES)} (DTYPE-2)")
    for name, x in given.items():
        check_array(name, x, wanted, "DTYPE-2")
        if x.dtype != wanted.dtype:
            raise TypeError(
                f"{name} has dtype {dtype_name(x.dtype)} but {first} has dtype {shared} (DTYPE-2)"
            )
    return namespace_of(wanted)


def check_array(name: str, x: Any, like: Array, rule: str) -> None:
    """Refuses what is no array, or one of another library than that of the array `like`."""
    if type(x) is type(like):
        return
    _check_is_array(name, x, rule)
    library, wanted = namespace_of(x), namespace_of(like)
    if library is not wanted:
        raise TypeError(
            f"{name} is an array of {library.__name__} but others are of {wanted.__name__} ({rule})"
        )


def _check_is_array(name: str, x: Any, rule: str) -> None:
    """Refuses what is no array."""
    if not array_api_compat.is_array_api_obj(x):
        kind = "None" if x is None else f"a {type(x).__name__}"
        raise TypeError(f"{name} is {kind} but needs an array ({rule})")


def head_sizes(query: Array, key: Array, value: Array, options: Options) -> Sizes:
    """The sizes of (..., H, q_len, d_k), (..., G, kv_len, d_k), (..., G, kv_len, d_v), which agree."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if len(x.shape) < 3:
            raise ValueError(f"{name} has shape {shape_of(x)} but needs heads, length and width (SHAPE-11)")
    check_agree("batch", "key", shape_of(key)[:-3], "query", shape_of(query)[:-3], "SHAPE-5")
    check_agree("batch", "value", shape_of(value)[:-3], "query", shape_of(query)[:-3], "SHAPE-5")
    check_agree("num_kv_heads", "value", value.shape[-3], "key", key.shape[-3], "SHAPE-5")
    check_agree("kv_len", "value", value.shape[-2], "key", key.shape[-2], "SHAPE-5")
    check_agree("d_k", "key", key.shape[-1], "query", query.shape[-1], "SHAPE-5")
    *batch, num_heads, q_len, d_k = query.shape
    kv_len = key.shape[-2] + _past_len(options)
    return checked_sizes(
        Sizes(tuple(batch), num_heads, key.shape[-3], q_len, kv_len, d_k, value.shape[-1]), options
    )


def layer_sizes(
    query: Array,
    key: Array,
    value: Array,
    weights: Mapping[str, Array],
    biases: Mapping[str, Array | None],
    options: Options,
) -> Sizes:
    """The sizes of the heads that the layer projects, whose weights `w_*` and biases `b_*` agree."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if len(x.shape) < 2:
            raise ValueError(f"{name} has shape {shape_of(x)} but needs length and width (SHAPE-11)")
    for name in ("w_q", "w_k", "w_v", "w_o"):
        if len(weights[name].shape) != 3:
            raise ValueError(f"{name} has shape {shape_of(weights[name])} but needs three axes (PROJ-6)")
    check_agree("batch", "key", shape_of(key)[:-2], "query", shape_of(query)[:-2], "SHAPE-5")
    check_agree("batch", "value", shape_of(value)[:-2], "query", shape_of(query)[:-2], "SHAPE-5")
    check_agree("kv_len", "value", value.shape[-2], "key", key.shape[-2], "SHAPE-5")
    num_heads, _, d_k = weights["w_q"].shape
    num_kv_heads, _, d_v = weights["w_v"].shape
    d_out = weights["w_o"].shape[-1]
    wanted = {
        "w_q": (num_heads, query.shape[-1], d_k),
        "w_k": (num_kv_heads, key.shape[-1], d_k),
        "w_v": (num_kv_heads, value.shape[-1], d_v),
        "w_o": (num_heads, d_v, d_out),
        "b_q": (num_heads, d_k),
        "b_k": (num_kv_heads, d_k),
        "b_v": (num_kv_heads, d_v),
        "b_o": (d_out,),
    }
    for name, x in {**weights, **biases}.items():
        if x is not None and shape_of(x) != wanted[name]:
            raise ValueError(
                f"{name} has shape {shape_of(x)} but the other operands need {wanted[name]} (PROJ-6)"
            )
    *batch, q_len, _ = query.shape
    kv_len = key.shape[-2] + _past_len(options)
    return checked_sizes(Sizes(tuple(batch), num_heads, num_kv_heads, q_len, kv_len, d_k, d_v), options)


def checked_sizes(sizes: Sizes, options: Options) -> Sizes:
    """The sizes, once they and the options agree."""
    for name in ("d_k", "d_v", "num_heads", "num_kv_heads"):
        if getattr(sizes, name) == 0:
            raise ValueError(f"{name}=0 but at least 1 is needed (SHAPE-6)")
    if sizes.num_heads % sizes.num_kv_heads:
        raise ValueError(
            f"query has num_heads={sizes.num_heads} but key has num_kv_heads={sizes.num_kv_heads}, "
            "which must divide it (HEAD-3)"
        )
    return sizes


def check_options(query: Array, options: Options, sizes: Sizes) -> None:
    """Refuses what the options say wrongly about operands that agree."""
    _check_past(options, sizes)
    check_scalars(options)
    _check_mask(query, "mask", options.mask, sizes, "DTYPE-4")
    _check_mask(query, "attn_bias", options.attn_bias, sizes, "DTYPE-5")
    if options.sinks is not None and shape_of(options.sinks) != (sizes.num_heads,):
        raise ValueError(
            f"sinks has shape {shape_of(options.sinks)} but needs ({sizes.num_heads},) (SHAPE-11)"
        )
    _check_segments(query, options, sizes)
    if options.kv_lengths is not None:
        check_integers(query, "kv_lengths", options.kv_lengths, (sizes.batch,), "DTYPE-7")
    if options.q_offset is not None and not _is_int(options.q_offset):
        check_integers(query, "q_offset", options.q_offset, ((), sizes.batch), "DTYPE-7")
    if (
        options.q_offset is None
        and sizes.q_len != sizes.kv_len
        and (options.is_causal or options.window is not None)
    ):
        raise ValueError(
            f"q_offset is None but is_causal or window with q_len={sizes.q_len} and kv_len={sizes.kv_len} "
            "needs it (MASK-7)"
        )


def check_grad_output(grad: Any, like: Array, shape: tuple[int, ...]) -> None:
    """Refuses a gradient of the output that is not of its shape and dtype (GRAD-14)."""
    check_array("grad_output", grad, like, "GRAD-14")
    if grad.dtype != like.dtype:
        given, wanted = dtype_name(grad.dtype), dtype_name(like.dtype)
        raise TypeError(f"grad_output has dtype {given} but output has {wanted} (GRAD-14)")
    check_agree("shape", "grad_output", shape_of(grad), "output", shape, "GRAD-14")


def check_grad_lse(xp: Any, grad: Any, query: Array, shape: tuple[int, ...]) -> None:
    """Refuses a gradient of the lse that is not of its shape, or neither of its dtype nor the operands' (GRAD-14)."""
    if grad is None:
        return
    check_array("grad_lse", grad, query, "GRAD-14")
    if grad.dtype not in (query.dtype, compute_dtype(xp, query.dtype)):
        given, wanted = dtype_name(grad.dtype), dtype_name(compute_dtype(xp, query.dtype))
        raise TypeError(f"grad_lse has dtype {given} but the lse has {wanted} (GRAD-14)")
    check_agree("shape", "grad_lse", shape_of(grad), "lse", shape, "GRAD-14")


def _past_len(options: Options) -> int:
    """The length of the past, whose two halves come together and agree on it."""
    past_key, past_value = options.past_key, options.past_value
    if past_key is None and past_value is None:
        return 0
    if past_key is None or past_value is None:
        missing = "past_key" if past_key is None else "past_value"
        raise ValueError(f"{missing} is None but its other half is given: both or neither (CACHE-5)")
    for name, x in (("past_key", past_key), ("past_value", past_value)):
        if len(x.shape) < 3:
            raise ValueError(f"{name} has shape {shape_of(x)} but needs heads, length and width (SHAPE-11)")
    check_agree("past length", "past_value", past_value.shape[-2], "past_key", past_key.shape[-2], "SHAPE-5")
    return int(past_key.shape[-2])


def _check_past(options: Options, sizes: Sizes) -> None:
    """Refuses a past of other heads than the new keys and values."""
    for name, x, width in (
        ("past_key", options.past_key, sizes.d_k),
        ("past_value", options.past_value, sizes.d_v),
    ):
        if x is not None:
            wanted = (*sizes.batch, sizes.num_kv_heads, x.shape[-2], width)
            if shape_of(x) != wanted:
                raise ValueError(f"{name} has shape {shape_of(x)} but the new heads need {wanted} (SHAPE-5)")


def check_scalars(options: Options) -> None:
    """Refuses scalar options of the wrong kind or range (SHAPE-10)."""
    for name in ("is_causal", "return_weights", "return_lse"):
        if not isinstance(getattr(options, name), bool):
            raise ValueError(f"{name}={getattr(options, name)!r} but needs True or False (SHAPE-10)")
    if options.scale is not None and not _is_real(options.scale):
        raise ValueError(f"scale={options.scale!r} but needs a finite real number or None (SHAPE-10)")
    if options.softcap is not None and not (_is_real(options.softcap) and options.softcap > 0):
        raise ValueError(f"softcap={options.softcap!r} but needs a finite number above 0 or None (SHAPE-10)")
    window = options.window
    if window is None:
        return
    if not isinstance(window, Sequence) or len(window) != 2:
        raise ValueError(f"window={window!r} but needs (left, right) or None (SHAPE-10)")
    for side in window:
        if side is not None and not (_is_int(side) and side >= 0):
            raise ValueError(f"window={window!r} but each side needs an int of at least 0 or None (SHAPE-10)")


def _check_mask(query: Array, name: str, x: Array | None, sizes: Sizes, rule: str) -> None:
    """Refuses a mask or bias of the wrong kind or of a shape that does not broadcast to the logits."""
    if x is None:
        return
    wanted = "bool" if name == "mask" else "floating"
    check_array(name, x, query, rule)
    dtype = dtype_name(x.dtype)
    if not (dtype == "bool" if name == "mask" else dtype.startswith(("float", "bfloat"))):
        raise TypeError(f"{name} has dtype {dtype} but needs a {wanted} one ({rule})")
    shape, logits = shape_of(x), sizes.logits
    if len(shape) not in (2, len(logits)):
        raise ValueError(f"{name} has shape {shape} but needs rank 2 or {len(logits)} (SHAPE-7)")
    if any(n not in (1, full) for n, full in zip(shape, logits[-len(shape) :], strict=True)):
        raise ValueError(f"{name} has shape {shape} but needs one that broadcasts to {logits} (SHAPE-11)")


def _check_segments(query: Array, options: Options, sizes: Sizes) -> None:
    """Refuses segments of which one is missing, or that are not one integer a query and a key."""
    pair = {
        "q_segments": (options.q_segments, sizes.q_len),
        "kv_segments": (options.kv_segments, sizes.kv_len),
    }
    missing = [name for name, (x, _) in pair.items() if x is None]
    if len(missing) == 1:
        raise ValueError(f"{missing[0]} is None but the other segments are given: both or neither (MASK-17)")
    for name, (x, length) in pair.items():
        if x is not None:
            check_integers(query, name, x, ((length,), (*sizes.batch, length)), "MASK-17")
            if dtype_name(x.dtype) not in ("int32", "int64"):
                raise TypeError(f"{name} has dtype {dtype_name(x.dtype)} but needs int32 or int64 (MASK-17)")


def check_integers(query: Array, name: str, x: Any, shapes: tuple[tuple[int, ...], ...], rule: str) -> None:
    """Refuses anything but an integer array of one of the shapes."""
    if not array_api_compat.is_array_api_obj(x):
        raise ValueError(f"{name}={x!r} but needs an integer array of shape {shapes[-1]} (SHAPE-10)")
    check_array(name, x, query, rule)
    dtype = dtype_name(x.dtype)
    if not dtype.startswith(("int", "uint")):  # isdtype knows no bfloat16 of NumPy
        raise TypeError(f"{name} has dtype {dtype} but needs an integer one ({rule})")
    if shape_of(x) not in shapes:
        raise ValueError(
            f"{name} has shape {shape_of(x)} but needs {' or '.join(map(str, dict.fromkeys(shapes)))} (SHAPE-11)"
        )


def check_agree(what: str, name: str, given: Any, other: str, wanted: Any, rule: str) -> None:
    """Refuses sizes that differ."""
    if given != wanted:
        raise ValueError(f"{name} has {what}={given} but {other} has {what}={wanted} ({rule})")


def _is_int(x: object) -> bool:
    """Whether `x` is an integer of Python's or one that behaves so; True and False are not."""
    return not isinstance(x, bool) and isinstance(x, numbers.Integral)


def _is_real(x: object) -> bool:
    """Whether `x` is a finite real number; True and False are not."""
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        return False
    try:
        return math.isfinite(float(x))
    except OverflowError:  # an int or a fraction beyond any float
        return False


def shape_of(x: Array) -> tuple[int, ...]:
    """The shape as a plain tuple, for comparisons and messages."""
    return tuple(x.shape)
