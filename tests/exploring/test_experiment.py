"""Experiments on stored cases: what is said is what the target was made to need."""

import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mha_core
from conformance.defects.bank import DEFECTS
from conformance.diagnosis.finding import Diagnosed, Finding
from conformance.diagnosis.places import Place
from conformance.diagnosis.search import models
from conformance.exploring.alone import alone
from conformance.exploring.experiment import Experiment, experiments
from conformance.exploring.grow import last, stretches
from conformance.exploring.needed import Needs, settled
from conformance.exploring.vary import axes, changes, cut, extent, otherwise, varied
from conformance.exploring.whole import WIDTHS, fillings, visible
from conformance.exploring.worth import worth_asking
from conformance.judging.verdict import Row
from conformance.oracle import certify
from conformance.running.messages import Question
from conformance.running.runner import InProcess, answered
from conformance.running.target import adopt
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

Outputs = Any
CASES = {case.id: case for case in load_vectors().cases}


def target(spoils: Callable[[Mapping[str, Any], int, int], bool]) -> InProcess:
    """Attention whose output is spoiled where options, q_len and kv_len say so."""

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Outputs:
        found = mha_core.scaled_dot_product_attention(query, key, value, **options)
        given = {name: x for name, x in options.items() if x is not None and x is not False}
        past = given["past_key"].shape[-2] if "past_key" in given else 0
        if spoils(given, query.shape[-2], key.shape[-2] + past):
            output: Any = found["output"] if isinstance(found, dict) else found
            output *= 1.5
        return found

    return InProcess(adopt(attention, "spoiled"))


def needs_of(case: str, asker: InProcess) -> Needs | None:
    """What an experiment on a case says, which has to fail."""
    row = answered(Question(CASES[case], "float32"), "eager", asker)
    assert row.failed
    return Experiment(CASES[case], row, "eager", asker.ask, float("inf")).needs()


def test_the_option_is_named_and_those_that_do_not_matter() -> None:
    needs = needs_of("attention/softcap-mask-bias", target(lambda given, *_: "softcap" in given))
    assert needs is not None
    assert needs.options == ("`softcap`",)
    assert {"`mask`", "`attn_bias`"} <= set(needs.free)
    assert needs.sentence.startswith(
        "By experiment scaled_dot_product_attention is wrong only with `softcap`; the same without "
    )


def test_two_options_and_a_length() -> None:
    asker = target(lambda given, _, kv_len: {"softcap", "mask"} <= set(given) and kv_len > 3)
    needs = needs_of("attention/softcap-mask-bias", asker)
    assert needs is not None
    assert set(needs.options) == {"`softcap`", "`mask`"}
    assert needs.sizes == ("kv_len 4 or more",)


def test_a_length_alone() -> None:
    needs = needs_of("kernels/decode-1024-sinks", target(lambda _given, _, kv_len: kv_len > 128))
    assert needs is not None
    assert needs.options == ()
    assert needs.sizes == ("kv_len 129 or more",)


def test_what_passes_alone_tells_of_earlier_calls() -> None:
    right = InProcess(adopt(mha_core.scaled_dot_product_attention, "right"))
    row = answered(Question(CASES["attention/softcap"], "float32"), "eager", target(lambda *_: True))
    needs = Experiment(CASES["attention/softcap"], row, "eager", right.ask, float("inf")).needs()
    assert needs is not None
    assert needs.sentence.endswith("alone in a new process: earlier calls leave something behind (IND-4).")


def test_what_fails_alone_is_looked_at_where_earlier_calls_leave_something() -> None:
    def start() -> InProcess:
        left = list[bool]()

        def spoils(given: Mapping[str, Any], *_: int) -> bool:
            left.append("softcap" in given)
            return any(left[:-1]) or "sinks" in given

        return target(spoils)

    some = ("attention/softcap", "sizes/d-k-1", "sizes/d-k-2", "attention/sinks-large")
    asker, cases = start(), [CASES[name] for name in some]
    rows = [answered(Question(case, "float32"), "eager", asker) for case in cases]
    assert [row.failed for row in rows] == [False, True, True, True]
    state, sinks = experiments(Diagnosed((), 3, 3), rows, cases, "eager", start)
    assert "passes when it is asked alone" in state.sentence
    assert "(IND-4). 1 of 2 other calls fail without those before them." in state.sentence
    assert sinks.options == ("`sinks`",)


