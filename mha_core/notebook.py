"""What a notebook shows of a result: names, shapes and dtypes, and a drawing of the weights where they are few."""

import html as markup
from collections.abc import Mapping

from mha_core.checks import shape_of
from mha_core.drawing import svg
from mha_core.result import Array

MOST = 32
"""The most queries, keys and heads that are drawn."""


def result_html(values: Mapping[str, Array | None]) -> str:
    """A table of what is there, and the weights of the first entry of the batch.

    Args:
        values: arrays by name, None where something was not asked for.
    """
    rows = "".join(
        f"<tr><th>{markup.escape(name)}</th><td>{shape_of(value)}</td><td>{markup.escape(str(value.dtype))}</td></tr>"
        for name, value in values.items()
        if value is not None
    )
    return (
        f"<table><tr><th></th><th>shape</th><th>dtype</th></tr>{rows}</table>{_drawn(values.get('weights'))}"
    )


def _drawn(weights: Array | None) -> str:
    if weights is None:
        return ""
    for _ in range(len(shape_of(weights)) - 3):
        if not shape_of(weights)[0]:
            return ""
        weights = weights[0]
    sizes = shape_of(weights)
    if max(sizes) > MOST or min(sizes) == 0:
        return ""
    queries, keys = ([str(i) for i in range(size)] for size in sizes[1:])
    return svg(weights, queries, keys)
