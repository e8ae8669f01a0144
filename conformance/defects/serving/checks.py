"""What an operation on packed, paged, latent or partial operands refuses itself; attention refuses the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conformance.defects.checks import Check
from conformance.defects.serving.call import Served
from conformance.names import APPEND, LATENT, MERGE, PACKED, PAGED, SERVING_OPERANDS

INTEGERS = ("q_starts", "kv_starts", "page_table", "kv_lengths", "slots")


def _given(c: Served, *names: str) -> list[Any]:
    return [getattr(c, name) for name in names if getattr(c, name) is not None]


def _of(*operations: str) -> Callable[[Callable[[Any], bool]], Callable[[Any], bool]]:
    """A test of the calls of some operations only."""
    return lambda test: lambda c: c.operation in operations and bool(test(c))


def _starts_of(c: Served) -> list[tuple[Any, int]]:
    return [(c.q_starts, c.query.shape[-2]), (c.kv_starts, c.key.shape[-2])]


def _operands(c: Served) -> list[Any]:
    """Every array that shares the dtype of the call."""
    found = _given(c, "query", "key", "value", "sinks", *SERVING_OPERANDS)
    return [x for x in found if not isinstance(x, (list, tuple))] + (
        [*c.outputs] if isinstance(c.outputs, (list, tuple)) else []
    )


def _lse_dtype(c: Served) -> Any:
    return np.dtype(np.float64 if c.first.dtype == np.float64 else np.float32)


def _used(c: Served) -> Any:
    """The entries of the table that are within the lengths."""
    within = np.arange(c.page_table.shape[1]) < -(-c.kv_lengths[:, None] // c.page)
    return c.page_table[within]


def _writes(c: Served) -> Sequence[Any]:
    return _given(c, "new_key", "new_value", "slots")


packed, paged, latent, merged = _of(PACKED), _of(PAGED), _of(LATENT), _of(MERGE)
with_pages = _of(PAGED, APPEND)


def writing(c: Served) -> bool:
    """Whether a call writes to slots."""
    return c.pages and c.slots is not None


SERVING_CHECKS: tuple[Check, ...] = (
    Check("no partial result", "MERGE-6", merged(lambda c: len(c.outputs) == 0 or len(c.lses) == 0)),
    Check("integers of another kind", "DTYPE-7",
          lambda c: any(x.dtype not in (np.int32, np.int64) for x in _given(c, *INTEGERS)), TypeError),
    Check("operands of two dtypes", "DTYPE-2", lambda c: len({x.dtype for x in _operands(c)}) > 1, TypeError),
    Check("packed rank", "PACK-6", packed(lambda c: not c.query.ndim == c.key.ndim == c.value.ndim == 3)),
    Check("starts rank", "PACK-6",
          packed(lambda c: any(s.ndim != 1 or s.size == 0 for s, _ in _starts_of(c)))),
    Check("starts of two lengths", "PACK-6", packed(lambda c: c.q_starts.shape != c.kv_starts.shape)),
    Check("first start", "PACK-6", packed(lambda c: any(s[0] != 0 for s, _ in _starts_of(c)))),
    Check("falling starts", "PACK-6",
          packed(lambda c: any((np.diff(s) < 0).any() for s, _ in _starts_of(c)))),
    Check("last start", "PACK-6", packed(lambda c: any(s[-1] > length for s, length in _starts_of(c)))),
    Check("options of one length", "PACK-7",
          packed(lambda c: bool(_given(c, "mask", "attn_bias", "kv_lengths")))),
    Check("offsets of parts", "PACK-3",
          packed(lambda c: np.ndim(c.q_offset) > 0 and c.q_offset.shape != (c.parts,))),
    Check("pages rank", "PAGE-6", with_pages(lambda c: c.key_pages.ndim != 4 or c.value_pages.ndim != 4)),
    Check("pages of two shapes", "PAGE-6",
          with_pages(lambda c: c.key_pages.shape[:3] != c.value_pages.shape[:3])),
    Check("empty pages", "PAGE-6", with_pages(lambda c: 0 in c.key_pages.shape[1:])),
    Check("table shape", "PAGE-6",
          paged(lambda c: c.query.ndim != 4 or c.page_table.ndim != 2 or len(c.page_table) != len(c.query))),
    Check("page lengths shape", "PAGE-6", paged(lambda c: c.kv_lengths.shape != c.page_table.shape[:1])),
    Check("length beyond the table", "PAGE-6",
          paged(lambda c: (c.kv_lengths > c.page_table.shape[1] * c.page).any())),
    Check("page out of range", "PAGE-6",
          paged(lambda c: ((_used(c) < 0) | (_used(c) >= c.key_pages.shape[0])).any())),
    Check("paged without offset", "PAGE-5",
          paged(lambda c: (c.is_causal or c.window is not None) and c.q_offset is None)),
    Check("half a write", "PAGE-11", paged(lambda c: len(_writes(c)) in (1, 2))),
    Check(
        "new shapes",
        "PAGE-11",
        lambda c: (
            writing(c)
            and not (
                c.slots.ndim == 1
                and c.new_key.shape == (c.slots.size, *c.key_pages.shape[2:])
                and c.new_value.shape == (c.slots.size, *c.value_pages.shape[2:])
            )
        ),
    ),
    Check("slot out of range", "PAGE-11",
          lambda c: writing(c) and bool(((c.slots < -1) | (c.slots >= c.cells)).any())),
    Check("slots that are equal", "PAGE-11",
          lambda c: writing(c) and len(np.unique(c.slots[c.slots != -1])) < (c.slots != -1).sum()),
    Check("value_dim", "LAT-3",
          latent(lambda c: not isinstance(c.value_dim, int) or isinstance(c.value_dim, bool)
                     or not 1 <= c.value_dim <= c.latent.shape[-1])),
    Check("no scale", "LAT-3", latent(lambda c: c.scale is None)),
    Check("latent rank", "SHAPE-11", latent(lambda c: c.latent.ndim != c.query.ndim - 1)),
    Check("as many lses", "MERGE-6", merged(lambda c: len(c.outputs) != len(c.lses))),
    Check("partial shapes", "MERGE-6",
          merged(lambda c: len({x.shape for x in c.outputs}) > 1
                     or any(x.shape != c.outputs[0].shape[:-1] for x in c.lses) or c.outputs[0].ndim < 3)),
    Check("lse dtype", "MERGE-2", merged(lambda c: any(x.dtype != _lse_dtype(c) for x in c.lses)), TypeError),
    Check("merged sinks", "MERGE-6",
          merged(lambda c: c.sinks is not None and c.sinks.shape != c.outputs[0].shape[-3:-2])),
)  # fmt: skip
"""One check a line; those before it in the list have passed."""


def without(*names: str) -> tuple[Check, ...]:
    """Every check but those."""
    unknown = set(names) - {check.name for check in SERVING_CHECKS}
    if unknown:
        raise ValueError(f"no check is called {unknown}")
    return tuple(check for check in SERVING_CHECKS if check.name not in names)
