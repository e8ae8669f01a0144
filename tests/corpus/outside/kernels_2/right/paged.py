"""Attention over a paged cache, as a serving kernel sees it. NumPy, accumulation in float32.

Keys and values of a call, the past first, are written to two flat pools of pages through a table of pages for each
sequence. The kernel walks the pages that the queries of a sequence can see and keeps a running maximum and sum. A
single query goes through a kernel of its own, which gathers the pages first.
"""

import ml_dtypes
import numpy as np

dtypes = ("float32", "float16", "bfloat16")
accuracy = "fused"

PAGE = 16
NEG = np.float32(-np.inf)


class Pool:
    """Flat memory of `count` pages; a slot holds the rows of all key heads, one after the other."""

    def __init__(self, count, heads, width, dtype):
        self.heads, self.width = heads, width
        self.data = np.zeros(count * PAGE * heads * width, dtype)
        self.row = heads * width

    def write(self, table, position, rows):
        """rows (heads, n, width) to the slots of a sequence from `position` on."""
        for t in range(rows.shape[1]):
            page, slot = divmod(position + t, PAGE)
            start = (int(table[page]) * PAGE + slot) * self.row
            self.data[start:start + self.row] = rows[:, t].reshape(-1)

    def read(self, page, head, used):
        """The first `used` rows of one head in one page, in float32."""
        start = page * PAGE * self.row
        block = self.data[start:start + PAGE * self.row].reshape(PAGE, self.heads, self.width)
        return block[:used, head].astype(np.float32)


