"""The attention functions of Hugging Face transformers, as its models call them."""

from types import SimpleNamespace
from typing import Any

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_eager
from transformers.models.llama.modeling_llama import eager_attention_forward as llama_eager

from backends.torch_shapes import flat, of_the_same_dtype, visible, whole

__all__ = ["eager", "sdpa"]

OPTIONS = frozenset(
    ["mask", "attn_bias", "is_causal", "q_offset", "scale", "gqa", "value_dim", "broadcast", "empty"]
)


class AttentionOfTransformers:
    """One of the functions behind `attn_implementation`; masks are added, as the library's own are."""

    version = transformers.__version__
    array_type = "torch"
    dtypes = ("float32", "float16", "bfloat16")

    def __init__(self, name: str, accuracy: str, features: frozenset[str]) -> None:
        self.name = name
        self.accuracy = accuracy
        self.features = features

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
        sinks: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Attention; Llama's function, Gemma 2's where there is a softcap, that of GPT-OSS where there are sinks."""
        if softcap is not None and sinks is not None:
            raise NotImplementedError("no model has a softcap and sinks")
        of_the_same_dtype(attn_bias, query)
        kv_len, batch = key.shape[-2], query.shape[:-3]
        module = SimpleNamespace(
            num_key_value_groups=query.shape[-3] // key.shape[-3],
            training=False,
            is_causal=False,
            head_dim=query.shape[-1],
            sinks=sinks,
        )
        seen = visible(query, kv_len, mask, is_causal, q_offset)
        added = None if attn_bias is None else whole(attn_bias, query, kv_len)
        if seen is not None:
            lowest = torch.finfo(query.dtype).min
            added = torch.where(seen, 0.0 if added is None else added, lowest).to(query.dtype)
        options: dict[str, Any] = {"scaling": query.shape[-1] ** -0.5 if scale is None else scale}
        function = sdpa_attention_forward
        if self.name.endswith("eager"):
            function = llama_eager if softcap is None else gemma_eager
            function = function if sinks is None else gpt_oss_eager
            options |= {} if softcap is None else {"softcap": softcap}
        output, weights = function(module, flat(query), flat(key), flat(value), added, **options)
        output = output.transpose(1, 2).reshape(
            *batch, *output.shape[2:3], *output.shape[1:2], output.shape[-1]
        )
        if not return_weights:
            return output
        return {"output": output, "weights": weights.reshape(*batch, *weights.shape[1:])}


eager = AttentionOfTransformers(
    "transformers-eager", "eager", OPTIONS | {"softcap", "sinks", "return_weights"}
)
sdpa = AttentionOfTransformers("transformers-sdpa", "fused", OPTIONS)
