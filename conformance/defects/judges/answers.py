"""Answers to the judge whose verdicts are known: right ones, and one for each way of being wrong."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.vectors.case import Array, Bound, Case, Golden, Signature

NAN, INF = np.nan, np.inf
EXACT = np.arange(1.0, 13.0).reshape(1, 3, 4) / 4
"""float32 represents every element."""


def golden(exact: Array = EXACT, worst: Any = 1e-3, rms: Any = 1e-3, **fields: Any) -> Golden:
    """A golden value with bounds of one size; those of `fused` are half as wide."""
    hi = np.asarray(exact, np.float64)
    bound = Bound(np.broadcast_to(worst, hi.shape), np.broadcast_to(rms, hi.shape))
    halved = Bound(bound.worst / 2, bound.rms / 2)
    made = {
        "shape": hi.shape,
        "rows": None,
        "hi": hi,
        "lo": np.zeros_like(hi),
        "rms_applies": False,
        "bounds": {
            "float32": {"eager": bound, "fused": halved, "tf32": bound},
            "float16": {"eager": bound, "fused": halved},
            "float64": {"eager": bound, "fused": halved},
        },
    }
    return Golden(**{**made, **fields})


def case(**fields: Any) -> Case:
    """A case that expects EXACT."""
    made: dict[str, Any] = {
        "id": "a/b",
        "note": "",
        "operation": "scaled_dot_product_attention",
        "covers": ("ATT-1", "SHAPE-5"),
        "features": (),
        "dtypes": ("float32", "float16", "float64"),
        "excluded": {},
        "options": {},
        "inputs": {},
        "expected": {"output": golden()},
    }
    return Case(**{**made, **fields})


def off(
    change: float, index: tuple[int, ...] = (0, 1, 3), exact: Array = EXACT, dtype: str = "float32"
) -> Array:
    """EXACT, but for one element."""
    array = np.array(exact, dtype)
    array[index] = array[index] + change
    return array


def noisy(relative: float, size: int) -> Array:
    """Errors of one size and alternating sign: no element is out, their RMS may be."""
    exact = np.ones((1, size, 1))
    return (exact + relative * 1e-3 * np.where(np.arange(size) % 2, 1, -1)[:, None]).astype(np.float32)


def alike(*shape: int) -> Case:
    """A case of ones that rule 2 is asked of."""
    return case(expected={"output": golden(np.ones(shape), worst=1.0, rms_applies=True)})


STEP = np.linspace(1.0, 2.0, 12).reshape(1, 3, 4)
MARKED = case(
    expected={
        "output": golden(
            np.where(EXACT == 3.0, NAN, EXACT),
            worst=1e-2,
            rms=STEP * 1e-3,
            signatures={"scale": Signature(STEP * EXACT, {"float32": {"eager": 2e-4, "fused": 1e-4}})},
        )
    }
)


def moved(delta: float, along: Array = STEP * EXACT) -> Mapping[str, Array]:
    """Errors that fit a signature, or any others."""
    return {"output": (MARKED.expected["output"].hi + delta * along).astype(np.float32)}


ROWS = golden(EXACT[:, [0, 2]], shape=(1, 3, 4), rows=(0, 2))
LSE = {
    "output": golden(),
    "lse": golden(EXACT[..., 0], shape=(1, 3)),
}
ASKED_LSE = case(expected=LSE, options={"return_lse": True})
HOLED = golden(np.where(EXACT == 2.0, NAN, np.where(EXACT == 1.0, -INF, EXACT)))
TINY = 2.0**-60
GRADIENT = case(
    operation="scaled_dot_product_attention_vjp",
    expected={name: golden() for name in ("query", "key", "attn_bias")},
    dtype_of={"attn_bias": "float32"},
)


ONE_TOKEN = case(
    operation="multi_head_attention_vjp",
    expected={
        "query": golden(np.ones((1, 30))),
        "w_q": golden(np.ones((4, 30, 2)), worst=1.0, rms_applies=True),
    },
)


def of_weights(relative: float) -> Mapping[str, Array]:
    """The answer that ONE_TOKEN expects, the gradient of the weights off by so many of its RMS error."""
    return {"query": np.ones((1, 30), np.float32), "w_q": noisy(relative, 240).reshape(4, 30, 2)}


def gradients(**changed: Array) -> Mapping[str, Array]:
    """The answer that GRADIENT expects at float16, but for some of it."""
    return {"query": off(0, dtype="float16"), "key": off(0, dtype="float16"), "attn_bias": off(0), **changed}


ZEROS = np.array([0.0, -0.0, 1.0])
COPIED = case(expected={"key_pages": golden(ZEROS, 0.0, 0.0), "value_pages": golden(ZEROS, 0.0, 0.0)})
"""A case whose results are copied."""


def copied(keys: Array, values: Array) -> Mapping[str, Array]:
    """The answer of pages."""
    return {"key_pages": keys.astype(np.float32), "value_pages": values.astype(np.float32)}


NAN_ROW = case(
    inputs={
        "query": np.array([[[NAN], [0.0]]], np.float32), "key": np.ones((1, 3, 1), np.float32),
        "value": np.zeros((1, 3, 1), np.float32), "mask": np.array([[True, False, True], [True, False, True]]),
    },
    options={"return_weights": True},
    expected={"weights": golden(np.array([[[NAN, NAN, NAN], [0.5, 0.0, 0.5]]]))},
)  # fmt: skip
"""A case of two rows of weights, the first of which is NaN; the key in the middle is masked."""


def of_rows(first: tuple[float, float, float], second: tuple[float, float, float] = (0.5, 0.0, 0.5)) -> Any:
    """The answer of NAN_ROW."""
    return {"weights": np.array([[first, second]], np.float32)}


# what it shows: (case, dtype, policy, outputs, the verdict it deserves)
TABLE: dict[str, tuple[Case, str, str, Mapping[str, Array], str]] = {
    "exact": (case(), "float32", "eager", {"output": off(0)}, "pass"),
    "just within W": (case(), "float32", "eager", {"output": off(0.9e-3)}, "pass"),
    "just beyond W": (case(), "float32", "eager", {"output": off(1.1e-3)}, "fail"),
    "beyond W below": (case(), "float32", "eager", {"output": off(-1.1e-3)}, "fail"),
    "beyond 6 s": (case(expected={"output": golden(worst=1e-1)}), "float32", "eager", {"output": off(7e-3)},
        "fail"),
    "within 6 s": (case(expected={"output": golden(worst=1e-1)}), "float32", "eager", {"output": off(5e-3)},
        "pass"),
    "s of 0 leaves W": (case(expected={"output": golden(rms=0.0)}), "float32", "eager",
        {"output": off(0.9e-3)}, "pass"),
    "W of 0 is exact": (case(expected={"output": golden(worst=0.0, rms=0.0)}), "float32", "eager",
        {"output": off(1e-6)}, "fail"),
    "W of 0 met": (case(expected={"output": golden(worst=0.0, rms=0.0)}), "float32", "eager",
        {"output": off(0)}, "pass"),
    "lo counts": (case(expected={"output": golden(worst=TINY, rms=0.0, lo=np.full(EXACT.shape, 2.0**-58))}),
        "float64", "eager", {"output": np.array(EXACT)}, "fail"),
    "NaN bound lets nothing pass": (case(expected={"output": golden(worst=NAN)}), "float32", "eager",
        {"output": off(0)}, "fail"),
    "NaN in the answer": (case(), "float32", "eager", {"output": off(NAN)}, "fail"),
    "infinite answer": (case(), "float32", "eager", {"output": off(INF)}, "fail"),
    "NaN and -inf where wanted": (case(expected={"output": HOLED}), "float32", "eager",
        {"output": HOLED.hi.astype(np.float32)}, "pass"),
    "-inf for NaN": (case(expected={"output": HOLED}), "float32", "eager",
        {"output": np.where(np.isnan(HOLED.hi), -INF, HOLED.hi).astype(np.float32)}, "fail"),
    "inf for -inf": (case(expected={"output": HOLED}), "float32", "eager",
        {"output": np.where(np.isinf(HOLED.hi), INF, HOLED.hi).astype(np.float32)}, "fail"),
    "zero for NaN": (case(expected={"output": HOLED}), "float32", "eager",
        {"output": np.nan_to_num(HOLED.hi, neginf=-INF).astype(np.float32)}, "fail"),
    "a number at the masked key of a NaN row": (NAN_ROW, "float32", "eager", of_rows((NAN, 5.0, NAN)), "pass"),
    "a number at a visible key of a NaN row": (NAN_ROW, "float32", "eager", of_rows((NAN, NAN, 5.0)), "fail"),
    "NaN at the masked key of another row": (NAN_ROW, "float32", "eager",
        of_rows((NAN, 0.0, NAN), (0.5, NAN, 0.5)), "fail"),
    "signs of zeros that are copied": (COPIED, "float32", "eager", copied(ZEROS, ZEROS), "pass"),
    "another sign of a zero that is copied": (COPIED, "float32", "eager", copied(ZEROS, np.abs(ZEROS)),
        "fail"),
    "another sign of a zero that is computed": (case(expected={"output": golden(ZEROS)}), "float32", "eager",
        {"output": -ZEROS.astype(np.float32) * np.array([1, 1, -1], np.float32)}, "pass"),
    "nothing returned": (case(), "float32", "eager", {}, "fail"),
    "lse missing": (ASKED_LSE, "float32", "eager", {"output": off(0)}, "fail"),
    "lse unasked": (case(), "float32", "eager", {"output": off(0), "lse": off(0)[..., 0]}, "fail"),
    "lse wrong": (ASKED_LSE, "float32", "eager", {"output": off(0), "lse": off(0)[..., 1]}, "fail"),
    "an axis too many": (case(), "float32", "eager", {"output": off(0)[None]}, "fail"),
    "transposed": (case(), "float32", "eager", {"output": off(0).swapaxes(-1, -2)}, "fail"),
    "float64 for float32": (case(), "float32", "eager", {"output": off(0, dtype="float64")}, "fail"),
    "lse in float32 for float16": (ASKED_LSE, "float16", "eager",
        {"output": off(0, dtype="float16"), "lse": off(0)[..., 0]}, "pass"),
    "lse in float16 for float16": (ASKED_LSE, "float16", "eager",
        {"output": off(0, dtype="float16"), "lse": off(0, dtype="float16")[..., 0]}, "pass"),
    "lse in float64 for float16": (ASKED_LSE, "float16", "eager",
        {"output": off(0, dtype="float16"), "lse": off(0, dtype="float64")[..., 0]}, "fail"),
    "lse in float32 for float64": (ASKED_LSE, "float64", "eager",
        {"output": np.array(EXACT), "lse": off(0)[..., 0]}, "fail"),
    "output in float32 for float16": (case(), "float16", "eager", {"output": off(0)}, "fail"),
    "held rows right": (case(expected={"output": ROWS}), "float32", "eager", {"output": off(9.0, (0, 1, 3))},
        "pass"),
    "a held row wrong": (case(expected={"output": ROWS}), "float32", "eager", {"output": off(9.0, (0, 2, 3))},
        "fail"),
    "fused bound holds under fused": (case(), "float32", "fused", {"output": off(0.9e-3)}, "fail"),
    "tf32 concerns float32 alone": (case(), "float16", "tf32", {"output": off(0, dtype="float16")}, "pass"),
    "RMS of many": (alike(1, 100, 1), "float32", "eager", {"output": noisy(1.3, 100)}, "fail"),
    "RMS of many in sixteen rows": (alike(2, 8, 8), "float32", "eager",
        {"output": noisy(1.3, 128).reshape(2, 8, 8)}, "fail"),
    "RMS of many in fifteen rows": (alike(3, 5, 8), "float32", "eager",
        {"output": noisy(1.9, 120).reshape(3, 5, 8)}, "pass"),
    "RMS of many in fifteen rows broken": (alike(3, 5, 8), "float32", "eager",
        {"output": noisy(2.1, 120).reshape(3, 5, 8)}, "fail"),
    "RMS of many in three rows": (alike(1, 3, 40), "float32", "eager",
        {"output": noisy(2.4, 120).reshape(1, 3, 40)}, "pass"),
    "RMS of many in three rows broken": (alike(1, 3, 40), "float32", "eager",
        {"output": noisy(2.6, 120).reshape(1, 3, 40)}, "fail"),
    "RMS of a sum over one token": (ONE_TOKEN, "float32", "eager", of_weights(1.9), "pass"),
    "RMS of a sum over one token broken": (ONE_TOKEN, "float32", "eager", of_weights(2.1), "fail"),
    "RMS of many met": (alike(1, 100, 1), "float32", "eager", {"output": noisy(1.2, 100)}, "pass"),
    "RMS of some": (alike(1, 99, 1), "float32", "eager", {"output": noisy(1.9, 99)}, "pass"),
    "RMS of some broken": (alike(1, 99, 1), "float32", "eager", {"output": noisy(2.1, 99)}, "fail"),
    "RMS of few": (alike(1, 7, 1), "float32", "eager", {"output": noisy(4.0, 7)}, "pass"),
    "RMS not to be asked": (case(expected={"output": golden(np.ones((1, 100, 1)), worst=1.0)}), "float32",
        "eager", {"output": noisy(4.0, 100)}, "pass"),
    "RMS counts scored elements": (case(expected={"output": golden(np.ones((1, 200, 1)), worst=1.0,
                    rms=np.where(np.arange(200) < 50, 1e-3, 0)[:, None], rms_applies=True)}), "float32",
        "eager", {"output": noisy(1.9, 200)}, "pass"),
    "RMS of a reduced policy": (alike(1, 100, 1), "float32", "tf32", {"output": noisy(1.9, 100)}, "pass"),
    "along a signature": (MARKED, "float32", "eager", moved(2.2e-4), "fail"),
    "against a signature": (MARKED, "float32", "eager", moved(-2.2e-4), "fail"),
    "little along a signature": (MARKED, "float32", "eager", moved(1.8e-4), "pass"),
    "across a signature": (MARKED, "float32", "eager", moved(2.2e-4, np.where(np.arange(4) % 2, 1, -1)), "pass"),
    "the signature of a policy": (MARKED, "float32", "fused", moved(1.2e-4), "fail"),
    "no signature of a policy": (MARKED, "float32", "tf32", moved(2.2e-4), "pass"),
    "no signature of a dtype": (MARKED, "float16", "eager",
        {"output": moved(2.2e-4)["output"].astype(np.float16)}, "pass"),
    "a gradient right": (GRADIENT, "float16", "eager", gradients(), "pass"),
    "a gradient wrong": (GRADIENT, "float16", "eager", gradients(key=off(1.0, dtype="float16")), "fail"),
    "a gradient missing": (GRADIENT, "float16", "eager", {"query": off(0, dtype="float16")}, "fail"),
    "a gradient unasked": (GRADIENT, "float16", "eager", gradients(value=off(0, dtype="float16")), "fail"),
    "an output beside gradients": (GRADIENT, "float16", "eager", gradients(output=off(0, dtype="float16")), "fail"),
    "a gradient of another dtype than its bias": (GRADIENT, "float16", "eager",
        gradients(attn_bias=off(0, dtype="float16")), "fail"),
    "a gradient of another dtype than its operand": (GRADIENT, "float16", "eager", gradients(key=off(0)), "fail"),
    "did not raise": (case(raises=True, expected={}), "float32", "eager", {"output": off(0)}, "fail"),
    "no element": (case(expected={"output": golden(np.zeros((0, 3, 4)))}), "float32", "eager",
        {"output": np.zeros((0, 3, 4), np.float32)}, "pass"),
}  # fmt: skip