def _pages(k, v, past_k, past_v):
    """Pools and tables of a batch. k, v (B, G, n, d); pages are handed out sequence by sequence, last page first."""
    count, heads, new, d_k = k.shape
    past = 0 if past_k is None else past_k.shape[-2]
    need = -(-(past + new) // PAGE)
    order = np.arange(count * need)[::-1].reshape(need, count).T
    k_pool, v_pool = Pool(count * need, heads, d_k, k.dtype), Pool(count * need, heads, v.shape[-1], v.dtype)
    for b in range(count):
        if past:
            k_pool.write(order[b], 0, past_k[b])
            v_pool.write(order[b], 0, past_v[b])
        k_pool.write(order[b], past, k[b])
        v_pool.write(order[b], past, v[b])
    return k_pool, v_pool, order


def _logits(q, k, scale, softcap):
    x = (q @ k.T) * np.float32(scale)
    return x if softcap is None else np.float32(softcap) * np.tanh(x / np.float32(softcap))


def _walk(q, k_pool, v_pool, table, g, length, low, high, mask, bias, scale, softcap, sink):
    """q (m, d): rows of one head. Row i sees the places i + low .. i + high below length."""
    m = len(q)
    i = np.arange(m)[:, None]
    top = np.full(m, NEG)
    den = np.zeros(m, np.float32)
    acc = np.zeros((m, v_pool.width), np.float32)
    seen = np.zeros(m, bool)
    begin = max(low, 0) // PAGE
    end = -(-min(length, m + high) // PAGE)
    for t in range(begin, end):
        used = min(length - t * PAGE, PAGE)
        j = t * PAGE + np.arange(used)
        s = _logits(q, k_pool.read(int(table[t]), g, used), scale, softcap)
        ok = (j >= i + low) & (j <= i + high)
        if mask is not None:
            ok &= mask[:, t * PAGE:t * PAGE + used]
        if bias is not None:
            part = bias[:, t * PAGE:t * PAGE + used].astype(np.float32)
            ok &= part != NEG
            s = s + part
        s = np.where(ok, s, NEG)
        seen |= ok.any(axis=-1)
        new = np.maximum(top, s.max(axis=-1))
        safe = np.where(new == NEG, np.float32(0), new)
        p = np.exp(s - safe[:, None])
        fade = np.exp(top - safe)
        den = den * fade + p.sum(axis=-1)
        acc = acc * fade[:, None] + p @ v_pool.read(int(table[t]), g, used)
        top = new
    return _close(acc, den, top, seen, sink)


def _close(acc, den, top, seen, sink):
    if sink is not None:
        new = np.maximum(top, np.float32(sink))
        safe = np.where(new == NEG, np.float32(0), new)
        fade = np.exp(top - safe)
        den, acc, top = den * fade + np.exp(np.float32(sink) - safe), acc * fade[:, None], new
    out = np.where(seen[:, None], acc / np.where(seen, den, 1)[:, None], 0)
    lse = np.where(top == NEG, np.float32(0), top) + np.log(den)
    return out, np.where(seen & (den == 0), np.float32(np.nan), lse)


def _single(q, k_pool, v_pool, table, g, length, low, high, mask, bias, scale, softcap, sinks):
    """One query of each head of a group, q (group, d): the heads share what is gathered."""
    low, high = max(low, 0), min(high, length - 1)
    begin, end = low // PAGE, high // PAGE + 1
    if high < low:
        rows_k, rows_v = np.zeros((0, q.shape[-1]), np.float32), np.zeros((0, v_pool.width), np.float32)
        low, high = 0, -1
    else:
        used = [min(length - t * PAGE, PAGE) for t in range(begin, end)]
        rows_k = np.concatenate([k_pool.read(int(table[t]), g, u) for t, u in zip(range(begin, end), used)])
        rows_v = np.concatenate([v_pool.read(int(table[t]), g, u) for t, u in zip(range(begin, end), used)])
        first = low - begin * PAGE
        rows_k, rows_v = rows_k[first:first + high - low + 1], rows_v[first:first + high - low + 1]
    s = _logits(q, rows_k, scale, softcap)
    ok = np.ones(s.shape, bool)
    if mask is not None:
        ok &= mask[:, low:high + 1]
    if bias is not None:
        part = bias[:, low:high + 1].astype(np.float32)
        ok &= part != NEG
        s = s + part
    s = np.where(ok, s, NEG)
    top = s.max(axis=-1, initial=NEG)
    safe = np.where(top == NEG, np.float32(0), top)
    p = np.exp(s - safe[:, None])
    outs, lses = [], []
    for r in range(len(q)):
        one = slice(r, r + 1)
        o, e = _close(p[one] @ rows_v, p[one].sum(axis=-1), top[one], ok[one].any(axis=-1),
                      None if sinks is None else sinks[r])
        outs.append(o[0])
        lses.append(e[0])
    return np.stack(outs), np.stack(lses)


def _flat(x, count):
    return x.reshape((count,) + x.shape[-3:])


@np.errstate(all="ignore")
def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, kv_lengths=None,
    scale=None, softcap=None, sinks=None, past_key=None, past_value=None, return_lse=False,
):
    batch, (heads, q_len, d_k) = query.shape[:-3], query.shape[-3:]
    kv_heads, new, d_v = value.shape[-3:]
    past = 0 if past_key is None else past_key.shape[-2]
    kv_len, group = past + new, heads // kv_heads
    count = int(np.prod(batch, dtype=int))
    full = batch + (heads, q_len, kv_len)
    q, k, v = _flat(query, count).astype(np.float32), _flat(key, count), _flat(value, count)
    past_k = None if past_key is None else _flat(past_key, count)
    past_v = None if past_value is None else _flat(past_value, count)
    k_pool, v_pool, tables = _pages(k, v, past_k, past_v)
    mask = None if mask is None else _flat(np.broadcast_to(mask, full), count)
    bias = None if attn_bias is None else _flat(np.broadcast_to(attn_bias, full), count)
    lengths = np.full(count, kv_len) if kv_lengths is None else np.clip(np.asarray(kv_lengths).reshape(-1), 0, kv_len)
    places = np.broadcast_to(np.asarray(0 if q_offset is None else q_offset), batch).reshape(-1)
    scale = 1 / np.sqrt(d_k) if scale is None else scale
    left, right = (None, None) if window is None else window
    far = q_len + kv_len

    out = np.zeros((count, heads, q_len, d_v), query.dtype)
    lse = np.zeros((count, heads, q_len), np.float32)
    for b in range(count):
        p = int(places[b])
        low = -far if left is None else max(min(p - left, far), -far)
        high = far if right is None else max(min(p + right, far), -far)
        if is_causal:
            high = min(high, max(p, -far))
        common = k_pool, v_pool, tables[b]
        n = int(lengths[b])
        for g in range(kv_heads):
            hs = range(g * group, (g + 1) * group)
            if q_len == 1:
                hs = slice(hs.start, hs.stop)
                out[b, hs, 0], lse[b, hs, 0] = _single(
                    q[b, hs, 0], *common, g, n, low, high, None if mask is None else mask[b, hs, 0],
                    None if bias is None else bias[b, hs, 0], scale, softcap, None if sinks is None else sinks[hs],
                )
                continue
            for h in hs:
                out[b, h], lse[b, h] = _walk(
                    q[b, h], *common, g, n, low, high, None if mask is None else mask[b, h],
                    None if bias is None else bias[b, h], scale, softcap, None if sinks is None else sinks[h],
                )
    result = {"output": out.reshape(batch + out.shape[1:])}
    if return_lse:
        result["lse"] = lse.reshape(batch + lse.shape[1:])
    if past_key is not None:
        result["present_key"] = np.concatenate([past_key, key], axis=-2)
        result["present_value"] = np.concatenate([past_value, value], axis=-2)
    return result
