"""Packed, paged, latent and merged attention: who claims what, how they are called, what they may return."""

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conformance
from conformance.errors import UsageError
from conformance.names import APPEND, MERGE, PACKED, PROFILES, SDPA, SDPA_VJP
from conformance.running.messages import Hello, Question
from conformance.running.runner import InProcess, answered
from conformance.running.select import aligned, unclaimed
from conformance.running.target import adopt
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors
from tests.running import gathering

CASES: Mapping[str, Case] = {case.id: case for case in load_vectors().cases if case.chapter == "serving"}
GATHERING = Path(gathering.__file__)


def ask(found: Any, case: str, dtype: str = "float32") -> Any:
    """The row of one case."""
    return answered(Question(CASES[case], dtype), "eager", InProcess(adopt(found, "x")))


def test_a_program_that_gathers_passes_the_profile() -> None:
    report = conformance.run(f"{GATHERING}", profile="serving", fresh=1, in_process=True, k="serving")
    asked = [row for row in report.results if set(row.features) <= set(PROFILES["serving"])]
    assert len(asked) > 60
    assert [row.case for row in asked if not row.passed] == []


@pytest.mark.parametrize("case", ["latent-lengths", "latent-mask-bias", "merge-empty-is-nan", "paged-bias"])
def test_it_passes_what_the_profile_leaves_out(case: str) -> None:
    assert ask(gathering, f"serving/{case}").verdict == "pass"


def test_a_function_claims_its_operation_and_its_options() -> None:
    hello = adopt(gathering, "gathering").hello
    assert {"packed", "paged", "append", "latent", "merge"} <= set(hello.features)
    lone = adopt(gathering.packed_attention, "x").hello
    assert lone.operations == (PACKED,)
    assert {"packed", "sinks", "gqa"} <= set(lone.features)
    assert not {"paged", "mask", "kv_lengths"} & set(lone.features)


def test_pages_and_rows_of_a_write_may_go_by_position() -> None:
    def append_to_pages(keys: Any, values: Any, rows: Any, more: Any, /, *, slots: Any) -> Any:
        return gathering.append_to_pages(keys, values, rows, more, slots=slots)

    appends = [name for name, case in CASES.items() if case.operation == APPEND and not case.raises]
    assert {ask(append_to_pages, name).verdict for name in appends} == {"pass"}


def test_a_cotangent_of_the_lse_is_claimed_by_a_backward_pass_alone() -> None:
    def attend(query: Any, key: Any, value: Any, grad_output: Any = None, *, grad_lse: Any = None) -> Any:
        raise NotImplementedError

    assert "grad_lse" in adopt(attend, "x", SDPA_VJP).hello.features
    assert "grad_lse" not in adopt(attend, "x", SDPA).hello.features


def test_what_every_call_gives_is_no_feature() -> None:
    paged, latent = (adopt(f, "x").hello for f in (gathering.paged_attention, gathering.latent_attention))
    assert "kv_lengths" not in paged.features
    assert "append" in paged.features
    assert "scale" not in latent.features


def test_pages_without_writes_do_not_claim_them() -> None:
    def paged_attention(
        query: Any, key_pages: Any, value_pages: Any, *, page_table: Any, kv_lengths: Any
    ) -> Any:
        return gathering.paged_attention(
            query, key_pages, value_pages, page_table=page_table, kv_lengths=kv_lengths
        )

    hello = adopt(paged_attention, "x").hello
    assert "append" not in hello.features
    assert unclaimed(CASES["serving/paged-write"], hello) == "does not support append"
    assert ask(paged_attention, "serving/paged-shared-prefix").verdict == "pass"


def test_a_feature_without_its_function_is_refused() -> None:
    target = types.SimpleNamespace(
        scaled_dot_product_attention=gathering.scaled_dot_product_attention, features={"packed"}
    )
    with pytest.raises(UsageError, match="has 'packed' in its features, and no function packed_attention"):
        adopt(target, "x")


def test_a_function_without_what_it_needs_is_refused() -> None:
    def packed_attention(query: Any, key: Any, value: Any, *, q_starts: Any) -> Any:
        raise AssertionError

    with pytest.raises(UsageError, match="lacks the parameters kv_starts, so it is not a packed_attention"):
        adopt(packed_attention, "x")


def test_arrays_go_by_position_where_their_names_are_others() -> None:
    def merge_attention(o: list[Any], s: list[Any], *, sinks: Any = None) -> Any:
        assert isinstance(o, list)
        assert isinstance(s, list)
        return gathering.merge_attention(o, s, sinks=sinks)

    assert ask(merge_attention, "serving/merge-sinks").verdict == "pass"


