"""Random calls of the operations of serving, NaN wherever nobody may read, and what the definition says of them."""

import math

import definition
import numpy as np

NAN, HUGE = math.nan, 2**31 - 1


def options_of(rng, num_heads, banded=True):
    """Some options that all of these operations have, and the arrays among them."""
    options, arrays = {"return_lse": bool(rng.integers(2))}, {}
    if banded and rng.random() < 0.4:
        options["is_causal"] = True
    if banded and rng.random() < 0.3:
        options["window"] = tuple(None if rng.random() < 0.3 else int(rng.integers(4)) for _ in range(2))
    if rng.random() < 0.5:
        options["scale"] = float(rng.choice([0.0, -0.5, 0.3]))
    if rng.random() < 0.3:
        options["softcap"] = 2.0
    if rng.random() < 0.4:
        arrays["sinks"] = rng.standard_normal(num_heads)
    return arrays, options


def is_banded(options):
    """Whether places matter."""
    return options.get("is_causal", False) or options.get("window") is not None


def offset_of(rng, count):
    """An offset for all or one for each."""
    return int(rng.integers(-3, 7)) if rng.random() < 0.5 else rng.integers(-3, 7, count)


def packed(rng):
    """Arrays and options of packed_attention; rows of no part hold NaN."""
    num_kv_heads = int(rng.integers(1, 3))
    num_heads, (d_k, d_v) = num_kv_heads * int(rng.integers(1, 3)), rng.integers(1, 4, 2)
    arrays, options = options_of(rng, num_heads)
    count = int(rng.integers(0, 6))
    q_lens, kv_lens = rng.integers(0, 4, count), rng.integers(0, 6, count)
    if rng.random() < 0.3:
        q_lens[:], kv_lens[:] = 3, 4
    if rng.random() < 0.3:
        q_lens = kv_lens
    if is_banded(options) and ((q_lens != kv_lens).any() or rng.random() < 0.5):
        offset = offset_of(rng, count)
        (options if isinstance(offset, int) else arrays)["q_offset"] = offset
    dtype = rng.choice(["int32", "int64"])
    for name, lens in (("q_starts", q_lens), ("kv_starts", kv_lens)):
        arrays[name] = np.concatenate([[0], np.cumsum(lens)]).astype(dtype)
    q_rows, kv_rows = (arrays[name][-1] + rng.integers(3) for name in ("q_starts", "kv_starts"))
    arrays |= {
        "query": rng.standard_normal((num_heads, q_rows, d_k)),
        "key": rng.standard_normal((num_kv_heads, kv_rows, d_k)),
        "value": rng.standard_normal((num_kv_heads, kv_rows, d_v)),
    }
    for name, starts in (("query", "q_starts"), ("key", "kv_starts"), ("value", "kv_starts")):
        arrays[name][:, arrays[starts][-1] :] = NAN
    return arrays, options


def packed_by_definition(arrays, options):
    """Output and lse: each part by itself, 0 and -inf in rows of none."""
    heads = {name: arrays[name] for name in ("query", "key", "value")}
    shared = {name: arrays[name] for name in ("sinks",) if name in arrays}
    output = np.zeros((*heads["query"].shape[:2], heads["value"].shape[2]))
    lse = np.full(output.shape[:2], -math.inf)
    q_starts, kv_starts = arrays["q_starts"], arrays["kv_starts"]
    offset = arrays.get("q_offset", options.get("q_offset"))
    for i in range(len(q_starts) - 1):
        q, kv = slice(*q_starts[i : i + 2]), slice(*kv_starts[i : i + 2])
        place = {} if offset is None else {"q_offset": np.broadcast_to(offset, len(q_starts) - 1)[i]}
        found = definition.scaled_dot_product_attention(
            heads["query"][:, q], heads["key"][:, kv], heads["value"][:, kv],
            **{**options, **shared, **place, "return_lse": True},
        )  # fmt: skip
        output[:, q], lse[:, q] = found["output"], found["lse"]
    return {"output": output} | ({"lse": lse} if options["return_lse"] else {})


