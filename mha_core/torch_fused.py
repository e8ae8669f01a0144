"""Where a framework's own fused kernel computes the same: torch's on tensors in main memory.

The framework is never imported: the caller's arrays have put it into `sys.modules`. Whether the kernel is asked
is decided on everything but values. It returns zeros or what is not finite wherever it meets what the
specification treats otherwise (a NaN or Inf even behind a mask, an overflow, a row without keys): such a result is
not vouched for. Entries with keys that do not exist are asked one by one, without these.

The environment variable MHA_CORE_PATH, read at the import, chooses: `auto`, the default, as said; `portable`:
never a fused kernel. `portable()` does the same for the calls within it, and `mha_core.path` tells which.
"""

import contextlib
import contextvars
import functools
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from mha_core.arrays import cast, cast_bias, compute_dtype
from mha_core.exact import exact
from mha_core.head_gradients import HeadGradients
from mha_core.options import Options, Sizes, scale_of
from mha_core.parts import Part
from mha_core.result import Array, AttentionResult
from mha_core.torch_recorded import gradients_of, is_plain, is_vouched, recorded, with_leaves
from mha_core.visibility import band_of, masked_in

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


MASK_ELEMENTS = 2**22
"""Elements of a mask that is worth making for the kernel."""


def torch_fused(xp: Any, part: Part) -> AttentionResult | None:
    """The output, (..., H, q_len, d_v), of what `is_fused`; None where it cannot be vouched for."""
    torch: Any = sys.modules.get("torch")
    heads = (part.query, part.key, part.value)
    if not (part.records and torch.is_grad_enabled()):
        output = _asked(torch, xp, part, *heads)
        return AttentionResult(output) if is_vouched(torch, output) else None
    dtype = compute_dtype(xp, part.query.dtype)  # in which the kernel sums its derivatives (GRAD-12)
    wide = [cast(xp, x, dtype) for x in heads]
    output = recorded(
        torch,
        functools.partial(_asked, torch, xp, part),
        functools.partial(_exactly, xp, part),
        wide,
    )
    return None if output is None else AttentionResult(output)


def torch_fused_vjp(xp: Any, part: Part, grad: Array, with_output: bool) -> HeadGradients | None:
    """The gradients by a fused kernel, of heads in the dtype to compute in; None where it cannot be vouched for."""
    torch = sys.modules.get("torch")
    if torch is None or part.options.attn_bias is not None:
        return None
    heads = (part.query, part.key, part.value)
    if not is_fused(*heads, part.options, part.sizes) or not is_plain(torch, grad):
        return None
    output, leaves = with_leaves(torch, functools.partial(_asked, torch, xp, part), heads)
    gradients = gradients_of(torch, output, leaves, grad) if is_vouched(torch, output) else None
    if output is None or gradients is None:
        return None
    d_query, d_key, d_value = gradients
    return HeadGradients(d_query, d_key, d_value, None, None, output.detach() if with_output else None)


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
    bias = options.attn_bias
    return (
        not (options.return_weights or options.return_lse)
        and options.window is None
        and options.softcap is None
        and options.sinks is None
        and (bias is None or not bias.requires_grad)
        and sizes.d_k == sizes.d_v
        and scale_of(options, sizes) > 0
        and math.prod(sizes.logits) > 0
        and _mask_elements(options, sizes) <= MASK_ELEMENTS
    )


def _mask_elements(options: Options, sizes: Sizes) -> int:
    """The size of a mask to be made of positions; 0 where none is."""
    if (
        not options.hides
        or _is_causal(options, sizes)
        or (_sees_all(options, sizes) and options.q_segments is None)
    ):
        return 0
    shapes = [(1, 1)] if isinstance(options.q_offset, int | None) else [(*sizes.batch, 1, 1, 1)]
    shapes += [tuple(x.shape) for x in (options.mask, options.attn_bias) if x is not None]
    segments = (x for x in (options.q_segments, options.kv_segments) if x is not None)
    shapes += [(*x.shape[:-1], 1, 1, 1) for x in segments]
    largest = max(math.prod(shape[:-2]) for shape in shapes)
    return largest * sizes.q_len * sizes.kv_len


def _is_causal(options: Options, sizes: Sizes) -> bool:
    """Whether the kernel's causal mask, which knows no offset, is the only one asked for and hides anything."""
    offset = options.q_offset
    no_offset = offset is None or (isinstance(offset, int) and offset == 0)
    others = (options.mask, options.attn_bias, options.kv_lengths, options.q_segments)
    alone = all(x is None for x in others)
    return options.is_causal and alone and no_offset and sizes.q_len == sizes.kv_len > 1


def _sees_all(options: Options, sizes: Sizes) -> bool:
    """Whether a causal mask is not asked for or hides nothing, as when one query follows its past."""
    offset = options.q_offset
    last = (offset is None and sizes.kv_len == 1) or (isinstance(offset, int) and offset >= sizes.kv_len - 1)
    return last or not options.is_causal


