"""torch's FlexAttention, uncompiled: its reference on a CPU."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention

from backends.torch_shapes import flat, whole

__all__ = ["packed_attention", "scaled_dot_product_attention"]

name = "torch-flex"
version = torch.__version__
array_type = "torch"
dtypes = ("float32", "bfloat16")
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
        "gqa",
        "value_dim",
        "broadcast",
        "empty",
        "return_lse",
        "segments",
        "packed",
    ]
)
accuracy = "fused"

Mod = Callable[[Any, Any, Any, Any], Any]
"""What decides of batch entry, head, query and key whether the one may attend the other."""


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
    q_segments: Any = None,
    kv_segments: Any = None,
    return_lse: bool = False,
) -> Any:
    """Attention: what is hidden as a block mask, softcap and bias as functions of the score."""
    batch, kv_len = query.shape[:-3], key.shape[-2]
    q, k, v = flat(query), flat(key), flat(value)
    q_len, device = q.shape[2], q.device
    mods: list[Mod] = []
    if mask is not None:
        seen = whole(mask, query, kv_len)
        mods.append(lambda b, h, i, j: seen[b, h, i, j])
    if is_causal or window is not None:
        offset = torch.as_tensor(0 if q_offset is None else q_offset, device=device).expand(batch).reshape(-1)
        mods.append(_band(lambda b, i, j: (i + offset[b], j), is_causal, window))
    if kv_lengths is not None:
        lengths = kv_lengths.reshape(-1)
        mods.append(lambda b, h, i, j: j < lengths[b])
    if q_segments is not None:
        of_q = q_segments.expand(*batch, q_len).reshape(q.shape[0], q_len)
        of_kv = kv_segments.expand(*batch, kv_len).reshape(q.shape[0], kv_len)
        mods.append(lambda b, h, i, j: of_q[b, i] == of_kv[b, j])
    added = None if attn_bias is None else whole(attn_bias, query, kv_len).float()
    output, lse = _attended(q, k, v, mods, added, scale, softcap, return_lse)
    output = output.reshape(*batch, *output.shape[1:])
    return {"output": output, "lse": lse.reshape(output.shape[:-1])} if return_lse else output


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
    return_lse: bool = False,
) -> Any:
    """All rows of all parts at once: a block mask that compares the parts, and counts inside each."""
    q_part, q_place = _parts(q_starts, query.shape[1])
    kv_part, kv_place = _parts(kv_starts, key.shape[1])
    count = q_starts.shape[0] - 1
    mods: list[Mod] = [lambda b, h, i, j: (q_part[i] == kv_part[j]) & (q_part[i] < count)]
    if is_causal or window is not None:
        offset = torch.as_tensor(0 if q_offset is None else q_offset, device=query.device).expand(count)
        offset = torch.cat([offset, offset.new_zeros(1)])  # of rows of no part
        mods.append(_band(lambda b, i, j: (q_place[i] + offset[q_part[i]], kv_place[j]), is_causal, window))
    output, lse = _attended(query[None], key[None], value[None], mods, None, scale, softcap, return_lse)
    return {"output": output[0], "lse": lse[0]} if return_lse else output[0]


def _parts(starts: Any, length: int) -> tuple[Any, Any]:
    """The part of each row, the number of parts for none, and the row's place in it."""
    rows = torch.arange(length, device=starts.device)
    part = torch.searchsorted(starts[1:].contiguous(), rows.to(starts.dtype), right=True)
    return part, rows - starts[part]


def _band(places: Callable[[Any, Any, Any], tuple[Any, Any]], is_causal: bool, window: Any) -> Mod:
    """Causality and a window around the place of a query."""
    left, right = window or (None, None)
    right = 0 if is_causal else right

    def mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        p, at = places(b, i, j)
        seen = at == at
        if left is not None:
            seen = seen & (at >= p - left)
        return seen if right is None else seen & (at <= p + right)

    return mod


def _attended(
    q: Any,
    k: Any,
    v: Any,
    mods: list[Mod],
    added: Any,
    scale: float | None,
    softcap: float | None,
    with_lse: bool,
) -> tuple[Any, Any]:
    """Output and, where asked for, lse of (B, H, q_len, d), (B, G, kv_len, d), under all masks."""

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if added is None else score + added[b, h, i, j]

    block_mask = None
    if mods and q.shape[2] and k.shape[2]:  # none can be asked of no query or key
        block_mask = create_block_mask(
            and_masks(*mods), q.shape[0], q.shape[1], q.shape[2], k.shape[2], device=q.device
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it is not compiled
        output, aux = flex_attention(
            q,
            k,
            v,
            score_mod,
            block_mask,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=with_lse),
        )
    return output, output[..., 0].float() if aux.lse is None else aux.lse  # none is given for no queries
