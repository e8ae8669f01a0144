"""How a result lies: which of its axes are of batch entries, heads, queries, keys and channels, and what is visible."""

from functools import cached_property
from typing import Any

import numpy as np

from conformance.defects.call import Call
from conformance.defects.reference import REFERENCE
from conformance.defects.visibility import visibility
from conformance.diagnosis.posed import call_of
from conformance.vectors.case import Array, Case, query_axis

AXES = {
    "output": "BHqd", "weights": "BHqk", "lse": "BHq", "query": "BHqd", "key": "BGnd", "value": "BGnd",
    "attn_bias": "BHqk", "sinks": "H", "w_q": "H--", "w_o": "H--", "b_q": "H-", "w_k": "G--", "w_v": "G--",
    "b_k": "G-", "b_v": "G-", "present_key": "BGkd", "present_value": "BGkd",
}  # fmt: skip
"""B batch entries, H query heads, G key heads, q queries, k keys, n keys that are not of the past, d channels."""
IN_LAYER = {"output": "Bqd", "query": "Bqd", "key": "Bnd", "value": "Bnd"}
"""The same in a layer, whose inputs and output have no heads."""


class Laid:
    """A result of a call whose arguments are right in themselves.

    Args:
        case: the call, of attention or of a layer.
        name: of the result.
        shape: of it, with the rows that are held.
        rows: those that are held of the axis of rows, of queries or of keys; None: all of them.
    """

    def __init__(self, case: Case, name: str, shape: tuple[int, ...], rows: tuple[int, ...] | None) -> None:
        self._case, self.shape = case, shape
        axes = (IN_LAYER if "w_q" in case.shapes else {}).get(name) or AXES.get(name, "")
        if len(axes) < len(shape):  # several batch axes
            axes = axes[:1] * (len(shape) - len(axes)) + axes if axes[:1] == "B" else "-" * len(shape)
        self.axes = axes[len(axes) - len(shape) :]
        sampled = self.axes[query_axis(name, len(shape))] if rows is not None else ""
        self._held = {sampled: list(rows or ())}

    @cached_property
    def call(self) -> Call:
        """What it was given, at a dtype that holds it."""
        case = self._case
        return call_of(case.operation, case.operands(case.dtypes[0]), case.options)

    @cached_property
    def visible(self) -> Any:
        """Whether any query of a row of the result sees a key, [B..., heads of the result or 1, q_len, kv_len]."""
        c = self.call
        seen = visibility(REFERENCE, c)
        if "G" in self.axes:
            shape = (*seen.shape[:-3], c.kv_heads, c.heads // c.kv_heads, c.q_len, c.kv_len)
            return seen.reshape(shape).any(-3)
        return seen if "H" in self.axes else seen.any(-3, keepdims=True)

    def length(self, axis: str) -> int:
        """How long an axis is in the call.

        Raises:
            ValueError: the result has no such axis, or it is summed over it.
        """
        c = self.call
        whole = {"B": int(np.prod(c.batch)), "H": c.heads, "G": c.kv_heads, "q": c.q_len, "k": c.kv_len}
        whole |= {"n": c.kv_len - c.past, "d": self.shape[-1] if self.shape else 0}
        at = self.axes.rfind(axis)
        held = len(self._held.get(axis, range(whole[axis])))
        entries = self.shape[: at + 1] if axis == "B" else self.shape[at : at + 1]
        if at < 0 or int(np.prod(entries)) != held:
            raise ValueError(f"no axis {axis}")
        return whole[axis]

    def along(self, axis: str, values: Any) -> Array:
        """Values of an axis (n,), or of batch entries and heads as well, broadcastable to the result.

        Raises:
            ValueError: the result has no such axis, or it is summed over it.
        """
        self.length(axis)
        at = self.axes.rfind(axis)
        if axis == "B":
            by_entry: Array = values.reshape(*self.call.batch, *(1 for _ in self.axes[at + 1 :]))
            return by_entry
        if axis in self._held:
            values = values[..., self._held[axis]]
        if values.ndim > 1 and "H" not in self.axes and "G" not in self.axes:
            values = values.any(-2)  # a layer's, of which only one is left
        if values.ndim > 1 and axis == "k" and self.axes[at - 1] == "q":
            values = values[..., None, :]
        for number in range(-1, -values.ndim - 1, -1):  # a bias may be shared by entries or heads
            size = self.shape[at + 1 + number] if at + 1 + number >= 0 else 1
            if size == 1:
                values = values.any(number, keepdims=True)
        values = values.reshape(values.shape[max(values.ndim - at - 1, 0) :])
        found: Array = values.reshape(*values.shape, *(1 for _ in self.axes[at + 1 :]))
        return found
