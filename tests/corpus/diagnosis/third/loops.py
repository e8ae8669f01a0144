"""Row by row in plain Python; slow, but nothing is hidden."""

import itertools
import math

import numpy as np


def scaled_dot_product_attention(
    query, key, value, *, mask=None, attn_bias=None, is_causal=False, q_offset=None, window=None, scale=None
):
    lead = query.shape[:-3]
    nh, nq, d = query.shape[-3:]
    ng, nk = key.shape[-3], key.shape[-2]
    out = np.zeros((*lead, nh, nq, value.shape[-1]), query.dtype)
    factor = 1 / math.sqrt(d) if scale is None else scale
    offsets = np.broadcast_to(0 if q_offset is None else q_offset, lead)
    full = (*lead, nh, nq, nk)
    m = None if mask is None else np.broadcast_to(mask, full)
    b = None if attn_bias is None else np.broadcast_to(attn_bias, full)
    for at in itertools.product(*(range(n) for n in lead)):
        for h in range(nh):
            g = h // (nh // ng)
            for i in range(nq):
                p = i + int(offsets[at])
                seen = []
                logits = []
                lowest, highest = 0, nk - 1
                if is_causal:
                    highest = min(highest, p)
                if window is not None:
                    left, right = window
                    if left is not None:
                        lowest = max(lowest, p - left)
                    if right is not None:
                        highest = min(highest, p + right)
                if lowest > highest:
                    continue
                dots = key[at][g] @ query[at][h, i]
                for j in range(lowest, highest + 1):
                    if m is not None and not m[(*at, h, i, j)]:
                        continue
                    extra = 0.0
                    if b is not None:
                        extra = b[(*at, h, i, j)]
                        if extra == -math.inf:
                            continue
                    seen.append(j)
                    logits.append(float(dots[j]) * factor + extra)
                if not seen:
                    continue
                logits = np.array(logits)
                e = np.exp(logits - logits.max())
                out[at][h, i] = (e / e.sum()) @ value[at][g][seen]
    return out
