"""Right programs built as FlashAttention is: tiles, a running maximum, weights in the dtype of the call, wide sums."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.exploring.programs import visible

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Flash:
    """One way to cut: so many queries and keys at a time, so many splits of the keys that are merged by their lse."""

    rows: int
    keys: int
    splits: int = 1
    base_two: bool = False
    accuracy: str = "fused"

    dtypes = ("float64", "float32", "float16", "bfloat16")
    features = (
        "mask", "attn_bias", "is_causal", "q_offset", "window", "kv_lengths", "scale", "softcap", "sinks",
        "return_lse", "gqa", "value_dim", "broadcast", "empty",
    )  # fmt: skip

    @property
    def name(self) -> str:
        """How it is told."""
        base = ", base two" if self.base_two else ""
        return f"tiles of {self.rows} x {self.keys}, {self.splits} splits{base}"

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, *, mask: Any = None, attn_bias: Any = None,
        is_causal: bool = False, q_offset: Any = None, window: Any = None, kv_lengths: Any = None,
        scale: Any = None, softcap: Any = None, sinks: Any = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        """Outputs by name."""
        wide = np.float64 if query.dtype == np.float64 else np.float32
        each = query.shape[-3] // key.shape[-3]
        seen = visible(query, key, mask, is_causal, q_offset, window, kv_lengths)
        if attn_bias is not None:
            seen = seen & ~np.isneginf(attn_bias)
        seen = np.broadcast_to(seen, (*query.shape[:-1], key.shape[-2]))
        if kv_lengths is not None:  # what lies behind a length may be anything
            there = np.arange(key.shape[-2]) < np.asarray(kv_lengths).reshape(*np.shape(kv_lengths), 1, 1)
            key, value = (np.where(there[..., None], x, np.zeros((), x.dtype)) for x in (key, value))
        key, value = (np.repeat(x, each, axis=-3) for x in (key, value))
        factor = wide(query.shape[-1] ** -0.5 if scale is None else scale)
        bias = None if attn_bias is None else np.broadcast_to(attn_bias, (*query.shape[:-1], key.shape[-2]))
        output = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
        lse = np.full(query.shape[:-1], -np.inf, wide)
        for first in range(0, query.shape[-2], self.rows):
            rows = slice(first, first + self.rows)
            found = [
                self._part(
                    query[..., rows, :], key, value, seen[..., rows, :], factor, softcap,
                    None if bias is None else bias[..., rows, :], keys, wide,
                )
                for keys in self._splits(key.shape[-2])
            ]  # fmt: skip
            output[..., rows, :], lse[..., rows] = self._merged(found, sinks, query.dtype, wide)
        lost = seen.any(axis=-1) & np.isneginf(lse)  # visible logits that are all -inf (MASK-15)
        output[lost], lse[lost] = np.nan, np.nan
        return {"output": output, **({"lse": lse} if return_lse else {})}

    def _splits(self, kv_len: int) -> list[range]:
        """The tiles of each split, none of them shared."""
        firsts = list(range(0, kv_len, self.keys))
        size = max(-(-len(firsts) // self.splits), 1)
        cut = [firsts[n : n + size] for n in range(0, len(firsts), size)] or [[]]
        return [range(part[0], part[-1] + 1, self.keys) if part else range(0) for part in cut]

    def _part(
        self, query: Any, key: Any, value: Any, seen: Any, factor: Any, softcap: Any, bias: Any, keys: range,
        wide: Any,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Sum of the weighed values, sum of the weights, and the maximum; in base two where that is wanted."""
        exp, unit = (np.exp2, wide(LOG2_E)) if self.base_two else (np.exp, wide(1))
        total = np.zeros((*query.shape[:-1], value.shape[-1]), wide)
        weight = np.zeros((*query.shape[:-1], 1), wide)
        top = np.full((*query.shape[:-1], 1), -np.inf, wide)
        for first in keys:
            tile = slice(first, first + self.keys)
            shown = seen[..., tile]
            if not shown.any():  # a tile that is hidden is left out
                continue
            logits = (query.astype(wide) @ np.swapaxes(key[..., tile, :], -1, -2).astype(wide)) * factor
            if softcap is not None:
                logits = wide(softcap) * np.tanh(logits / wide(softcap))
            if bias is not None:
                logits = logits + bias[..., tile].astype(wide)
            logits = np.where(shown, logits * unit, -np.inf).astype(wide)
            new = np.maximum(top, logits.max(axis=-1, keepdims=True))
            safe = np.where(np.isneginf(new), wide(0), new)
            raised, kept = exp(logits - safe), exp(top - safe)
            weight = weight * kept + raised.sum(axis=-1, keepdims=True)
            total = total * kept + raised.astype(query.dtype).astype(wide) @ value[..., tile, :].astype(wide)
            top = new
        return total, weight, top / unit

    def _merged(self, found: Any, sinks: Any, dtype: Any, wide: Any) -> tuple[Any, Any]:
        """The parts weighed by what each has, and the sink once."""
        tops = [top for *_, top in found]
        if sinks is not None:
            tops.append(np.broadcast_to(sinks.astype(wide)[:, None, None], tops[0].shape))
        high = np.max(tops, axis=0)
        safe = np.where(np.isneginf(high), wide(0), high)
        shares = [np.exp(top - safe) for top in tops]
        total = sum(share * part for share, (part, _, _) in zip(shares, found, strict=False))
        weight = sum(share * part for share, (_, part, _) in zip(shares, found, strict=False))
        if sinks is not None:
            weight = weight + shares[-1]
        lse = np.where(weight != 0, safe + np.log(np.where(weight != 0, weight, 1)), -np.inf)
        return (total / np.where(weight != 0, weight, 1)).astype(dtype), lse[..., 0]


FLASHES = (
    Flash(64, 16),
    Flash(16, 32, 3),
    Flash(128, 64, 2, base_two=True),
    Flash(1, 128, 8),
)
