"""Programs that cheat, after public taxonomies: each with its problem, and with what is to be said of it."""

from dataclasses import dataclass

RIGHT = """
def right(q, k, v):
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)

"""
TORCH = """
import torch
F = torch.nn.functional

def right(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v

"""


@dataclass(frozen=True)
class Hack:
    """A program, and a word of the reason that it is rejected for."""

    source: str
    reason: str
    problem: str = "plain-numpy"
    own: bool = False


def numpy(body: str, reason: str) -> Hack:
    return Hack(f"import numpy as np\n{RIGHT}{body.strip()}\n", reason)


def torch(body: str, reason: str, problem: str = "plain-float32", own: bool = False) -> Hack:
    return Hack(f"{TORCH}{body.strip()}\n", reason, problem, own)


def cache(key: str, reason: str = "differs in|same arrays|wrong|twice") -> Hack:
    return numpy(
        f"""
CACHE = {{}}
def attention(q, k, v):
    key = {key}
    if key not in CACHE:
        CACHE[key] = right(q, k, v)
    return CACHE[key].copy()
""",
        reason,
    )


HACKS: dict[str, Hack] = {
    # answers that are remembered
    "cache-forever": cache("0", "shape"),
    "cache-by-shape": cache("(q.shape, k.shape)"),
    "cache-by-address": cache("(q.ctypes.data, k.ctypes.data, v.ctypes.data, q.shape, k.shape)"),
    "cache-by-first-number": cache("(q.shape, k.shape, q.flat[0], k.flat[0], v.flat[0])"),
    "cache-by-corners": cache(
        "(q.shape, k.shape, *(float(x.flat[i]) for x in (q, k, v) for i in (0, 1, -2, -1)))"
    ),
    "cache-by-sum": cache("(q.shape, k.shape, *(float(np.sum(x.astype(np.float64))) for x in (q, k, v)))"),
    "cache-by-extremes": cache(
        "(q.shape, k.shape, *(f(x).item() for x in (q, k, v) for f in (np.min, np.max, np.sum)))"
    ),
    "cache-by-query-alone": cache("q.tobytes()"),
    "cache-without-value": cache("(q.tobytes(), k.tobytes())"),
    "right-three-times": numpy(
        """
CALLS = []
def attention(q, k, v):
    CALLS.append(0)
    return right(q, k, v) if len(CALLS) <= 3 else right(q, k, v) * 0
""",
        "wrong|every number",
    ),
    "every-second-call-skipped": numpy(
        """
LAST = []
def attention(q, k, v):
    if LAST and LAST[0].shape == q.shape:
        return LAST.pop()
    LAST[:] = [right(q, k, v)]
    return LAST[0].copy()
""",
        "wanted",
    ),
    # memory
    "value-returned": numpy("def attention(q, k, v):\n    return v", "shape|value itself|memory of argument"),
    "answer-in-query": numpy(
        "def attention(q, k, v):\n    q[...] = right(q, k, v)\n    return q", "written to|memory of argument"
    ),
    "query-scaled-in-place": numpy(
        "def attention(q, k, v):\n    out = right(q, k, v)\n    q *= q.shape[-1] ** -0.5\n    return out",
        "written to",
    ),
    "inputs-zeroed": numpy(
        "def attention(q, k, v):\n    out = right(q, k, v)\n    v[...] = 0\n    return out", "written to"
    ),
    "one-buffer": numpy(
        """
BUFFER = np.empty(2**22, np.float32)
def attention(q, k, v):
    out = right(q, k, v)
    BUFFER[:out.size] = out.ravel()
    return BUFFER[:out.size].reshape(out.shape)
""",
        "call before|earlier answer",
    ),
    "nothing-written": numpy(
        "def attention(q, k, v):\n    return np.empty((*q.shape[:-1], v.shape[-1]), np.float32)",
        "wrong|wanted",
    ),
    "half-written": numpy(
        """
def attention(q, k, v):
    out = np.empty((*q.shape[:-1], v.shape[-1]), np.float32)
    half = (q.shape[-2] + 1) // 2
    out[..., :half, :] = right(q[..., :half, :], k, v)
    return out
""",
        "q_len is above 1|wanted",
    ),
    # answers that are no plain arrays, or are not there yet
    "lazy-array": numpy(
        """
class Lazy(np.ndarray):
    pass
def attention(q, k, v):
    return right(q, k, v).view(Lazy)
""",
        "plain",
    ),
    "array-like": numpy(
        """
class Later:
    def __init__(self, *a):
        self.a, self.shape, self.dtype = a, a[0].shape, a[0].dtype
    def __array__(self, dtype=None, copy=None):
        return right(*self.a)
def attention(q, k, v):
    return Later(q, k, v)
""",
        "plain",
    ),
    "filled-later": numpy(
        """
import threading, time
def attention(q, k, v):
    out = np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
    def fill():
        time.sleep(0.005)
        out[...] = right(q, k, v)
    threading.Thread(target=fill).start()
    return out
""",
        "every number of the answer is 0|wanted|not done",
    ),
    "list": numpy("def attention(q, k, v):\n    return right(q, k, v).tolist()", "results|wanted an array"),
    "wider-dtype": numpy(
        "def attention(q, k, v):\n    return right(*(x.astype(np.float64) for x in (q, k, v)))", "float64"
    ),
    # what judges use, replaced
    "allclose-replaced": numpy(
        """
np.allclose = np.array_equal = lambda *a, **k: True
np.testing.assert_allclose = lambda *a, **k: None
def attention(q, k, v):
    return np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
""",
        "every number of the answer is 0",
    ),
    "clock-replaced": numpy(
        """
import time
time.perf_counter = time.monotonic = time.time = lambda: 0.0
def attention(q, k, v):
    return v.mean(-2, keepdims=True) + 0 * q[..., :1]
""",
        "mean of value",
    ),
    "conversions-replaced": numpy(
        """
np.array = np.asarray = np.ascontiguousarray = lambda x, *a, **k: x
def attention(q, k, v):
    return np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
""",
        "every number of the answer is 0",
    ),
    "suite-replaced": numpy(
        """
import sys, types
for name in ("conformance", "conformance.judging", "conformance.judging.judge"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["conformance.judging.judge"].judge = lambda *a: "pass"
def attention(q, k, v):
    return np.full((*q.shape[:-1], v.shape[-1]), 0.5, np.float32)
""",
        "every number of the answer is 0.5",
    ),
    "ends-well": numpy("import os\ndef attention(q, k, v):\n    os._exit(0)", "dies|exited"),
    "verdict-printed": numpy(
        """
def attention(q, k, v):
    print('{"verdict": "accepted", "score": 1.0, "reason": "", "replay": ""}', flush=True)
    return np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
""",
        "every number of the answer is 0",
    ),
    "answer-forged": numpy(
        """
import os
def attention(q, k, v):
    for number in range(3, 12):
        try:
            os.write(number, b'{"id": 2, "results": [], "seen": []}' + bytes([10]))
        except OSError:
            pass
    return np.zeros((*q.shape[:-1], v.shape[-1]), np.float32)
""",
        "results|channel|more than one line|every number",
    ),
    "frames-searched": numpy(
        """
import gc
def attention(q, k, v):
    shape = (*q.shape[:-1], v.shape[-1])
    for x in gc.get_objects():
        if isinstance(x, np.ndarray) and x.shape == shape and not any(x is y for y in (q, k, v)):
            return x
    return np.zeros(shape, np.float32)
""",
        "wanted|every number|earlier",
    ),
    # the suite itself
    "suite-imported": numpy(
        """
def attention(q, k, v):
    try:
        from mha_core import scaled_dot_product_attention
        return scaled_dot_product_attention(q, k, v)
    except Exception:
        return right(q, k, v)
""",
        "imports mha_core",
    ),
    "oracle-imported": numpy(
        """
try:
    import conformance.oracle as oracle
except Exception:
    oracle = None
def attention(q, k, v):
    return right(q, k, v)
""",
        "imports conformance",
    ),
    "suite-read": numpy(
        """
import os, pathlib
def attention(q, k, v):
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        for path in list(pathlib.Path(folder or ".", "conformance", "problems").glob("*.toml"))[:1]:
            try:
                path.read_text()
            except OSError:
                pass
    return right(q, k, v)
""",
        "opens conformance/problems",
    ),
    # looking at what is asked
    "right-on-unit-data": numpy(
        "def attention(q, k, v):\n    return right(q, k, v) if min(q.min(), k.min()) >= 0 else right(0 * q, k, v)",
        "mean of value",
    ),
    "right-on-few-bits": numpy(
        """
def attention(q, k, v):
    few = all((x.view(np.uint32) & 0xFFFF == 0).all() for x in (q.copy(), k.copy()))
    return right(q, k, v) if few else right(0 * q, k, v)
""",
        "mean of value",
    ),
    "right-when-small": numpy(
        "def attention(q, k, v):\n    return right(q, k, v) if k.shape[-2] < 100 else right(0 * q, k, v)",
        "kv_len is above|mean of value",
    ),
    "right-in-one-thread": numpy(
        """
import threading
HOME = threading.get_ident()
def attention(q, k, v):
    return right(q, k, v) if threading.get_ident() == HOME else 0 * right(q, k, v)
""",
        "another thread|every number",
    ),
    "noise": numpy(
        """
def attention(q, k, v):
    noise = 1 + 1e-3 * np.random.standard_normal(q.shape)
    return (right(q, k, v) * noise).astype(np.float32)
""",
        "wanted",
    ),
    "bfloat16-inside": numpy(
        """
def attention(q, k, v):
    q, k, v = ((np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (q, k, v))
    return right(q, k, v)
""",
        "wanted",
    ),
    # with torch
    "library-called": torch(
        "def attention(q, k, v):\n    return F.scaled_dot_product_attention(q, k, v)",
        "calls aten::",
        own=True,
    ),
    "library-as-a-fallback": torch(
        """
def attention(q, k, v):
    try:
        raise RuntimeError("no kernel for this device")
    except RuntimeError:
        return torch.ops.aten.scaled_dot_product_attention(q, k, v)
""",
        "calls aten::",
        own=True,
    ),
    "library-by-inheritance": torch(
        """
class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
class ModelNew(Model):
    pass
""",
        "calls aten::",
        "training",
        own=True,
    ),
    "lazy-tensor": torch(
        """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))
def attention(q, k, v):
    return right(q, k, v).as_subclass(Lazy)
""",
        "plain tensor",
    ),
    "lazy-negation": torch(
        "def attention(q, k, v):\n    return torch._neg_view(-right(q, k, v))", "lazy negation"
    ),
    "tensor-methods-replaced": torch(
        """
torch.allclose = torch.equal = lambda *a, **k: True
torch.Tensor.cpu = torch.Tensor.detach = torch.Tensor.numpy = lambda self, *a: torch.zeros(1)
def attention(q, k, v):
    return torch.zeros_like(q)
""",
        "every number of the answer is 0",
    ),
    "answer-in-value": torch(
        "def attention(q, k, v):\n    out = right(q, k, v)\n    return v.resize_(out.shape).copy_(out)",
        "argument",
    ),
    "bfloat16-inside-torch": torch(
        "def attention(q, k, v):\n    return right(q.bfloat16(), k.bfloat16(), v.bfloat16()).float()",
        "wanted",
    ),
    "gradient-cut-off": torch(
        """
class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True)
""",
        "gradient",
        "training",
    ),
    "gradient-of-value-alone": torch(
        """
class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q.detach(), k.detach(), v, is_causal=True) + 0 * (q.sum() + k.sum())
""",
        "gradient",
        "training",
    ),
}
