"""The drafts and the shipped cases: one for one, equal where they are built anew, and no two alike."""

import collections
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.names import MHA, MHA_VJP
from conformance.vectors.generate import cases
from conformance.vectors.generate.build import build
from conformance.vectors.generate.cases import drafts
from conformance.vectors.generate.draft import attend, gradient
from conformance.vectors.generate.serving import judged_rows
from conformance.vectors.load import load_vectors

SHIPPED = {case.id: case for case in load_vectors().cases}
DRAFTS = {draft.id: draft for draft in drafts()}
SLOW = 40_000  # numbers in the inputs: above it a case is left to `python -m conformance.vectors.generate --check`
STEP = 5
SPARSE = 25


def _size(draft):
    return sum(array.size for array in draft.inputs.values())


def _sample():
    """Every fifth draft that is fast, and every readable one, and some that are seeded: each chapter has some."""
    stored = [draft for draft in DRAFTS.values() if not draft.seeded and draft.rows is None]
    fast = [draft for draft in stored if _size(draft) < SLOW]
    seeded = [draft.id for draft in DRAFTS.values() if draft.seeded and "grad_output" not in draft.seeded]
    return [draft.id for i, draft in enumerate(fast) if i % STEP == 0 or draft.readable] + seeded[::SPARSE]


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def test_no_chapter_is_forgotten():
    files = {path.stem for path in Path(cases.__file__).parent.glob("*.py")}
    assert files - {"__init__"} == set(cases.CHAPTERS)


def test_every_draft_is_shipped_and_nothing_else():
    assert set(SHIPPED) == set(DRAFTS)
    assert len(SHIPPED) >= 300


def test_the_sample_has_every_chapter():
    chapters = collections.Counter(name.split("/")[0] for name in _sample())
    assert set(chapters) == {case.chapter for case in SHIPPED.values()}
    assert sum(chapters.values()) >= 40


@pytest.mark.parametrize("name", DRAFTS)
def test_a_shipped_case_says_what_its_draft_says(name):
    draft, case = DRAFTS[name], SHIPPED[name]
    assert (case.note, case.operation, case.covers, case.raises) == (
        draft.note,
        draft.operation,
        draft.covers,
        draft.raises,
    )
    assert (case.repeat, dict(case.memory), dict(case.dtype_of)) == (
        draft.repeat,
        dict(draft.memory),
        dict(draft.dtype_of),
    )
    assert case.options == json.loads(json.dumps(draft.options))
    assert list(case.inputs) == list(draft.inputs)
    assert dict(case.seeded) == dict(draft.seeded)
    for operand in draft.inputs.keys() - draft.seeded:
        array = draft.inputs[operand]
        stored = case.inputs[operand]
        assert stored.shape == array.shape
        assert np.array_equal(stored.astype(array.dtype), array, equal_nan=array.dtype.kind == "f")
        assert stored.dtype.kind == array.dtype.kind
    for output, golden in case.expected.items():
        judged = judged_rows(draft) if output in ("output", "weights", "lse") else None
        assert golden.rows == draft.sampled.get(output, judged)


@pytest.mark.session("vectors")
@pytest.mark.covers("CONF-10")
@pytest.mark.parametrize("name", _sample())
def test_a_case_built_anew_is_the_shipped_one(name):
    fresh, shipped = build(DRAFTS[name]), SHIPPED[name]
    assert (fresh.features, fresh.dtypes, dict(fresh.excluded)) == (
        shipped.features,
        shipped.dtypes,
        dict(shipped.excluded),
    )
    assert set(fresh.expected) == set(shipped.expected)
    for operand, array in fresh.inputs.items():
        assert same(array, shipped.inputs[operand]), operand
    for output, golden in fresh.expected.items():
        read = shipped.expected[output]
        assert (golden.shape, golden.rows, golden.rms_applies) == (read.shape, read.rows, read.rms_applies)
        assert same(golden.hi, read.hi), output
        assert same(golden.lo, read.lo), output
        pairs = {(dtype, policy) for dtype, of in golden.bounds.items() for policy in of}
        assert pairs == {(dtype, policy) for dtype, of in read.bounds.items() for policy in of}
        for dtype, policy in pairs:
            left, right = golden.bounds[dtype][policy], read.bounds[dtype][policy]
            assert same(left.worst, right.worst), (output, dtype, policy)
            assert same(left.rms, right.rms), (output, dtype, policy)


def test_no_two_cases_are_one_call():
    calls = collections.defaultdict(list)
    for case in SHIPPED.values():
        arrays = sorted((name, a.dtype.str, a.shape, a.tobytes()) for name, a in case.inputs.items())
        how = json.dumps([case.options, dict(case.memory), case.repeat, dict(case.dtype_of)], sort_keys=True)
        calls[case.operation, how, tuple(arrays)].append(case.id)
    assert [names for names in calls.values() if len(names) > 1] == []


def test_queries_are_shared_only_where_a_case_says_so():
    shared = collections.defaultdict(set)
    for case in SHIPPED.values():
        if not case.raises and "query" in case.inputs and case.inputs["query"].size:
            shared[case.inputs["query"].tobytes()].add(case.id)
    meant = (
        "independence/asked",
        "nonfinite/",
        "example/",
        "attention/hand-sized",
        "gradient/hand-sized",
        "kernels/",
        "reports/",
        "segments/",  # other numbers for the same call
    )
    for names in shared.values():
        assert len(names) == 1 or all(name.startswith(meant) for name in names), names


def test_both_operations_have_cases_of_all_dtypes_and_of_full_mantissas():
    for layer in (True, False):
        cases = [
            case
            for case in SHIPPED.values()
            if (case.operation in (MHA, MHA_VJP)) == layer and not case.raises
        ]
        assert any(case.dtypes == ("float64", "float32", "float16", "bfloat16") for case in cases)
        assert any(case.dtypes == ("float64", "float32") for case in cases)


def test_a_draft_of_a_wrong_call_has_to_say_so():
    with pytest.raises(ValueError, match="paths/wrong is a wrong call: causal without offset"):
        build(attend("paths/wrong", "Causal, more keys than queries, no offset.", "MASK-7", is_causal=True))
    with pytest.raises(ValueError, match="paths/right is to be refused, and nothing in it is wrong"):
        build(attend("paths/right", "Nothing special.", "ATT-1", raises=True))


@pytest.mark.parametrize("name", ["query", "key", "value", "grad_output", "attn_bias", "sinks"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_no_gradient_is_derived_of_what_is_not_finite_and_can_be_seen(name, number):
    draft = gradient(attend("gradient/x", "x", "GRAD-1", attn_bias=np.zeros((5, 7)), sinks=np.zeros(3)))
    inputs = {**draft.inputs, name: draft.inputs[name].copy()}
    inputs[name].flat[0] = number
    with pytest.raises(ValueError, match="gradient/x asks for gradients, and a NaN or an infinity"):
        build(replace(draft, inputs=inputs))
