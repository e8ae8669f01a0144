"""The rules of five public judges, rebuilt from what they say of themselves: data, shapes and tolerance.

Each takes a function of query, key and value, and says whether it would be taken for right. They are rules only:
no code is theirs, and what they do against cheating is not looked at here.
"""

import warnings
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Function = Callable[[Array, Array, Array], Array]
Rule = Callable[[Function], bool]


def exact(query: Array, key: Array, value: Array) -> npt.NDArray[np.float64]:
    """Attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p @ v / p.sum(axis=-1, keepdims=True)


def answered(function: Function, operands: tuple[Array, ...]) -> npt.NDArray[np.float64] | None:
    """What a function gives; None where it raises or gives another shape or dtype."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            got = function(*(x.copy() for x in operands))
        except Exception:
            return None
        right = operands[0].shape[:-1] + operands[2].shape[-1:]
        return got.astype(np.float64) if got.shape == right and got.dtype == operands[0].dtype else None


def close(
    got: npt.NDArray[np.float64], right: npt.NDArray[np.float64], absolute: float, relative: float
) -> bool:
    """Within an absolute and a relative tolerance together, as `allclose` has it."""
    return bool((np.abs(got - right) <= absolute + relative * np.abs(right)).all())


def drawn(seed: int, shapes: tuple[tuple[int, ...], ...], kind: str, dtype: str) -> tuple[Array, ...]:
    """Operands, uniform in [0, 1) or normal."""
    random = np.random.default_rng(seed)
    made = [random.random(s) if kind == "uniform" else random.standard_normal(s) for s in shapes]
    of = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    return tuple(x.astype(of) for x in made)


def square(batch: int, heads: int, length: int, width: int) -> tuple[tuple[int, ...], ...]:
    return ((batch, heads, length, width),) * 3


def reference(operands: tuple[Array, ...]) -> npt.NDArray[np.float64]:
    """What the judges compare with: the exact answer in the dtype of the operands."""
    return exact(*operands).astype(operands[0].dtype).astype(np.float64)


def kernelbench(function: Function) -> bool:
    """One shape, five seeds, numbers in [0, 1), 1e-2 and 1e-2 (first releases, and 16 bits today); two heads of it."""
    for seed in range(5):
        operands = drawn(seed, square(1, 2, 512, 1024), "uniform", "float32")
        got = answered(function, operands)
        if got is None or not close(got, reference(operands), 1e-2, 1e-2):
            return False
    return True


def robust_kbench(function: Function) -> bool:
    """Several shapes, normal and uniform numbers, 1e-5 and 1e-5, twice, with the reference between."""
    for seed, (shape, kind) in enumerate(
        (
            (square(2, 2, 64, 64), "normal"),
            (square(1, 2, 128, 64), "uniform"),
            (square(1, 2, 256, 128), "normal"),
        )
    ):
        operands = drawn(seed, shape, kind, "float32")
        right = reference(operands)
        for _ in range(2):
            got = answered(function, operands)
            if got is None or not close(got, right, 1e-5, 1e-5):
                return False
    return True


def flashinfer_bench(function: Function) -> bool:
    """Normal numbers in bfloat16; wrong only where absolute and relative error both exceed 1e-2, or nothing finite."""
    for seed, length in enumerate((64, 512, 2048)):
        shapes = ((1, 4, min(length, 64), 128), (1, 4, length, 128), (1, 4, length, 128))
        operands = drawn(seed, shapes, "normal", "bfloat16")
        got, right = answered(function, operands), reference(operands)
        if got is None or not np.isfinite(got).all():
            return False
        off = np.abs(got - right)
        if ((off > 1e-2) & (off > 1e-2 * np.abs(right))).any():
            return False
    return True


def gpu_mode(function: Function) -> bool:
    """The rule of the mixed MLA task: normal numbers in bfloat16, 1e-1 and 1e-1, and 5 of 100 elements may miss."""
    for seed, length in enumerate((1024, 8192)):
        operands = drawn(seed, ((2, 4, 4, 64), (2, 4, length, 64), (2, 4, length, 64)), "normal", "bfloat16")
        got, right = answered(function, operands), reference(operands)
        if got is None or not np.isfinite(got).all():
            return False
        if (np.abs(got - right) > 0.1 + 0.1 * np.abs(right)).mean() > 0.05:
            return False
    return True


def backend_bench(function: Function) -> bool:
    """Many small shapes, normal numbers in three dtypes, 1e-2 and 1e-2, NaN equal to NaN."""
    for seed, (length, keys, width) in enumerate(((3, 3, 8), (4, 6, 8), (16, 16, 16), (32, 48, 64))):
        for dtype in ("float32", "float16", "bfloat16"):
            operands = drawn(
                seed, ((2, 4, length, width), (2, 4, keys, width), (2, 4, keys, width)), "normal", dtype
            )
            got = answered(function, operands)
            if got is None or not np.allclose(got, reference(operands), 1e-2, 1e-2, equal_nan=True):
                return False
    return True


RULES: Mapping[str, Rule] = {
    "KernelBench": kernelbench,
    "robust-kbench": robust_kbench,
    "FlashInfer-Bench": flashinfer_bench,
    "gpu-mode": gpu_mode,
    "BackendBench": backend_bench,
}
