"""torch.nn.MultiheadAttention, in evaluation mode."""

from collections.abc import Mapping
from typing import Any

import torch

from backends.torch_shapes import gradients_of

__all__ = ["multi_head_attention", "multi_head_attention_vjp"]

name = "torch-mha"
version = torch.__version__
array_type = "torch"
dtypes = ("float64", "float32", "float16", "bfloat16")
features = frozenset(["mask", "attn_bias", "is_causal", "q_offset", "return_weights", "broadcast", "empty"])
accuracy = "eager"

pad = torch.nn.functional.pad


def _parameters(width: int, w: Mapping[str, Any], b: Mapping[str, Any], shared: bool) -> dict[str, Any]:
    """The layer's parameters; `shared` = the widths of query, key and value are one, so that weights are stacked."""
    rows = {n: x.mT.flatten(0, 1) for n, x in w.items() if n != "o"}  # (width, d_in)
    rows = {n: pad(x, (0, width - x.shape[1])) if shared or n == "q" else x for n, x in rows.items()}
    out = w["o"].flatten(0, 1).mT  # (d_out, width)
    found = {"out_proj.weight": pad(out, (0, 0, 0, width - out.shape[0]))}
    if shared:
        found["in_proj_weight"] = torch.cat([rows["q"], rows["k"], rows["v"]])
    else:
        found |= {f"{n}_proj_weight": rows[n] for n in "qkv"}
    if any(x is not None for x in b.values()):  # one flag for all four: those that are not given are zeros
        zeros = out.new_zeros(width)
        found["in_proj_bias"] = torch.cat([zeros if b[n] is None else b[n].flatten() for n in "qkv"])
        found["out_proj.bias"] = zeros if b["o"] is None else pad(b["o"], (0, width - out.shape[0]))
    return found


def _masks(
    query: Any, key: Any, num_heads: int, mask: Any, attn_bias: Any, is_causal: bool
) -> dict[str, Any]:
    """The arguments for what is visible; here True hides, and a mask over keys alone has a place of its own."""
    q_len, kv_len, batch = query.shape[-2], key.shape[-2], query.shape[:-2]
    found: dict[str, Any] = {}
    if mask is not None and mask.ndim > 2 and mask.shape[-3:-1] == (1, 1):
        found["key_padding_mask"] = ~mask[..., 0, 0, :].expand(*batch, kv_len)
        mask = None
    if sum((mask is not None, attn_bias is not None, is_causal)) > 1:
        raise NotImplementedError("attn_mask is one of a mask, a bias and, with is_causal, the causal mask")
    hidden = attn_bias if mask is None else ~mask
    if is_causal:
        found["is_causal"] = True
        hidden = torch.ones(q_len, kv_len, dtype=torch.bool, device=query.device).triu(1)
    if hidden is not None:
        heads = (*batch, num_heads) if hidden.ndim > 2 else ()
        hidden = hidden.expand(*heads, q_len, kv_len)
        found["attn_mask"] = hidden.flatten(0, -3) if heads else hidden
    return found


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    w_q: Any,
    w_k: Any,
    w_v: Any,
    w_o: Any,
    b_q: Any = None,
    b_k: Any = None,
    b_v: Any = None,
    b_o: Any = None,
    mask: Any = None,
    attn_bias: Any = None,
    is_causal: bool = False,
    q_offset: Any = None,
    return_weights: bool = False,
    _grad: bool = False,
) -> Mapping[str, Any]:
    """The layer of width H * d_k; a problem that is narrower is filled up with zeros."""
    num_heads, d_in, d_k = w_q.shape
    width, d_out = num_heads * d_k, w_o.shape[-1]
    if max(d_in, d_out) > width:
        raise NotImplementedError("embed_dim is H * d_k: neither query nor output can be wider")
    if query.ndim > 3:
        raise NotImplementedError("there is one batch axis or none")
    if is_causal and q_offset is not None and torch.any(torch.as_tensor(q_offset) != 0):
        raise NotImplementedError("is_causal is from the upper left")
    shared = query.shape[-1] == key.shape[-1] == value.shape[-1]
    parameters = _parameters(
        width, {"q": w_q, "k": w_k, "v": w_v, "o": w_o}, {"q": b_q, "k": b_k, "v": b_v, "o": b_o}, shared
    )
    layer = torch.nn.MultiheadAttention(
        width,
        num_heads,
        bias="in_proj_bias" in parameters,
        kdim=None if shared else key.shape[-1],
        vdim=None if shared else value.shape[-1],
        batch_first=True,
        dtype=query.dtype,
        device=query.device,
    ).eval()
    masks = _masks(query, key, num_heads, mask, attn_bias, is_causal)
    query, key, value = (
        pad(x, (0, width - x.shape[-1])) if shared or n == 0 else x for n, x in enumerate((query, key, value))
    )
    options = {"need_weights": return_weights, "average_attn_weights": False, **masks}
    with torch.set_grad_enabled(_grad):
        output, weights = torch.func.functional_call(layer, parameters, (query, key, value), options)
    return {"output": output[..., :d_out], **({"weights": weights} if return_weights else {})}


def multi_head_attention_vjp(
    query: Any,
    key: Any,
    value: Any,
    grad_output: Any,
    *,
    w_q: Any,
    w_k: Any,
    w_v: Any,
    w_o: Any,
    **options: Any,
) -> Mapping[str, Any]:
    """Gradients, as autograd computes them."""
    given = {"query": query, "key": key, "value": value, "w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    names = ("b_q", "b_k", "b_v", "b_o", "attn_bias")
    given |= {n: options.pop(n, None) for n in names}

    def output(**leaves: Any) -> Any:
        return multi_head_attention(**leaves, **options, _grad=True)["output"]

    return gradients_of(output, given, grad_output)
