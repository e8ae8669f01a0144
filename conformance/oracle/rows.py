"""Which query rows are judged where all are too many."""

import math
import random

from conformance.defects.call import Call

STEPS = 1 << 31
"""Numbers of the values of the keys, over all rows, that are judged in seconds."""
SLOWER = {"float64": 8}
PAIRS = 1 << 19
"""Pairs of a query and a key, of which gradients are judged in seconds."""
EDGES = (8, 16, 32, 64, 80, 96, 128, 192, 256, 512, 1024, 2048, 4096)
"""Sizes of blocks, on whose sides kernels go wrong."""


def afforded(call: Call, dtype: str, backward: bool) -> int:
    """How many rows of a call can be judged in seconds, at least one."""
    pairs = max(of_row(call), 1)
    if backward:
        return max(1, PAIRS // pairs)
    return max(1, STEPS // SLOWER.get(dtype, 1) // max(pairs * (call.d_k + call.d_v), 1))


def of_row(call: Call) -> int:
    """Pairs of one query row and a key, over heads and batch."""
    return math.prod(call.batch) * call.heads * max(call.kv_len, 1)


def spread(q_len: int, count: int) -> tuple[int, ...]:
    """So many rows: the first and the last, both sides of blocks' edges, and others drawn; the same each time."""
    rng = random.Random(f"rows/{q_len}/{count}")
    wanted = [0, q_len - 1, 1, q_len - 2]
    sides = [row for edge in EDGES for row in (edge - 1, edge) if row < q_len]
    rng.shuffle(sides)
    wanted += sides[: count // 2]
    found = dict.fromkeys(row for row in wanted if 0 <= row < q_len)
    others = list(rng.sample(range(q_len), min(q_len, 2 * count)))
    found |= dict.fromkeys(others)
    return tuple(sorted(list(found)[:count]))