@pytest.mark.parametrize("tile", [16, 32])
def test_tiles_that_a_small_call_does_not_fill_are_told(tile: int) -> None:
    needs = needs_of("attention/softcap", target(lambda _given, _, kv_len: kv_len % tile != 0))
    assert needs is not None
    assert needs.sizes == (f"kv_len no multiple of {tile}",)


def test_what_is_kept_by_its_shape_is_told_by_another_call_before() -> None:
    def start() -> InProcess:
        kept: dict[tuple[int, ...], Any] = {}

        def attention(query: Any, key: Any, value: Any, mask: Any = None) -> Outputs:
            if mask is not None:
                mask = kept.setdefault(mask.shape, mask.copy())
            return mha_core.scaled_dot_product_attention(query, key, value, mask=mask)

        return InProcess(adopt(attention, "keeping"))

    case = CASES["mask/broadcast-keys"]
    row = replace(answered(Question(case, "float32"), "eager", target(lambda *_: True)), got=())
    (needs,) = experiments(Diagnosed((), 1, 1), [row], [case], "eager", start)
    assert "fails behind a call of the same shapes with another mask, and passes alone" in needs.sentence


def test_mistakes_that_explain_little_are_not_said_beside_state() -> None:
    state = Needs("a/b", "float32", "", "scaled_dot_product_attention", (), (), (), alone=True)
    (model,) = models(DEFECTS[:1])[:1]
    found = Diagnosed((Finding(model, (), 9),), 9, 9)
    assert not settled(found, [state], "eager").findings
    there = replace(found, places=(Place("that see no key", 1, 0, 0, 9),))
    assert not settled(there, [state], "eager").places
    assert settled(there, [replace(state, alone=False)], "eager").places
    assert settled(found, [replace(state, alone=False)], "eager").findings


def test_mistakes_that_much_speaks_against_are_not_said_beside_a_condition() -> None:
    needs = Needs("a/b", "float32", "is wrong", "scaled_dot_product_attention", ("`mask`",), (), ())
    (model,) = models(DEFECTS[:1])[:1]
    for against, kept in ((5, True), (6, False)):
        found = Diagnosed((Finding(model, (), 9, contradicted=against, looked_at=15),), 9, 9, cases=9)
        assert bool(settled(found, [needs], "eager").findings) == kept
        assert settled(found, [replace(needs, options=())], "eager").findings


def test_a_call_of_no_keys_is_not_given_more() -> None:
    call = varied(CASES["attention/softcap"])
    assert stretches(call, "kv_len")
    assert not stretches(cut(call, "kv_len", 0), "kv_len")


def test_a_length_is_not_said_that_only_keeps_lengths_apart() -> None:
    def rises(given: Mapping[str, Any], *_: int) -> bool:
        return "kv_lengths" in given and bool((np.diff(given["kv_lengths"]) > 0).any())

    needs = needs_of("pairs/lengths-softcap-bias-value-dim", target(rises))
    assert needs is not None
    assert needs.options == ("several batch entries", "`kv_lengths` (not in descending order)")
    assert needs.sizes == ()


def test_the_second_case_lacks_what_the_first_needs() -> None:
    asker = target(lambda given, *_: "softcap" in given or "sinks" in given)
    some = [CASES[name] for name in ("attention/softcap", "attention/softcap-60", "attention/sinks-large")]
    rows = [answered(Question(case, "float32"), "eager", asker) for case in some]
    found = experiments(Diagnosed((), 3, 3), rows, some, "eager", lambda: asker)
    assert sorted(needs.options for needs in found) == [("`sinks`",), ("`softcap`",)]


