"""No correct implementation is refused on a few new cases; the whole trial is `nox -s soundness`."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from conformance.dtypes import UNIT_ROUNDOFF
from conformance.soundness.__main__ import QUICK_SEED
from conformance.soundness.baseline_tolerances import RULES, refused
from conformance.soundness.experiment import Outcome, framework_on, styles_on
from conformance.soundness.implementations import BACKWARD_STYLES, STYLES, implementation
from conformance.soundness.parallel import _case
from conformance.soundness.perturbed_functions import PROMISED, elementary
from conformance.soundness.random_cases import OPTIONS, SIGNATURES, drafts
from conformance.soundness.report import lines
from conformance.soundness.sums import PRODUCTS, fewer_bits
from conformance.soundness.unobservable import excused, unobservable
from conformance.vectors.case import Golden
from conformance.vectors.generate.ball_rounding import NeverDecidedError
from conformance.vectors.generate.build import build
from conformance.vectors.generate.draft import attend, gradient, project
from conformance.vectors.generate.random_inputs import Draws, round_to_bits
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
PAIRS = len(OPTIONS) * (len(OPTIONS) - 1) // 2


def test_no_style_is_refused_on_shipped_cases():
    outcome = Outcome()
    for name in ("numerics/dk7", "pairs/causal-softcap-scale-sinks", "attention/weights-and-lse"):
        outcome.add(styles_on(CASES[name]))
    assert outcome.alarms == []
    assert set(outcome.runs_of) == {style.name for style in STYLES}
    assert {policy for _, _, policy in outcome.tallies} == {"fused", "eager", "tf32", "tf32t", "bf16x1"}
    for tally in outcome.tallies.values():
        assert 0 < tally.largest["err / allowed"] <= 1
    assert 0 < outcome.tallies["output", "float16", "fused"].largest["scale"] < 1


def test_no_style_is_refused_on_shipped_gradients():
    outcome = Outcome()
    for name in ("plain", "everything", "huge-logits", "small-logits"):
        outcome.add(styles_on(CASES[f"gradient/{name}"]))
    assert outcome.alarms == []
    assert set(outcome.runs_of) == {style.name for style in BACKWARD_STYLES}
    assert {kind for kind, _, _ in outcome.tallies} == {"gradient"}


def test_keys_whose_softcapped_logits_are_one_round_alike():
    """A case of the kind that was refused: 130 weights of two sizes, values far from zero, bfloat16 operands."""
    draws = Draws("soundness/alike")
    value = round_to_bits(draws.gauss(2, 6, 130, 3) - 30.0)
    draft = attend(
        "soundness/alike", "x", "NUM-2", heads=6, kv_len=130, d_k=3, sigma=2.0, softcap=0.5, value=value
    )
    outcome = styles_on(build(draft))
    assert outcome.alarms == []
    assert 0.1 < outcome.tallies["output", "float32", "bf16x1"].largest["RMS / limit"] < 0.7


def _once_refused():
    """Cases of kinds that were refused: an operand exact in part, what underflows, a sum over one token, sinks."""
    draws = Draws("soundness/refused")
    value = round_to_bits(draws.gauss(2, 6, 13, 33) + 4.0)
    far = draws.gauss(2, 6, 9, 40, sigma=20.0, bits=24)
    long = {"heads": 6, "q_len": 9, "kv_len": 40, "past": 27, "d_k": 33, "bits": 24}
    name = "soundness/value-exact-past-not"
    yield gradient(attend(name, "x", "NUM-2", value=value, attn_bias=far, **long), sigma=0.25)
    small = {"batch": (), "heads": 4, "q_len": 1, "kv_len": 130, "d_k": 7, "d_v": 5, "sigma": 2.0}
    yield gradient(attend("soundness/stored-weights", "x", "NUM-2", **small), sigma=8.0)
    low = np.where(np.arange(7) < 2, 0.0, -10.0)[None]
    sizes = {"heads": 6, "q_len": 1, "kv_len": 7, "d_k": 33}
    yield gradient(attend("soundness/stored-keys-1", "x", "NUM-2", attn_bias=low, **sizes))
    yield gradient(attend("soundness/flat", "x", "NUM-2", q_len=9, kv_len=130, sigma=0.1))
    value = round_to_bits(draws.gauss(1, 2, 67, 64, sigma=0.25) + 8.0)
    positive = np.abs(draws.gauss(1, 2, 5, 64)) + 0.25
    near = {"batch": (1,), "heads": 2, "q_len": 5, "kv_len": 67, "d_v": 64, "sigma": 2.0**-7}
    far = attend("soundness/flat-and-far", "x", "NUM-2", value=value, attn_bias=np.zeros((5, 67)), **near)
    yield gradient(far, grad_output=round_to_bits(positive))
    value = round_to_bits(draws.gauss(1, 2, 255, 4, sigma=0.25) + 8.0)
    uniform = {
        "batch": (1,),
        "heads": 2,
        "q_len": 33,
        "kv_len": 255,
        "d_v": 4,
        "query": np.zeros((1, 2, 33, 16)),
    }
    both = {"return_weights": True, "return_lse": True}
    yield attend("soundness/uniform", "x", "NUM-2", value=value, d_k=16, **uniform, **both)
    positive = np.abs(draws.gauss(1, 2, 33, 16)) + 0.25
    near = {"batch": (1,), "heads": 2, "q_len": 33, "kv_len": 17, "d_v": 16, "sigma": 2.0**-8}
    rows = attend("soundness/uniform-rows", "x", "NUM-2", sinks=np.array([-1.0, 2.0]), **near)
    yield gradient(rows, grad_output=round_to_bits(positive))
    ramp = np.linspace(-1.0, 1.0, 130)[:, None]
    rising = round_to_bits(draws.gauss(1, 1, 130, 5, sigma=0.05) + ramp)
    many = {"batch": (1,), "heads": 1, "q_len": 20, "kv_len": 130, "d_k": 8, "d_v": 5, "sigma": 0.5}
    yield attend("soundness/rising", "x", "NUM-2", value=rising, **many)
    turned = many | {"q_len": 130, "kv_len": 9}
    yield gradient(attend("soundness/rising-cotangent", "x", "NUM-2", **turned), grad_output=rising)
    signs = np.where(np.arange(257) % 2, 8.0, -8.0)[:, None]
    alternating = round_to_bits(draws.gauss(1, 1, 257, 5) + signs)
    yield attend(
        "soundness/alternating", "x", "NUM-2", **many | {"kv_len": 257, "sigma": 0.1}, value=alternating
    )
    turned = many | {"q_len": 257, "kv_len": 9, "sigma": 0.1}
    yield gradient(attend("soundness/alternating-cotangent", "x", "NUM-2", **turned), grad_output=alternating)
    key, value = np.abs(draws.gauss(1, 1, 257, 1)), draws.gauss(1, 1, 257, 5, sigma=0.05)
    even = many | {"kv_len": 257, "d_k": 1, "key": key, "value": round_to_bits(value + 1.0)}
    query = round_to_bits(np.abs(draws.gauss(1, 1, 20, 1)) + 0.5)
    yield attend("soundness/even", "x", "NUM-2", query=query, scale=2.0**-18, **even)
    ones = {"batch": (1,), "heads": 1, "q_len": 33, "kv_len": 4}
    yield gradient(project("soundness/ones-3", "x", "NUM-2", **ones), grad_output=np.ones((1, 33, 9)))
    sinks, bias = np.array([-np.inf, 1.0, 350.0]), np.where(np.arange(7) < 6, 0.0, -340.0)[None]
    yield gradient(attend("soundness/sinks", "x", "NUM-2", sinks=sinks, attn_bias=bias))
    yield attend("soundness/tiny", "x", "NUM-2", attn_bias=bias, sinks=sinks, return_weights=True)
    narrow = {"attn_bias": draws.gauss(2, 3, 5, 7), "dtype_of": {"attn_bias": "float16"}}
    for sigma in (1.0, 2.0**-12):
        yield gradient(attend(f"soundness/narrow-{sigma}", "x", "NUM-2", **narrow), sigma=sigma)
    alone = {"batch": (), "heads": 2, "q_len": 1, "kv_len": 2, "d_k": 16, "d_q": 32}
    yield gradient(project("soundness/one-token-22", "x", "NUM-2", **alone))


@pytest.mark.session("soundness")
@pytest.mark.parametrize("draft", list(_once_refused()), ids=lambda draft: draft.id.partition("/")[2])
def test_no_case_of_a_kind_that_was_refused_is(draft):
    outcome = styles_on(build(draft))
    assert outcome.alarms == []
    assert sum(outcome.runs_of.values()) > 50


@pytest.mark.parametrize("off", ["at random", "in waves"])
@pytest.mark.parametrize("name", PROMISED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_are_off_by_what_is_promised(name, off, dtype):
    x = np.linspace(1.5, 3.0, 4001).astype(dtype) * (-1 if name.startswith("exp") else 1)
    exact = elementary(name, x.astype(np.longdouble), "")
    error = np.abs(elementary(name, x, off) / exact - 1) / UNIT_ROUNDOFF[np.dtype(dtype).name]
    assert PROMISED[name] / 3 < error.max() <= PROMISED[name]
    assert elementary("exp", np.zeros(1, dtype), off) == 1
    assert elementary("exp", np.full(1, -np.inf, dtype), off) == 0


def test_what_nothing_shows_is_run_on_new_cases():
    found = {(unseen.defect, unseen.dtype): unseen for unseen in unobservable(3, 1, 1)}
    assert set(found) == {(defect.id, dtype) for defect, dtype in excused()}
    assert all(unseen.cases >= 1 and not unseen.alarms for unseen in found.values())
    assert 0 < found["online-correct", "float32"].largest < 1


def test_styles_differ():
    case = CASES["numerics/dk7"]
    answers = {
        b"".join(
            implementation(style).scaled_dot_product_attention(**case.operands(dtype))["output"].tobytes()
            for dtype in ("float32", "float16")
        )
        for style in STYLES
    }
    assert len(answers) > 0.9 * len(STYLES)


def test_a_wrong_implementation_is_an_alarm():
    case = CASES["attention/plain"]
    output = case.expected["output"]
    moved = dataclasses.replace(case, expected={"output": dataclasses.replace(output, hi=output.hi + 0.01)})
    outcome = styles_on(moved)
    assert len(outcome.alarms) == sum(tally.runs for tally in outcome.tallies.values()) > 0


def test_a_framework_that_is_not_there_is_said():
    outcome = framework_on("no.such.module", [])
    assert list(outcome.absent) == ["no.such.module"]


def test_a_case_that_no_ball_decides_is_left_out_and_counted(monkeypatch):
    def undecided(draft):
        raise NeverDecidedError("an output is not decided at 12288 bits")

    assert _case(QUICK_SEED, 4, 0) is not None
    monkeypatch.setattr("conformance.vectors.generate.build.build", undecided)
    assert _case(QUICK_SEED, 4, 0) is None
    told = list(lines(Outcome(undecided=2), QUICK_SEED, 4, 1.0))
    assert "2 of these cases left out: a ball cannot tell which number is right" in told


def test_new_cases_are_new_and_pairs_meet():
    first, second = list(drafts(1, 12)), list(drafts(2, 12))
    assert [draft.id for draft in first] != [draft.id for draft in second]
    assert not np.array_equal(first[0].inputs["query"], second[0].inputs["query"])
    again = drafts(1, 12)
    assert all(np.array_equal(a.inputs["key"], b.inputs["key"]) for a, b in zip(first, again, strict=True))
    every = list(drafts(3, SIGNATURES + PAIRS + 1))
    given = [set(draft.options) | set(draft.inputs) for draft in every]
    assert any({"mask", "softcap"} <= names for names in given)
    assert any({"sinks", "window"} <= names for names in given)
    assert sum("past_key" in names for names in given) >= 6
    assert build(first[2]).expected["output"].signatures


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_order_of_a_sum_is_the_product(name):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 3, 9)), rng.standard_normal((2, 9, 4))
    assert np.allclose(PRODUCTS[name](a, b), a @ b, rtol=1e-13, atol=1e-14)


def test_fewer_bits_round_or_cut():
    x = np.array([1.0 + 2.0**-11, -(1.0 + 3 * 2.0**-11), 0.0])
    assert fewer_bits(x, 11, False).tolist() == [1.0, -(1.0 + 2 * 2.0**-10), 0.0]
    assert fewer_bits(x, 11, True).tolist() == [1.0, -(1.0 + 2.0**-10), 0.0]


def test_fixed_rules_are_those_of_the_libraries():
    case = CASES["attention/plain"]
    hi = case.expected["output"].hi

    def said(off, naive=0.0):
        return refused(case, "float32", {"output": hi * (1 + off)}, {"output": hi * (1 + naive)})

    assert said(0.0) == set()
    assert said(5e-7, 4e-7) == {"numpy.testing"}
    assert said(5e-4, 4e-4) == {"numpy.testing", "torch.testing"}
    assert said(5e-3, 1e-3) == set(RULES)
    golden = Golden((1,), None, np.array([np.inf]), np.zeros(1), False, {})
    other = dataclasses.replace(case, expected={"output": golden})
    assert refused(other, "float32", {"output": golden.hi}, {"output": golden.hi}) == set()


@pytest.mark.session("soundness")
def test_the_command_prints_its_counts():
    command = [sys.executable, "-m", "conformance.soundness", "--quick", "--cases", "4", "-j", "1"]
    done = subprocess.run([*command, "--framework", "numpy", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["alarms"] == []
    assert (said["seed"], said["cases"]) == (QUICK_SEED, 4)
    assert said["implementations"]["numpy"] >= 12
    assert subprocess.run([*command, "--framework", "nunpy"], capture_output=True).returncode == 2
