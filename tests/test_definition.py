"""spec/definition.py is the standard: it passes every case, and the requirements that it names exist."""

import re
from pathlib import Path

import conformance
from conformance.names import FEATURES
from conformance.telling.requirements import read_requirements

DEFINITION = Path(__file__).parents[1] / "spec" / "definition.py"
OPERATIONS = ("scaled_dot_product_attention", "multi_head_attention")
TEXT = DEFINITION.read_text("utf-8")


def test_it_passes_every_case() -> None:
    report = conformance.run(f"{DEFINITION}", dtype="float64", fresh=1)
    assert report.status == "conformant"
    claimed = {name for name, result in report.features.items() if result.status != "not claimed"}
    assert claimed == set(FEATURES) - {"validation", "grad_lse"}
    asked = [r for r in report.results if r.operation in OPERATIONS and "validation" not in r.features]
    assert len(asked) > 400
    assert all(row.passed for row in asked)


def test_the_requirements_that_it_names_exist() -> None:
    named = set(re.findall(r"\b[A-Z]+-\d+\b", TEXT))
    assert len(named) > 30
    assert named <= {requirement.id for requirement in read_requirements()}


def test_attention_is_one_screen_and_the_rest_another() -> None:
    attention, _, rest = TEXT.partition("def packed_attention")
    assert len(attention.splitlines()) <= 100
    assert len(rest.splitlines()) <= 70
