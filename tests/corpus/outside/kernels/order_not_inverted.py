"""Attention over a paged cache: keys are put in pages, a block table names them, chunks are gathered."""
import numpy as np

PAGE, CHUNK = 16, 128  # slots of a page, slots gathered at a time


def _pages(x, n):
    """(N, G, L, d) -> pool (pages, PAGE, G, d) and block table (N, pages of an entry)."""
    N, G, L, d = x.shape
    per = -(-L // PAGE)
    pool = np.zeros((N * per, PAGE, G, d), x.dtype)
    table = np.arange(N * per, dtype=np.int32).reshape(N, per)
    table = table[:, ::-1].copy()  # a cache never comes in order
    for b in range(N):
        for c in range(per):
            part = x[b, :, c * PAGE:(c + 1) * PAGE]
            pool[table[b, c], :part.shape[1]] = np.swapaxes(part, 0, 1)
    return pool, table


@np.errstate(all="ignore")
def scaled_dot_product_attention(query, key, value, *, is_causal=False, q_offset=None, kv_lengths=None,
                                 scale=None, sinks=None, past_key=None, past_value=None, return_lse=False):
    result = {}
    if past_key is not None:
        key = np.concatenate([past_key, key], -2)
        value = np.concatenate([past_value, value], -2)
        result = {"present_key": key, "present_value": value}
    lead, (H, Lq, D) = query.shape[:-3], query.shape[-3:]
    G, Lk, Dv = value.shape[-3:]
    N, R = int(np.prod(lead)), H // max(G, 1)
    q = query.astype(np.float32).reshape(N, G, R * Lq, D)
    n = np.broadcast_to(np.minimum(Lk if kv_lengths is None else kv_lengths, Lk), (N,))
    off = np.broadcast_to(0 if q_offset is None else np.asarray(q_offset), (N,))
    scale = np.float32(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    out = np.zeros((N, G, R * Lq, Dv), np.float32)
    lse = np.full((N, G, R * Lq), -np.inf, np.float32)
    if N * G * R * Lq:
        kpool, table = _pages(key.reshape(N, G, Lk, D), n)
        vpool, _ = _pages(value.reshape(N, G, Lk, Dv), n)
        order = np.argsort(-n, kind="stable")  # the longest entries first
        kbuf = np.zeros((G, CHUNK, D), np.float32)
        vbuf = np.zeros((G, CHUNK, Dv), np.float32)
        sbuf = np.full((G, R * Lq, CHUNK), -np.inf, np.float32)
        row = np.arange(R * Lq)[:, None] % Lq
        for slot, b in enumerate(order):
            m = np.full((G, R * Lq, 1), -np.inf, np.float32)
            l, acc = np.zeros_like(m), np.zeros((G, R * Lq, Dv), np.float32)
            if sinks is not None:
                m = np.repeat(np.asarray(sinks, np.float32).reshape(G, R), Lq, 1)[..., None]
                l = np.ones_like(m)
            for j0 in range(0, int(n[b]), CHUNK):
                w = min(CHUNK, int(n[b]) - j0)
                for c in range(-(-w // PAGE)):
                    page = table[b, j0 // PAGE + c]
                    kbuf[:, c * PAGE:(c + 1) * PAGE] = np.swapaxes(kpool[page], 0, 1)
                    vbuf[:, c * PAGE:(c + 1) * PAGE] = np.swapaxes(vpool[page], 0, 1)
                vbuf[:, w:] = 0  # slots past the end hold anything
                np.matmul(q[b], np.swapaxes(kbuf[:, :w], 1, 2), out=sbuf[..., :w])
                sbuf[..., :w] *= scale
                sbuf[..., w:] = -np.inf
                s = sbuf
                if is_causal:
                    s = np.where(np.arange(j0, j0 + CHUNK) <= row + off[b], s, np.float32(-np.inf))
                m_new = np.maximum(m, s.max(-1, keepdims=True))
                safe = np.where(np.isneginf(m_new), np.float32(0), m_new)
                p, alpha = np.exp(s - safe), np.exp(m - safe)
                fin = np.isfinite(vbuf)
                pv = p @ (vbuf if fin.all() else np.where(fin, vbuf, 0))
                for j in np.flatnonzero(~fin.all((0, 2))):  # a NaN reaches those rows that see it
                    bad = np.where(fin[:, None, j], 0, vbuf[:, None, j])
                    pv += np.where(np.isneginf(s[..., j, None]), 0, p[..., j, None] * bad)
                l, acc, m = l * alpha + p.sum(-1, keepdims=True), acc * alpha + pv, m_new
            out[slot] = np.where(l == 0, 0, acc / np.where(l == 0, 1, l))
            lse[slot] = (m + np.log(l))[..., 0]
        out, lse = out[order], lse[order]
    out = out.reshape(lead + (H, Lq, Dv)).astype(query.dtype)
    if return_lse:
        result["lse"] = lse.reshape(lead + (H, Lq)).astype(query.dtype)
    return {"output": out, **result} if result else out
