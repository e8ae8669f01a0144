"""Each entry of a table of outside programs makes a program: its edits fit the right one that it names."""

import pytest
from outside import LATER, READ, SETS, faults, program, source, verdicts_read

from conformance.names import OPERATIONS


@pytest.mark.parametrize("which", [*SETS, *LATER])
def test_every_fault_makes_a_program_of_its_own(which: str) -> None:
    texts = {name: source(which, name, fault) for name, fault in faults(which).items()}
    assert len(set(texts.values())) == len(texts)
    assert all(vars(program(name, text)).keys() & {*OPERATIONS} for name, text in texts.items())


def test_verdicts_are_of_programs() -> None:
    programs = {f"{which}/{name}" for which in SETS for name in faults(which)}
    assert {each["name"] for each in verdicts_read()} <= programs


def test_verdicts_of_the_later_sets_are_of_all_their_programs() -> None:
    programs = {f"{which}/{name}" for which in LATER for name in faults(which)}
    read = verdicts_read("later.toml")
    assert {each["name"] for each in read} == programs
    assert len(read) == len(programs)
    assert {each["first"] for each in read if each["held"]} <= {*READ, "no failure"}
    assert not any(each["first"] for each in read if not each["held"])
