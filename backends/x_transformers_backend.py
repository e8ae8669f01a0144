"""The attention of x-transformers, `Attend`, eager and through torch's fused kernel."""

from importlib.metadata import version as installed
from typing import Any

import torch
from x_transformers.attend import Attend

from backends.torch_shapes import flat, from_the_end, of_the_same_dtype, whole

__all__ = ["eager", "flash"]

OPTIONS = frozenset(
    ["mask", "attn_bias", "is_causal", "q_offset", "scale", "gqa", "value_dim", "broadcast", "empty"]
)


class AttentionOfXTransformers:
    """`Attend`, made anew for each call, since options are set when it is made."""

    version = installed("x-transformers")
    array_type = "torch"
    dtypes = ("float32", "float16", "bfloat16")

    def __init__(self, name: str, accuracy: str, flash: bool) -> None:
        self.name = name
        self.accuracy = accuracy
        self.features = OPTIONS if flash else OPTIONS | {"softcap"}
        self._flash = flash

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        attn_bias: Any = None,
        is_causal: bool = False,
        q_offset: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Any:
        """Attention; the bias has one value a head, for all batch entries."""
        batch, kv_len = query.shape[:-3], key.shape[-2]
        from_the_end(is_causal, q_offset, query.shape[-2], kv_len)
        of_the_same_dtype(attn_bias, query)
        if attn_bias is not None:
            if attn_bias.ndim > 2 and any(size != 1 for size in attn_bias.shape[:-3]):
                raise NotImplementedError("attn_bias is the same for all batch entries")
            attn_bias = attn_bias.reshape(attn_bias.shape[-3:]) if attn_bias.ndim > 2 else attn_bias
            attn_bias = attn_bias.expand(query.shape[-3], query.shape[-2], kv_len)
        attend = Attend(
            causal=is_causal,
            heads=query.shape[-3],
            scale=scale,
            flash=self._flash,
            softclamp_logits=softcap is not None,
            logit_softclamp_value=softcap or 50.0,
        ).eval()
        seen = None if mask is None else whole(mask, query, kv_len)
        with torch.no_grad():
            output = attend(flat(query), flat(key), flat(value), mask=seen, attn_bias=attn_bias)[0]
        return output.reshape(*batch, *output.shape[1:])


eager = AttentionOfXTransformers("x-transformers", "eager", flash=False)
flash = AttentionOfXTransformers("x-transformers-flash", "eager", flash=True)  # query times scale is stored
