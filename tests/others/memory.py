"""Attention on chunked arrays, then on the same in one piece, with little memory left; run by test_memory.py."""

import resource
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np

from mha_core import scaled_dot_product_attention

MIB = 2**20
SHAPES = {"batch": ((128, 8, 128, 64), (4, 8, 128, 64)), "rows": ((1, 2, 4096, 16), (1, 1, 256, 16))}
"""What is spread -> shape and chunks of the query."""

dask.config.set(scheduler="synchronous")
shape, chunks = SHAPES[sys.argv[1]]
room = int(sys.argv[2]) * MIB
random = da.random.default_rng(0)
query, key, value = (random.standard_normal(shape, chunks=chunks, dtype=np.float32) for _ in range(3))
if sys.argv[1] == "rows":
    key, value = (x.rechunk((1, 1, -1, 16)) for x in (key, value))
last = [np.asarray(x[-1:, -1:]) for x in (query, key, value)]
wanted = scaled_dot_product_attention(*last).mean(axis=-1)  # everything that is loaded late is loaded
held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + room, held + room))

needed = 3 * query.nbytes + 4 * np.prod(shape[:3]) * shape[2]  # operands and logits
assert needed > 2 * room
means = scaled_dot_product_attention(query, key, value).mean(axis=-1).compute()
np.testing.assert_allclose(means[-1:, -1:], wanted, rtol=1e-4, atol=1e-6)
try:
    scaled_dot_product_attention(*(np.asarray(x) for x in (query, key, value)), return_weights=True)
except MemoryError:
    print("in one piece it does not fit")
