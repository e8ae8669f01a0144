"""ggml's flash attention on a CPU, `ggml_flash_attn_ext`, called through the C library in a wheel of pywhispercpp.

As in llama.cpp, what may not be attended is a mask in float16, and so are causality, windows, lengths and segments.
"""

import ctypes
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pywhispercpp  # its wheel has ggml as a library of its own

__all__ = ["packed_attention", "scaled_dot_product_attention"]


class _Memory(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def _library() -> ctypes.CDLL:
    """The C interface, with the types that ctypes cannot know."""
    folder = Path(pywhispercpp.__file__).parents[1]
    paths = [path for end in ("so", "dylib") if (path := folder / f"libggml-cpu.{end}").exists()]
    if not paths:
        raise ImportError(f"no libggml-cpu in {folder}; install pywhispercpp from its wheel")
    found = ctypes.CDLL(str(paths[0]))
    pointer, number, real, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_int64
    types: tuple[tuple[str, Any, list[Any]], ...] = (
        ("ggml_version", ctypes.c_char_p, []),
        ("ggml_init", pointer, [_Memory]),
        ("ggml_free", None, [pointer]),
        ("ggml_new_tensor_4d", pointer, [pointer, number, size, size, size, size]),
        ("ggml_get_data", pointer, [pointer]),
        ("ggml_flash_attn_ext", pointer, [pointer] * 5 + [real] * 3),
        ("ggml_flash_attn_ext_set_prec", None, [pointer, number]),
        ("ggml_flash_attn_ext_add_sinks", None, [pointer, pointer]),
        ("ggml_new_graph", pointer, [pointer]),
        ("ggml_build_forward_expand", None, [pointer, pointer]),
        ("ggml_graph_compute_with_ctx", number, [pointer, pointer, number]),
    )
    for name, returned, taken in types:
        function = getattr(found, name)
        function.restype, function.argtypes = returned, taken
    return found


GGML = _library()
TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
"""`enum ggml_type`"""
PREC_F32 = 10
SPARE = 64 << 20
"""Bytes for the graph and for what the operator works in; those that it does not touch cost nothing."""

name = "ggml"
version = GGML.ggml_version().decode()
array_type = "numpy"
dtypes = ("float32", "float16", "bfloat16")
features = frozenset(
    [
        "mask",
        "attn_bias",
        "is_causal",
        "q_offset",
        "window",
        "kv_lengths",
        "scale",
        "softcap",
        "sinks",
        "gqa",
        "value_dim",
        "broadcast",
        "empty",
        "segments",
        "packed",
    ]
)
accuracy = "fused"


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    attn_bias: Any = None,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    kv_lengths: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    q_segments: Any = None,
    kv_segments: Any = None,
) -> Any:
    """Attention of a query in float32 over keys and values as they are; a bias is one that float16 holds."""
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_len, d_v = key.shape[-2], value.shape[-1]
    places = _visible(query, kv_len, mask, is_causal, q_offset, window, kv_lengths, q_segments, kv_segments)
    hidden = _added(places, attn_bias, query, kv_len)
    four = [x.reshape(math.prod(batch), *x.shape[-3:]) for x in (query.astype(np.float32), key, value)]
    scale = d_k**-0.5 if scale is None else scale
    output = _attended(four, hidden, float(scale), float(softcap or 0), sinks)
    return output.reshape(*batch, heads, q_len, d_v).astype(query.dtype)


def packed_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    q_starts: Any,
    kv_starts: Any,
    is_causal: bool = False,
    q_offset: Any = None,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
) -> Any:
    """All rows of all parts at once, under a mask that compares the parts and counts inside each."""
    q_part, q_place = _parts(q_starts, query.shape[1])
    kv_part, kv_place = _parts(kv_starts, key.shape[1])
    count = len(q_starts) - 1
    seen = (q_part[:, None] == kv_part) & (q_part[:, None] < count)
    offset = np.append(np.broadcast_to(0 if q_offset is None else q_offset, count), 0)  # rows of no part: 0
    seen = seen & _band((q_place + offset[q_part])[:, None], kv_place, is_causal, window)
    return scaled_dot_product_attention(
        query, key, value, mask=seen, scale=scale, softcap=softcap, sinks=sinks
    )


def _parts(starts: Any, length: int) -> tuple[Any, Any]:
    """The part of each row, the number of parts for none, and the row's place in it."""
    rows = np.arange(length)
    part = np.searchsorted(starts[1:], rows, side="right")
    return part, rows - starts[part]