def _readable(torch: Any, x: Any) -> bool:
    """Whether the kernel reads such a tensor as it lies, and forwards no derivative of it."""
    return (
        x.is_cpu
        and x.layout is torch.strided
        and (x.is_contiguous() or (x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1]))
        and is_plain(torch, x)
    )


def _exactly(xp: Any, part: Part, query: Array, key: Array, value: Array) -> Array:
    """The output of the exact way."""
    whole = Part(query, key, value, part.options, part.sizes)
    return exact(xp, whole, slice(0, part.sizes.q_len), whole=True).output


def _asked(torch: Any, xp: Any, part: Part, query: Array, key: Array, value: Array) -> Array | None:
    """What the kernel gives; None where an entry has no keys."""
    options, sizes, entries = part.options, part.sizes, math.prod(part.sizes.batch)
    heads = [x if len(x.shape) == 4 else xp.reshape(x, (entries, *x.shape[-3:])) for x in (query, key, value)]
    causal = _is_causal(options, sizes)
    lengths, mask = None, None
    if options.hides and not causal:
        lengths, options = _lengths(xp, options, sizes)
        mask = _attn_mask(xp, options, sizes, query)
    if lengths is None:
        outputs = [_of_entries(torch, sizes, options, heads, mask, causal)]
    elif min(lengths) == 0:
        return None
    elif len(set(lengths)) == 1:
        outputs = [
            _of_entries(torch, sizes, options, *_trimmed(heads, mask, slice(0, entries), lengths[0]), causal)
        ]
    else:
        outputs = [
            _of_entries(torch, sizes, options, *_trimmed(heads, mask, slice(i, i + 1), n), causal)
            for i, n in enumerate(lengths)
        ]
    output = outputs[0] if len(outputs) == 1 else xp.concat(outputs, axis=0)
    return output if output.shape == sizes.output else xp.reshape(output, sizes.output)


def _of_entries(
    torch: Any, sizes: Sizes, options: Options, heads: list[Array], mask: Array | None, causal: bool
) -> Array:
    """The kernel's output for some entries, (entries, H, q_len, d_v)."""
    query, key, value = heads
    group = sizes.num_heads // sizes.num_kv_heads
    of_all = mask is None or (mask.shape[-2] == 1 and (len(mask.shape) == 2 or mask.shape[-3] == 1))
    keywords = {"is_causal": causal, "scale": scale_of(options, sizes)}
    if group > 1 and of_all and not causal:  # the heads of a group side by side (HEAD-2)
        query = query.reshape((query.shape[0], sizes.num_kv_heads, group * sizes.q_len, sizes.d_k))
    elif group > 1:
        keywords["enable_gqa"] = True
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **keywords)
    return output if group == 1 else output.reshape((query.shape[0], sizes.num_heads, sizes.q_len, sizes.d_v))


def _trimmed(
    heads: list[Array], mask: Array | None, entries: slice, length: int
) -> tuple[list[Array], Array | None]:
    """Some entries with their first keys only."""
    query, key, value = (x[entries] for x in heads)
    if mask is not None:
        mask = mask[entries] if len(mask.shape) == 4 and mask.shape[0] > 1 else mask
        mask = mask if mask.shape[-1] == 1 else mask[..., :length]
    return [query, key[..., :length, :], value[..., :length, :]], mask


def _lengths(xp: Any, options: Options, sizes: Sizes) -> tuple[list[int] | None, Options]:
    """How many keys each entry has, None for all, and the options without what says so: a mask may be lengths too."""
    if options.kv_lengths is not None:
        counts = xp.clip(xp.reshape(options.kv_lengths, (-1,)), 0, sizes.kv_len)
        return counts.tolist(), options._replace(kv_lengths=None)
    mask = options.mask
    if mask is None or math.prod(mask.shape[-3:-1]) != 1 or mask.shape[-1] != sizes.kv_len:
        return None, options
    ahead = xp.reshape(xp.broadcast_to(mask, (*sizes.batch, 1, 1, sizes.kv_len)), (-1, sizes.kv_len))
    counts = xp.sum(ahead, axis=-1)
    if not bool(xp.all(ahead == (xp.arange(sizes.kv_len) < counts[:, None]))):
        return None, options
    return counts.tolist(), options._replace(mask=None)


def _attn_mask(xp: Any, options: Options, sizes: Sizes, like: Array) -> Array | None:
    """Masks and bias as the kernel takes them: bool or added, of rank 2 or 4."""
    rows, columns = slice(0, sizes.q_len), slice(0, sizes.kv_len)
    mask = masked_in(xp, options, sizes, band_of(xp, options, sizes, like), rows, columns, like)
    if options.attn_bias is not None:
        bias = cast_bias(xp, options.attn_bias, compute_dtype(xp, like.dtype))
        mask = bias if mask is None else xp.where(mask, bias, -math.inf)
    if mask is None or len(mask.shape) == 2:
        return mask
    if math.prod(mask.shape[:-3]) == 1:
        return xp.reshape(mask, (1, *mask.shape[-3:]))
    return xp.reshape(xp.broadcast_to(mask, (*sizes.batch, *mask.shape[-3:])), (-1, *mask.shape[-3:]))
