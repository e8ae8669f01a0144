"""Sizes at tile edges and one beside, one axis at a time."""

from collections.abc import Iterator

from conformance.vectors.generate.draft import Draft, attend

# fmt: off

_KV_LENGTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025)
_D_K = (1, 2, 3, 5, 7, 9, 33, 64, 65, 80, 128)
_Q_LENGTHS = (1, 2, 16, 17, 33, 65, 129)


def drafts() -> Iterator[Draft]:
    """kv_len, d_k, q_len, batch, and two long ones with sampled rows."""
    for kv_len in _KV_LENGTHS:
        yield attend(f"sizes/kv-len-{kv_len}", f"{kv_len} keys: every one of them is read, and none beyond.",
            "ATT-1", batch=(1,), heads=2, q_len=4, kv_len=kv_len, d_k=5, sigma=1.5)
    for d_k in _D_K:
        yield attend(f"sizes/d-k-{d_k}", f"d_k of {d_k}: every feature enters the product.", "ATT-1", "ATT-3",
            batch=(1,), heads=2, q_len=3, kv_len=6, d_k=d_k)
    for q_len in _Q_LENGTHS:
        yield attend(f"sizes/q-len-{q_len}", f"{q_len} queries: the last ones too.", "ATT-1",
            batch=(1,), heads=2, q_len=q_len, kv_len=11, d_k=4)
    yield attend("sizes/batch-5", "Five batch entries, none of them like another.", "SHAPE-4", "IND-3",
        batch=(5,), heads=2, q_len=3)
    yield attend("sizes/long-self-attention",
        "1,100 tokens attend to each other; rows on both sides of tile edges are judged.", "ATT-1", "NUM-1",
        batch=(1,), heads=1, q_len=1100, kv_len=1100, d_k=8,
        rows=(0, 1, 63, 64, 255, 256, 511, 512, 513, 1023, 1024, 1099))
    yield attend("sizes/long-causal-grouped", "300 queries over 700 keys, causal with an offset, in groups.",
        "MASK-6", "HEAD-2", batch=(1,), heads=4, kv_heads=2, q_len=300, kv_len=700, d_k=8, is_causal=True,
        q_offset=400, rows=(0, 63, 64, 111, 112, 255, 256, 299))
