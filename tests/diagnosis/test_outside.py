"""Each entry of a table of outside programs makes a program: its edits fit the right one that it names."""

import pytest
from outside import SETS, faults, program, source, verdicts_read

from conformance.names import OPERATIONS


@pytest.mark.parametrize("which", SETS)
def test_every_fault_makes_a_program_of_its_own(which: str) -> None:
    texts = {name: source(which, name, fault) for name, fault in faults(which).items()}
    assert len(set(texts.values())) == len(texts)
    assert all(vars(program(name, text)).keys() & {*OPERATIONS} for name, text in texts.items())


def test_verdicts_are_of_programs() -> None:
    programs = {f"{which}/{name}" for which in SETS for name in faults(which)}
    assert {each["name"] for each in verdicts_read()} <= programs
