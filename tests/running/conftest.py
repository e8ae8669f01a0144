"""A file of targets, most of them bad in one way each."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TARGETS = """
import os, signal, sys, time
import numpy as np

calls = 0

def attend(query, key, value, scale=None):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2)
    logits = logits * (query.shape[-1] ** -0.5 if scale is None else scale)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)

def good(query, key, value):
    return attend(query, key, value)

def by_position(q, k, v):
    return attend(q, k, v)

def scaled(query, key, value, *, scale=None):
    return attend(query, key, value, scale)

def printing(query, key, value):
    print("printed", flush=True)
    os.write(1, b"written to stdout\\n")
    sys.stderr.write("written to stderr\\n")
    return attend(query, key, value)

def reading(query, key, value):
    assert sys.stdin.read() == ""
    return attend(query, key, value)

def raising(query, key, value):
    raise ValueError("no luck\\nat all")

def exiting(query, key, value):
    sys.exit(3)

def dying(query, key, value):
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)

def segfaulting(query, key, value):
    os.kill(os.getpid(), signal.SIGSEGV)

def hanging(query, key, value):
    global calls
    calls += 1
    if calls == 2:
        time.sleep(60)
    return attend(query, key, value)

def writing(query, key, value):
    key[...] = 0
    return attend(query, key, value)

def none(query, key, value):
    return None

def generator(query, key, value):
    yield 1

def transposed(query, key, value):
    return attend(query, key, value).swapaxes(-1, -2)

def widened(query, key, value):
    return attend(query, key, value).astype("f8")

def complex_(query, key, value):
    return attend(query, key, value).astype("c8")

def triple(query, key, value):
    return (attend(query, key, value),) * 3

def listing(query, key, value):
    return attend(query, key, value).tolist()

def refusing(query, key, value):
    raise NotImplementedError("not today")

def ragged(query, key, value):
    return [[1.0], [1.0, 2.0]]

class MuteError(Exception):
    def __str__(self):
        raise RuntimeError

def silencing(query, key, value):
    sys.stderr.close()
    raise MuteError

def closing(query, key, value):
    for fd in range(3):
        os.close(fd)
    raise MuteError

def interrupting(query, key, value):
    raise KeyboardInterrupt

def noisy(query, key, value):
    np.float32(1) / np.zeros(3, np.float32)
    np.log(np.float32(-1))
    return attend(query, key, value)

def growing(query, key, value):
    global calls
    calls += 1
    return attend(query, key, value) + (calls > 1)

def wrong(query, key, value):
    return attend(query, key, value) + 1

def two(a, b):
    return a

def needy(query, key, value, num_heads):
    return query

def swapped(query, value, k):
    return query

def opted_out(query, key, value, *, scale=None):
    return attend(query, key, value)
opted_out.features = {"empty"}

class Attention:
    name, version = "my attention", "0.3"
    dtypes = ("float32", "float64")
    accuracy = "fused"
    def scaled_dot_product_attention(self, query, key, value):
        return {"output": attend(query, key, value)}

class Arguments:
    def __init__(self, size):
        pass

class Misspelt:
    features = {"sofcap"}
    def scaled_dot_product_attention(self, query, key, value):
        return query

instance = Attention()
number = 3
"""


@pytest.fixture
def targets(tmp_path: Path) -> Path:
    path = tmp_path / "fakes.py"
    path.write_text(TARGETS)
    return path


@pytest.fixture(autouse=True)
def _forget(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test has imported from its own folder, and could import from there, no later one meets."""
    known, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
            del sys.modules[name]
