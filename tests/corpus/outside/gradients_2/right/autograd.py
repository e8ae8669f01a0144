"""A layer for torch whose attention is an autograd function: it keeps query, key, value, output and lse, and recomputes the rest
in chunks of queries."""

import torch

name, version = "autograd function", "0.9"
array_type = "torch"
dtypes = ("float32", "bfloat16", "float64")
accuracy = "fused"
features = {
    "mask", "attn_bias", "is_causal", "q_offset", "kv_lengths", "scale", "softcap", "sinks", "gqa", "value_dim", "broadcast",
    "empty", "cache", "segments", "return_lse", "grad_lse",
}

CHUNK = 128


def wide(x):
    """What is computed with: float64 stays, all else becomes float32."""
    return x if x is None or x.dtype == torch.float64 else x.float()


def visible(mask, bias, rows, spec):
    """(B, 1 or H, rows, kv_len) booleans for a chunk of queries."""
    i = torch.arange(rows.start, rows.stop)[None, None, :, None]
    j = torch.arange(spec["kv_len"])[None, None, None, :]
    seen = torch.ones(1, 1, i.shape[2], j.shape[3], dtype=torch.bool)
    if spec["is_causal"]:
        seen = seen & (j <= i + spec["offset"][:, None, None, None])
    if spec["lengths"] is not None:
        seen = seen & (j < spec["lengths"][:, None, None, None])
    if spec["q_segments"] is not None:
        seen = seen & (spec["q_segments"][:, None, rows, None] == spec["kv_segments"][:, None, None, :])
    if mask is not None:
        seen = seen & (mask[:, :, rows] if mask.shape[2] > 1 else mask)
    if bias is not None:
        seen = seen & ((bias[:, :, rows] if bias.shape[2] > 1 else bias) != -torch.inf)
    return seen


class Attention(torch.autograd.Function):
    """query (B, H, q_len, d_k), key (B, G, kv_len, d_k), value (B, G, kv_len, d_v), all wide."""

    @staticmethod
    def scores(query, key, bias, mask, rows, spec):
        groups = key.shape[1]
        q = query[:, :, rows].unflatten(1, (groups, -1))
        x = (q * spec["scale"]) @ key[:, :, None].transpose(-1, -2)
        t = None
        if spec["softcap"] is not None:
            t = torch.tanh(x / spec["softcap"])
            x = spec["softcap"] * t
        seen = visible(mask, bias, rows, spec)
        x = x.flatten(1, 2)
        if bias is not None:
            x = x + (bias[:, :, rows] if bias.shape[2] > 1 else bias)
        return x.masked_fill(~seen, -torch.inf), seen.expand(x.shape), t

    @staticmethod
    def forward(ctx, query, key, value, bias, sinks, mask, spec):
        B, H, n, _ = query.shape
        out = query.new_zeros(B, H, n, value.shape[-1])
        top = query.new_zeros(B, H, n)
        log = query.new_full((B, H, n), -torch.inf)
        for start in range(0, n, CHUNK):
            rows = slice(start, min(start + CHUNK, n))
            x, seen, _ = Attention.scores(query, key, bias, mask, rows, spec)
            some = seen.any(dim=-1)
            m = x.amax(dim=-1) if x.shape[-1] else x.new_full(x.shape[:-1], -torch.inf)
            if sinks is not None:
                m = torch.maximum(m, sinks[:, None])
            m = torch.where(m == -torch.inf, 0, m)
            p = torch.exp(x - m[..., None])
            total = p.sum(dim=-1)
            if sinks is not None:
                total = total + torch.exp(sinks[:, None] - m)
            o = (p.unflatten(1, (key.shape[1], -1)) @ value[:, :, None]).flatten(1, 2) / total[..., None]
            out[:, :, rows] = torch.where(some[..., None], o, 0)
            top[:, :, rows] = m
            log[:, :, rows] = torch.where(some & (total == 0), torch.nan, torch.log(total))
        ctx.save_for_backward(query, key, value, bias, sinks, mask, out, top, log)
        ctx.spec = spec
        return out, top + log

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        query, key, value, bias, sinks, mask, out, top, log = ctx.saved_tensors
        spec, groups = ctx.spec, key.shape[1]
        dq, dk, dv = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
        db = None if bias is None else torch.zeros_like(bias)
        delta = (out * grad_out).sum(dim=-1) - grad_lse
        for start in range(0, query.shape[2], CHUNK):
            rows = slice(start, min(start + CHUNK, query.shape[2]))
            x, seen, t = Attention.scores(query, key, bias, mask, rows, spec)
            p = torch.exp(x - top[:, :, rows, None] - log[:, :, rows, None])
            p = torch.where(seen, p, 0).unflatten(1, (groups, -1))
            g = grad_out[:, :, rows].unflatten(1, (groups, -1))
            dv += (p.transpose(-1, -2) @ g).sum(dim=2)
            dp = g @ value[:, :, None].transpose(-1, -2)
            ds = p * (dp - delta[:, :, rows, None].unflatten(1, (groups, -1)))
            if bias is not None:
                tile = ds.flatten(1, 2)
                axes = [a for a in (0, 1, 3) if bias.shape[a] == 1]
                if axes:
                    tile = tile.sum(dim=axes, keepdim=True)
                if bias.shape[2] == 1:
                    db += tile.sum(dim=2, keepdim=True)
                else:
                    db[:, :, rows] += tile
            if t is not None:
                ds = torch.where(seen.unflatten(1, (groups, -1)), ds * (1 - t * t), 0)
            dq[:, :, rows] = (ds @ key[:, :, None]).flatten(1, 2) * spec["scale"]
            dk += (ds.transpose(-1, -2) @ query[:, :, rows].unflatten(1, (groups, -1))).sum(dim=2) * spec["scale"]
        dsinks = None
        if sinks is not None:
            share = torch.exp(sinks[:, None] - top - log)
            share = torch.where(sinks[:, None] == -torch.inf, 0, share)
            dsinks = -(share * delta).sum(dim=(0, 2))
        return dq, dk, dv, db, dsinks, None, None


