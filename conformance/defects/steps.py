"""The steps of an implementation, of which a defect replaces one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.defects.checks import Check

Step = Callable[..., Any]


@dataclass(frozen=True)
class Steps:
    """Attention, cut where people go wrong. `c` is the Call, `s` are the Steps themselves."""

    checks: tuple[Check, ...]
    compute: Step  # s, c -> outputs by name
    accept: Step  # c -> c
    project_query: Step  # c -> [..., H, q_len, d_k]
    project_key: Step  # c -> [..., G, new, d_k]
    project_value: Step  # c -> [..., G, new, d_v]
    join: Step  # c, key, value -> both with the past in front, [..., G, kv_len, d]
    repeat: Step  # c, x -> [..., H, kv_len, d]
    attend: Step  # s, c, query, key, value -> heads, weights, lse
    scale: Step  # c -> number
    score: Step  # c, query, key, scale -> logits, [..., H, q_len, kv_len]
    cap: Step  # c, x -> logits
    bias: Step  # c, x -> logits
    place: Step  # c -> i + q_offset, [..., q_len, 1]
    by_mask: Step  # c -> what the mask shows, broadcastable to the logits; None = everything
    by_bias: Step  # c -> the same
    by_causal: Step  # c, place -> the same
    by_window: Step  # c, place -> the same
    by_lengths: Step  # c -> the same
    by_segments: Step  # c -> the same
    intersect: Step  # c, rules -> bool, the shape of the logits
    softmax: Step  # s, c, logits, visible -> weights, lse
    peak: Step  # c, logits, visible -> what is subtracted, [..., H, q_len, 1]
    raised: Step  # c, logits, visible, peak -> exponentials, 0 where hidden
    total: Step  # c, raised, peak -> denominator, [..., H, q_len, 1]
    normalise: Step  # c, raised, total, visible -> weights
    log: Step  # c, total, peak, visible -> lse, [..., H, q_len]
    average: Step  # c, weights, value, visible -> heads, [..., H, q_len, d_v]
    merge: Step  # c, heads -> output
    finish: Step  # c, output, weights, lse, key, value -> outputs by name

    compute_gradients: Step  # s, c -> gradients by argument name
    head_gradient: Step  # c -> gradient of the heads, [..., H, q_len, d_v]
    products: Step  # c, gradient, value, visible -> dP, [..., H, q_len, kv_len]
    delta: Step  # c, weights, products, gradient, heads -> Delta, [..., H, q_len, 1]
    less_lse: Step  # c, delta -> Delta less the cotangent of the lse, [..., H, q_len, 1]
    grad_logits: Step  # c, weights, products, delta, visible -> dL, [..., H, q_len, kv_len]
    slope: Step  # c, scaled -> 1 - tanh^2, or 1
    grad_scores: Step  # c, dL, slope -> dX
    grad_query: Step  # c, dX, key, scale -> [..., H, q_len, d_k]
    grad_key: Step  # c, dX, query, scale -> [..., H, kv_len, d_k]
    grad_value: Step  # c, weights, gradient -> [..., H, kv_len, d_v]
    gather: Step  # c, x -> summed over the heads of a group, [..., G, kv_len, d]
    new: Step  # c, x -> the part that is no past, [..., G, new, d]
    grad_bias: Step  # c, dL -> in the shape of attn_bias
    grad_sinks: Step  # c, lse, delta, visible -> [H]
    grad_projection: Step  # c, name, x, gradient, weight, bias -> gradients by argument name
    grad_output_projection: Step  # c, heads -> gradients of w_o and b_o by name
    finish_gradients: Step  # c, gradients -> in the shape and dtype of each argument

    serving_checks: tuple[Check, ...]  # of the operations below; `p` is what they were given
    packed: Step  # s, p -> outputs by name
    part: Step  # p, i -> rows of a part, and its call of attention
    written: Step  # s, p -> key_pages, value_pages
    seen: Step  # p, pages after the writes -> those of them that the reads see
    table: Step  # p -> the page of each place, [B, M]
    gathered: Step  # p, pages, table -> [B, G, M P, d]
    lengths: Step  # p -> [B]
    paged: Step  # s, p -> outputs by name
    latent: Step  # s, p -> outputs by name
    rows_of: Step  # p -> keys and values of latent rows, [..., 1, kv_len, d]
    merged: Step  # s, p -> outputs by name
    merge_peak: Step  # p, lses -> what is subtracted, [..., H, q_len]
    merge_terms: Step  # p, lses, peak -> exponentials, [P, ..., H, q_len]
    merge_total: Step  # p, terms, peak -> denominator
    partial: Step  # p, i -> the output of a part, [..., H, q_len, d_v]
    merge_log: Step  # p, total, peak, lses -> lse
    merge_finish: Step  # p, output, lse -> outputs by name
