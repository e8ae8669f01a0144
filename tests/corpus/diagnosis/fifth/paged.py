"""A paged cache: keys and values lie in pages of a pool, found through a block table; decode goes sequence by sequence."""

import numpy as np

PAGE = 4


class Pool:
    def __init__(self, pages, heads, d_k, d_v):
        self.k = np.full((pages, PAGE, heads, d_k), np.nan)
        self.v = np.full((pages, PAGE, heads, d_v), np.nan)
        self.free = list(range(pages))[::-1]

    def write(self, table, slot, k, v):
        """One token (heads, d) at a slot of a sequence."""
        if slot // PAGE == len(table):
            table.append(self.free.pop(len(self.free) // 2))
        page, inside = table[slot // PAGE], slot % PAGE
        self.k[page, inside], self.v[page, inside] = k, v

    def read(self, table, length):
        """The first tokens of a sequence, (heads, length, d)."""
        k = self.k[table].reshape(-1, *self.k.shape[2:])[:length]
        v = self.v[table].reshape(-1, *self.v.shape[2:])[:length]
        return k.transpose(1, 0, 2), v.transpose(1, 0, 2)


def scaled_dot_product_attention(query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None,
                                 window=None, kv_lengths=None, scale=None, past_key=None, past_value=None):
    lead = query.shape[:-3]
    H, n, d = query.shape[-3:]
    G, new, dv = key.shape[-3], key.shape[-2], value.shape[-1]
    seqs = list(np.ndindex(lead))
    past = 0 if past_key is None else past_key.shape[-2]
    capacity = past + new
    pool = Pool(len(seqs) * (capacity // PAGE + 1) + 1, G, d, dv)
    tables = {b: [] for b in seqs}
    limit = np.full(lead, capacity) if kv_lengths is None else np.clip(kv_lengths, 0, capacity)
    for slot in range(capacity):  # the sequences grow side by side
        for b in seqs:
            if slot >= limit[b]:
                continue
            if slot < past:
                pool.write(tables[b], slot, past_key[b][:, slot], past_value[b][:, slot])
            else:
                pool.write(tables[b], slot, key[b][:, slot - past], value[b][:, slot - past])
    mask = np.broadcast_to(True if mask is None else mask, (*lead, H, n, capacity))
    bias = np.broadcast_to(0.0 if attn_bias is None else attn_bias, (*lead, H, n, capacity))
    start = np.broadcast_to(0 if q_offset is None else q_offset, lead)
    factor = d ** -0.5 if scale is None else scale
    output = np.zeros((*lead, H, n, dv))
    with np.errstate(all="ignore"):
        for b in seqs:
            length = int(limit[b])
            if length == 0:
                continue
            k, v = pool.read(tables[b], length)
            q = query[b].astype(np.float64).reshape(G, H // G, n, d)
            s = q @ k[:, None].swapaxes(-1, -2) * factor
            s = s.reshape(H, n, length) + bias[b][..., :length]
            i = np.arange(n)[:, None] + start[b]
            j = np.arange(length)
            ok = mask[b][..., :length] & (bias[b][..., :length] != -np.inf)
            if is_causal:
                ok = ok & (j <= i)
            if window is not None:
                left, right = window
                if left is not None:
                    ok = ok & (j >= i - left)
                if right is not None:
                    ok = ok & (j <= i + right)
            s = np.where(ok, s, -np.inf)
            some = ok.any(axis=-1, keepdims=True)
            top = np.where(some, s.max(axis=-1, keepdims=True), 0.0)
            p = np.where(ok, np.exp(s - top), 0.0)
            p = p / np.where(some, p.sum(axis=-1, keepdims=True), 1.0)
            p = p.reshape(G, H // G, n, length)
            output[b] = (p @ v[:, None]).reshape(H, n, dv)
        result = {"output": output.astype(query.dtype)}
    if past_key is not None:
        result["present_key"] = np.concatenate([past_key, key], axis=-2)
        result["present_value"] = np.concatenate([past_value, value], axis=-2)
    return result
