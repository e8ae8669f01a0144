"""From stored tensors to the arrays of the stacked form and back: permuted, cut, joined, and never computed with."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import array_api_compat

from mha_core.result import Array
from mha_core.weights.forms import FORMS, PARTS, Form, Tensor
from mha_core.weights.sizes import HEADS, find_sizes, lengths, ties, wanted_shape


def import_weights(
    form: str,
    tensors: Mapping[str, Any],
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
    ignore: Iterable[str] = (),
) -> dict[str, Array]:
    """The arguments `w_*` and `b_*` of `multi_head_attention`, from the tensors of another library (PROJ-1).

    Nothing is computed: each number is moved, whatever its dtype. The results may share memory with the tensors.

    Args:
        form: a key of `FORMS`: how the tensors are named and laid out.
        tensors: arrays of one library by name; mappings in it are read as names joined by the form's separator.
        num_heads: H; needed where the form merges the heads with their width.
        num_kv_heads: G, where the form may have fewer of them; read from the shapes if not given.
        prefix: what stands before each name; tensors without it are those of other layers.
        names: other names for some of the form's, as ONNX initialisers have.
        ignore: names, without the prefix, that are there and are no part of the layer.

    Returns:
        w_q (H, d_q, d_k), w_k (G, d_kv, d_k), w_v (G, d_vv, d_v), w_o (H, d_v, d_out), and of b_q (H, d_k),
        b_k (G, d_k), b_v (G, d_v), b_o (d_out,) those that are there.

    Raises:
        TypeError: a tensor is no array, or of another library than the first.
        ValueError: the form is unknown, or a tensor is missing, extra or misshapen; the message names it.

    >>> import numpy as np
    >>> state = {"in_proj_weight": np.reshape(np.arange(12.0), (6, 2)), "out_proj.weight": np.eye(2)}
    >>> weights = import_weights("pytorch", state, num_heads=2)
    >>> weights["w_k"].tolist()
    [[[4.0], [5.0]], [[6.0], [7.0]]]
    >>> {name: x.tolist() == state[name].tolist() for name, x in export_weights("pytorch", weights).items()}
    {'in_proj_weight': True, 'out_proj.weight': True}
    """
    rule = _form(form)
    called = _names(rule, names)
    flat = {
        name.removeprefix(prefix): x
        for name, x in _flattened(tensors, rule.separator)
        if name.startswith(prefix)
    }
    ignored = set(ignore)
    given = {own: flat[called[own]] for own in called if called[own] in flat}
    extra = sorted(set(flat) - set(called.values()) - ignored)
    shown = {own: prefix + name for own, name in called.items()}
    _check_present(rule, given, [prefix + name for name in extra], shown)
    xp = _namespace({shown[own]: x for own, x in given.items()})
    shapes = {own: tuple(x.shape) for own, x in given.items()}
    sizes = find_sizes(rule, shapes, shown, {"H": num_heads, "G": num_kv_heads})
    parts: dict[str, Array] = {}
    for tensor in rule.tensors:
        if tensor.name in given:
            parts |= _unpacked(xp, tensor, given[tensor.name], sizes)
    return {part: parts[part] for part in PARTS if part in parts}


def export_weights(
    form: str,
    weights: Mapping[str, Array | None],
    *,
    prefix: str = "",
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The tensors of another library, from the arguments `w_*` and `b_*` of `multi_head_attention` (PROJ-1).

    What `import_weights` reads gives back the same arrays, bit for bit, and the other way round.

    Args:
        form: a key of `FORMS`.
        weights: w_q, w_k, w_v, w_o, and of b_q, b_k, b_v, b_o those that there are; None is none.
        prefix: what to put before each name.
        names: other names for some of the form's.

    Returns:
        The tensors by name; for a form that nests them, a mapping of mappings.

    Raises:
        TypeError: something is no array, or of another library.
        ValueError: the form is unknown, an argument is missing, extra or misshapen, or the form cannot hold it.
    """
    rule = _form(form)
    given = {name: x for name, x in weights.items() if x is not None}
    for name in PARTS:
        if name.startswith("w_") and name not in given:
            raise ValueError(f"{name} is missing: a layer has w_q, w_k, w_v and w_o")
    for name in given:
        if name not in PARTS:
            raise ValueError(f"{name} is no weight of a layer: wanted are {', '.join(PARTS)}")
    xp = _namespace(given)
    sizes = _sizes_of(rule, given)
    _check_biases(rule, given)
    called = _names(rule, names)
    flat = {
        prefix + called[tensor.name]: _packed(xp, tensor, given, sizes)
        for tensor in rule.tensors
        if tensor.parts[0] in given
    }
    return flat if not rule.nested else _nested(flat, rule)


def _form(name: str) -> Form:
    """The form of a name."""
    if name not in FORMS:
        raise ValueError(f"form={name!r} but known are {', '.join(FORMS)}")
    return FORMS[name]


def _names(form: Form, other: Mapping[str, str] | None) -> dict[str, str]:
    """What each tensor of the form is called."""
    own = {tensor.name: tensor.name for tensor in form.tensors}
    for name in other or {}:
        if name not in own:
            raise ValueError(f"names has {name!r} but form {form.name} has {', '.join(own)}")
    return own | dict(other or {})