def test_no_time_no_words() -> None:
    asker = target(lambda *_: True)
    case = CASES["attention/softcap"]
    row = answered(Question(case, "float32"), "eager", asker)
    assert Experiment(case, row, "eager", asker.ask, 0.0).needs() is None
    assert experiments(Diagnosed((), 1, 1), [row], [case], "eager", lambda: asker, seconds=-1.0) == ()


@pytest.mark.parametrize(
    "name", ["packed-parts", "paged-all-options", "append-slots", "latent-rows", "merge-two"]
)
def test_a_call_of_serving_is_not_changed(name: str) -> None:
    case = CASES[f"serving/{name}"]
    row = replace(_failing(CASES["attention/softcap"]), case=case.id, operation=case.operation)

    def start() -> InProcess:
        raise AssertionError("nothing is asked")

    assert experiments(Diagnosed((), 1, 1), [row], [case], "eager", start) == ()


def test_it_is_worth_asking_where_nothing_is_named() -> None:
    assert worth_asking(Diagnosed((), 1, 1))
    assert not worth_asking(Diagnosed((), 0, 0))


@pytest.mark.parametrize(
    "name",
    [
        "paths/two-batch-axes-lengths",
        "causal/window-offset-per-batch",
        "heads/grouped-mask-bias",
        "cache/grouped",
        "mask/kv-lengths-causal",
        "gradient/everything",
        "gradient/layer-everything",
        "cache/layer-causal",
        "memory/attention-behind-offsets",
        "nonfinite/unwritten-causal-weights",
    ],
)
def test_a_right_program_passes_every_changed_call(name: str) -> None:
    case, asker = CASES[name], InProcess(adopt(mha_core, "right"))
    row = replace(_failing(case), dtype="float64")
    experiment = Experiment(case, row, "eager", asker.ask, float("inf"))
    call, answers = varied(case), []
    for words, ways in (*changes(call), *fillings(call)):
        for way in ways:
            try:
                changed = way(call)
            except ValueError:
                continue
            answers.append((words, experiment.fails(changed)))
    answers += [
        (axis, experiment.fails(cut(call, axis, max(1, extent(call, axis) - 1)))) for axis in axes(call)
    ]
    answers.append(("other numbers", experiment.fails(otherwise(call, 0))))
    assert not [words for words, failed in answers if failed]
    assert sum(failed is False for _, failed in answers) >= 3


def _failing(case: Case) -> Row:
    row = answered(Question(case, "float32"), "eager", target(lambda *_: True))
    return replace(row, case=case.id, verdict="fail")


def test_other_numbers_are_held_by_every_dtype() -> None:
    call = otherwise(varied(CASES["attention/softcap"]), 1)
    numbers = call.inputs["query"]
    assert (numbers * 16 == np.round(numbers * 16)).all()
    assert np.abs(numbers).max() <= 3


def test_a_path_for_few_queries_is_told_by_more_of_them() -> None:
    needs = needs_of("kernels/decode-1024-sinks", target(lambda *_: True))
    assert needs is not None
    assert not any("q_len" in words for words in needs.sizes)
    few = target_by_queries(lambda q_len: q_len <= 8)
    needs = needs_of("kernels/decode-1024-sinks", few)
    assert needs is not None
    assert "q_len 8 at most" in needs.sizes


def test_queries_between_two_numbers() -> None:
    needs = needs_of("attention/softcap-mask-bias", target_by_queries(lambda q_len: 2 <= q_len <= 11))
    assert needs is not None
    assert "q_len 2 to 11" in needs.sizes


def target_by_queries(spoils: Callable[[int], bool]) -> InProcess:
    """Attention that is spoiled at some numbers of queries."""
    return target(lambda _given, q_len, _: spoils(q_len))


