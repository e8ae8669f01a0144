"""The derivative of torch's fused kernel, recorded where it is the specification's.

The kernel's own derivative is taken where output, its gradient and the gradients of the operands are finite (GRAD-9).
It has no second derivative and no batches: where these are asked for, and where something is not finite, the
output is computed again by the exact way, and that is differentiated.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from mha_core.result import Array

Attention = Callable[..., Array | None]
"""Of query, key and value; None where it does not vouch for a result."""

FEW = 64
"""Rows up to which a look at each is the quicker one."""


def recorded(torch: Any, kernel: Attention, exactly: Attention, heads: Sequence[Array]) -> Array | None:
    """The kernel's output, whose derivative by the heads is recorded; None where it cannot be vouched for."""
    output, leaves = with_leaves(torch, kernel, heads)
    if not is_vouched(torch, output):
        return None
    return _function(torch).apply((output, leaves, exactly), *heads)


def with_leaves(torch: Any, kernel: Attention, heads: Sequence[Array]) -> tuple[Array | None, list[Array]]:
    """The kernel's output and the tensors by which it can be differentiated, cut off from all else."""
    leaves = [x.detach().requires_grad_() for x in heads]
    with torch.enable_grad():
        return kernel(*leaves), leaves


def gradients_of(torch: Any, output: Array, leaves: Sequence[Array], grad: Array) -> Sequence[Array] | None:
    """The gradients of the leaves by the kernel; None where something is not finite."""
    if not _is_finite(torch, grad):
        return None
    gradients: Sequence[Array] = torch.autograd.grad(output, leaves, grad, retain_graph=True)
    return gradients if all(_is_finite(torch, x) for x in gradients) else None


def is_vouched(torch: Any, output: Array | None) -> bool:
    """Whether the kernel's output shows no NaN, no Inf and no row of zeros, as one without keys."""
    if output is None:
        return False
    output = output.detach()
    wide = torch.float32 if output.dtype is torch.float16 else None  # whose squares overflow
    norms = torch.linalg.vector_norm(output, 2, -1, dtype=wide)
    if norms.numel() <= FEW:
        return all(0 < norm < math.inf for norm in norms.flatten().tolist())
    smallest, largest = torch.aminmax(norms)
    return bool(smallest > 0) and bool(largest < math.inf)


def is_plain(torch: Any, x: Any) -> bool:
    """Whether a tensor is one, and not what torch.func puts in its place under vmap, grad and jvp."""
    try:
        return bool(x.data_ptr()) and (
            torch.autograd.forward_ad._current_level < 0
            or torch.autograd.forward_ad.unpack_dual(x).tangent is None
        )
    except RuntimeError:
        return False


def _is_finite(torch: Any, x: Array) -> bool:
    """Whether a tensor is finite and far from overflow."""
    return bool(torch.linalg.vector_norm(x) < math.inf)


@functools.cache
def _function(torch: Any) -> Any:
    """What torch.autograd calls for the derivative."""

    class Recorded(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, computed: tuple[Array, list[Array], Attention], *heads: Array) -> Array:
            ctx.computed = computed
            ctx.save_for_backward(*heads)
            return computed[0].detach()

        @staticmethod
        def backward(ctx: Any, grad: Array) -> tuple[Array | None, ...]:
            output, leaves, exactly = ctx.computed
            heads, again = ctx.saved_tensors, torch.is_grad_enabled()
            gradients = (
                None if again or not is_plain(torch, grad) else gradients_of(torch, output, leaves, grad)
            )
            if gradients is None:
                wanted = [x for x in heads if x.requires_grad]
                with torch.enable_grad():
                    given = iter(torch.autograd.grad(exactly(*heads), wanted, grad, create_graph=again))
                gradients = [next(given) if x.requires_grad else None for x in heads]
            return (None, *gradients)

    return Recorded
