"""The layer's backward: forward once with einsum, then the chain rule from the output back to the tokens."""

import numpy as np

E = np.einsum


def multi_head_attention_vjp(
    query,
    key,
    value,
    grad_output,
    *,
    w_q,
    w_k,
    w_v,
    w_o,
    b_q=None,
    b_k=None,
    b_v=None,
    b_o=None,
    mask=None,
    is_causal=False,
    scale=None,
):
    kinds = {
        "query": query,
        "key": key,
        "value": value,
        "w_q": w_q,
        "w_k": w_k,
        "w_v": w_v,
        "w_o": w_o,
        "b_q": b_q,
        "b_k": b_k,
        "b_v": b_v,
        "b_o": b_o,
    }
    lead, T, S = query.shape[:-2], query.shape[-2], key.shape[-2]
    rows = int(np.prod(lead))
    x, y, u, go = (
        a.astype(np.float64).reshape(rows, *a.shape[-2:]) for a in (query, key, value, grad_output)
    )
    w_q, w_k, w_v, w_o = (w.astype(np.float64) for w in (w_q, w_k, w_v, w_o))
    H, G = len(w_q), len(w_k)
    r = H // G
    c = w_q.shape[-1] ** -0.5 if scale is None else float(scale)

    q = E("btm,hmd->bhtd", x, w_q)
    k = E("bsm,gmd->bgsd", y, w_k)
    v = E("bsm,gmd->bgsd", u, w_v)
    if b_q is not None:
        q = q + b_q[:, None, :]
    if b_k is not None:
        k = k + b_k[:, None, :]
    if b_v is not None:
        v = v + b_v[:, None, :]
    kr, vr = np.repeat(k, r, axis=1), np.repeat(v, r, axis=1)
    s = E("bhtd,bhsd->bhts", q, kr) * c
    ok = np.broadcast_to(True if mask is None else mask, (*lead, H, T, S)).reshape(rows, H, T, S)
    if is_causal:
        ok = ok & np.tri(T, S, dtype=bool)
    s = np.where(ok, s, -np.inf)
    some = ok.any(-1, keepdims=True)
    p = np.where(ok, np.exp(s - np.where(some, s.max(-1, keepdims=True, initial=-np.inf), 0)), 0)
    p = p / np.where(some, p.sum(-1, keepdims=True), 1)
    z = E("bhts,bhsd->bhtd", p, vr)

    dz = E("bto,hdo->bhtd", go, w_o)
    dw_o = E("bhtd,bto->hdo", z, go)
    dp = E("bhtd,bhsd->bhts", dz, vr)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    dq = E("bhts,bhsd->bhtd", ds, kr) * c
    dk = E("bhts,bhtd->bhsd", ds, q) * c
    dv = E("bhts,bhtd->bhsd", p, dz)
    dk = dk.reshape(rows, G, r, *dk.shape[-2:]).sum(2)
    dv = dv.reshape(rows, G, r, *dv.shape[-2:]).sum(2)
    grads = {
        "query": E("bhtd,hmd->btm", dq, w_q),
        "key": E("bgsd,gmd->bsm", dk, w_k),
        "value": E("bgsd,gmd->bsm", dv, w_v),
        "w_q": E("btm,bhtd->hmd", x, dq),
        "w_k": E("bsm,bgsd->gmd", y, dk),
        "w_v": E("bsm,bgsd->gmd", u, dv),
        "w_o": dw_o,
        "b_q": dq.sum((0, 2)),
        "b_k": dk.sum((0, 2)),
        "b_v": dv.sum((0, 2)),
        "b_o": go.sum((0, 1)),
    }
    return {n: grads[n].reshape(a.shape).astype(a.dtype) for n, a in kinds.items() if a is not None}