def _flattened(tensors: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    """The leaves of a mapping of mappings, their names joined."""
    for name, x in tensors.items():
        if isinstance(x, Mapping):
            yield from ((f"{name}{separator}{rest}", leaf) for rest, leaf in _flattened(x, separator))
        else:
            yield str(name), x


def _nested(flat: Mapping[str, Array], form: Form) -> dict[str, Any]:
    """A mapping of mappings, the names split from the right as often as the form says."""
    tree: dict[str, Any] = {}
    for name, x in flat.items():
        *outer, last = name.rsplit(form.separator, form.nested)
        node = tree
        for part in outer:
            node = node.setdefault(part, {})
        node[last] = x
    return tree


def _check_present(form: Form, given: Mapping[str, Any], extra: list[str], shown: Mapping[str, str]) -> None:
    """Refuses tensors that are missing or too many."""
    weights = [tensor for tensor in form.tensors if not tensor.is_bias]
    biases = [tensor for tensor in form.tensors if tensor.is_bias]
    needed = weights + (biases if form.biases == "needed" else [])
    if form.biases == "all" and any(tensor.name in given for tensor in biases):
        needed = weights + biases
    missing = [shown[tensor.name] for tensor in needed if tensor.name not in given]
    wanted = f"form {form.name} wants {', '.join(shown[tensor.name] for tensor in needed)}"
    if missing:
        also = f" (given and not known: {', '.join(extra)})" if extra else ""
        raise ValueError(f"{', '.join(missing)} missing{also}: {wanted}")
    if extra:
        raise ValueError(
            f"{', '.join(extra)} not known: {wanted}; name what is no part of the layer in `ignore`"
        )


def _check_biases(form: Form, given: Mapping[str, Array]) -> None:
    """Refuses biases that the form cannot hold as they are."""
    biases = [part for part in PARTS if part.startswith("b_")]
    missing = [part for part in biases if part not in given]
    none = len(missing) == len(biases)
    if missing and (form.biases == "needed" or (form.biases == "all" and not none)):
        rule = "all biases" if form.biases == "needed" else "all biases or none"
        raise ValueError(
            f"{', '.join(missing)} missing: form {form.name} has {rule}; give zeros for those not there"
        )
    for tensor in form.tensors:
        there = [part for part in tensor.parts if part in given]
        if there and len(there) < len(tensor.parts):
            absent = [part for part in tensor.parts if part not in given]
            raise ValueError(
                f"{', '.join(absent)} missing: {tensor.name} of form {form.name} holds {', '.join(tensor.parts)}; "
                "give zeros for those not there"
            )


def _namespace(given: Mapping[str, Any]) -> Any:
    """The library of the arrays, which they share."""
    first, xp = None, None
    for name, x in given.items():
        if not array_api_compat.is_array_api_obj(x):
            raise TypeError(f"{name} is a {type(x).__name__} but needs an array of an Array API library")
        library = array_api_compat.array_namespace(x)
        if xp is not None and library is not xp:
            raise TypeError(f"{name} is an array of {library.__name__} but {first} is one of {xp.__name__}")
        first, xp = first or name, library
    return xp


def _sizes_of(form: Form, given: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of the stacked form, which agree with each other and which the form can hold."""
    sizes: dict[str, int] = {}
    for name, axes in PARTS.items():
        if name not in given:
            continue
        shape = tuple(given[name].shape)
        if len(shape) != len(axes):
            raise ValueError(f"{name} has shape {shape} but needs ({', '.join(axes)}) (PROJ-6)")
        wanted = tuple(sizes.get(size, n) for size, n in zip(axes, shape, strict=True))
        if shape != wanted:
            raise ValueError(f"{name} has shape {shape} but the other arrays need {wanted} (PROJ-6)")
        sizes |= dict(zip(axes, shape, strict=True))
    for size, length in ties(form):
        n = sum(math.prod(sizes[other] for other in product) for product in length)
        if sizes[size] != n:
            words = " * ".join(HEADS.get(other, other) for other in length[0])
            raise ValueError(f"{HEADS.get(size, size)}={sizes[size]} but form {form.name} wants {words}={n}")
    return sizes


def _permuted_shape(tensor: Tensor, part: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an array with its axes in the tensor's order, not merged yet."""
    return tuple(sizes[PARTS[part][i]] for i in itertools.chain(*tensor.axes))


def _unpacked(xp: Any, tensor: Tensor, x: Array, sizes: Mapping[str, int]) -> dict[str, Array]:
    """The arrays that lie in a tensor."""
    order = list(itertools.chain(*tensor.axes))
    back = tuple(order.index(i) for i in range(len(order)))
    *_, packed = [length for axis, length in enumerate(lengths(tensor)) if axis == tensor.packed_axis]
    parts, start = {}, 0
    for part, product in zip(tensor.parts, packed, strict=True):
        stop = start + math.prod(sizes[size] for size in product)
        cut = (slice(None),) * tensor.packed_axis + (slice(start, stop),)
        piece = x[(*cut, ...)]
        parts[part] = xp.permute_dims(xp.reshape(piece, _permuted_shape(tensor, part, sizes)), back)
        start = stop
    return parts


def _packed(xp: Any, tensor: Tensor, given: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    """The tensor that holds the arrays."""
    order = tuple(itertools.chain(*tensor.axes))
    shape = wanted_shape(tensor, sizes)
    pieces = []
    for part in tensor.parts:
        piece = xp.permute_dims(given[part], order)
        own = tuple(-1 if axis == tensor.packed_axis else n for axis, n in enumerate(shape))
        pieces.append(xp.reshape(piece, own))
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=tensor.packed_axis)
