"""Flash-decoding: a paged cache with a block table, key splits with their own softmax, a merge of the parts."""
import math

import numpy as np

PAGE = 4
PAGES_PER_SPLIT = 2


class PagedCache:
    """One sequence's keys and values in pages that lie anywhere in a pool."""

    def __init__(self, key, value, past_key, past_value):
        heads, _, d = key.shape
        self.past = 0 if past_key is None else past_key.shape[1]
        self.total = self.past + key.shape[1]
        pages = -(-self.total // PAGE)
        self.table = [(i * 7 + 3) % pages for i in range(pages)] if pages % 7 else list(reversed(range(pages)))
        self.k_pool = np.zeros((pages, heads, PAGE, d))
        self.v_pool = np.zeros((pages, heads, PAGE, value.shape[-1]))
        if past_key is not None:
            self.write(0, past_key, past_value)
        self.write(self.past, key, value)

    def write(self, at, key, value):
        for t in range(key.shape[1]):
            page, slot = divmod(at + t, PAGE)
            self.k_pool[self.table[page], :, slot] = key[:, t]
            self.v_pool[self.table[page], :, slot] = value[:, t]

    def read(self, page, head, length):
        physical = self.table[page]
        used = max(min(length - page * PAGE, PAGE), 0)
        return self.k_pool[physical, head, :used], self.v_pool[physical, head, :used]


def split_kernel(q, places, cache, head, pages, length, scale, left, right):
    """(rows, d) against some pages: the normalised output of the part, its lse, and which rows saw a key."""
    keys, values, numbers = [], [], []
    for page in pages:
        k, v = cache.read(page, head, length)
        keys.append(k)
        values.append(v)
        numbers.append(page * PAGE + np.arange(len(k)))
    k, v, j = np.concatenate(keys), np.concatenate(values), np.concatenate(numbers)
    s = (q * scale) @ k.T
    ok = np.ones(s.shape, bool)
    if right is not None:
        ok &= j[None, :] <= places[:, None] + right
    if left is not None:
        ok &= j[None, :] >= places[:, None] - left
    s = np.where(ok, s, -np.inf)
    seen = ok.any(1)
    top = s.max(1, initial=-np.inf)
    shift = np.where(np.isneginf(top), 0.0, top)
    p = np.exp(s - shift[:, None])
    total = p.sum(1)
    some = total != 0
    out = np.where(some[:, None], (p @ v) / np.where(some, total, 1.0)[:, None], 0.0)
    lse = np.where(some, shift + np.log(np.where(some, total, 1.0)), -np.inf)
    return out, lse, seen


def merge(parts, sink):
    """Joins parts over disjoint keys by their lse; the sink enters once, here."""
    outs, lses, seens = (np.stack(x) for x in zip(*parts))
    seen = seens.any(0)
    top = lses.max(0)
    if sink is not None:
        top = np.maximum(top, sink)
    shift = np.where(np.isneginf(top), 0.0, top)
    w = np.exp(lses - shift)
    total = w.sum(0)
    out = (w[:, :, None] * outs).sum(0)
    if sink is not None:
        total = total + np.exp(sink - shift)
    total = np.where(seen, np.where(total == 0, np.nan, total), 1.0)
    out = np.where(seen[:, None], out / total[:, None], 0.0)
    return out, np.where(seen, shift + np.log(total), -np.inf)


def scaled_dot_product_attention(query, key, value, *, is_causal=False, q_offset=None, window=None, kv_lengths=None,
                                 scale=None, sinks=None, past_key=None, past_value=None, return_lse=False):
    left, right = (None, None) if window is None else window
    if is_causal:
        right = 0
    *batch, H, n, d = query.shape
    G = key.shape[-3]
    group = H // G
    scale = 1 / math.sqrt(d) if scale is None else scale
    total = key.shape[-2] + (0 if past_key is None else past_key.shape[-2])
    lengths = np.broadcast_to(total if kv_lengths is None else kv_lengths, tuple(batch))
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, tuple(batch))
    output = np.zeros((*batch, H, n, value.shape[-1]))
    lse = np.full((*batch, H, n), -np.inf)
    for b in np.ndindex(*batch):
        cache = PagedCache(key[b], value[b], *((None, None) if past_key is None else (past_key[b], past_value[b])))
        length = min(max(int(lengths[b]), 0), total)
        num_pages = -(-length // PAGE)
        for g in range(G):
            # the query heads of a group are packed as rows: row r is head r // n, query r % n
            q = query[b][g * group:(g + 1) * group].reshape(group * n, d).astype(np.float64)
            places = np.tile(np.arange(n), group) + int(offsets[b])
            sink = None if sinks is None else np.repeat(sinks[g * group:(g + 1) * group].astype(np.float64), n)
            parts = []
            for first in range(0, num_pages, PAGES_PER_SPLIT):
                pages = range(first, min(first + PAGES_PER_SPLIT, num_pages))
                parts.append(split_kernel(q, places, cache, g, pages, length, scale, left, right))
            if not parts:
                continue
            o, l = merge(parts, sink)
            output[b][g * group:(g + 1) * group] = o.reshape(group, n, o.shape[-1])
            lse[b][g * group:(g + 1) * group] = l.reshape(group, n)
    result = {"output": output.astype(query.dtype)}
    if return_lse:
        result["lse"] = lse.astype(query.dtype)
    if past_key is not None:
        result["present_key"] = np.concatenate([past_key, key], axis=-2)
        result["present_value"] = np.concatenate([past_value, value], axis=-2)
    return result
