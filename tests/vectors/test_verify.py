"""The verification finds a number that was changed, by each of its ways."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from conformance.cli import main
from conformance.names import DENSE
from conformance.vectors.load import load_vectors
from conformance.vectors.verify.agreement import compared
from conformance.vectors.verify.derivation import derived
from conformance.vectors.verify.metamorphic import RELATIONS, related

CASES = {case.id: case for case in load_vectors().cases if not case.raises}
SMALL = CASES["attention/weights-and-lse"]


def changed(case, output, **fields):
    golden = dataclasses.replace(case.expected[output], **fields)
    return dataclasses.replace(case, expected={**case.expected, output: golden})


def louder(array, place=0):
    array = np.array(array)
    array.flat[place] = np.nextafter(array.flat[place], np.inf)
    return array


@pytest.mark.parametrize("output", SMALL.expected)
@pytest.mark.parametrize("part", ["hi", "lo"])
def test_a_last_digit_that_is_wrong_is_found_in_three_ways(output, part):
    held = getattr(SMALL.expected[output], part)
    wrong = changed(SMALL, output, **{part: louder(held, np.abs(held[:-1]).argmax())})
    for way in (derived, related) if part == "lo" else (derived, compared, related):
        assert way(SMALL)[1] == []
        assert output in way(wrong)[1][0]


def test_counts_are_elements():
    every = sum(golden.hi.size for golden in SMALL.expected.values())
    assert derived(SMALL)[0] == compared(SMALL)[0] == every
    assert related(SMALL)[0] == every + every // 2  # reversed keys, and one of two batch entries


def test_a_bound_that_is_wrong_is_found():
    golden = SMALL.expected["output"]
    for part in ("worst", "rms"):
        bound = golden.bounds["float16"]["fused"]
        bounds = {
            **golden.bounds,
            "float16": {
                **golden.bounds["float16"],
                "fused": dataclasses.replace(bound, **{part: louder(getattr(bound, part))}),
            },
        }
        _, wrong = derived(changed(SMALL, "output", bounds=bounds))
        assert len(wrong) == 1
        assert "float16 fused" in wrong[0]


def test_a_signature_that_is_wrong_is_found():
    case = CASES["numerics/dk7"]
    held = case.expected["output"].signatures
    direction = {
        **held,
        "scale": dataclasses.replace(held["scale"], direction=louder(held["scale"].direction)),
    }
    limits = {**held, "scale": dataclasses.replace(held["scale"], limits={"float16": {"eager": 1.0}})}
    for signatures in (direction, limits):
        _, wrong = derived(changed(case, "output", signatures=signatures))
        assert len(wrong) == 1
        assert "signature" in wrong[0] or "scale" in wrong[0]


def test_options_that_are_wrong_are_found():
    case = CASES["mask/kv-lengths"] if "mask/kv-lengths" in CASES else CASES["cache/lengths"]
    lengths = case.inputs["kv_lengths"] - 1
    other = dataclasses.replace(case, inputs={**case.inputs, "kv_lengths": lengths})
    assert derived(other)[1]
    assert compared(other)[1]


def test_each_relation_applies_to_most_cases():
    forward = [case for case in CASES.values() if not case.gradients and case.operation in DENSE]
    for relation in RELATIONS:
        assert sum(relation.applies(case) for case in forward) > len(forward) / 2


def test_the_command_counts_what_it_proved(capsys):
    assert main(["vectors", "verify", "-k", "example/", "-j", "1", "--json"]) == 0
    chapter = json.loads(capsys.readouterr().out)["example"]
    assert chapter["cases"] == sum(name.startswith("example/") for name in CASES)
    assert chapter["certified"] > 1000
    assert chapter["differences"] == []


def test_the_command_says_what_it_lacks(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("conformance.vectors.verify.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("conformance.vectors.verify.agreement", raising=False)
    monkeypatch.setitem(sys.modules, "mpmath", None)
    assert main(["vectors", "verify"]) == 2
    assert "pip install python-flint mpmath" in capsys.readouterr().err
    assert main(["vectors", "verify", "-k", "nothing-like-it"]) == 2
