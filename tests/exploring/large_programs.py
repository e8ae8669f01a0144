"""Tiled programs for calls of production size: one that is right, and others with one mistake each, named after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

TILE = 256
PAGE = 16
Numbers = Any


@dataclass(frozen=True)
class Tiled:
    """Attention tile by tile with a running maximum; each field is a place where it may go wrong."""

    slots: Callable[[Numbers], Numbers] = lambda slots: slots  # which key is read in place of each
    values: Callable[[Numbers], Numbers] = lambda slots: slots  # the same for values
    kept: Callable[[Numbers, int], Numbers] = lambda slots, kv_len: slots >= 0  # which keys take part
    times: Callable[[Numbers], Numbers] = lambda slots: np.ones(len(slots))  # how often each counts
    heads: Callable[[Numbers], Numbers] = lambda heads: heads  # which key head each head reads
    entries: int | None = None  # how many are computed
    blocks: int | None = None  # how many heads of entries are
    owners: Callable[[Numbers], Numbers] = lambda entries: entries  # whose keys each entry reads
    times_scale: float = 1.0
    rescaled: bool = True
    last: int = 0  # keys behind the causal diagonal that are seen
    inside: Any = np.float32  # what weights are stored in

    def __call__(
        self, query: Any, key: Any, value: Any, is_causal: bool, q_offset: Any, window: Any, kv_lengths: Any
    ) -> Any:
        batch, heads, q_len, d_k = query.shape
        owner = self.heads(np.arange(heads)) // (heads // key.shape[1])
        kv_len, used = key.shape[2], slice(0, self.entries)
        offset = np.broadcast_to(
            np.reshape(0 if q_offset is None else q_offset, (-1, 1, 1, 1)), (batch, 1, 1, 1)
        )
        place = offset[used] + np.arange(q_len)[:, None]  # [B, 1, q_len, 1]
        q = query[used].astype(np.float32) * np.float32(self.times_scale * d_k**-0.5)
        shape, read = (*q.shape[:3], 1), self.owners(np.arange(len(q)))
        top, total = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
        found = np.zeros((*q.shape[:3], value.shape[-1]), np.float32)
        for start in range(0, kv_len, TILE):
            slot = np.arange(start, min(start + TILE, kv_len))
            slot = slot[self.kept(slot, kv_len)]
            if not len(slot):
                continue
            k = key[used, :, self.slots(slot) % kv_len].astype(np.float32)
            v = value[used, :, self.values(slot) % kv_len].astype(np.float32)
            k, v = (x[read][:, owner] for x in (k, v))
            logits = q @ k.swapaxes(-1, -2)
            seen = np.ones((1, 1, 1, len(slot)), bool)
            if is_causal:
                seen = seen & (slot <= place + self.last)
            if window is not None:
                left, right = window
                seen = seen & (True if left is None else slot >= place - left)
                seen = seen & (True if right is None else slot <= place + right)
            if kv_lengths is not None:
                seen = seen & (slot < np.reshape(kv_lengths, (-1, 1, 1, 1))[used])
            logits = np.where(seen, logits, -np.inf)
            new = np.maximum(top, logits.max(axis=-1, keepdims=True))
            safe = np.where(np.isfinite(new), new, 0)
            weights = np.exp(logits - safe) * self.times(slot).astype(np.float32)
            factor = (
                np.exp(np.where(np.isfinite(top), top - safe, -np.inf)) if self.rescaled else np.float32(1)
            )
            factor = np.where(np.isfinite(top), factor, 0)
            total = total * factor + weights.sum(axis=-1, keepdims=True)
            found = found * factor + weights.astype(self.inside).astype(np.float32) @ v
            top = new
        found = found / np.where(total == 0, 1, total)
        whole = np.zeros((batch, *found.shape[1:]), query.dtype)
        whole[used] = found.astype(query.dtype)
        whole.reshape(batch * heads, *whole.shape[2:])[
            slice(self.blocks, None) if self.blocks else slice(0)
        ] = 0
        return whole


def program(**mistake: Any) -> Any:
    """A target."""
    tiled = Tiled(**mistake)

    def attention(
        query: Any, key: Any, value: Any, *, is_causal: bool = False, q_offset: Any = None, window: Any = None,
        kv_lengths: Any = None,
    ) -> Any:  # fmt: skip
        return tiled(query, key, value, is_causal, q_offset, window, kv_lengths)

    return attention


MISTAKES: dict[str, dict[str, Any]] = {
    "index_wraps_at_65536": {"slots": lambda s: s % 65_536, "values": lambda s: s % 65_536},
    "index_wraps_at_32768": {"slots": lambda s: s % 32_768, "values": lambda s: s % 32_768},
    "blocks_from_65535": {"blocks": 65_535},
    "a_tile_skipped": {"kept": lambda s, _: s // TILE != 5},
    "last_key_of_each_tile_dropped": {"kept": lambda s, _: s % TILE != TILE - 1},
    "first_key_of_each_tile_twice": {"times": lambda s: 1.0 + (s % TILE == 0)},
    "one_key_twice": {"times": lambda s: 1.0 + (s == 3000)},
    "heads_wrap_at_256": {"heads": lambda h: h % 256},
    "entries_from_65535": {"entries": 65_535},
    "not_rescaled": {"rescaled": False},
    "keys_from_4096": {"kept": lambda s, _: s < 4096},
    "value_pages_swapped": {"values": lambda s: s ^ PAGE},
    "one_key_too_many": {"last": 1},
    "last_entry_reads_the_first": {"owners": lambda b: np.where(b == len(b) - 1, 0, b)},
    "last_head_reads_the_first": {"heads": lambda h: np.where(h == len(h) - 1, 0, h)},
    "stale_page": {
        "slots": lambda s: np.where(s // PAGE == 40, s - PAGE, s),
        "values": lambda s: np.where(s // PAGE == 40, s - PAGE, s),
    },
    "last_page_dropped": {"kept": lambda s, n: s < n - PAGE},
    "first_key_dropped": {"kept": lambda s, _: s > 0},
    "scale_off_by_2_percent": {"times_scale": 1.02},
}

MISTAKES_OF_NO_EFFECT: dict[str, dict[str, Any]] = {
    "key_and_value_pages_swapped_alike": {"slots": lambda s: s ^ PAGE, "values": lambda s: s ^ PAGE}
}
right = program()
half = program(inside=np.float16)
half.dtypes, half.accuracy = ("float16",), "fused"
short = program(inside=ml_dtypes.bfloat16)
short.dtypes, short.accuracy = ("bfloat16",), "fused"
every = program()
every.dtypes = ("float64", "float32", "float16", "bfloat16")
globals().update({name: program(**mistake) for name, mistake in MISTAKES.items()})
