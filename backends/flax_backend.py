"""The attention of flax, `nnx` and `linen`: the functions and the layers."""

from collections.abc import Callable
from typing import Any

import flax
import jax.numpy as jnp
from flax import linen, nnx

__all__ = ["of_linen", "of_nnx"]

OPTIONS = frozenset(["mask", "attn_bias", "is_causal", "q_offset", "broadcast", "empty"])
PARTS = ("query", "key", "value", "out")


class AttentionOfFlax:
    """One of the two interfaces, on arrays with length before heads."""

    version = flax.__version__
    array_type = "jax"
    dtypes = ("float32",)
    accuracy = "eager"
    layout = "blhd"

    def __init__(self, name: str, features: frozenset[str], attend: Callable[..., Any], layer: Any) -> None:
        self.name = name
        self.features = features
        self._attend = attend
        self._layer = layer

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, *, mask: Any = None, attn_bias: Any = None,
        is_causal: bool = False, q_offset: Any = None,
    ) -> Any:  # fmt: skip
        """`dot_product_attention`; causality is part of the mask, as the libraries' own helper makes it."""
        seen = _seen(mask, query.shape[-3], key.shape[-3], is_causal, q_offset)
        full_rank = query.ndim
        return self._attend(query, key, value, _ranked(attn_bias, full_rank), _ranked(seen, full_rank))

    def multi_head_attention(
        self, query: Any, key: Any, value: Any, *, w_q: Any, w_k: Any, w_v: Any, w_o: Any, b_q: Any = None,
        b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
        q_offset: Any = None,
    ) -> Any:  # fmt: skip
        """The layer, given the weights."""
        if w_k.shape[-1] != w_v.shape[-1]:
            raise NotImplementedError("keys and values have one width")
        biases = (b_q, b_k, b_v, b_o)
        if any(b is None for b in biases) and any(b is not None for b in biases):
            raise NotImplementedError("all biases or none")
        kernels = [jnp.swapaxes(w, 0, 1) for w in (w_q, w_k, w_v)] + [w_o]  # (d_in, H, d); (H, d_v, d_out)
        seen = _seen(mask, query.shape[-2], key.shape[-2], is_causal, q_offset)
        return self._layer(query, key, value, kernels, biases, _ranked(seen, query.ndim + 1))


def _ranked(x: Any, rank: int) -> Any:
    """A mask or bias of full rank, as both ask for."""
    return None if x is None else x.reshape((1,) * (rank - x.ndim) + x.shape)


def _seen(mask: Any, q_len: int, kv_len: int, is_causal: bool, q_offset: Any) -> Any:
    """What a query may attend, (q_len, kv_len) or more; None where that is everything."""
    if not is_causal:
        return mask
    if q_offset is None or isinstance(q_offset, int):
        q_offset = min(max(q_offset or 0, -q_len), kv_len)  # beyond that nothing changes, and int32 holds it
    offset = jnp.asarray(q_offset)
    places = jnp.arange(q_len)[:, None] + offset[..., None, None, None]  # ([B,] 1, q_len, 1)
    causal = jnp.arange(kv_len) <= places
    return causal if mask is None else causal & mask


def _linen_layer(query: Any, key: Any, value: Any, kernels: Any, biases: Any, mask: Any) -> Any:
    heads, groups = kernels[0].shape[1], kernels[1].shape[1]
    if heads != groups:
        raise NotImplementedError("linen has one number of heads")
    layer = linen.MultiHeadDotProductAttention(
        heads, qkv_features=heads * kernels[0].shape[2], out_features=kernels[3].shape[-1],
        use_bias=biases[0] is not None, deterministic=True,
    )  # fmt: skip
    given = {
        part: {"kernel": kernel} | ({} if bias is None else {"bias": bias})
        for part, kernel, bias in zip(PARTS, kernels, biases, strict=True)
    }
    return layer.apply({"params": given}, query, key, value, mask=mask)


def _nnx_layer(query: Any, key: Any, value: Any, kernels: Any, biases: Any, mask: Any) -> Any:
    heads, groups, width = kernels[0].shape[1], kernels[1].shape[1], kernels[0].shape[2]
    if key.shape[-1] != value.shape[-1]:
        raise NotImplementedError("keys and values are projected from one width")
    layer = nnx.MultiHeadAttention(
        heads, query.shape[-1], heads * width, kernels[3].shape[-1], groups, key.shape[-1],
        use_bias=biases[0] is not None, deterministic=True, decode=False, rngs=nnx.Rngs(0),
    )  # fmt: skip
    for part, kernel, bias in zip(PARTS, kernels, biases, strict=True):
        getattr(layer, part).kernel.value = kernel
        if bias is not None:
            getattr(layer, part).bias.value = bias
    return layer(query, key, value, mask=mask)


of_nnx = AttentionOfFlax("flax-nnx", OPTIONS | {"gqa"}, nnx.dot_product_attention, _nnx_layer)
of_linen = AttentionOfFlax("flax-linen", OPTIONS | {"value_dim"}, linen.dot_product_attention, _linen_layer)