def attend(query, key, value, *, mask, attn_bias, is_causal, q_offset, kv_lengths, q_segments, kv_segments, scale, softcap, sinks,
           past_key, past_value):
    """Output and lse of wide operands, and the keys and values with the past in front."""
    batch = query.shape[:-3]
    if past_key is not None:
        key, value = torch.cat([wide(past_key), key], dim=-2), torch.cat([wide(past_value), value], dim=-2)
    size = batch.numel()

    def flat(x, tail):
        """Batch axes made one; a mask or bias of rank 2 gets axes of one."""
        if x is None:
            return None
        if tail == 3 and x.ndim == 2:
            return x[None, None]
        if tail == 3 and all(n == 1 for n in x.shape[:-3]):
            return x.reshape(1, *x.shape[-3:])
        return x.expand(*batch, *x.shape[x.ndim - tail:]).reshape(size, *x.shape[x.ndim - tail:])

    q, k, v = (x.reshape(size, *x.shape[-3:]) for x in (query, key, value))
    offset = torch.as_tensor(0 if q_offset is None else q_offset)
    lengths = None if kv_lengths is None else torch.as_tensor(kv_lengths).reshape(size)
    if lengths is not None:
        here = (torch.arange(k.shape[-2]) < lengths[:, None])[:, None, :, None]
        k, v = torch.where(here, k, 0), torch.where(here, v, 0)
    spec = {
        "kv_len": k.shape[-2], "is_causal": is_causal, "offset": offset.expand(batch).reshape(size), "lengths": lengths,
        "q_segments": flat(q_segments, 1), "kv_segments": flat(kv_segments, 1), "softcap": softcap,
        "scale": q.shape[-1] ** -0.5 if scale is None else scale,
    }
    bias = None if attn_bias is None else flat(attn_bias, 3).to(q.dtype)
    out, lse = Attention.apply(q, k, v, bias, wide(sinks), flat(mask, 3), spec)
    return out.reshape(*batch, *out.shape[1:]), lse.reshape(*batch, *lse.shape[1:]), key, value


