"""Where in a result the wrong numbers are."""

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
from conformance.diagnosis.laid import Laid
from conformance.diagnosis.regions import regions
from conformance.diagnosis.search import diagnose
from conformance.diagnosis.split import within
from conformance.diagnosis.where import Where
from conformance.names import DENSE
from conformance.telling.diagnosis import diagnosis_lines
from conformance.vectors.case import Array, Case
from conformance.vectors.load import load_vectors

REGIONS = dict(regions())
ALL: dict[str, list[Any]] = {}
for name, part in regions():
    ALL.setdefault(name, []).append(part)
CASES = tuple(
    case
    for case in load_vectors().cases
    if case.elements < 20000
    and not case.raises
    and case.operation in ("scaled_dot_product_attention", "scaled_dot_product_attention_vjp")
)
GRADIENTS = tuple(case for case in CASES if case.gradients)
FORWARD = tuple(case for case in CASES if not case.gradients and case.elements < 3000)


def spoiled(name: str, part: Callable[[Call, Array], Array]) -> Implementation:
    """The reference with a part of a result off by one."""

    def off(c: Call, found: dict[str, Array]) -> dict[str, Array]:
        if name in found:
            x = found[name]
            found[name] = np.where(part(c, x), x + np.asarray(1, x.dtype), x)
        return found

    def finish(c: Call, *given: Any) -> dict[str, Array]:
        return off(c, REFERENCE.finish(c, *given))

    def gradients(steps: Any, c: Call) -> dict[str, Array]:
        return off(c, REFERENCE.compute_gradients(steps, c))

    return Implementation(replace(REFERENCE, finish=finish, compute_gradients=gradients))


def lines(target: Any, cases: tuple[Case, ...]) -> list[str]:
    return diagnosis_lines(diagnose(rows_of(target, cases), cases, "eager", []))


def keys_behind(c: Call, x: Array) -> Array:
    behind: Array = np.arange(x.shape[-2])[:, None] >= 16
    return behind


def padding_in_tiles(c: Call, x: Array) -> Array:
    """Whole tiles of four keys beyond the lengths."""
    length = np.broadcast_to(c.kv_len if c.kv_lengths is None else c.kv_lengths, c.batch)
    tile = np.arange(c.past, c.kv_len) // 4 * 4
    beyond: Array = (tile >= length[..., None])[..., None, :, None]
    return beyond


def test_keys_from_a_number_on() -> None:
    said = lines(spoiled("key", keys_behind), GRADIENTS)
    assert said[0].startswith(
        "It is wrong only behind the first 16 keys, and there only in the gradient of key: "
    )


def test_whole_tiles_beyond_a_length() -> None:
    said = lines(spoiled("value", padding_in_tiles), GRADIENTS)
    words = "in the gradient of value, at keys in tiles of 4 of which no query sees one: "
    assert said[0].startswith("It is wrong only where `kv_lengths` is ")
    assert words in said[0]


def test_heads_of_a_group() -> None:
    def part(c: Call, x: Array) -> Array:
        return np.arange(c.heads)[:, None, None] % (c.heads // c.kv_heads) > 0

    said = lines(spoiled("output", part), FORWARD)
    assert "and there only behind the first head of each group: " in said[0]


def test_batch_entries_with_several_axes_too() -> None:
    def part(c: Call, x: Array) -> Array:
        flat = np.arange(int(np.prod(c.batch))).reshape(*c.batch, 1, 1, 1)
        return np.broadcast_to(flat > 0, x.shape)

    said = lines(spoiled("output", part), FORWARD)
    assert "with more than 1 batch entry, and there only behind the first batch entry: " in said[0]


def test_a_place_is_a_condition_where_it_says_which_calls_fail() -> None:
    def part(c: Call, x: Array) -> Array:
        seen: Array = visibility(REFERENCE, c)
        return np.asarray(~seen[..., :4].any(-1))[..., None]

    said = lines(spoiled("output", part), FORWARD)
    assert said[0].startswith("It is wrong only in rows that see none of the first 4 keys: ")


def test_nothing_is_said_where_a_mistake_is_everywhere_that_it_shows() -> None:
    """Row 0 of a causal call sees one key, whose weight is one, and padding has no gradient."""

    def scale(c: Call) -> Any:
        return REFERENCE.scale(c) * 2

    target = Implementation(replace(REFERENCE, scale=scale))
    assert not any("wrong only" in line and "looked at" in line for line in lines(target, FORWARD))
    assert not any("wrong only" in line and "looked at" in line for line in lines(target, GRADIENTS))


@pytest.mark.parametrize("words", ["in rows that see no key", "at the first head", "at the last channel"])
def test_a_result_without_such_an_axis_has_no_such_place(words: str) -> None:
    case = next(c for c in GRADIENTS if "sinks" in c.inputs and c.shapes["query"][-3] > 1)
    with pytest.raises(ValueError, match="no axis"):
        REGIONS[words](Laid(case, "sinks" if words != "at the first head" else "key", (1,), None))


def test_a_call_of_serving_has_no_such_place() -> None:
    serving = [case for case in load_vectors().cases if case.operation not in DENSE]
    place = Where(("output",), "at the last head", REGIONS["at the last head"])
    assert serving
    assert not any(place.within(case) for case in serving)


def test_two_places_of_the_same_words_are_one_condition() -> None:
    words = "behind the first 4 keys"
    places = [
        Where((name,), words, region) for name, region in (("key", ALL[words][0]), ("weights", ALL[words][1]))
    ]
    of_keys, of_weights = ({case.id for case in CASES if place.within(case)} for place in places)
    assert of_keys - of_weights
    assert of_weights - of_keys
    assert within(places, {case.id: case for case in CASES})[words] == of_keys | of_weights
