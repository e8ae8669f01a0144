"""The sizes of a layer, found in the shapes of its stored tensors, and the shapes that they ask for."""

import math
from collections.abc import Iterator, Mapping

from mha_core.weights.forms import PARTS, Form, Tensor

Sum = tuple[tuple[str, ...], ...]
"""A length as a sum of products of sizes: 3 * H * d is (("H", "d"), ("H", "d"), ("H", "d"))."""


HEADS = {"H": "num_heads", "G": "num_kv_heads"}


def lengths(tensor: Tensor) -> Iterator[Sum]:
    """Each axis of a tensor as a sum of products."""
    for axis, merged in enumerate(tensor.axes):
        parts = tensor.parts if axis == tensor.packed_axis else tensor.parts[:1]
        yield tuple(tuple(PARTS[part][i] for i in merged) for part in parts)


def ties(form: Form) -> list[tuple[str, Sum]]:
    """Sizes that follow from others in this form."""
    found: list[tuple[str, Sum]] = [] if form.grouped else [("H", (("G",),)), ("G", (("H",),))]
    for tensor in form.tensors:  # arrays that lie in one tensor share its other axes
        shared = [i for axis, merged in enumerate(tensor.axes) if axis != tensor.packed_axis for i in merged]
        first, *others = tensor.parts
        found += [(PARTS[part][i], ((PARTS[first][i],),)) for part in others for i in shared]
    if form.square:
        found += [("d_q", (("H", "d_k"),)), ("d_v", (("d_k",),)), ("d_out", (("d_q",),))]
    return found


def wanted_shape(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor for these sizes."""
    return tuple(_value(length, sizes) for length in lengths(tensor))


def find_sizes(
    form: Form,
    shapes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
    known: Mapping[str, int | None],
) -> dict[str, int]:
    """Every size, solved from shapes by the form's names; `names` are those that the caller knows.

    Raises:
        ValueError: a tensor has another rank or shape than the sizes found in those before it ask for, or
            the number of heads is not to be seen.
    """
    present = [tensor for tensor in form.tensors if tensor.name in shapes]
    sizes = {name: n for name, n in known.items() if n is not None}
    for name, n in sizes.items():
        if n < 1:
            raise ValueError(f"{HEADS[name]}={n} but at least 1 is needed (SHAPE-6)")
    for tensor in present:
        shape = shapes[tensor.name]
        if len(shape) != len(tensor.axes):
            raise ValueError(
                f"{names[tensor.name]} has shape {shape} but form {form.name} wants {len(tensor.axes)} axes"
            )
    while True:
        before = len(sizes)
        for tensor in present:
            for total, length in zip(shapes[tensor.name], lengths(tensor), strict=True):
                _solve(form, names[tensor.name], shapes[tensor.name], total, length, sizes)
                _tie(form, names[tensor.name], shapes[tensor.name], sizes)
        if len(sizes) == before:
            break
    if "H" not in sizes or len(sizes) < 8:
        raise ValueError(
            f"num_heads={known.get('H')} but form {form.name} merges the heads: give their number"
        )
    for tensor in present:
        wanted = wanted_shape(tensor, sizes)
        if shapes[tensor.name] != wanted:
            raise ValueError(
                f"{names[tensor.name]} has shape {shapes[tensor.name]} but form {form.name} wants {wanted} "
                f"for {_told(sizes)}"
            )
    return sizes


def _solve(
    form: Form, name: str, shape: tuple[int, ...], total: int, length: Sum, sizes: dict[str, int]
) -> None:
    """The one size of a length that is not known, if it is one."""
    unknown = {size for product in length for size in product if size not in sizes}
    if len(unknown) != 1:
        return
    (size,) = unknown
    rest = total - _value(tuple(product for product in length if size not in product), sizes)
    factor = sum(
        math.prod(sizes[other] for other in product if other != size) for product in length if size in product
    )
    if factor < 1 or rest < factor or rest % factor:
        raise ValueError(
            f"{name} has shape {shape} but form {form.name} wants a length of {factor} * {HEADS.get(size, size)}"
            + (f" + {total - rest}" if total != rest else "")
            + f" in place of {total}, for {_told(sizes)}"
        )
    sizes[size] = rest // factor


def _tie(form: Form, name: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """What follows from the sizes known by now."""
    for size, length in ties(form):
        if size in sizes:
            _solve(form, name, shape, sizes[size], length, sizes)
        elif all(other in sizes for product in length for other in product):
            sizes[size] = _value(length, sizes)


def _value(length: Sum, sizes: Mapping[str, int]) -> int:
    """A length in numbers."""
    return sum(math.prod(sizes[size] for size in product) for product in length)


def _told(sizes: Mapping[str, int]) -> str:
    """The sizes known, as a message says them."""
    return ", ".join(f"{HEADS.get(size, size)}={n}" for size, n in sizes.items()) or "no size known"
