"""`--profile quick`: few cases of few shapes, chosen by what a target supports."""

from collections.abc import Callable
from pathlib import Path

from conformance.names import DEFAULT_FEATURES, FEATURES, MHA, OPERATIONS, SDPA
from conformance.running.messages import Hello
from conformance.running.quick import MOST, SHAPES, quick
from conformance.vectors.load import load_vectors

Called = Callable[..., tuple[int, str, str]]


def hello(features: tuple[str, ...], *operations: str) -> Hello:
    return Hello("x", None, ("float32",), features, operations, "eager")


def test_it_is_few_cases_of_few_shapes_that_cover_much() -> None:
    cases = {case.id: case for case in load_vectors().cases}
    every = [case for case in cases.values() if case.operation == SDPA and not case.raises]
    chosen = [cases[name] for name in quick(cases.values(), hello(FEATURES, SDPA))]
    assert len(chosen) == MOST
    assert len({case.inputs["query"].shape + case.inputs["key"].shape for case in chosen}) <= SHAPES
    covered = {name for case in chosen for name in case.covers}
    assert len(covered) > 0.6 * len({name for case in every for name in case.covers})
    assert {"mask", "is_causal", "window", "softcap", "sinks"} <= {
        f for case in chosen for f in case.features
    }


def test_it_holds_what_the_target_supports_and_all_its_operations() -> None:
    cases = {case.id: case for case in load_vectors().cases}
    plain = [cases[name] for name in quick(cases.values(), hello(("mask", *DEFAULT_FEATURES), SDPA))]
    assert len(plain) > 30
    assert {feature for case in plain for feature in case.features} <= {"mask", *DEFAULT_FEATURES}
    every = [cases[name] for name in quick(cases.values(), hello(FEATURES, *OPERATIONS))]
    assert {case.operation for case in every} == set(OPERATIONS)
    assert {cases[name].operation for name in quick(cases.values(), hello(FEATURES, MHA))} == {MHA}


def test_a_quick_run_gives_no_verdict(command: Called, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "import numpy as np\n"
        "def attention(query, key, value):\n"
        "    x = query.astype('f8') @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5\n"
        "    w = np.exp(x - x.max(-1, keepdims=True))\n"
        "    return (w / w.sum(-1, keepdims=True) @ value).astype(query.dtype)\n"
        "attention.features = set()\n"
    )
    status, out, err = command("run", f"{path}:attention", "--in-process", "--profile", "quick")
    assert status == 0, err
    assert "incomplete because --profile quick left out a part of the suite" in out
    assert "unknown profile" in command("run", f"{path}:attention", "--profile", "quik")[2]
