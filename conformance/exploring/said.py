"""A call in a line, and as a few lines of NumPy that need no suite."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from conformance.dtypes import cast
from conformance.exploring import broken
from conformance.exploring.earlier import SAME, SHAPE, earlier
from conformance.exploring.explain import differs
from conformance.exploring.numbers import ONES, RAMP, SCRAMBLED, TURN, ZEROS
from conformance.exploring.recipe import Recipe
from conformance.exploring.trial import Tried
from conformance.names import BIASES, WEIGHTS
from conformance.running.locating import implementations
from conformance.running.partial import STACKED
from conformance.vectors.case import Array, Case

COUNTED = 12
"""Whole numbers up to which they stand in the line of a call, such as starts and tables."""
WRITTEN = 24
"""Numbers up to which an array is written out."""
ENCODED = 3000
"""Bytes up to which it stands there in base64."""
OF = {
    ZEROS: "zeros",
    ONES: "ones",
    RAMP: "0, 1, 2, ...",
    SCRAMBLED: "scattered numbers",
    "i": "small integers",
}
FAMILY_OF = {
    "latent": "key", "outputs": "value", "lses": "key", "new_key": "key", "new_value": "value", "key_pages": "key",
    "value_pages": "value",
}  # fmt: skip
"""Operand -> whose numbers a recipe says of it."""
KINDS = {"p": "far from zero", "l": "one loud token", "c": "cancelling", "t": "ties", "f": "all bits used"}


def line(recipe: Recipe, case: Case) -> str:
    """The operation, shapes, options and dtype."""
    words = [f"{name} {_shape(array)}{_what(recipe, name, array)}" for name, array in case.inputs.items()]
    words += [f"{name}={_plain(value)}" for name, value in case.options.items()]
    before = f", after {differs(recipe.again).replace(' before it', '')}" if recipe.again else ""
    before = ", asked twice" if recipe.again == SAME else before
    memory = "".join(f", {name} {how} in memory" for name, how in recipe.memory)
    return f"{recipe.operation}({', '.join(words)}) in {recipe.dtype}{memory}{before}"


def _shape(array: Array) -> str:
    return "x".join(map(str, array.shape)) or "of no axis"


def _what(recipe: Recipe, name: str, array: Array) -> str:
    if array.size <= (COUNTED if array.dtype.kind in "iu" else 4):
        return f" = {array.tolist()}"
    operand = "weights" if name in WEIGHTS else "biases" if name in BIASES else FAMILY_OF.get(name, name)
    wrong = [_broken(kind, array) for of, kind in recipe.broken if of == name]
    family = recipe.family(operand)
    known = OF.get(family) or KINDS.get(family[0])
    if name in ("mask", "attn_bias") or array.dtype.kind in "iu" or name.endswith("_pages"):
        known = None
    told = ", ".join(filter(None, (known, *wrong)))
    return f" ({told})" if told else ""


def _broken(kind: str, array: Array) -> str:
    """Where a number stands that is NaN or infinite: the first, if there are more."""
    wanted = broken.KINDS.get(kind, -np.inf)
    place = np.argwhere((array == wanted) | (np.isnan(array) & np.isnan(wanted)))[:1].tolist()
    return f"{broken.SAID[kind]} at {place[0]}" if place else ""


def _plain(value: Any) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)


def snippet(tried: Tried, source: str, array_type: str = "numpy", several: bool = False) -> str:
    """A program under 15 lines that shows what came and what was expected; nothing where the arrays are too large.

    `several` says whether the target has operations by their names.
    """
    case, recipe, row = tried.case, tried.recipe, tried.row
    if case is None or row is None or recipe.again in (SAME, SHAPE):
        return ""
    lines = ["import numpy as np", *_imports(source, recipe, array_type)]
    given = case.operands(recipe.dtype)
    for name, array in given.items():
        written = expression(recipe, name, array)
        if not written:
            return ""
        lines.append(f"{name} = {written}")
    if len(lines) > 11:  # several on one line
        head, rest = lines[:2], lines[2:]
        lines = [*head, *("; ".join(rest[n : n + 3]) for n in range(0, len(rest), 3))]
    to = {"torch": "torch.from_numpy({})", "jax": "jax.numpy.asarray({})"}.get(array_type, "{}")
    to_each = {
        name: f"[{to.format('x')} for x in {name}]" if to != "{}" else f"list({name})" for name in STACKED
    }
    arguments = [f"{name}={to_each.get(name) or to.format(name)}" for name in given]
    arguments += [f"{name}={_plain(value)}" for name, value in case.options.items()]
    name = _called(source, recipe, several)
    if recipe.again:
        ((first, options),) = earlier(recipe, given)
        instead = [n for n in given if not same(first[n], given[n])]
        for n in instead:
            if not (written := expression(recipe, "", first[n].astype(given[n].dtype))):
                return ""
            lines.append(f"before = {written}")
        called = [f"{n}={to.format('before' if n in instead else n)}" for n in given if n in first]
        called += [f"{n}={_plain(value)}" for n, value in options.items()]
        lines.append(f"{name}({', '.join(called)})")
    lines.append(f"got = {name}({', '.join(arguments)})")
    if row.worst is not None:
        index = ", ".join(map(str, row.worst.index))
        output = "" if row.worst.output == "output" and not _named(case) else f".{row.worst.output}"
        if case.gradients:
            output = f'["{row.worst.output}"]'
        if recipe.served:
            lines.append(f"got = {_result(row.worst.output, tuple(case.expected))}")
            output = ""
        got = f"got{output}[{index}]"
        lines.append(
            f'print({got}, "wanted", {_number(row.worst.expected)}, "+-", {_number(row.worst.allowed)})'
        )
    else:
        lines.append(f"print(got)  # {' '.join(row.message.split())[:100]}")
    return "\n".join(lines)


def _called(source: str, recipe: Recipe, several: bool) -> str:
    """The function that is called, as the program has imported it."""
    attribute = _attribute(source)
    if not attribute:
        known = implementations().get(source, source)
        found = "target" if Path(known).stem.isidentifier() else ""
        return f"{found}.{recipe.operation}".lstrip(".")
    if several:
        return f"{attribute}.{recipe.operation}"
    if not recipe.served or attribute.rpartition(".")[2] == recipe.operation:
        return attribute
    return f'getattr({attribute}, "{recipe.operation}", {attribute})'


def _result(name: str, names: tuple[str, ...]) -> str:
    """One result, in each of the forms that an answer may have."""
    behind = "got" if len(names) == 1 else f"got[{names.index(name)}]"
    alike = f'isinstance(got, dict) else got.{name} if hasattr(got, "{name}") else {behind}'
    return f'got["{name}"] if {alike}'


def same(one: Array, other: Array) -> bool:
    """Whether two arrays hold the same."""
    return one.shape == other.shape and np.array_equal(
        one.astype(np.float64), other.astype(np.float64), equal_nan=True
    )


def _number(value: float) -> str:
    if value != value or value in (float("inf"), -float("inf")):
        return f'float("{value}")'
    return f"{value:.9g}"


def _named(case: Case) -> bool:
    return len(case.expected) > 1


def _imports(source: str, recipe: Recipe, array_type: str) -> list[str]:
    location = implementations().get(source, source)
    module, _, attribute = location.rpartition(":") if ":" in location else (location, "", "")
    found, comments = [], []
    if recipe.dtype == "bfloat16":
        found.append("import ml_dtypes")
    if array_type in ("torch", "jax"):
        found.append(f"import {array_type}")
    if module.endswith(".py"):
        path = Path(module)
        found.append('import sys; sys.path.insert(0, ".")')
        comments.append(f"run from the folder of {path.name}")  # no private folder is named
        module = path.stem
    if attribute:
        first, _, rest = attribute.partition(".")
        found.append(f"from {module} import {first}")
        comments += [rest] if rest else []
    elif module.replace(".", "").isidentifier():
        found.append(f"import {module} as target")
    else:
        return [*found, f"# {recipe.operation} is that of {source}"]
    return ["; ".join(found) + (f"  # {', '.join(comments)}" if comments else "")]


def _attribute(source: str) -> str:
    location = implementations().get(source, source)
    _, colon, attribute = location.rpartition(":")
    return attribute if colon else ""


def expression(recipe: Recipe, name: str, array: Array) -> str:
    """An array as an expression of NumPy."""
    dtype = _dtype(array)
    shape = tuple(array.shape)
    plain: Array = array.astype(np.float64) if array.dtype.name == "bfloat16" else array
    if array.dtype.kind == "b" and array.size > WRITTEN:
        shown = _mask(plain)
        if shown:
            return shown
    if array.size and array.size > 1 and bool((plain == plain.flat[0]).all()):
        value = plain.flat[0]
        return f"np.full({shape}, {value.item()!r}, {dtype})" if value else f"np.zeros({shape}, {dtype})"
    operand = "weights" if name in WEIGHTS else "biases" if name in BIASES else FAMILY_OF.get(name, name)
    family = recipe.family(operand)
    if array.size > WRITTEN and array.dtype.kind not in "bi":
        if family == RAMP and _is(plain, np.arange(array.size) % TURN):
            return f"(np.arange({array.size}) % {TURN}).reshape({shape}).astype({dtype})"
        formula = "(np.arange({n}) * 40503 % 65521 % 255 - 127) / 64"
        if family == SCRAMBLED and _is(plain, (np.arange(array.size) * 40503 % 65521 % 255 - 127) / 64.0):
            return f"({formula.format(n=array.size)}).reshape({shape}).astype({dtype})"
    if array.size <= WRITTEN:
        return f"np.array({_nested(plain)}, {dtype})" + (
            "" if array.size and array.ndim else f".reshape({shape})"
        )
    if array.nbytes <= ENCODED:
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return f'np.frombuffer(__import__("base64").b64decode("{data}"), {dtype}).reshape({shape})'
    return ""


def _mask(array: Array) -> str:
    """A mask that hides the first key or the last."""
    for place in (0, array.shape[-1] - 1):
        if np.array_equal(array, np.broadcast_to(np.arange(array.shape[-1]) != place, array.shape)):
            return f"np.broadcast_to(np.arange({array.shape[-1]}) != {place}, {array.shape}).copy()"
    return ""


def _is(array: Array, flat: Array) -> bool:
    return np.array_equal(array.astype(np.float64).ravel(), flat)


def _nested(array: Array) -> str:
    text = repr(array.tolist())
    return text.replace("nan", "np.nan").replace("inf", "np.inf")


def _dtype(array: Array) -> str:
    name = array.dtype.name
    return "bool" if name == "bool" else f"ml_dtypes.{name}" if name == "bfloat16" else f"np.{name}"


def held(arrays: Sequence[Array], dtype: str) -> bool:
    """Whether a dtype holds the numbers of some arrays exactly."""
    return all(
        array.dtype.kind != "f"
        or np.array_equal(cast(array, dtype).astype(np.float64), array, equal_nan=True)
        for array in arrays
    )
