"""Steps as a target of the suite."""

from collections.abc import Mapping
from typing import Any

from conformance.defects.call import Call
from conformance.defects.serving.call import Served
from conformance.defects.serving.steps import serve
from conformance.defects.steps import Steps
from conformance.names import (
    APPEND,
    DTYPES,
    FEATURES,
    LATENT,
    MERGE,
    MHA,
    MHA_VJP,
    PACKED,
    PAGED,
    SDPA,
    SDPA_VJP,
)
from conformance.vectors.case import Array


class Implementation:
    """Steps as a target of the suite that claims everything."""

    dtypes = DTYPES
    features = FEATURES
    accuracy = "fused"

    def __init__(self, steps: Steps, name: str = "reference") -> None:
        self.name = name
        self._steps = steps

    def scaled_dot_product_attention(
        self, query: Array, key: Array, value: Array, **options: Any
    ) -> Mapping[str, Array]:
        """Attention."""
        outputs: Mapping[str, Array] = self._steps.compute(
            self._steps, Call(SDPA, query, key, value, **options)
        )
        return outputs

    def multi_head_attention(
        self, query: Array, key: Array, value: Array, **options: Any
    ) -> Mapping[str, Array]:
        """The layer."""
        outputs: Mapping[str, Array] = self._steps.compute(
            self._steps, Call(MHA, query, key, value, **options)
        )
        return outputs

    def scaled_dot_product_attention_vjp(
        self, query: Array, key: Array, value: Array, grad_output: Array, **options: Any
    ) -> Mapping[str, Array]:
        """Gradients of attention."""
        return self._gradients(Call(SDPA_VJP, query, key, value, grad_output, **options))

    def multi_head_attention_vjp(
        self, query: Array, key: Array, value: Array, grad_output: Array, **options: Any
    ) -> Mapping[str, Array]:
        """Gradients of the layer."""
        return self._gradients(Call(MHA_VJP, query, key, value, grad_output, **options))

    def packed_attention(self, query: Array, key: Array, value: Array, **options: Any) -> Mapping[str, Array]:
        """Parts of different lengths, one behind the other."""
        return serve(self._steps, Served(PACKED, query, key, value, **options))

    def paged_attention(
        self, query: Array, key_pages: Array, value_pages: Array, **options: Any
    ) -> Mapping[str, Array]:
        """Keys and values in pages that tables name."""
        call = Served(PAGED, query, key_pages=key_pages, value_pages=value_pages, **options)
        return serve(self._steps, call)

    def append_to_pages(
        self, key_pages: Array, value_pages: Array, new_key: Array, new_value: Array, *, slots: Array
    ) -> Mapping[str, Array]:
        """Pages with new keys and values in some slots."""
        arrays = {
            "key_pages": key_pages,
            "value_pages": value_pages,
            "new_key": new_key,
            "new_value": new_value,
        }
        return serve(self._steps, Served(APPEND, **arrays, slots=slots))

    def latent_attention(self, query: Array, latent: Array, **options: Any) -> Mapping[str, Array]:
        """Rows that are keys, and values by their first channels."""
        return serve(self._steps, Served(LATENT, query, latent=latent, **options))

    def merge_attention(
        self, outputs: list[Array], lses: list[Array], *, sinks: Any = None
    ) -> Mapping[str, Array]:
        """Partial results as one."""
        return serve(self._steps, Served(MERGE, outputs=outputs, lses=lses, sinks=sinks))

    def _gradients(self, c: Call) -> Mapping[str, Array]:
        gradients: Mapping[str, Array] = self._steps.compute_gradients(self._steps, c)
        return gradients
