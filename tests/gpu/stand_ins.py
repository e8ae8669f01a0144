"""Libraries of kernels for a GPU in name and signature, computed on the CPU: what their adapters are tested with.

Signatures are those of flash-attn 2.8, flashinfer 0.6, vllm 0.20 and xformers 0.0.33, so far as the adapters use them.
Each looks at the layout and the dtypes that the real one takes, and at the alignment of its causal mask.
"""

import itertools
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

LN_2 = math.log(2)


def attended(
    q: Any, k: Any, v: Any, scale: float | None, causal: bool, window: Any, softcap: float
) -> tuple[Any, Any]:
    """Rows (n, H, d), (m, G, d): output (n, H, d_v) and natural lse (H, n), the last query at the last key."""
    assert q.ndim == k.ndim == v.ndim == 3
    n, heads, d = q.shape
    m, group = k.shape[0], heads // k.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (k, v))
    logits = torch.einsum("ihd,jhd->hij", q.float(), k) * (d**-0.5 if scale is None else scale)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    i, j = torch.arange(n)[:, None] + m - n, torch.arange(m)
    left, right = window
    hidden = torch.zeros((n, m), dtype=torch.bool)
    if causal:
        right = 0
    if left >= 0:
        hidden |= j < i - left
    if right >= 0:
        hidden |= j > i + right
    logits = logits.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(logits, -1) if m else torch.full((heads, n), -math.inf)
    weights = torch.exp(logits - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    return torch.einsum("hij,jhd->ihd", weights, v).to(q.dtype), lse


def packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *rest: Any) -> tuple[Any, Any]:
    """Each part of rows (T, H, d); rows of no part are what memory holds."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    output = torch.full((q.shape[0], q.shape[1], v.shape[2]), math.nan, dtype=q.dtype)
    lse = torch.full((q.shape[1], q.shape[0]), math.nan)
    for (a, b), (c, d) in zip(itertools.pairwise(cu_q), itertools.pairwise(cu_k), strict=True):
        output[a:b], lse[:, a:b] = attended(q[a:b], k[c:d], v[c:d], *rest)
    return output, lse


def gathered(pages: Any, ids: Any, length: int) -> Any:
    """The first keys of some pages (P, G, d): (length, G, d)."""
    return torch.cat([pages[n] for n in ids])[:length] if length else pages[0][:0]


def flash_attn() -> ModuleType:
    """flash-attn 2."""
    module = ModuleType("flash_attn")
    module.__version__ = "2.8.3"

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        assert (max_seqlen_q, max_seqlen_k) == (
            int(cu_seqlens_q.diff().max()),
            int(cu_seqlens_k.diff().max()),
        )
        output, lse = packed(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, softcap)
        lse = torch.where(lse == -math.inf, math.inf, lse)  # as it has it for a row without keys
        return (output, lse, None) if return_attn_probs else output

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        assert k_cache.shape[1] % 256 == 0
        assert cache_seqlens.dtype == block_table.dtype == torch.int32
        outputs, lses = [], []
        for row, length, ids in zip(q, cache_seqlens.tolist(), block_table, strict=True):
            ids = ids[: -(-length // k_cache.shape[1])]
            keys, values = (gathered(x, ids, length) for x in (k_cache, v_cache))
            output, lse = attended(row, keys, values, softmax_scale, causal, window_size, softcap)
            outputs.append(output)
            lses.append(torch.where(lse == -math.inf, math.inf, lse))
        return (torch.stack(outputs), torch.stack(lses)) if return_softmax_lse else torch.stack(outputs)

    module.flash_attn_varlen_func = flash_attn_varlen_func
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    return module


def flashinfer() -> ModuleType:
    """FlashInfer, whose log-sum-exp is to base 2."""
    module = ModuleType("flashinfer")
    module.__version__ = "0.6.0"

    class Ragged:
        def __init__(self, float_workspace_buffer, kv_layout="NHD"):
            assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")

        def plan(
            self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, *,
            causal=False, window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type="float16",
            kv_data_type=None,
        ):  # fmt: skip
            self.starts = qo_indptr, kv_indptr
            self.heads = num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo
            self.rest = sm_scale, causal, (window_left, -1), logits_soft_cap

        def run(self, q, k, v, *, return_lse=False):
            assert (q.shape[1], k.shape[1], q.shape[2], v.shape[2]) == self.heads
            output, lse = packed(q, k, v, *self.starts, *self.rest)
            return (output, lse.T / LN_2) if return_lse else output

    class Paged:
        def __init__(self, float_workspace_buffer, kv_layout="NHD"):
            assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")

        def plan(
            self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
            num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, *, causal=False, sm_scale=None,
            window_left=-1, logits_soft_cap=None, q_data_type="float16", kv_data_type=None,
        ):  # fmt: skip
            tables = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
            assert all(x.dtype == torch.int32 for x in tables)
            self.tables, self.size = tables, page_size
            self.rest = sm_scale, causal, (window_left, -1), logits_soft_cap

        def run(self, q, paged_kv_cache, *, return_lse=False):
            starts, indptr, indices, last = self.tables
            outputs, lses = [], []
            for b in range(len(last)):
                ids = indices[indptr[b] : indptr[b + 1]]
                length = max(0, (len(ids) - 1) * self.size + int(last[b])) if len(ids) else 0
                keys, values = (gathered(x, ids, length) for x in paged_kv_cache)
                output, lse = attended(q[starts[b] : starts[b + 1]], keys, values, *self.rest)
                outputs.append(output)
                lses.append(lse.T / LN_2)
            return (torch.cat(outputs), torch.cat(lses)) if return_lse else torch.cat(outputs)

    def append_paged_kv_cache(
        append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
        kv_last_page_len, kv_layout="NHD",
    ):  # fmt: skip
        assert positions.dtype == batch_indices.dtype == torch.int32
        size = paged_kv_cache[0].shape[1]
        for x, new in zip(paged_kv_cache, (append_key, append_value), strict=True):
            for b, place, row in zip(batch_indices, positions, new, strict=True):
                x[kv_indices[kv_indptr[b] + place // size], place % size] = row

    def merge_states(v, s):
        assert (v.ndim, s.ndim, s.dtype) == (4, 3, torch.float32)  # (rows, parts, H, d)
        total = torch.logsumexp(s * LN_2, 1)
        weights = torch.exp(s * LN_2 - torch.where(total == -math.inf, 0.0, total)[:, None])
        return (weights[..., None] * v.float()).sum(1).to(v.dtype), total / LN_2

    module.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    module.BatchPrefillWithPagedKVCacheWrapper = Paged
    module.append_paged_kv_cache, module.merge_states = append_paged_kv_cache, merge_states
    return module


def vllm() -> ModuleType:
    """vLLM's own kernels, and its build of FlashAttention."""
    module = ModuleType("vllm")
    module.__version__, module.__path__ = "0.20.0", []
    ops, flash = ModuleType("vllm._custom_ops"), ModuleType("vllm.vllm_flash_attn")

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None,
    ):  # fmt: skip
        assert (k.shape[1] % 16, seqused_k.dtype, block_table.dtype) == (0, torch.int32, torch.int32)
        outputs, lses = [], []
        for b, length in enumerate(seqused_k.tolist()):
            ids = block_table[b, : -(-length // k.shape[1])]
            keys, values = (gathered(x, ids, length) for x in (k, v))
            rows = q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]]
            output, lse = attended(rows, keys, values, softmax_scale, causal, window_size, softcap)
            outputs.append(output)
            lses.append(lse)
        return (torch.cat(outputs), torch.cat(lses, 1)) if return_softmax_lse else torch.cat(outputs)

    def reshape_and_cache_flash(
        key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
    ):  # fmt: skip
        assert (slot_mapping.dtype, kv_cache_dtype) == (torch.int64, "auto")
        size = key_cache.shape[1]
        for x, new in ((key_cache, key), (value_cache, value)):
            for slot, row in zip(slot_mapping.tolist(), new, strict=True):
                if slot >= 0:
                    x[slot // size, slot % size] = row

    def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None):
        s = torch.stack([prefix_lse, suffix_lse])  # (2, H, rows)
        total = torch.logsumexp(s, 0)
        weights = torch.exp(s - torch.where(total == -math.inf, 0.0, total)).transpose(1, 2)[..., None]
        both = torch.stack([prefix_output, suffix_output]).float()
        output.copy_((weights * both).sum(0))
        output_lse.copy_(total)

    flash.flash_attn_varlen_func = flash_attn_varlen_func
    ops.reshape_and_cache_flash, ops.merge_attn_states = reshape_and_cache_flash, merge_attn_states
    module._custom_ops, module.vllm_flash_attn = ops, flash
    return module


