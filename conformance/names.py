"""The words of the suite, as plain data: operations, operands, options, features, dtypes, policies, profiles."""

SDPA = "scaled_dot_product_attention"
MHA = "multi_head_attention"
SDPA_VJP = "scaled_dot_product_attention_vjp"
MHA_VJP = "multi_head_attention_vjp"
DENSE = (SDPA, MHA, SDPA_VJP, MHA_VJP)
"""Operations on arrays of one length each."""
PACKED = "packed_attention"
PAGED = "paged_attention"
APPEND = "append_to_pages"
LATENT = "latent_attention"
MERGE = "merge_attention"
SERVING = (PACKED, PAGED, APPEND, LATENT, MERGE)
"""Operations that are defined by reduction to attention (spec/serving.md)."""
OPERATIONS = (*DENSE, *SERVING)
OPERATION_FEATURES = {PACKED: "packed", PAGED: "paged", APPEND: "append", LATENT: "latent", MERGE: "merge"}
"""What a target claims by having the operation."""
POSITIONAL = {
    **dict.fromkeys((SDPA, MHA), ("query", "key", "value")),
    **dict.fromkeys((SDPA_VJP, MHA_VJP), ("query", "key", "value", "grad_output")),
    PACKED: ("query", "key", "value"),
    PAGED: ("query", "key_pages", "value_pages"),
    APPEND: ("key_pages", "value_pages", "new_key", "new_value"),
    LATENT: ("query", "latent"),
    MERGE: ("outputs", "lses"),
}
"""Arrays that a call may give by position, in this order."""
REQUIRED = {
    PACKED: ("q_starts", "kv_starts"),
    PAGED: ("page_table", "kv_lengths"),
    APPEND: ("slots",),
    LATENT: ("value_dim", "scale"),
    MERGE: (),
}
"""Keywords that every call of such an operation gives; they need no feature of their own."""
WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")
OPERANDS = ("query", "key", "value", *WEIGHTS, *BIASES, "past_key", "past_value", "sinks")
"""Arrays that share the dtype under test."""
SERVING_OPERANDS = ("key_pages", "value_pages", "new_key", "new_value", "latent", "outputs")
"""The same of the operations that are defined by reduction."""
LSES = ("grad_lse", "lses")
"""Log-sum-exps and their cotangent: float32 where the dtype under test has 16 bits (DTYPE-6, MERGE-2)."""
WRITING = ("slots", "new_key", "new_value")
"""Keywords of paged_attention that write to the pages first: the feature `append`."""

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
"""The keyword options of attention and of the layer, in the order of the signature."""
_PLACED = ("is_causal", "q_offset", "window", "scale", "softcap", "sinks", "return_lse")
OPTIONS_OF = {
    **dict.fromkeys((SDPA, MHA), OPTIONS),
    **dict.fromkeys((SDPA_VJP, MHA_VJP), (*OPTIONS, "grad_lse")),
    PACKED: _PLACED,
    PAGED: ("mask", "attn_bias", *_PLACED, *WRITING),
    APPEND: (),
    LATENT: ("mask", "attn_bias", "kv_lengths", *_PLACED),
    MERGE: ("sinks",),
}
"""The keywords that a call of an operation may leave out; weights and biases of a layer aside."""

OUTPUTS = ("output", "weights", "lse", "present_key", "present_value", "key_pages", "value_pages")

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
KEYWORDS = {
    "cache": ("past_key", "past_value"),
    "segments": ("q_segments", "kv_segments"),
    "append": WRITING,
}
"""The keywords of a feature that has several; every other option is a feature of its own name."""
DEFAULT_FEATURES = ("gqa", "value_dim", "broadcast", "empty")
"""Claimed by every target that does not say otherwise: they need no option of their own."""
DECLARED_FEATURES = ("validation", "strict_masking")
"""Claimed only when declared."""
FEATURES = (*OPTION_FEATURES, *DEFAULT_FEATURES, *OPERATION_FEATURES.values(), *DECLARED_FEATURES)

PROFILES: dict[str, tuple[str, ...]] = {
    "core": (),
    "encoder": ("mask", "attn_bias", "broadcast", "empty"),
    "decoder": ("is_causal", "q_offset", "gqa", "cache"),
    "serving": (
        *("is_causal", "q_offset", "gqa", "cache", "window", "kv_lengths", "softcap", "sinks", "return_lse"),
        *("packed", "paged", "append", "merge"),
    ),
    "training": (),  # core, and the vjp of each claimed operation
    "full": tuple(f for f in FEATURES if f not in DECLARED_FEATURES),
}
"""The features that a profile needs, beyond the cases that need none."""
