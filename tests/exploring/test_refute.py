"""Changed calls speak against mistakes that fit the few failures of a run by chance."""

from conformance.defects.bank import DEFECTS
from conformance.diagnosis.failing import Asked, Failure
from conformance.diagnosis.finding import Diagnosed, Finding
from conformance.diagnosis.model import Model
from conformance.exploring.changed import Changed
from conformance.exploring.refute import FEW, unrefuted
from conformance.judging.judge import judge
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
MODELS = {defect.id: Model((defect,)) for defect in DEFECTS}
MADE, OTHER = MODELS["window-left-open"], MODELS["mask-after-softmax"]
MASK = CASES["attention/softcap-mask-bias"]


def failing(*names: str) -> tuple[Failure, ...]:
    """Calls that the mistake of a program makes fail."""
    outputs = [(CASES[name], MADE.ask(CASES[name], "float32").outputs) for name in names]
    assert all(judge(case, "float32", "eager", given).verdict == "fail" for case, given in outputs)
    return tuple(Failure(case, "float32", outputs=given) for case, given in outputs)


def changed() -> Changed:
    """Calls that pass though the other mistake would fail them."""
    found = Changed()
    for dtype in ("float32", "float64"):
        found.passing.append(Asked(MASK, dtype))
    return found


def test_what_a_passing_call_refutes_does_not_fit_the_only_case() -> None:
    found = Diagnosed((), 1, 1, single=(OTHER, MADE))
    assert unrefuted(found, [Changed()], "eager").single == (OTHER, MADE)
    assert unrefuted(found, [changed()], "eager").single == (MADE,)


def test_what_is_wrong_in_another_way_does_not_fit_either() -> None:
    wrong = Changed()
    wrong.failing.extend(failing("causal/window-left"))
    assert unrefuted(Diagnosed((), 1, 1, single=(OTHER, MADE)), [wrong], "eager").single == (MADE,)


def test_findings_of_few_cases_are_refuted_and_those_of_many_are_not() -> None:
    few = failing("causal/window-left", "causal/window-both")
    many = failing(*sorted(name for name in CASES if name.startswith("causal/window-"))[: FEW + 1])
    beside = (MODELS["window-left-open"], OTHER)
    kept = Finding(MADE, few, 9, alike=beside, looked_at=1)
    refuted, sure = Finding(OTHER, few, 9), Finding(OTHER, many, 9)
    found = unrefuted(Diagnosed((kept, refuted, sure), 9, 9), [changed()], "eager").findings
    assert [finding.model for finding in found] == [MADE, OTHER]
    assert found[0].alike == beside[:1]
    assert found[1] == sure


def test_large_calls_are_not_looked_at() -> None:
    large = Changed()
    large.passing.append(Asked(max(CASES.values(), key=lambda case: case.elements), "float32"))
    assert unrefuted(Diagnosed((), 1, 1, single=(OTHER, MADE)), [large], "eager").single == (OTHER, MADE)