def _band(position: Any, keys: Any, is_causal: bool, window: Any) -> Any:
    """What causality and a window around the position of a query let it see."""
    left, right = window or (None, None)
    right = 0 if is_causal else right
    seen = np.True_ if left is None else keys >= position - left
    return seen if right is None else seen & (keys <= position + right)


def _visible(
    query: Any,
    kv_len: int,
    mask: Any,
    is_causal: bool,
    q_offset: Any,
    window: Any,
    kv_lengths: Any,
    q_segments: Any,
    kv_segments: Any,
) -> Any:
    """What may be attended, of a shape that broadcasts to (..., H, q_len, kv_len); None where all may be."""
    keys, queries = np.arange(kv_len), np.arange(query.shape[-2])[:, None]
    seen = [] if mask is None else [np.asarray(mask)]
    if is_causal or window is not None:
        seen.append(_band(queries + _per_entry(0 if q_offset is None else q_offset), keys, is_causal, window))
    if kv_lengths is not None:
        seen.append(keys < _per_entry(kv_lengths))
    if q_segments is not None:
        seen.append(np.asarray(q_segments)[..., None, :, None] == np.asarray(kv_segments)[..., None, None, :])
    return functools.reduce(np.logical_and, seen) if seen else None


def _per_entry(x: Any) -> Any:
    """A number, or one an entry of the batch, beside (H, q_len, kv_len); wide enough for any window."""
    return np.asarray(x, np.int64)[..., None, None, None] if np.ndim(x) else np.asarray(x, np.int64)


def _added(seen: Any, bias: Any, query: Any, kv_len: int) -> Any:
    """The operator's mask (B or 1, H or 1, q_len, kv_len) in float16; None where nothing is hidden or added."""
    if seen is None and bias is None:
        return None
    added: Any = np.zeros((1, 1), np.float16)
    if bias is not None:
        with np.errstate(over="ignore"):
            added = np.asarray(bias).astype(np.float16)
        if not np.array_equal(added.astype(np.float64), np.asarray(bias).astype(np.float64), equal_nan=True):
            raise NotImplementedError("the mask is in float16, which does not hold this bias")
    if seen is not None:
        added = np.where(seen, added, np.float16(-np.inf))
    batch = query.shape[:-3]
    added = added.reshape((1,) * (query.ndim - added.ndim) + added.shape)
    of_all = math.prod(added.shape[:-3]) == 1
    shape = (*(added.shape[:-3] if of_all else batch), added.shape[-3], query.shape[-2], kv_len)
    added = np.broadcast_to(added, shape)
    return added.reshape(math.prod(added.shape[:-3]), *added.shape[-3:])


def _attended(operands: list[Any], hidden: Any, scale: float, softcap: float, sinks: Any) -> Any:
    """(B, q_len, H, d_v) in float32 of operands of four axes, turned to (B, H, q_len, d_v)."""
    query, _, value = operands
    shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    given = operands if hidden is None else [*operands, hidden]
    total = sum(x.nbytes for x in given) + 4 * math.prod(shape)
    context = GGML.ggml_init(_Memory(2 * total + SPARE, None, False))
    try:
        tensors = [_tensor(context, x) for x in given]
        q, k, v, mask = tensors if hidden is not None else [*tensors, None]
        node = GGML.ggml_flash_attn_ext(context, q, k, v, mask, scale, 0.0, softcap)
        GGML.ggml_flash_attn_ext_set_prec(node, PREC_F32)
        if sinks is not None:
            GGML.ggml_flash_attn_ext_add_sinks(node, _tensor(context, np.asarray(sinks, np.float32)))
        graph = GGML.ggml_new_graph(context)
        GGML.ggml_build_forward_expand(graph, node)
        if status := GGML.ggml_graph_compute_with_ctx(context, graph, 1):
            raise RuntimeError(f"ggml_graph_compute_with_ctx returned {status}")
        output = np.empty(shape, np.float32)
        ctypes.memmove(output.ctypes.data, GGML.ggml_get_data(node), output.nbytes)
    finally:
        GGML.ggml_free(context)
    return output.swapaxes(1, 2)


def _tensor(context: Any, x: Any) -> Any:
    """A copy of an array as a tensor of ggml, whose axes are counted from the last one."""
    sizes = (*x.shape[::-1], *(1,) * (4 - x.ndim))
    x = np.ascontiguousarray(x)
    tensor = GGML.ggml_new_tensor_4d(context, TYPES[x.dtype.name], *sizes)
    ctypes.memmove(GGML.ggml_get_data(tensor), x.ctypes.data, x.nbytes)
    return tensor
