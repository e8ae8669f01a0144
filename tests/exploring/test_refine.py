"""The limit of a size in a condition, by experiment."""

from dataclasses import replace
from types import SimpleNamespace

from conformance.diagnosis.split import Gap, Split
from conformance.exploring.refine import refined

SPLIT = Split(
    "fail", "in gradients and with more than 32 queries", 102, 4, 0, 2282, frozenset(),
    (Gap("q_len", "with more than 32 queries", 9, 32),),
)  # fmt: skip


def limit(*sizes: str) -> str:
    (found,) = refined([SPLIT], [SimpleNamespace(sizes=sizes)])
    return found.condition


def test_a_limit_that_rows_leave_open_is_that_of_the_experiment() -> None:
    assert limit("kv_len 3 or more", "q_len 25 or more") == "in gradients and with more than 24 queries"
    assert limit("lengths 25 or more") == "in gradients and with more than 24 queries"


def test_one_that_rows_contradict_is_not() -> None:
    for words in ("q_len 8 or more", "q_len 34 or more", "q_len 25", "kv_len 25 or more", "d_k 25 or more"):
        assert limit(words) == SPLIT.condition


def test_words_that_are_no_least_size_leave_a_limit_as_it_is() -> None:
    zero = replace(
        SPLIT, condition="with more than 0 keys", gaps=(Gap("kv_len", "with more than 0 keys", 0, 0),)
    )
    for words in ("kv_len no multiple of 32", "q_len 8 at most"):
        (found,) = refined([zero], [SimpleNamespace(sizes=(words,))])
        assert found == zero
