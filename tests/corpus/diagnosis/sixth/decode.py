"""Decoding over a paged cache: pages behind a block table, splits of the keys, partial results joined by their lse."""
import numpy as np

PAGE = 4
PAGES_PER_SPLIT = 2


class PagedCache:
    """Keys and values of one batch entry in pages; page p of the sequence lies at table[p]."""

    def __init__(self, keys, values):
        groups, length, d_k = keys.shape
        d_v = values.shape[-1]
        count = -(-length // PAGE)
        self.table = np.arange(count)[::-1].copy()
        self.k_pages = np.full((count, groups, PAGE, d_k), np.nan)
        self.v_pages = np.full((count, groups, PAGE, d_v), np.nan)
        for position in range(length):
            page, slot = self.table[position // PAGE], position % PAGE
            self.k_pages[page, :, slot] = keys[:, position]
            self.v_pages[page, :, slot] = values[:, position]

    def read(self, group, first_page, last_page, length):
        ids = self.table[first_page:last_page]
        k = self.k_pages[ids, group].reshape(-1, self.k_pages.shape[-1])
        v = self.v_pages[ids, group].reshape(-1, self.v_pages.shape[-1])
        left = length - first_page * PAGE
        return k[:left], v[:left]


def split_kernel(q, k, v, positions, first, scale, is_causal):
    """(output, lse, anything visible) of some queries over the keys from number `first` on."""
    s = q @ k.T * scale
    ok = np.ones(s.shape, bool)
    if is_causal:
        ok &= first + np.arange(len(k))[None, :] <= positions[:, None]
    s = np.where(ok, s, -np.inf)
    top = s.max(axis=1, initial=-np.inf)
    top = np.where(np.isneginf(top), 0.0, top)
    p = np.where(ok, np.exp(s - top[:, None]), 0.0)
    total = p.sum(axis=1)
    o = p @ v / np.where(total == 0, 1.0, total)[:, None]
    return o, np.log(total) + top, ok.any(axis=1)


def combine(parts, sink):
    """Partial results over disjoint keys, and perhaps a sink, into one."""
    outs = np.stack([p[0] for p in parts])
    lses = np.stack([p[1] for p in parts])
    visible = np.stack([p[2] for p in parts]).any(axis=0)
    top = lses.max(axis=0)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), 0.0, top)
    share = np.exp(lses - top)
    total = share.sum(axis=0)
    if sink is not None:
        total = total + np.exp(sink - top)
    out = (share[..., None] * outs).sum(axis=0) / total[:, None]
    lse = np.where(total == 0, np.nan, np.log(total) + top)
    return np.where(visible[:, None], out, 0.0), np.where(visible, lse, -np.inf)


def scaled_dot_product_attention(
    query, key, value, *, is_causal=False, q_offset=None, kv_lengths=None, scale=None, sinks=None,
    past_key=None, past_value=None, return_lse=False,
):
    dtype = query.dtype
    if past_key is not None:
        key = np.concatenate([past_key, key], axis=-2)
        value = np.concatenate([past_value, value], axis=-2)
    batch = query.shape[:-3]
    heads, q_len, d_k = query.shape[-3:]
    groups, kv_len, d_v = value.shape[-3:]
    scale = d_k**-0.5 if scale is None else scale
    starts = np.broadcast_to(0 if q_offset is None else q_offset, batch)
    lengths = np.broadcast_to(kv_len if kv_lengths is None else kv_lengths, batch)
    out = np.zeros((*batch, heads, q_len, d_v))
    lse = np.full((*batch, heads, q_len), -np.inf)
    with np.errstate(all="ignore"):
        for b in np.ndindex(*batch):
            cache = PagedCache(key[b].astype(np.float64), value[b].astype(np.float64))
            length = int(min(max(lengths[b], 0), kv_len))
            pages = -(-length // PAGE)
            positions = np.arange(q_len) + starts[b]
            for h in range(heads):
                parts = []
                for first in range(0, pages, PAGES_PER_SPLIT):
                    last = min(first + PAGES_PER_SPLIT, pages)
                    k, v = cache.read(h // (heads // groups), first, last, length)
                    parts.append(
                        split_kernel(
                            query[b][h].astype(np.float64), k, v, positions, first * PAGE, scale, is_causal
                        )
                    )
                if parts and q_len:
                    sink = None if sinks is None else float(sinks[h])
                    out[b][h], lse[b][h] = combine(parts, sink)
    found = {"output": out.astype(dtype)}
    if return_lse:
        found["lse"] = lse.astype(dtype)
    if past_key is not None:
        found["present_key"], found["present_value"] = key, value
    return found
