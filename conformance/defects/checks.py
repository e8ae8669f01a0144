"""What the reference refuses, one check a line (spec/errors.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.dtypes import dtype_name
from conformance.names import DTYPES, OPERANDS


@dataclass(frozen=True)
class Check:
    """One thing that may be wrong with a call; those before it in the list have passed."""

    name: str
    requirement: str
    wrong: Callable[[Any], bool]  # of a Call
    error: type[Exception] = ValueError

    def __call__(self, call: Any) -> None:
        """Refuses the call.

        Raises:
            ValueError, TypeError: it is wrong.
        """
        if self.wrong(call):
            raise self.error(f"{self.name} ({self.requirement})")


def _given(c: Any) -> list[Any]:
    return [getattr(c, name) for name in OPERANDS if getattr(c, name) is not None]


def _is(x: Any, *shape: int) -> bool:
    return x is None or tuple(x.shape) == shape


def _fits(c: Any, x: Any) -> bool:
    """Whether a mask or bias broadcasts to the logits, axis by axis."""
    wanted = c.logits_shape[-x.ndim :]
    return all(axis in (1, want) for axis, want in zip(x.shape, wanted, strict=True))


def _numbers(c: Any, x: Any, length: int) -> bool:
    """Whether it is one number a token, for each batch entry or for all."""
    return _is(x, length) or _is(x, *c.batch, length)


def _integer(x: Any) -> bool:
    return isinstance(x, int | np.integer) and not isinstance(x, bool)


def _integer_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "i"


def _real(x: Any) -> bool:
    return (
        isinstance(x, float | int | np.floating | np.integer)
        and not isinstance(x, bool)
        and bool(np.isfinite(x))
    )


def _array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim > 0


CHECKS = (
    Check("operands of two dtypes", "DTYPE-2", lambda c: len({x.dtype for x in _given(c)}) > 1, TypeError),
    Check("rank", "SHAPE-11", lambda c: c.query.ndim < (2 if c.layer else 3)),
    Check("ranks differ", "SHAPE-11", lambda c: not c.query.ndim == c.key.ndim == c.value.ndim),
    Check(
        "batch",
        "SHAPE-5",
        lambda c: not c.batch == c.key.shape[: len(c.batch)] == c.value.shape[: len(c.batch)],
    ),
    Check("value length", "SHAPE-5", lambda c: c.key.shape[-2] != c.value.shape[-2]),
    Check("value heads", "SHAPE-5", lambda c: not c.layer and c.key.shape[-3] != c.value.shape[-3]),
    Check("key width", "SHAPE-5", lambda c: not c.layer and c.key.shape[-1] != c.d_k),
    Check("w_q", "PROJ-6", lambda c: c.layer and not _is(c.w_q, c.heads, c.query.shape[-1], c.d_k)),
    Check("w_k", "PROJ-6", lambda c: c.layer and not _is(c.w_k, c.kv_heads, c.key.shape[-1], c.d_k)),
    Check("w_v", "PROJ-6", lambda c: c.layer and not _is(c.w_v, c.kv_heads, c.value.shape[-1], c.d_v)),
    Check("w_o", "PROJ-6", lambda c: c.layer and not _is(c.w_o, c.heads, c.d_v, c.w_o.shape[-1])),
    Check("b_q", "PROJ-6", lambda c: not _is(c.b_q, c.heads, c.d_k)),
    Check("b_k", "PROJ-6", lambda c: not _is(c.b_k, c.kv_heads, c.d_k)),
    Check("b_v", "PROJ-6", lambda c: not _is(c.b_v, c.kv_heads, c.d_v)),
    Check("b_o", "PROJ-6", lambda c: c.b_o is not None and not _is(c.b_o, c.w_o.shape[-1])),
    Check("no heads", "SHAPE-6", lambda c: c.heads == 0 or c.kv_heads == 0),
    Check("d_k of zero", "SHAPE-6", lambda c: c.d_k == 0),
    Check("d_v of zero", "SHAPE-6", lambda c: c.d_v == 0),
    Check("groups", "HEAD-3", lambda c: c.heads % c.kv_heads != 0),
    Check(
        "grad_output dtype",
        "GRAD-14",
        lambda c: c.grad_output is not None and c.grad_output.dtype != c.dtype,
        TypeError,
    ),
    Check(
        "grad_output shape",
        "GRAD-14",
        lambda c: c.grad_output is not None and c.grad_output.shape != c.output_shape,
    ),
    Check(
        "grad_lse without gradients",
        "GRAD-14",
        lambda c: c.grad_lse is not None and c.grad_output is None,
    ),
    Check(
        "grad_lse dtype",
        "GRAD-14",
        lambda c: c.grad_lse is not None and c.grad_lse.dtype not in (c.dtype, np.dtype(c.wide)),
        TypeError,
    ),
    Check("grad_lse shape", "GRAD-14", lambda c: not _is(c.grad_lse, *c.logits_shape[:-1])),
    Check("half a past", "CACHE-5", lambda c: (c.past_key is None) != (c.past_value is None)),
    Check("past", "SHAPE-5", lambda c: not _is(c.past_key, *c.batch, c.kv_heads, c.past, c.d_k)),
    Check("past values", "SHAPE-5", lambda c: not _is(c.past_value, *c.batch, c.kv_heads, c.past, c.d_v)),
    Check("mask dtype", "DTYPE-4", lambda c: c.mask is not None and c.mask.dtype != np.bool_, TypeError),
    Check("mask rank", "SHAPE-7", lambda c: c.mask is not None and c.mask.ndim not in (2, len(c.batch) + 3)),
    Check("mask shape", "SHAPE-11", lambda c: c.mask is not None and not _fits(c, c.mask)),
    Check(
        "bias dtype",
        "DTYPE-5",
        lambda c: c.attn_bias is not None and dtype_name(c.attn_bias.dtype) not in DTYPES,
        TypeError,
    ),
    Check(
        "bias rank",
        "SHAPE-7",
        lambda c: c.attn_bias is not None and c.attn_bias.ndim not in (2, len(c.batch) + 3),
    ),
    Check("bias shape", "SHAPE-11", lambda c: c.attn_bias is not None and not _fits(c, c.attn_bias)),
    Check("sinks", "SHAPE-11", lambda c: not _is(c.sinks, c.heads)),
    Check(
        "lengths dtype",
        "DTYPE-7",
        lambda c: c.kv_lengths is not None and c.kv_lengths.dtype.kind not in "iu",
        TypeError,
    ),
    Check("lengths", "SHAPE-11", lambda c: not _is(c.kv_lengths, *c.batch)),
    Check("half of the segments", "MASK-17", lambda c: (c.q_segments is None) != (c.kv_segments is None)),
    Check(
        "segments dtype",
        "DTYPE-7",
        lambda c: any(x is not None and x.dtype.kind not in "iu" for x in (c.q_segments, c.kv_segments)),
        TypeError,
    ),
    Check(
        "segments",
        "SHAPE-11",
        lambda c: not (_numbers(c, c.q_segments, c.q_len) and _numbers(c, c.kv_segments, c.kv_len)),
    ),
    Check(
        "offsets dtype",
        "DTYPE-7",
        lambda c: _array(c.q_offset) and c.q_offset.dtype.kind not in "iu",
        TypeError,
    ),
    Check("offsets", "SHAPE-11", lambda c: _array(c.q_offset) and not _is(c.q_offset, *c.batch)),
    Check(
        "offset kind",
        "SHAPE-10",
        lambda c: (
            not (
                c.q_offset is None or _array(c.q_offset) or _integer(c.q_offset) or _integer_array(c.q_offset)
            )
        ),
    ),
    Check(
        "flags",
        "SHAPE-10",
        lambda c: (
            not all(isinstance(x, bool | np.bool_) for x in (c.is_causal, c.return_weights, c.return_lse))
        ),
    ),
    Check("scale", "SHAPE-10", lambda c: c.scale is not None and not _real(c.scale)),
    Check("softcap kind", "SHAPE-10", lambda c: c.softcap is not None and not _real(c.softcap)),
    Check("softcap of zero", "SHAPE-10", lambda c: c.softcap == 0),
    Check("negative softcap", "SHAPE-10", lambda c: c.softcap is not None and c.softcap < 0),
    Check("window of two", "SHAPE-10", lambda c: c.window is not None and len(c.window) != 2),
    Check(
        "window kind",
        "SHAPE-10",
        lambda c: c.window is not None and any(x is not None and not _integer(x) for x in c.window),
    ),
    Check(
        "negative window",
        "SHAPE-10",
        lambda c: c.window is not None and any(x is not None and x < 0 for x in c.window),
    ),
    Check(
        "causal without offset",
        "MASK-7",
        lambda c: c.is_causal and c.q_offset is None and c.q_len != c.kv_len,
    ),
    Check(
        "window without offset",
        "MASK-7",
        lambda c: c.window is not None and c.q_offset is None and c.q_len != c.kv_len,
    ),
)


def without(*names: str) -> tuple[Check, ...]:
    """Every check but those."""
    unknown = set(names) - {check.name for check in CHECKS}
    if unknown:
        raise ValueError(f"no check is called {unknown}")
    return tuple(check for check in CHECKS if check.name not in names)