def xformers() -> ModuleType:
    """xFormers' memory-efficient attention."""
    module = ModuleType("xformers")
    module.__version__, module.__path__ = "0.0.33", []
    ops = ModuleType("xformers.ops")

    class BlockDiagonalMask:
        def __init__(self, starts, causal):
            self.starts, self.causal = starts, causal

        @classmethod
        def from_seqlens(cls, q_seqlen, kv_seqlen=None):
            both = (q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)
            assert all(n > 0 for lengths in both for n in lengths)
            return cls([torch.tensor([0, *x]).cumsum(0).int() for x in both], False)

        def make_causal_from_bottomright(self):
            return BlockDiagonalMask(self.starts, True)

    def memory_efficient_attention_forward_requires_grad(
        query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None
    ):
        assert query.ndim == key.ndim == value.ndim == 5  # (1, T, G, H // G, d)
        assert query.shape[2:4] == key.shape[2:4]
        q, k, v = (x[0].flatten(1, 2) for x in (query, key, value))
        output, lse = packed(q, k, v, *attn_bias.starts, scale, attn_bias.causal, (-1, -1), 0.0)
        shape = query.shape[2:4]
        return output.unflatten(1, shape)[None], lse.unflatten(0, shape)[None]

    def merge_attentions(attn_split, lse_split, write_lse=True):
        s = torch.stack(lse_split)  # (parts, B, H, length)
        total = torch.logsumexp(s, 0)
        weights = torch.exp(s - torch.where(total == -math.inf, 0.0, total)).transpose(2, 3)[..., None]
        return (weights * torch.stack(attn_split).float()).sum(0).to(attn_split[0].dtype), total

    ops.fmha = SimpleNamespace(
        attn_bias=SimpleNamespace(BlockDiagonalMask=BlockDiagonalMask),
        memory_efficient_attention_forward_requires_grad=memory_efficient_attention_forward_requires_grad,
        merge_attentions=merge_attentions,
    )
    module.ops = ops
    return module


FAKES = {"flash_attn": flash_attn, "flashinfer": flashinfer, "vllm": vllm, "xformers": xformers}


def installed(monkeypatch: Any, library: str) -> None:
    """Puts a fake where an import finds it, its parts too."""
    module = FAKES[library]()
    monkeypatch.setitem(sys.modules, library, module)
    for part in ("_custom_ops", "vllm_flash_attn", "ops"):
        if hasattr(module, part):
            monkeypatch.setitem(sys.modules, f"{library}.{part}", getattr(module, part))
