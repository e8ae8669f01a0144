"""Where a framework's own fused kernel computes the same: torch's on tensors in main memory.

The framework is never imported: the caller's arrays have put it into `sys.modules`. Whether the kernel is asked
is decided on everything but values. It returns zeros or what is not finite wherever it meets what the
specification treats otherwise (a NaN or Inf, an overflow, a row without keys): such a result is not taken, and
the portable path computes it. Gradients are never recorded through the kernel, whose derivatives at masked
entries and 16 bits are not the specification's (GRAD-9, GRAD-12).

The environment variable MHA_CORE_PATH, read at the import, chooses: `auto`, the default, as said; `portable`:
never a fused kernel. `portable()` does the same for the calls within it, and `mha_core.path` tells which.
"""

import contextlib
import contextvars
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from mha_core.arrays import holds
from mha_core.options import Options, Sizes, scale_of
from mha_core.result import Array

VARIABLE = "MHA_CORE_PATH"
PATHS = ("auto", "portable")


def _from_environment() -> str:
    """The path that the environment asks for."""
    wanted = os.environ.get(VARIABLE, PATHS[0])
    if wanted not in PATHS:
        raise ValueError(f"{VARIABLE}={wanted!r} but needs one of {', '.join(PATHS)}; unset it for auto")
    return wanted


CHOSEN = _from_environment()
_PATH: contextvars.ContextVar[str] = contextvars.ContextVar(VARIABLE, default=CHOSEN)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Within it nothing takes a fused kernel, whatever MHA_CORE_PATH says."""
    token = _PATH.set("portable")
    try:
        yield
    finally:
        _PATH.reset(token)


def fused_output(
    xp: Any, query: Array, key: Array, value: Array, options: Options, sizes: Sizes
) -> Array | None:
    """The output, (..., H, q_len, d_v), by a fused kernel; None where there is none or it cannot be trusted."""
    torch = sys.modules.get("torch")
    if torch is None or not is_fused(query, key, value, options, sizes):
        return None
    rows = sizes.num_heads // sizes.num_kv_heads * sizes.q_len  # the heads of a group side by side (HEAD-2)
    query = xp.reshape(query, (math.prod(sizes.batch), sizes.num_kv_heads, rows, sizes.d_k))
    key, value = (
        x if len(x.shape) == 4 else xp.reshape(x, (query.shape[0], *x.shape[-3:])) for x in (key, value)
    )
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=_is_causal(options, sizes), scale=scale_of(options, sizes)
    )
    largest = output.abs().amax(-1)  # shows NaN, Inf and a row of zeros, and costs little
    if not (holds(xp, xp.isfinite(largest)) and holds(xp, largest != 0)):
        return None
    return xp.reshape(output, sizes.output)


def is_fused(query: Array, key: Array, value: Array, options: Options, sizes: Sizes) -> bool:
    """Whether a fused kernel means the same, by everything but values."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(query) is not torch.Tensor or _PATH.get() != "auto":
        return False
    heads = (query, key, value)
    return (
        _in_the_kernel(options, sizes)
        and all(_readable(torch, x) for x in heads)
        and torch.backends.cuda.flash_sdp_enabled()  # the switch of the kernel on every device
        and not torch.is_autocast_enabled("cpu")  # which would round the operands
    )


def _in_the_kernel(options: Options, sizes: Sizes) -> bool:
    """Whether the kernel has what is asked for; it masks before it scales, so that only scales above 0 do."""
    missing = (
        options.mask,
        options.attn_bias,
        options.window,
        options.kv_lengths,
        options.softcap,
        options.sinks,
    )
    causal = _is_causal(options, sizes)
    return (
        not (options.return_weights or options.return_lse)
        and all(x is None for x in missing)
        and (causal or not options.is_causal or _sees_all(options, sizes))
        and (not causal or sizes.num_heads == sizes.num_kv_heads)
        and sizes.d_k == sizes.d_v
        and scale_of(options, sizes) > 0
        and math.prod(sizes.logits) > 0
    )


def _is_causal(options: Options, sizes: Sizes) -> bool:
    """Whether the kernel's causal mask, which knows no offset, is the one asked for and hides anything."""
    offset = options.q_offset
    no_offset = offset is None or (isinstance(offset, int) and offset == 0)
    return options.is_causal and no_offset and sizes.q_len == sizes.kv_len > 1


def _sees_all(options: Options, sizes: Sizes) -> bool:
    """Whether a causal mask hides nothing, as when one query follows its past."""
    offset = options.q_offset
    return (offset is None and sizes.kv_len == 1) or (isinstance(offset, int) and offset >= sizes.kv_len - 1)


def _readable(torch: Any, x: Any) -> bool:
    """Whether the kernel reads such a tensor as it lies, and neither records nor forwards a derivative of it."""
    return (
        x.device.type == "cpu"
        and x.layout is torch.strided
        and not x.requires_grad
        and x.stride(-1) == 1
        and x.stride(-2) >= x.shape[-1]
        and _has_memory(x)
        and torch.autograd.forward_ad.unpack_dual(x).tangent is None
    )


def _has_memory(x: Any) -> bool:
    """Whether a tensor is one, and not what torch.func puts in its place under vmap, grad and jvp."""
    try:
        return bool(x.data_ptr())
    except RuntimeError:
        return False
