"""Block-list backward: batch and heads flattened, 16x32 blocks sorted into empty, full (no masking) and partial;
the past is a segment of its own, never concatenated."""
import numpy as np

BM, BN = 16, 32


def _mm(p, x, vis):
    """p @ x over the last two axes in which a hidden pair adds nothing, whatever x holds there."""
    if vis is None or np.isfinite(x).all():
        return p @ x
    return np.where(vis[..., None], p[..., None] * x[..., None, :, :], 0).sum(-2)


def _t(a):
    return None if a is None else np.swapaxes(a, -1, -2)


def scaled_dot_product_attention_vjp(query, key, value, grad_output, *, mask=None, attn_bias=None,
                                     is_causal=False, q_offset=None, window=None, kv_lengths=None,
                                     scale=None, softcap=None, past_key=None, past_value=None):
    batch, (H, M, D) = query.shape[:-3], query.shape[-3:]
    (G, L), E = key.shape[-3:-1], value.shape[-1]
    P = 0 if past_key is None else past_key.shape[-2]
    B, rep, N, f4, dtype = int(np.prod(batch)), H // G, P + L, np.float32, query.dtype
    Z = B * H
    heads = lambda a: np.repeat(a.reshape(B * G, a.shape[-2], a.shape[-1]), rep, 0).astype(f4)
    q, do = query.reshape(Z, M, D).astype(f4), grad_output.reshape(Z, M, E).astype(f4)
    segments = [] if past_key is None else [(0, heads(past_key), heads(past_value))]
    segments.append((P, heads(key), heads(value)))
    scale = f4(1 / np.sqrt(max(D, 1)) if scale is None else scale)
    grid = lambda a: np.broadcast_to(a, batch + (H, M, N)).reshape(Z, M, N)
    allow = None if mask is None else grid(mask)
    bias = None if attn_bias is None else grid(attn_bias)
    off = np.repeat(np.broadcast_to(N - M if q_offset is None else q_offset, (B,)), H)
    lens = np.repeat(np.broadcast_to(N if kv_lengths is None else kv_lengths, (B,)), H)
    left, right = (None, None) if window is None else window
    if is_causal:
        right = 0 if right is None else min(0, right)

    def kind(i, j):
        """visibility of a block, None where every pair is visible, False where none is."""
        dist = (np.arange(j.start, j.stop) - np.arange(i.start, i.stop)[:, None]) - off[:, None, None]
        near, far = dist[:, -1, 0], dist[:, 0, -1]  # the two corners farthest from the diagonal
        full = (j.stop <= lens).all() and allow is None
        full = full and (right is None or (far <= right).all()) and (left is None or (near >= -left).all())
        if full:
            return None
        if allow is not None and not allow[:1, i, j].any():  # block map of the mask
            return False
        vis = np.broadcast_to(np.arange(j.start, j.stop) < lens[:, None, None], dist.shape)
        vis = vis if right is None else vis & (dist <= right)
        vis = vis if left is None else vis & (dist >= -left)
        vis = vis if allow is None else vis & allow[:, i, j]
        return vis if vis.any() else False

    def scores(i, j, k, base, vis):
        x = (q[:, i] @ _t(k[:, j.start - base:j.stop - base])) * scale
        t = None
        if softcap is not None:
            t = np.tanh(x / f4(softcap))
            x = f4(softcap) * t
        if bias is not None:
            x = x + bias[:, i, j].astype(f4)
        return (x if vis is None else np.where(vis, x, -np.inf)), t

    blocks = []
    for base, k, v in segments:
        for j0 in range(base, base + k.shape[1], BN):
            j = slice(j0, min(j0 + BN, base + k.shape[1]))
            for i0 in range(0, M, BM):
                i = slice(i0, min(i0 + BM, M))
                vis = kind(i, j)
                if vis is not False:
                    blocks.append((i, j, vis, base, k, v))
    top, total, dot = np.full((Z, M, 1), -np.inf, f4), np.zeros((Z, M, 1), f4), np.zeros((Z, M, 1), f4)
    for i, j, vis, base, k, v in blocks:  # forward statistics: maximum, sum, rowsum(dO * O)
        s, _ = scores(i, j, k, base, vis)
        new = np.maximum(top[:, i], s.max(-1, keepdims=True))
        safe = np.where(new == -np.inf, 0, new)
        r, p = np.exp(top[:, i] - safe), np.exp(s - safe)
        p = p if vis is None else np.where(vis, p, 0)
        pd = p * (do[:, i] @ _t(v[:, j.start - base:j.stop - base]))
        pd = pd if vis is None else np.where(vis, pd, 0)
        total[:, i] = total[:, i] * r + p.sum(-1, keepdims=True)
        dot[:, i] = dot[:, i] * r + pd.sum(-1, keepdims=True)
        top[:, i] = new
    total = np.where(total == 0, 1, total)
    lse, delta = np.where(top == -np.inf, 0, top) + np.log(total), dot / total
    dq, dk, dv = np.zeros((Z, M, D), f4), np.zeros((Z, N, D), f4), np.zeros((Z, N, E), f4)
    db = None if bias is None else np.zeros((Z, M, N), f4)
    for i, j, vis, base, k, v in blocks:
        s, t = scores(i, j, k, base, vis)
        part = slice(j.start - base, j.stop - base)
        p = np.exp(s - lse[:, i])
        ds = p * (do[:, i] @ _t(v[:, part]) - delta[:, i])
        if vis is not None:
            p, ds = np.where(vis, p, 0), np.where(vis, ds, 0)
        if db is not None:
            db[:, i, j] = ds
        if t is not None:
            ds = ds * (1 - t * t)
        ds = (ds if vis is None else np.where(vis, ds, 0)) * scale
        dq[:, i] += _mm(ds, k[:, part], vis)
        dk[:, j] += _mm(_t(ds), q[:, i], _t(vis))
        dv[:, j] += _mm(_t(p), do[:, i], _t(vis))
    dk = dk.reshape(B, G, rep, N, D).sum(2).reshape(batch + (G, N, D)).astype(dtype)
    dv = dv.reshape(B, G, rep, N, E).sum(2).reshape(batch + (G, N, E)).astype(dtype)
    out = {"query": dq.reshape(query.shape).astype(dtype), "key": dk[..., P:, :], "value": dv[..., P:, :]}
    if past_key is not None:
        out["past_key"], out["past_value"] = dk[..., :P, :], dv[..., :P, :]
    if db is not None:
        db, shape = db.reshape(batch + (H, M, N)), attn_bias.shape
        db = db.sum(tuple(range(db.ndim - len(shape))))
        one = tuple(a for a, size in enumerate(shape) if size == 1 and db.shape[a] != 1)
        out["attn_bias"] = db.sum(one, keepdims=True).astype(dtype)
    return out