def paged(rng, writes=False):
    """Arrays and options of paged_attention; cells that nobody reads hold NaN, entries behind a length anything."""
    num_kv_heads = int(rng.integers(1, 3))
    num_heads, (d_k, d_v) = num_kv_heads * int(rng.integers(1, 3)), rng.integers(1, 4, 2)
    arrays, options = options_of(rng, num_heads)
    batch, columns, size, q_len = (int(rng.integers(a, b)) for a, b in ((0, 5), (0, 4), (1, 4), (0, 4)))
    count = int(rng.integers(1, 8))
    if is_banded(options):
        offset = offset_of(rng, batch)
        (options if isinstance(offset, int) else arrays)["q_offset"] = offset
    full = (batch, num_heads, q_len, columns * size)
    for name in ("mask", "attn_bias"):
        if rng.random() < 0.3:
            shape = full if rng.random() < 0.6 else full[2:]
            shape = tuple(1 if rng.random() < 0.3 else n for n in shape)
            arrays[name] = rng.random(shape) < 0.7 if name == "mask" else rng.standard_normal(shape)
    lengths = rng.integers(0, columns * size + 1, batch)
    if rng.random() < 0.3:
        lengths[:] = columns * size // 2
    table = rng.choice([-1, HUGE, count, -7], (batch, columns))
    pages = {"key_pages": np.full((count, size, num_kv_heads, d_k), NAN)}
    pages["value_pages"] = np.full((count, size, num_kv_heads, d_v), NAN)
    for b, length in enumerate(lengths):
        for t in range(length):
            if t % size == 0:
                table[b, t // size] = rng.integers(count)
            for x in pages.values():
                x[table[b, t // size], t % size] = rng.standard_normal(x.shape[2:])
    dtype = rng.choice(["int32", "int64"])
    arrays |= pages | {"page_table": table.astype(dtype), "kv_lengths": lengths.astype(dtype)}
    arrays["query"] = rng.standard_normal((batch, num_heads, q_len, d_k))
    if writes:
        arrays |= new_rows(rng, pages)
    return arrays, options


def new_rows(rng, pages):
    """Rows for some slots of pages, and for none."""
    count, size, num_kv_heads, d_k = pages["key_pages"].shape
    slots = rng.permutation(count * size)[: rng.integers(0, count * size + 1)]
    slots = np.where(rng.random(slots.shape) < 0.3, -1, slots).astype(rng.choice(["int32", "int64"]))
    d_v = pages["value_pages"].shape[-1]
    shape = (len(slots), num_kv_heads)
    return {
        "slots": slots,
        "new_key": rng.standard_normal((*shape, d_k)),
        "new_value": rng.standard_normal((*shape, d_v)),
    }


def written(pages, new, slots):
    """Pages with rows in some slots."""
    pages, size = pages.copy(), pages.shape[1]
    for slot, row in zip(slots, new, strict=True):
        if slot >= 0:
            pages[slot // size, slot % size] = row
    return pages


def paged_by_definition(arrays, options):
    """Output, lse and pages: each entry by itself, on the keys that it has."""
    pages = {name: arrays[name] for name in ("key_pages", "value_pages")}
    if "slots" in arrays:
        pages = {
            name: written(x, arrays[f"new_{name.split('_')[0]}"], arrays["slots"])
            for name, x in pages.items()
        }
    query, size = arrays["query"], pages["key_pages"].shape[1]
    output = np.zeros((*query.shape[:3], pages["value_pages"].shape[3]))
    lse = np.zeros(query.shape[:3])
    offset = arrays.get("q_offset", options.get("q_offset"))
    for b, length in enumerate(arrays["kv_lengths"]):
        cells = [(arrays["page_table"][b, t // size], t % size) for t in range(length)]
        key, value = (
            np.stack([x[cell] for cell in cells], 1) if cells else np.zeros((x.shape[2], 0, x.shape[3]))
            for x in pages.values()
        )
        own = {} if offset is None else {"q_offset": np.broadcast_to(offset, len(query))[b]}
        for name in ("mask", "attn_bias"):
            if name in arrays:
                x = arrays[name]
                x = x if x.ndim == 2 else x[b if x.shape[0] > 1 else 0]
                own[name] = x if x.shape[-1] == 1 else x[..., :length]
        own |= {"sinks": arrays["sinks"]} if "sinks" in arrays else {}
        found = definition.scaled_dot_product_attention(
            query[b], key, value, **{**options, **own, "return_lse": True}
        )
        output[b], lse[b] = found["output"], found["lse"]
    results = {"output": output} | ({"lse": lse} if options["return_lse"] else {})
    return results | (pages if "slots" in arrays else {})


def latent(rng):
    """Arrays and options of latent_attention."""
    batch, num_heads = [(), (2,), (2, 1)][rng.integers(3)], int(rng.integers(1, 4))
    q_len, kv_len, c, r = (int(n) for n in rng.integers([0, 0, 1, 0], [4, 6, 4, 3]))
    arrays, options = options_of(rng, num_heads)
    options |= {"value_dim": c, "scale": 0.7}
    if is_banded(options):
        options["q_offset"] = int(rng.integers(-2, 4))
    if rng.random() < 0.4:
        arrays["kv_lengths"] = rng.integers(0, kv_len + 1, batch)
    if rng.random() < 0.4:
        arrays["mask"] = rng.random((*batch, num_heads, q_len, kv_len)) < 0.7
    arrays["query"] = rng.standard_normal((*batch, num_heads, q_len, c + r))
    arrays["latent"] = rng.standard_normal((*batch, kv_len, c + r))
    return arrays, options


def latent_by_definition(arrays, options):
    """Output and lse with the rows as keys and values of one group."""
    key = arrays["latent"][..., None, :, :]
    value, options = key[..., : options["value_dim"]], {**options}
    del options["value_dim"]
    others = {name: x for name, x in arrays.items() if name not in ("query", "latent")}
    return definition.scaled_dot_product_attention(arrays["query"], key, value, **others, **options)
