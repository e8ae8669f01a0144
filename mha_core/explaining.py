"""A small call of attention step by step, in numbers to follow with pencil and paper."""

import html as markup
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from mha_core.checks import shape_of
from mha_core.result import Array

MOST = 16
"""The most tokens and the greatest width that are explained: more cannot be followed."""
DIGITS = 3
SHOWN = ("mask", "attn_bias", "is_causal", "q_offset", "scale", "softcap")
"""The options that are explained, besides the weights and biases of a layer."""
LAYER = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")

Matrix = list[list[float]]


class Step(NamedTuple):
    """One step: its name, its formula, and a matrix for each head, or one for all."""

    name: str
    formula: str
    matrices: list[Matrix]
    rows: list[str]
    columns: list[str]


class Explained:
    """A call in steps: text where it is printed, a page in a notebook; `steps` holds the numbers."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)

    def __getitem__(self, name: str) -> list[Matrix]:
        """The matrices of a step by its name: `weights`, `heads` or `output`, for example."""
        return next(step.matrices for step in self.steps if step.name == name)

    def __str__(self) -> str:
        """Every step below the one before."""
        return "\n\n".join(_text(number, step) for number, step in enumerate(self.steps, 1))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Every step as tables, one for each head."""
        return "".join(_html(number, step) for number, step in enumerate(self.steps, 1))


