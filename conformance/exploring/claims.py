"""What a target claims, and the options and paths that calls of it meet."""

from dataclasses import dataclass

from conformance.exploring import serve
from conformance.names import SERVING

PATHS = ("one", "few", "chunk", "square", "long")
"""How queries and keys stand to each other: kernels have a path of their own for each."""
OPTIONS = (
    "mask", "attn_bias", "is_causal", "window", "kv_lengths", "scale", "softcap", "sinks",
    "segments", "grad_lse", "returned", "cache", "gqa", "value_dim", "several",
)  # fmt: skip
"""What is met pairwise on each path; `several` is a batch of entries that differ."""


@dataclass(frozen=True)
class Claims:
    """What a target claims, as far as the draw depends on it."""

    operations: tuple[str, ...]
    features: frozenset[str]
    dtypes: tuple[str, ...]
    size: str = "kernel"
    wanted: frozenset[str] = frozenset()  # features of which a case needs one; empty = any

    def options(self, operation: str) -> tuple[str, ...]:
        """The options that are met pairwise."""
        known = {
            "several": True,
            "returned": not operation.endswith("_vjp")
            and bool({"return_weights", "return_lse"} & self.features),
            "window": {"window", "q_offset"} <= self.features,
            "grad_lse": operation.endswith("_vjp") and "grad_lse" in self.features,
        }
        if operation in SERVING:
            known["returned"] = "return_lse" in self.features
        names = tuple(name for name in OPTIONS if known.get(name, name in self.features))
        return serve.options(names, operation) if operation in SERVING else names
