"""Pages that hold keys and values of many sequences: reading them by a table, and writing new rows into them."""

from typing import Any, NamedTuple

from mha_core.arrays import integers
from mha_core.checks import check_operands
from mha_core.reductions import written
from mha_core.result import Array
from mha_core.serving_checks import check_new, check_pages, check_values_of_slots


class Pages(NamedTuple):
    """Keys and values in pages."""

    key_pages: Array
    """(N, P, G, d_k)."""
    value_pages: Array
    """(N, P, G, d_v)."""


def append_to_pages(
    key_pages: Array, value_pages: Array, new_key: Array, new_value: Array, *, slots: Array
) -> Pages:
    """The pages with new rows in some slots, and all other cells bit for bit (PAGE-9).

    Slot s is place `s % P` of page `s // P`; a slot of -1 gets nothing (PAGE-7, PAGE-8). The operands stay as they
    are. Where the slots cannot be read, traced by jax.jit for instance, what they hold is not checked, and a slot is
    to be written once.

    Args:
        key_pages: (N, P, G, d_k).
        value_pages: (N, P, G, d_v).
        new_key: (T, G, d_k).
        new_value: (T, G, d_v).
        slots: int32 or int64 array (T,), each -1 or from 0 to N * P - 1.

    Returns:
        Pages, a named tuple of the new key_pages and value_pages.

    Raises:
        TypeError: something is no array, of another library, or of a wrong dtype (DTYPE-2, DTYPE-7).
        ValueError: shapes disagree, or a slot does not exist or is written twice (PAGE-6, PAGE-11).

    >>> import numpy as np
    >>> pages, rows = np.zeros((2, 2, 1, 1)), np.asarray([[[5.0]], [[7.0]]])
    >>> append_to_pages(pages, pages, rows, rows, slots=np.asarray([3, -1])).key_pages[:, :, 0, 0]
    array([[0., 0.],
           [0., 5.]])
    """
    xp = check_operands(
        {"key_pages": key_pages, "value_pages": value_pages, "new_key": new_key, "new_value": new_value}, {}
    )
    check_pages(key_pages, value_pages)
    return appended(xp, key_pages, value_pages, new_key, new_value, slots)


def appended(
    xp: Any, key_pages: Array, value_pages: Array, new_key: Array, new_value: Array, slots: Array
) -> Pages:
    """The same of pages that passed the checks."""
    check_new(key_pages, value_pages, new_key, new_value, slots)
    read = integers(xp, slots)
    if read is not None:
        check_values_of_slots(read, key_pages.shape[0] * key_pages.shape[1])
    where = slots if read is None else read
    return Pages(written(xp, key_pages, new_key, where), written(xp, value_pages, new_value, where))