def test_the_past_of_a_layer_is_left_out_with_what_counts_it() -> None:
    case = next(
        c
        for c in CASES.values()
        if c.operation == "multi_head_attention" and {"past_key", "kv_lengths", "mask"} <= set(c.inputs)
    )
    (ways,) = (ways for words, ways in changes(varied(case)) if words == "a past")
    without = ways[-1](varied(case))
    before = case.shapes["past_key"][-2]
    assert not without.given("past_key")
    assert without.inputs["mask"].shape[-1] in (1, case.shapes["mask"][-1] - before)
    assert (without.inputs["kv_lengths"] == np.maximum(case.inputs["kv_lengths"] - before, 0)).all()


def test_what_time_did_not_allow_to_leave_out_is_said() -> None:
    needs = Needs(
        "a/b", "float32", "is wrong", "f", ("a past",), (), ("`mask`",), untried=("`scale`", "`b_o`")
    )
    assert needs.sentence == (
        "By experiment f is wrong only with a past; the same without `mask`; not tried without `scale` and `b_o` "
        "(a/b, float32)."
    )


def gradients(name: str, spoils: Callable[[Mapping[str, Any], Any], Any]) -> InProcess:
    """Gradients, one of which is spoiled where options and the gradient say so."""

    def vjp(query: Any, key: Any, value: Any, grad_output: Any, **options: Any) -> Any:
        found = mha_core.scaled_dot_product_attention_vjp(query, key, value, grad_output, **options)
        wrong = spoils({name: x for name, x in options.items() if x is not None}, found[name])
        return {**found, name: np.where(wrong, found[name] + found[name].dtype.type(1), found[name])}

    return InProcess(adopt(type("T", (), {"scaled_dot_product_attention_vjp": staticmethod(vjp)}), "spoiled"))


def needs_of_gradients(case: str, dtype: str, asker: InProcess) -> Needs:
    row = answered(Question(CASES[case], dtype), "eager", asker)
    assert row.failed
    needs = Experiment(CASES[case], row, "eager", asker.ask, float("inf")).needs()
    assert needs is not None
    return needs


def test_a_narrow_dtype_is_said_where_a_wider_one_passes() -> None:
    for dtypes, words in ((("float16",), "float16"), (("float16", "bfloat16"), "operands of 16 bits")):
        asker = gradients("key", lambda _, x, dtypes=dtypes: x.dtype.name in dtypes)  # type: ignore[misc]
        needs = needs_of_gradients("gradient/gauss", "float16", asker)
        assert needs.options[0] == words
        assert "and there only in the gradient of key" in needs.sentence
    asker = gradients("key", lambda _, x: np.ones(x.shape, bool))
    assert needs_of_gradients("gradient/gauss", "float16", asker).options == ()


def test_where_in_a_result_is_said_too() -> None:
    asker = gradients("value", lambda _, x: (np.arange(x.shape[-2]) >= 16)[:, None])
    needs = needs_of_gradients("gradient/tiles", "float64", asker)
    assert needs.there == "only in the gradient of value, behind the first 16 keys"


def test_a_table_that_broadcasts_is_told_from_one_that_does_not() -> None:
    case = next(
        c
        for c in CASES.values()
        if c.operation == "scaled_dot_product_attention_vjp"
        and "float64" in c.dtypes
        and len(c.shapes.get("attn_bias", "....")) < 4
    )

    def smaller(given: Mapping[str, Any], _: Any) -> Any:
        return "attn_bias" in given and given["attn_bias"].ndim < 4

    asker = gradients("query", smaller)
    needs = needs_of_gradients(case.id, "float64", asker)
    assert "`attn_bias` that broadcasts" in needs.options
    assert "`attn_bias`" not in needs.options


@pytest.mark.parametrize("case", ["mask/empty-row-by-length", "gradient/mask-of-queries-causal"])
def test_a_query_that_sees_no_key_is_taken_away(case: str) -> None:
    call = varied(CASES[case])
    assert not visible(call).any(-1).all()
    (ways,) = (ways for words, ways in fillings(call) if words == "a query that sees no key")
    made = []
    for way in ways:
        try:
            made.append(way(call))
        except ValueError:
            continue
    assert made
    assert all(visible(each).any(-1).all() for each in made)


