"""Which rows of failing calls are wrong: where the mistake is made, not only in which calls."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from wrong import rows_of

from conformance.defects.call import Call
from conformance.defects.implementation import Implementation
from conformance.defects.reference import REFERENCE
from conformance.defects.visibility import visibility
from conformance.diagnosis.search import diagnose
from conformance.telling.diagnosis import diagnosis_json, diagnosis_lines
from conformance.vectors.case import Array
from conformance.vectors.load import load_vectors

CASES = tuple(
    case
    for case in load_vectors().cases
    if case.operation == "scaled_dot_product_attention" and case.elements < 2**17 and "float32" in case.dtypes
)


def spoiled(
    where: Callable[[Call, Array], Any], what: Callable[[Array], Any] = lambda x: x + 1
) -> Implementation:
    """The reference with the rows (B, H, q_len) of its output spoiled that the first picks, by what they see."""

    def finish(c: Call, output: Array, *given: Any) -> dict[str, Array]:
        sees = visibility(REFERENCE, c)
        rows = np.broadcast_to(where(c, sees), sees.shape[:-1])
        with np.errstate(all="ignore"):
            wrong = np.asarray(what(output), output.dtype)
        return REFERENCE.finish(c, np.where(rows[..., None], wrong, output), *given)

    return Implementation(replace(REFERENCE, finish=finish))


def said(target: Any) -> str:
    """The sentence on rows; empty where there is none."""
    found = diagnose(rows_of(target, CASES), CASES, "eager", [])
    assert len(diagnosis_json(found)["places"]) == len(found.places)
    (sentence,) = [place.sentence for place in found.places] or [""]
    assert not sentence or sentence in diagnosis_lines(found)
    return sentence


def packed(c: Call) -> Array:
    """The number of a row where the heads of a key head stand beside each other (H, q_len)."""
    group = c.heads // max(c.kv_heads, 1)
    found: Array = np.arange(c.q_len) * group + (np.arange(c.heads) % max(group, 1))[:, None]
    return found


def largest(c: Call) -> Array:
    """The largest of the visible logits of plain calls (B, H, q_len); NaN of the others."""
    if c.attn_bias is not None or c.softcap is not None or c.past_key is not None or c.sinks is None:
        return np.full((*c.batch, c.heads, c.q_len), np.nan)
    keys = np.repeat(c.key, c.heads // c.kv_heads, axis=-3).swapaxes(-1, -2)
    logits = c.query @ keys * (c.d_k**-0.5 if c.scale is None else c.scale)
    found: Array = np.where(visibility(REFERENCE, c), logits, -np.inf).max(axis=-1, initial=-np.inf)
    return found


def late(sees: Array, tile: int) -> Array:
    """Whether a row sees a key, but none of its first so many (B, H, q_len)."""
    found: Array = sees.any(axis=-1) & ~sees[..., :tile].any(axis=-1)
    return found


ROWS: dict[str, Callable[[Call, Array], Any]] = {
    "that see no key": lambda c, sees: ~sees.any(axis=-1),
    "from query 32 on": lambda c, sees: np.arange(c.q_len) >= 32,
    "from packed row 64 on (query times heads of a key head)": lambda c, sees: packed(c) >= 64,
    "that see a key, but none of the first 32": lambda c, sees: late(sees, 32),
    "whose sink is below their largest logit": lambda c, _: (
        largest(c) > np.asarray(0 if c.sinks is None else c.sinks[:, None])
    ),
    "of another query head than the first of a key head": lambda c, sees: (
        (np.arange(c.heads) % max(c.heads // max(c.kv_heads, 1), 1))[:, None] > 0
    ),
}


@pytest.mark.parametrize("words", ROWS)
def test_the_rows_that_are_wrong_are_said(words: str) -> None:
    line = said(spoiled(ROWS[words]))
    assert line.startswith(f"In the failing calls only rows {words} are wrong: ")
    assert ", 0 of " in line
    assert not line.endswith("0 of 0 elsewhere.")


def test_what_they_hold_is_said_if_it_is_nan() -> None:
    line = said(spoiled(ROWS["that see no key"], lambda x: x * np.nan))
    assert line.startswith(
        "In the failing calls only rows that see no key are wrong, which come out as NaN: "
    )


def test_nothing_is_said_of_rows_where_all_of_them_are_wrong() -> None:
    assert not said(spoiled(lambda c, sees: c.softcap is not None))


def test_nothing_is_said_of_rows_that_chance_picks() -> None:
    assert not said(spoiled(lambda c, sees: np.random.default_rng(1).random(sees.shape[:-1]) < 0.3))


def test_of_one_case_all_rows_have_to_be_told_and_many() -> None:
    for name, told in (("causal/long", True), ("attention/softcap", False)):
        (case,) = (case for case in CASES if case.id == name)
        rows = rows_of(spoiled(lambda c, sees: np.arange(c.q_len) >= (128 if c.q_len > 256 else 2)), [case])
        found = diagnose(rows, [case], "eager", [])
        assert bool(found.places) == told
        assert (
            not told or "128" in found.places[0].condition
        )  # queries, places or keys: all are the same here