def test_a_merge_gets_lists_and_its_lses_are_float32() -> None:
    seen = {}

    def merge_attention(outputs: list[Any], lses: list[Any]) -> Any:
        seen.update(outputs=[x.dtype for x in outputs], lses=[x.dtype for x in lses])
        wide = gathering.merge_attention([x.astype(np.float32) for x in outputs], lses)
        return wide[0].astype(outputs[0].dtype), wide[1]

    merge_attention.dtypes = ("float16",)  # type: ignore[attr-defined]
    assert ask(merge_attention, "serving/merge-three", "float16").verdict == "pass"
    assert seen == {"outputs": [np.float16] * 3, "lses": [np.float32] * 3}


def test_an_operand_of_a_merge_that_is_written_to_is_named() -> None:
    def merge_attention(outputs: list[Any], lses: list[Any], *, sinks: Any = None) -> Any:
        found = gathering.merge_attention(outputs, lses, sinks=sinks)
        outputs[1][...] = 0
        return found

    row = ask(merge_attention, "serving/merge-two")
    assert row.verdict == "fail"
    assert "outputs[1] was written to during the call (IND-5)" in row.message


@pytest.mark.parametrize(
    ("operation", "returned", "message"),
    [
        (APPEND, lambda k, v: k, "key_pages is missing"),
        (MERGE, lambda o, s: o[0], "lse is missing"),
        (MERGE, lambda o, s: (o[0], s[0], s[0]), "a tuple of 3"),
    ],
)
def test_what_is_returned_of_another_form_is_told(operation: str, returned: Any, message: str) -> None:
    def append_to_pages(key_pages: Any, value_pages: Any, new_key: Any, new_value: Any, *, slots: Any) -> Any:
        return returned(key_pages.copy(), value_pages.copy())

    def merge_attention(outputs: Any, lses: Any) -> Any:
        return returned(outputs, lses)

    found, case = (append_to_pages, "append-slots") if operation == APPEND else (merge_attention, "merge-two")
    row = ask(found, f"serving/{case}")
    assert row.verdict == "fail"
    assert message in row.message


def test_rows_of_no_part_may_hold_anything() -> None:
    case = CASES["serving/packed-parts"]
    assert case.expected["output"].rows == (0, 1, 2, 3, 4)
    assert ask(gathering, case.id).verdict == "pass"
    assert CASES["serving/packed-no-parts"].expected["output"].rows == ()
    assert ask(gathering, "serving/packed-no-parts").verdict == "pass"


def test_the_sign_of_a_copied_zero_is_judged() -> None:
    def append_to_pages(**given: Any) -> Any:
        return tuple(x + 0.0 for x in gathering.append_to_pages(**given))

    row = ask(append_to_pages, "serving/append-minus-one")
    assert "is 0, wanted exactly -0 (PAGE-9)" in row.message


def hello(**fields: Any) -> Hello:
    """A target whose last query is at its last key."""
    made = {"name": "x", "version": None, "dtypes": ("float32",), "accuracy": "eager"}
    features = ("packed", "paged", "is_causal", "window", "return_lse", "gqa")
    operations = (PACKED, "paged_attention", SDPA)
    return Hello(**{**made, "features": features, "operations": operations, **fields})  # type: ignore[arg-type]


def test_an_alignment_to_the_last_key_counts_by_part_and_entry() -> None:
    bottom = hello(causal_alignment="bottom-right")
    for name in ("packed-causal-offset-of-each-part", "packed-causal", "paged-causal"):
        case = CASES[f"serving/{name}"]
        assert unclaimed(case, bottom) == ""
        asked = aligned(case, bottom)
        assert "q_offset" not in {**asked.inputs, **asked.options}
    assert "aligned to the last key" in unclaimed(CASES["serving/packed-causal-one-offset"], bottom) or (
        "q_offset" in unclaimed(CASES["serving/packed-causal-one-offset"], bottom)
    )


def test_variants_have_the_other_sign() -> None:
    names = ("packed-parts", "paged-write", "append-slots", "latent-rows", "merge-three")
    report = conformance.run(
        f"{GATHERING}", k=" or ".join(f"serving/{name}" for name in names), fresh=3, in_process=True
    )
    assert [row.verdict for row in report.results] == ["pass"] * len(report.results)
    assert len(report.results) >= len(names)
