"""Random calls of both operations: every option in every combination, small sizes, zero ones too."""

import math

import numpy as np
from hypothesis import strategies as st

ALL = (
    "mask",
    "attn_bias",
    "is_causal",
    "q_offset",
    "window",
    "kv_lengths",
    "scale",
    "softcap",
    "sinks",
    "past",
    "segments",
)


@st.composite
def heads(draw, special=False):
    """Arrays and options of scaled_dot_product_attention, as two dicts."""
    batch = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 3), (0,)]))
    num_kv_heads = draw(st.integers(1, 3))
    sizes = (batch, num_kv_heads * draw(st.integers(1, 3)), num_kv_heads)
    d_k, d_v = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    arrays, options, rng = _options(draw, sizes, d_k, d_v, special)
    q_len, kv_len, past = options.pop("sizes")
    batch, num_heads, num_kv_heads = sizes
    arrays |= {
        "query": rng.standard_normal((*batch, num_heads, q_len, d_k)),
        "key": rng.standard_normal((*batch, num_kv_heads, kv_len - past, d_k)),
        "value": rng.standard_normal((*batch, num_kv_heads, kv_len - past, d_v)),
    }
    if special:
        for name in ("key", "value"):
            _poison(rng, arrays[name])
    return arrays, options


def as_mask(arrays):
    """The arrays with their segments as what they mean, a mask."""
    if "q_segments" not in arrays:
        return arrays
    q, kv = arrays["q_segments"][..., None, :, None], arrays["kv_segments"][..., None, None, :]
    given = {name: x for name, x in arrays.items() if not name.endswith("segments")}
    return given | {"mask": np.logical_and(q == kv, arrays.get("mask", True))}


@st.composite
def layers(draw):
    """Arrays and options of multi_head_attention, as two dicts."""
    batch = draw(st.sampled_from([(), (2,), (2, 1)]))
    num_kv_heads = draw(st.integers(1, 2))
    num_heads = num_kv_heads * draw(st.integers(1, 2))
    d_k, d_v, d_q, d_kv, d_vv, d_out = (draw(st.integers(1, 4)) for _ in range(6))
    arrays, options, rng = _options(draw, (batch, num_heads, num_kv_heads), d_k, d_v, special=False)
    q_len, kv_len, past = options.pop("sizes")
    shapes = {
        "query": (*batch, q_len, d_q),
        "key": (*batch, kv_len - past, d_kv),
        "value": (*batch, kv_len - past, d_vv),
        "w_q": (num_heads, d_q, d_k),
        "w_k": (num_kv_heads, d_kv, d_k),
        "w_v": (num_kv_heads, d_vv, d_v),
        "w_o": (num_heads, d_v, d_out),
    }
    biases = {
        "b_q": (num_heads, d_k),
        "b_k": (num_kv_heads, d_k),
        "b_v": (num_kv_heads, d_v),
        "b_o": (d_out,),
    }
    shapes |= {name: shape for name, shape in biases.items() if draw(st.booleans())}
    return arrays | {name: rng.standard_normal(shape) for name, shape in shapes.items()}, options


def _options(draw, sizes, d_k, d_v, special):
    batch, num_heads, num_kv_heads = sizes
    chosen = draw(st.sets(st.sampled_from(ALL), max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q_len, kv_len = draw(st.integers(0, 5)), draw(st.integers(0, 6))
    past = draw(st.integers(0, kv_len)) if "past" in chosen else 0
    full = (*batch, num_heads, q_len, kv_len)
    arrays, options = {}, {"sizes": (q_len, kv_len, past)}

    def broadcasting():
        shape = full if draw(st.booleans()) else full[-2:]
        return tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape)

    if "mask" in chosen:
        arrays["mask"] = rng.random(broadcasting()) < 0.7
    if "attn_bias" in chosen:
        bias = 2 * rng.standard_normal(broadcasting())
        bias[rng.random(bias.shape) < 0.2] = -math.inf
        if special:
            _poison(rng, bias)
        arrays["attn_bias"] = bias
    options["is_causal"] = "is_causal" in chosen
    if "window" in chosen:
        side = st.one_of(st.none(), st.integers(0, 4), st.just(10**30))
        options["window"] = (draw(side), draw(side))
    if "q_offset" in chosen or ((options["is_causal"] or "window" in options) and q_len != kv_len):
        if draw(st.booleans()):
            options["q_offset"] = draw(st.one_of(st.integers(-7, 7), st.sampled_from([-(10**30), 10**30])))
        else:
            arrays["q_offset"] = rng.integers(-6, 7, batch)
    if "kv_lengths" in chosen:
        arrays["kv_lengths"] = rng.integers(-1, kv_len + 2, batch)
    if "segments" in chosen:
        for name, length in (("q_segments", q_len), ("kv_segments", kv_len)):
            shape = (*batch, length) if draw(st.booleans()) else (length,)
            arrays[name] = rng.choice([-1, 0, 2**31 - 1], shape).astype(
                draw(st.sampled_from(["int32", "int64"]))
            )
    if "scale" in chosen:
        options["scale"] = draw(st.sampled_from([0, 1, -0.5, 2.0]))
    if "softcap" in chosen:
        options["softcap"] = draw(st.sampled_from([0.5, 2, 30.0]))
    if "sinks" in chosen:
        arrays["sinks"] = rng.standard_normal(num_heads)
    if "past" in chosen:
        arrays["past_key"] = rng.standard_normal((*batch, num_kv_heads, past, d_k))
        arrays["past_value"] = rng.standard_normal((*batch, num_kv_heads, past, d_v))
    options["return_weights"], options["return_lse"] = draw(st.booleans()), draw(st.booleans())
    return arrays, options, rng


def _poison(rng, x):
    for number in (math.nan, math.inf, -math.inf):
        x[rng.random(x.shape) < 0.05] = number
