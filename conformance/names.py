"""The words of the suite, as plain data: operations, operands, options, features, dtypes, policies, profiles."""

SDPA = "scaled_dot_product_attention"
MHA = "multi_head_attention"
SDPA_VJP = "scaled_dot_product_attention_vjp"
MHA_VJP = "multi_head_attention_vjp"
OPERATIONS = (SDPA, MHA, SDPA_VJP, MHA_VJP)

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")
OPERANDS = ("query", "key", "value", *WEIGHTS, *BIASES, "past_key", "past_value", "sinks")
"""Arrays that share the dtype under test."""

OPTIONS = (
    "mask",
    "attn_bias",
    "is_causal",
    "q_offset",
    "window",
    "kv_lengths",
    "q_segments",
    "kv_segments",
    "scale",
    "softcap",
    "sinks",
    "past_key",
    "past_value",
    "return_weights",
    "return_lse",
)
"""The keyword options of every operation, in the order of the signature."""

OUTPUTS = ("output", "weights", "lse", "present_key", "present_value")

DTYPES = ("float64", "float32", "float16", "bfloat16")

REDUCED_POLICIES = ("tf32", "tf32t", "bf16x1")
"""Policies that concern float32 alone: matmul operands are rounded to fewer bits."""
POLICIES = ("eager", "fused", *REDUCED_POLICIES)

OPTION_FEATURES = (
    "mask",
    "attn_bias",
    "is_causal",
    "q_offset",
    "window",
    "kv_lengths",
    "scale",
    "softcap",
    "sinks",
    "return_weights",
    "return_lse",
    "cache",
    "segments",
    "grad_lse",
)
DEFAULT_FEATURES = ("gqa", "value_dim", "broadcast", "empty")
"""Claimed by every target that does not say otherwise: they need no option of their own."""
DECLARED_FEATURES = ("validation", "strict_masking")
"""Claimed only when declared."""
FEATURES = (*OPTION_FEATURES, *DEFAULT_FEATURES, *DECLARED_FEATURES)

PROFILES: dict[str, tuple[str, ...]] = {
    "core": (),
    "encoder": ("mask", "attn_bias", "broadcast", "empty"),
    "decoder": ("is_causal", "q_offset", "gqa", "cache"),
    "training": (),  # core, and the vjp of each claimed operation
    "full": tuple(f for f in FEATURES if f not in DECLARED_FEATURES),
}
"""The features that a profile needs, beyond the cases that need none."""