def project(x, w, b):
    y = x[..., None, :, :] @ w
    return y if b is None else y + b[:, None, :]


def sdpa(tensors, options):
    out, lse, key, value = attend(wide(tensors["query"]), wide(tensors["key"]), wide(tensors["value"]),
                                  **options, attn_bias=tensors.get("attn_bias"), sinks=tensors.get("sinks"))
    return out, lse, key, value


def layer(tensors, options):
    t = {word: wide(x) for word, x in tensors.items()}
    heads = [project(t[word], t["w_" + word[0]], t.get("b_" + word[0])) for word in ("query", "key", "value")]
    z, lse, key, value = attend(*heads, **options, attn_bias=tensors.get("attn_bias"), sinks=tensors.get("sinks"))
    out = torch.einsum("...hld,hdo->...lo", z, t["w_o"])
    return (out if t.get("b_o") is None else out + t["b_o"]), lse, key, value


def answer(run, tensors, options, return_lse):
    dtype = tensors["query"].dtype
    tensors = {word: x for word, x in tensors.items() if x is not None}
    with torch.no_grad():
        out, lse, key, value = run(tensors, options)
    results = {"output": out.to(dtype)}
    if return_lse:
        results["lse"] = lse
    if options["past_key"] is not None:
        results |= {"present_key": key.to(dtype), "present_value": value.to(dtype)}
    return results


def pull_back(run, tensors, options, grad_output, grad_lse):
    leaves = {word: x.detach().requires_grad_() for word, x in tensors.items() if x is not None}
    with torch.enable_grad():
        out, lse, _, _ = run(leaves, options)
        outputs, grads = [out], [wide(grad_output)]
        if grad_lse is not None:
            outputs, grads = [out, lse], [wide(grad_output), wide(grad_lse).to(lse.dtype)]
        found = torch.autograd.grad(outputs, list(leaves.values()), grads, allow_unused=True)
    return {word: torch.zeros_like(x) if d is None else d for (word, x), d in zip(leaves.items(), found)}


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None, q_segments=None,
    kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None, return_lse=False,
):
    options = dict(mask=mask, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, q_segments=q_segments,
                   kv_segments=kv_segments, scale=scale, softcap=softcap, past_key=past_key, past_value=past_value)
    tensors = dict(query=query, key=key, value=value, attn_bias=attn_bias, sinks=sinks)
    return answer(sdpa, tensors, options, return_lse)


def scaled_dot_product_attention_vjp(
    query, key, value, grad_output, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, kv_lengths=None,
    q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None, past_key=None, past_value=None, grad_lse=None,
):
    options = dict(mask=mask, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, q_segments=q_segments,
                   kv_segments=kv_segments, scale=scale, softcap=softcap, past_key=past_key, past_value=past_value)
    tensors = dict(query=query, key=key, value=value, attn_bias=attn_bias, sinks=sinks)
    return pull_back(sdpa, tensors, options, grad_output, grad_lse)


def multi_head_attention(
    query, key, value, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None,
    past_key=None, past_value=None, return_lse=False,
):
    options = dict(mask=mask, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, q_segments=q_segments,
                   kv_segments=kv_segments, scale=scale, softcap=softcap, past_key=past_key, past_value=past_value)
    tensors = dict(query=query, key=key, value=value, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o,
                   attn_bias=attn_bias, sinks=sinks)
    return answer(layer, tensors, options, return_lse)


def multi_head_attention_vjp(
    query, key, value, grad_output, *, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, mask=None, attn_bias=None,
    is_causal=False, q_offset=None, kv_lengths=None, q_segments=None, kv_segments=None, scale=None, softcap=None, sinks=None,
    past_key=None, past_value=None, grad_lse=None,
):
    options = dict(mask=mask, is_causal=is_causal, q_offset=q_offset, kv_lengths=kv_lengths, q_segments=q_segments,
                   kv_segments=kv_segments, scale=scale, softcap=softcap, past_key=past_key, past_value=past_value)
    tensors = dict(query=query, key=key, value=value, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o,
                   attn_bias=attn_bias, sinks=sinks)
    return pull_back(layer, tensors, options, grad_output, grad_lse)