def test_an_offset_that_lengths_need_is_set_to_zero() -> None:
    case = next(c for c in CASES.values() if _offset_beside_lengths(c))
    needs = needs_of(case.id, target(lambda given, *_: given.get("q_offset", 0) > 0))
    assert needs is not None
    assert "`q_offset` (above 0)" in needs.options


def _offset_beside_lengths(case: Case) -> bool:
    """Whether a call of attention has a number for an offset, and lengths that differ."""
    return (
        case.operation == "scaled_dot_product_attention"
        and case.options.get("q_offset", 0) > 0
        and "is_causal" in case.options
        and case.shapes["query"][-2] != case.shapes["key"][-2]
        and set(case.inputs) == {"query", "key", "value"}
    )


def test_widths_that_differ_are_told_from_widths() -> None:
    case = next(
        c
        for c in CASES.values()
        if c.operation == "scaled_dot_product_attention"
        and c.shapes["query"][-1] != c.shapes["value"][-1]
        and c.id.startswith("heads/")
        and "float32" in c.dtypes
    )

    def attention(query: Any, key: Any, value: Any, **options: Any) -> Any:
        found = mha_core.scaled_dot_product_attention(query, key, value, **options)
        output: Any = found["output"] if isinstance(found, dict) else found
        output *= 1.5 if query.shape[-1] != value.shape[-1] else 1
        return found

    needs = needs_of(case.id, InProcess(adopt(attention, "spoiled")))
    assert needs is not None
    assert WIDTHS in needs.options
    assert not any(words.startswith("d_") for words in needs.sizes)


def test_the_last_queries_are_asked_where_the_first_pass() -> None:
    call = varied(CASES["gradient/causal-offset"])
    few = last(call, "q_len", 2)
    assert few.size("q_len") == 2
    assert few.options["q_offset"] == call.options["q_offset"] + call.size("q_len") - 2
    assert (visible(few) == visible(call)[..., -2:, :]).all()
    assert last(call, "kv_len", 2) is call


def test_gradients_are_looked_at_before_many_roundings_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[bool]()

    def counted(*given: Any, look: bool = False, **more: Any) -> Any:
        looks.append(look)
        return certify(*given, look=look, **more)

    def wrong(**given: Any) -> Outputs:
        found = mha_core.scaled_dot_product_attention_vjp(**given)
        if given.get("softcap") is not None:
            found["key"] = np.asarray(found["key"]) * 1.5
        return found

    monkeypatch.setattr("conformance.exploring.experiment.certify", counted)
    made = types.SimpleNamespace(scaled_dot_product_attention_vjp=wrong)
    needs = needs_of("gradient/softcap", InProcess(adopt(made, "spoiled")))
    assert needs is not None
    assert needs.options == ("`softcap`",)
    assert len(looks) > 4
    assert sum(not look for look in looks) <= len(looks) / 4


def test_no_most_queries_are_told_where_every_second_number_fails() -> None:
    asker = target(lambda _, q_len, __: q_len % 2 == 1)
    needs = (
        needs_of("attention/softcap", asker) if CASES["attention/softcap"].shapes["query"][-2] % 2 else None
    )
    case = next(
        case for case in CASES.values()
        if case.operation == "scaled_dot_product_attention" and case.shapes["query"][-2] in (3, 5)
        and not case.raises and case.elements < 2000 and "float32" in case.dtypes
    )  # fmt: skip
    needs = needs_of(case.id, asker)
    assert needs is not None
    assert not any("at most" in words or " to " in words for words in needs.sizes)


def test_where_no_other_row_fails_nothing_is_asked_or_said_of_others() -> None:
    def start() -> InProcess:
        raise AssertionError("nothing is asked")

    found = alone((), CASES, "eager", start, float("inf"))
    assert found.sentence == ""


def test_a_target_that_waits_ends_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.exploring.experiment.WALL", 0.0)
    assert needs_of("attention/softcap", target(lambda *_: True)) is None
