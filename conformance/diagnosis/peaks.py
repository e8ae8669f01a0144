"""What may be said of each row of a call by its logits: how large, how far apart, where the largest stands."""

from collections.abc import Iterator

import numpy as np

from conformance.defects.reference import REFERENCE
from conformance.diagnosis.posed import call_of
from conformance.vectors.case import Array, Case

SIZES = (16, 80)
"""Logits beyond which exponentials lose digits, or are zero or infinite in float32 without a maximum."""
TILES = (16, 32, 64, 128)
"""Numbers of keys that kernels take at once."""


def of_logits(case: Case, sees: Array) -> dict[str, Array]:
    """Conditions in words, each with the rows (B, H, q_len) that it holds for; they see (B, H, q_len, kv_len)."""
    s = REFERENCE
    c = s.accept(call_of(case.operation, case.operands("float32"), case.options))
    with np.errstate(all="ignore"):
        query, key, value = s.project_query(c), s.project_key(c), s.project_value(c)
        key, _ = s.join(c, key, value)
        logits = s.bias(c, s.cap(c, s.score(c, query, s.repeat(c, key), s.scale(c))))
    logits = np.broadcast_to(logits, c.logits_shape).reshape(sees.shape)
    sinks = None if c.sinks is None else np.asarray(c.sinks, np.float32)[:, None]  # (H, 1)
    return dict(_facts(np.where(sees, logits, np.nan), np.asarray(sees.any(axis=-1)), sinks))


def _facts(logits: Array, some: Array, sinks: Array | None) -> Iterator[tuple[str, Array]]:
    """Of visible logits (B, H, q_len, kv_len), NaN elsewhere, and whether there is one (B, H, q_len)."""
    with np.errstate(all="ignore"):
        top = np.fmax.reduce(logits, axis=-1, initial=-np.inf)
        low = np.fmin.reduce(logits, axis=-1, initial=np.inf)
        at = np.where(np.isnan(logits), -np.inf, logits)
        place = at.argmax(axis=-1) if logits.shape[-1] else np.zeros(some.shape, int)
        yield "whose logits are all below 0", some & (top < 0)
        for size in SIZES:
            yield f"whose logits are all below -{size}", some & (top < -size)
            yield f"that have a logit above {size}", some & (top > size)
            yield f"whose logits are more than {size} apart", some & (top - low > size)
        for tile in TILES:
            yield f"whose largest logit stands behind the first {tile} keys", some & (place >= tile)
        none = np.zeros(some.shape, bool)
        yield "whose sink is above their logits", none if sinks is None else sinks > top
        yield "whose sink is below their largest logit", none if sinks is None else sinks < top
