"""A small streaming state per head, fed block after block of zero-padded keys."""

import numpy as np

WIDTH = 4


class State:
    def __init__(self, rows, width):
        self.m = np.full((rows, 1), -np.inf)
        self.l = np.zeros((rows, 1))
        self.o = np.zeros((rows, width))
        self.used = np.zeros((rows, 1), bool)

    def feed(self, s, v, ok):
        s = np.where(ok, s, -np.inf)
        self.used = self.used | ok.any(axis=1, keepdims=True)
        m_new = np.maximum(self.m, s.max(axis=1, keepdims=True))
        base = np.where(self.used, m_new, 0)
        p = np.where(ok, np.exp(s - base), 0)
        old = np.where(np.isneginf(self.m), 0, np.exp(self.m - base))
        self.l = old * self.l + p.sum(axis=1, keepdims=True)
        self.o = old * self.o + p @ v
        self.m = m_new

    def result(self):
        return np.where(self.used, self.o / np.where(self.used, self.l, 1), 0)


def _pad(x, n):
    return np.concatenate([x, np.zeros((n - x.shape[0], x.shape[1]), x.dtype)])


def scaled_dot_product_attention(
    query, key, value, *, mask=None, is_causal=False, q_offset=None, kv_lengths=None, scale=None
):
    *lead, H, T, D = query.shape
    G, S, _ = key.shape[-3:]
    per = H // G
    c = 1 / np.sqrt(D) if scale is None else scale
    total = -(-S // WIDTH) * WIDTH
    result = np.zeros((*lead, H, T, value.shape[-1]), query.dtype)
    if mask is not None:
        mask = np.broadcast_to(mask, (*lead, H, T, S))
    for z in np.ndindex(*lead):
        off = 0 if q_offset is None else int(np.broadcast_to(q_offset, lead)[z])
        length = S if kv_lengths is None else min(S, int(np.asarray(kv_lengths)[z]))
        for h in range(H):
            k = _pad(key[z][h // per].astype(np.float64), total)
            v = _pad(value[z][h // per].astype(np.float64), total)
            q = query[z][h].astype(np.float64)
            state = State(T, v.shape[1])
            for b in range(0, total, WIDTH):
                j = np.arange(b, b + WIDTH)
                real = j < length
                ok = np.broadcast_to(real, (T, WIDTH))
                if mask is not None:
                    piece = mask[z][h][:, b : b + WIDTH]
                    ok = ok & np.pad(piece, ((0, 0), (0, WIDTH - piece.shape[1])))
                if is_causal:
                    ok = ok & (j[None, :] <= np.arange(T)[:, None] + off)
                state.feed(q @ k[b : b + WIDTH].T * c, np.where(real[:, None], v[b : b + WIDTH], 0), ok)
            result[z][h] = state.result()
    return result
