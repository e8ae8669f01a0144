"""Variants: exact for whoever computes attention, and unknown to whoever remembers answers."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.judging.verdict import Row
from conformance.names import MHA, SDPA
from conformance.running.events import Started
from conformance.running.messages import Question
from conformance.running.request import Request
from conformance.running.runner import InProcess, answered, run
from conformance.running.select import Selection, unclaimed
from conformance.running.target import load
from conformance.running.variants import LEAST, variant, with_variants
from conformance.vectors.case import Case
from conformance.vectors.load import load_vectors

Make = Callable[..., Case]
CASES = [case for case in load_vectors().cases if not case.raises]


@pytest.mark.covers("CONF-16", "IND-3")
def test_a_right_implementation_answers_the_variants_of_every_case() -> None:
    target = load("numpy")
    asker, wrong, asked = InProcess(target), [], 0
    for case in CASES:
        if unclaimed(case, target.hello):
            continue
        made = variant(case, f"tests/{case.id}")
        for dtype in ("float64", "float16"):
            if case.judged(dtype, "fused"):
                row = answered(Question(made.case, dtype), "fused", asker)
                asked += 1
                wrong += [(case.id, dtype, made.words, row.message)] * (row.verdict != "pass")
    assert wrong == []
    assert asked > len(CASES)


def test_every_case_has_another_question_and_most_another_answer() -> None:
    changed = 0
    for case in CASES:
        made = variant(case, f"tests/{case.id}").case
        assert any(
            not np.array_equal(x, case.inputs[name]) for name, x in made.inputs.items() if x.any()
        ) or not (any(x.size and np.any(x) for x in case.inputs.values())), case.id
        changed += any(
            not np.array_equal(golden.hi, case.expected[name].hi, equal_nan=True)
            for name, golden in made.expected.items()
        )
    assert changed > 0.9 * len(CASES)


def test_a_variant_follows_from_its_seed() -> None:
    case = next(case for case in CASES if case.operation == MHA)
    one, same, other = (variant(case, seed) for seed in ("1", "1", "2"))
    assert one.words == same.words
    for name, array in one.case.inputs.items():
        assert np.array_equal(array, same.case.inputs[name])
    assert any(not np.array_equal(x, other.case.inputs[name]) for name, x in one.case.inputs.items())


def test_causal_queries_and_keys_stay_where_they_are(make_case: Make) -> None:
    words = {variant(make_case(options={"is_causal": True}), str(seed)).words for seed in range(20)}
    assert words <= {"value negated", "value negated, its heads in another order"}
    assert "its keys in another order" in variant(make_case(), "1").words


def test_sampled_rows_get_their_new_numbers(make_case: Make, make_golden: Callable[..., object]) -> None:
    case = make_case()
    exact = case.expected["output"].hi
    sampled = replace(case, expected={"output": make_golden(exact, rows=(0, 2))})
    moved = set()
    for seed in "12345":
        golden, whole = (variant(each, seed).case.expected["output"] for each in (sampled, case))
        moved.add(golden.rows)
        assert np.array_equal(golden.hi, np.take(whole.hi, golden.rows, axis=-2))  # type: ignore[arg-type]
    assert len(moved) > 1


def test_which_rows_have_one(make_case: Make) -> None:
    questions = [Question(make_case(f"a/{n}"), "float32") for n in range(400)]
    questions += [
        Question(make_case("b/u"), "float32", "does not support"),
        Question(make_case("b/r", raises=True), "float32"),
    ]
    one, same, other = ({q.case.id for q in with_variants(questions, s) if q.seed} for s in (1, 1, 2))
    assert len(one) == 20
    assert one == same != other
    assert len([q for q in with_variants(questions[:30], 1) if q.seed]) == LEAST


CHEATS = """
import pathlib, pickle
import numpy as np

by_bytes, by_shape = pickle.loads(pathlib.Path(__file__).with_name("answers").read_bytes())

def by_value(query, key, value):
    known = by_bytes.get(b"".join(np.ascontiguousarray(x).tobytes() for x in (query, key, value)))
    return value * 0 if known is None else known.copy()

def by_size(query, key, value):
    return by_shape[query.shape, key.shape, value.shape].copy()

by_value.features = by_size.features = set()
"""


def remembered(folder: Path) -> list[Case]:
    """Cases of different shapes, whose answers lie in a file in the folder, by their inputs and by their shapes."""
    by_bytes, by_shape, cases = {}, {}, []
    for case in CASES:
        golden = case.expected.get("output")
        if case.features or case.operation != SDPA or golden is None or not case.judged("float32", "eager"):
            continue
        arrays = [case.operands("float32")[name] for name in ("query", "key", "value")]
        shapes = tuple(array.shape for array in arrays)
        if shapes not in by_shape and golden.rows is None and golden.hi.any() and len(cases) < 12:
            answer = (golden.hi + golden.lo).astype(np.float32)
            by_bytes[b"".join(array.tobytes() for array in arrays)] = by_shape[shapes] = answer
            cases.append(case)
    (folder / "answers").write_bytes(pickle.dumps((by_bytes, by_shape)))
    return cases


@pytest.mark.parametrize("name", ["by_value", "by_size"])
@pytest.mark.covers("CONF-16")
def test_remembered_answers(tmp_path: Path, name: str) -> None:
    path, unique = tmp_path / "cheats.py", remembered(tmp_path)
    path.write_text(CHEATS)
    request = Request(target=f"{path}:{name}", selection=Selection(dtypes=("float32",)), in_process=True)
    _, *plain = run(request, unique)
    assert {row.verdict for row in plain if isinstance(row, Row)} == {"pass"}, (
        "without variants it comes through"
    )
    started, *rows = run(replace(request, fresh=1), unique)
    assert isinstance(started, Started)
    caught = [row for row in rows if isinstance(row, Row) and row.verdict == "fail"]
    assert len(caught) == len(started.varied) == LEAST
    assert all(
        row.message.startswith("answers the stored case but not its variant (value negated") for row in caught
    )
    assert "--fresh 1): output" in caught[0].message


def test_a_variant_that_is_not_answered_fails(tmp_path: Path, make_case: Make) -> None:
    path = tmp_path / "once.py"
    path.write_text(
        "import numpy as np\nsigns = set()\n"
        "def attention(query, key, value):\n"
        "    signs.add(float(np.sign(value[0, 0, 0])))\n"
        "    if len(signs) > 1: raise NotImplementedError('only one sign')\n"
        "    weights = np.exp(query.astype('f8') @ key.swapaxes(-1, -2) / 2)\n"
        "    return (weights / weights.sum(-1, keepdims=True) @ value).astype('f4')\n"
    )
    inputs = {name: np.ones((2, 3, 4)) for name in ("query", "key", "value")}
    case = make_case(inputs=inputs)
    _, row = run(Request(target=f"{path}:attention", fresh=5), [case])
    assert isinstance(row, Row)
    assert (row.verdict, row.message) == (
        "fail",
        "answers the stored case but not its variant "
        f"({variant(case, '5/core/plain/float32').words}; --fresh 5): only one sign (CONF-16)",
    )
    assert (row.got, row.got_left_out) == ((), "it is the answer to a variant of the case")