def explain(
    query: Array, key: Array, value: Array, *, tokens: Sequence[str] | None = None, **options: Any
) -> Explained:
    """One call of either operation step by step: projections, logits, what is visible, weights, heads, output.

    It computes with Python's own numbers, one entry of the batch: the first.

    Args:
        query: (..., H, q_len, d_k), or with weights of a layer (..., q_len, d_q).
        key: (..., G, kv_len, d_k), or (..., kv_len, d_kv).
        value: (..., G, kv_len, d_v), or (..., kv_len, d_kv).
        tokens: q_len names of the queries, and of the keys where there are as many; None numbers them.
        options: `mask`, `attn_bias`, `is_causal`, `q_offset`, `scale`, `softcap`; and the weights and biases of a
            layer, with which it is one.

    Returns:
        The steps. They are printed as text, and shown as tables in a notebook.

    Raises:
        ValueError: an option is not explained, or the call is too large to be followed.

    >>> import numpy as np
    >>> print(explain(np.eye(2)[None], np.eye(2)[None], np.eye(2)[None], is_causal=True, scale=1.0))
    1. logits: query · key, times the scale 1
             0  1
        0 [ 1  0]
        1 [ 0  1]
    <BLANKLINE>
    2. visible: the logits of the keys that a query may attend
             0  1
        0 [ 1  -]
        1 [ 0  1]
    <BLANKLINE>
    3. weights: the softmax of each row
                 0      1
        0 [     1      0]
        1 [ 0.269  0.731]
    <BLANKLINE>
    4. output: the weights times the values
                 0      1
        0 [     1      0]
        1 [ 0.269  0.731]
    """
    unknown = [name for name in options if name not in (*SHOWN, *LAYER)]
    if unknown:
        raise ValueError(
            f"explain has {unknown[0]!r} but it explains {', '.join(SHOWN)} and the weights of a layer"
        )
    steps: list[Step] = []
    layer = options.get("w_q") is not None
    arrays = (query, key, value)
    q, k, v = _projected(arrays, options, steps, tokens) if layer else (_entry(array, 3) for array in arrays)
    _check_size(q, k, v)
    if options.get("is_causal") and options.get("q_offset") is None and len(q[0]) != len(k[0]):
        raise ValueError(f"is_causal with q_len={len(q[0])} and kv_len={len(k[0])} needs q_offset (MASK-7)")
    if len(q) % len(k):
        raise ValueError(f"key has {len(k)} heads, which do not divide the {len(q)} of query (SHAPE-5)")
    q_names, k_names = _names(tokens, len(q[0])), _names(tokens, len(k[0]))
    group = len(q) // len(k)
    k, v = ([x[h // group] for h in range(len(q))] for x in (k, v))
    scale = options.get("scale")
    scale = 1 / math.sqrt(len(q[0][0])) if scale is None else float(scale)
    logits = [_product(a, _turned(b), scale) for a, b in zip(q, k, strict=True)]
    steps.append(Step("logits", f"query · key, times the scale {_number(scale)}", logits, q_names, k_names))
    logits = _adjusted(logits, options, steps, q_names, k_names)
    weights = [[_softmax(row) for row in head] for head in logits]
    steps.append(Step("weights", "the softmax of each row", weights, q_names, k_names))
    heads = [_weighted(w, x) for w, x in zip(weights, v, strict=True)]
    name = "heads" if layer else "output"
    steps.append(Step(name, "the weights times the values", heads, q_names, _names(None, len(v[0][0]))))
    if layer:
        _joined(heads, options, steps, q_names)
    return Explained(steps)


def _projected(
    arrays: Sequence[Array], options: dict[str, Any], steps: list[Step], tokens: Sequence[str] | None
) -> list[list[Matrix]]:
    """The heads of query, key and value of a layer."""
    made = []
    for letter, name, array in zip("qkv", ("queries", "keys", "values"), arrays, strict=True):
        tokens_of = _entry(array, 2)[0]
        weights, bias = _entry(options[f"w_{letter}"], 3), options.get(f"b_{letter}")
        heads = [_product(tokens_of, w) for w in weights]
        if bias is not None:
            shift = _entry(bias, 2)[0]
            heads = [
                [[x + b for x, b in zip(row, shift[h], strict=True)] for row in m]
                for h, m in enumerate(heads)
            ]
        formula = f"input · w_{letter}" + (f" + b_{letter}" if bias is not None else "")
        steps.append(
            Step(name, formula, heads, _names(tokens, len(heads[0])), _names(None, len(heads[0][0])))
        )
        made.append(heads)
    return made


def _adjusted(
    logits: list[Matrix], options: dict[str, Any], steps: list[Step], rows: list[str], columns: list[str]
) -> list[Matrix]:
    """The logits after softcap, bias, and what hides keys, which become None in a step and -inf in the sum."""
    cap, bias, mask = options.get("softcap"), options.get("attn_bias"), options.get("mask")
    if cap is not None:
        logits = [[[cap * math.tanh(x / cap) for x in row] for row in head] for head in logits]
        steps.append(
            Step("softcap", f"{_number(cap)} · tanh(logits / {_number(cap)})", logits, rows, columns)
        )
    if bias is not None:
        logits = [
            [[x + _at(bias, h, i, j) for j, x in enumerate(row)] for i, row in enumerate(head)]
            for h, head in enumerate(logits)
        ]
        steps.append(Step("bias", "the bias is added", logits, rows, columns))
    if mask is None and not options.get("is_causal"):
        return logits
    last = int(options.get("q_offset") or 0) if options.get("is_causal") else len(columns)
    logits = [
        [
            [
                x if j <= i + last and (mask is None or _at(mask, h, i, j)) else -math.inf
                for j, x in enumerate(row)
            ]
            for i, row in enumerate(head)
        ]
        for h, head in enumerate(logits)
    ]
    steps.append(Step("visible", "the logits of the keys that a query may attend", logits, rows, columns))
    return logits


def _joined(heads: list[Matrix], options: dict[str, Any], steps: list[Step], rows: list[str]) -> None:
    """The heads one after the other, and the output projection."""
    together = [[x for head in heads for x in head[i]] for i in range(len(rows))]
    steps.append(
        Step("concatenated", "the heads next to each other", [together], rows, _names(None, len(together[0])))
    )
    projection = [row for head in _entry(options["w_o"], 3) for row in head]  # [H * d_v, d_out]
    output = _product(together, projection)
    bias = options.get("b_o")
    if bias is not None:
        output = [[x + float(bias[j]) for j, x in enumerate(row)] for row in output]
    formula = "concatenated · w_o" + (" + b_o" if bias is not None else "")
    steps.append(Step("output", formula, [output], rows, _names(None, len(output[0]))))


def _entry(array: Array, rank: int) -> list[Any]:
    """The first entry of the batch as nested lists of three levels; one matrix is a list of one."""
    for _ in range(len(shape_of(array)) - rank):
        array = array[0]
    sizes = shape_of(array)
    if len(sizes) == 2:
        return [[[float(array[i, j]) for j in range(sizes[1])] for i in range(sizes[0])]]
    return [
        [[float(array[h, i, j]) for j in range(sizes[2])] for i in range(sizes[1])] for h in range(sizes[0])
    ]


def _at(array: Array, head: int, row: int, column: int) -> float:
    """An entry of a mask or bias of any rank that broadcasts."""
    sizes = shape_of(array)
    place = ([0] * len(sizes) + [head, row, column])[-len(sizes) :]
    return float(array[tuple(0 if size == 1 else at for size, at in zip(sizes, place, strict=True))])


def _check_size(*operands: list[Matrix]) -> None:
    for heads in operands:
        if not heads or not heads[0] or not heads[0][0]:
            raise ValueError("a size is 0 but there has to be something to explain")
        if max(len(heads), len(heads[0]), len(heads[0][0])) > MOST:
            raise ValueError(f"a size is above {MOST} but a call that is explained has to be small")


def _product(one: Matrix, other: Matrix, scale: float = 1.0) -> Matrix:
    return [
        [scale * sum(a * b for a, b in zip(row, column, strict=True)) for column in _turned(other)]
        for row in one
    ]


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _weighted(weights: Matrix, values: Matrix) -> Matrix:
    """Sums of values; what has no weight adds nothing, not even NaN."""
    columns = _turned(values)
    return [
        [sum(w * x for w, x in zip(row, column, strict=True) if w) for column in columns] for row in weights
    ]


def _softmax(row: list[float]) -> list[float]:
    """The weights of a row; zeros where it may attend nothing (MASK-3)."""
    top = max(row)
    if top == -math.inf:
        return [0.0] * len(row)
    powers = [math.exp(x - top) for x in row]
    return [power / sum(powers) for power in powers]


def _names(tokens: Sequence[str] | None, count: int) -> list[str]:
    return list(tokens) if tokens is not None and len(tokens) == count else [str(i) for i in range(count)]


def _number(value: float) -> str:
    return "-" if value == -math.inf else f"{value:.{DIGITS}g}"


def _text(number: int, step: Step) -> str:
    lines = [f"{number}. {step.name}: {step.formula}"]
    margin = max(map(len, step.rows))
    cells = [[[_number(x) for x in row] for row in matrix] for matrix in step.matrices]
    width = max(
        len(text) for text in [*step.columns, *(x for matrix in cells for row in matrix for x in row)]
    )
    for head, matrix in enumerate(cells):
        if len(cells) > 1:
            lines.append(f"   head {head}")
        lines.append(" " * (margin + 6) + "".join(f"  {name:>{width}}" for name in step.columns))
        for name, row in zip(step.rows, matrix, strict=True):
            numbers = "  ".join(f"{x:>{width}}" for x in row)
            lines.append(f"    {name:>{margin}} [ {numbers}]")
    return "\n".join(line.rstrip() for line in lines)


def _html(number: int, step: Step) -> str:
    parts = [f"<h4>{number}. {markup.escape(step.name)}</h4><p>{markup.escape(step.formula)}</p>"]
    head_cells = "".join(f"<th>{markup.escape(name)}</th>" for name in step.columns)
    for head, matrix in enumerate(step.matrices):
        caption = f"<caption>head {head}</caption>" if len(step.matrices) > 1 else ""
        rows = "".join(
            f"<tr><th>{markup.escape(name)}</th>{''.join(f'<td>{_number(x)}</td>' for x in row)}</tr>"
            for name, row in zip(step.rows, matrix, strict=True)
        )
        parts.append(
            f'<table style="display: inline-table; margin-right: 1em">{caption}'
            f"<tr><th></th>{head_cells}</tr>{rows}</table>"
        )
    return "".join(parts)
