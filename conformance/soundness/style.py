"""One correct way to compute attention, as a record."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from conformance.defects.call import Call
from conformance.soundness.perturbed_functions import Off, elementary
from conformance.soundness.sums import PRODUCTS, Product, fewer_bits
from conformance.vectors.case import Array


@dataclass(frozen=True)
class Style:
    """How sums are ordered, where roundings happen and how the softmax is arranged."""

    name: str
    policy: str  # what it may be held to
    logits: str = "matmul"  # one of PRODUCTS
    average: str = "matmul"
    softmax: str = "plain"  # one of SOFTMAXES
    scaled: Literal["product", "query", "both"] = "product"
    reciprocal: bool = False  # multiplies by the reciprocal of the denominator
    block: int = 7  # keys at a time, where the softmax goes in blocks
    operand: tuple[int, bool] | None = None  # bits of a float32 matmul operand, and whether it is truncated
    float64: bool = False  # everything in float64, whatever the call's dtype
    off: Off = ""  # how far exp, log and tanh are off
    delta: Literal["products", "output"] = "products"  # what Delta is made of, in a gradient
    again: bool = False  # the weights of a gradient are computed once more from the lse
    heads: bool = False  # each head's gradient is stored before a group is summed
    apart: bool = False  # P dP - P Delta in place of P (dP - Delta)

    @property
    def eager(self) -> bool:
        """Whether every tensor is stored in the dtype of the call."""
        return self.policy != "fused"


@dataclass(frozen=True)
class Roundings:
    """What a style rounds in one call."""

    style: Style
    call: Call

    @property
    def wide(self) -> type:
        """What is computed in."""
        return np.float64 if self.style.float64 else self.call.wide

    def narrow(self, x: Array) -> Array:
        """Stored in the dtype of the call whatever the style: the weights, before they meet the values."""
        return x.astype(self.call.dtype).astype(self.wide)

    def store(self, x: Array) -> Array:
        """An intermediate result: stored in the dtype of the call where everything is."""
        return self.narrow(x) if self.style.eager else x

    def operand(self, x: Array) -> Array:
        """An operand of a matrix product."""
        cut = self.style.operand
        return x if cut is None or self.call.dtype != np.float32 else fewer_bits(x, *cut)

    def function(self, name: str, x: Any) -> Any:
        """exp, exp2, log or tanh."""
        return elementary(name, x, self.style.off)

    def product(self, order: str, a: Array, b: Array) -> Array:
        """A matrix product in one order of summation."""
        chosen: Product = PRODUCTS[order]
        return chosen(self.operand(a), self.operand(b))
