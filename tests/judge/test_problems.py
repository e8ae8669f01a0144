from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.errors import UsageError
from conformance.problems.problem import find, problems, read
from conformance.verdicts import address
from conformance.verdicts.calls import Draw, certified, inputs_of
from conformance.verdicts.checks import checks
from conformance.verdicts.forms import WrongFormError, given, results

TEXT = problems()["plain-numpy"].read_text("utf-8")


@pytest.mark.parametrize("name", problems())
def test_every_problem_can_be_asked(name: str) -> None:
    problem = find(name)
    assert problem.name == name
    call = Draw(problem, 1).call("signed", size="least")
    assert certified(call, problem.policy) is not None
    made = given(problem, call)
    assert [argument for argument, _ in made.arguments] == [a.name for a in problem.call.arguments]
    assert set(made.state) == set(problem.call.state)
    assert len(list(checks(problem, False, None))) > 20


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("problem_version = 1", "problem_version = 2", "problem_version"),
        ("heads = 4", "heads = 0", "heads"),
        ("heads = 4", "heads = 4\nkv_heads = 3", "no multiple of kv_heads"),
        ('free = ["batch",', 'free = ["length",', "length"),
        ('"query", "key"', '"query", "kee"', "argument 'kee' is unknown; did you mean 'key'?"),
        ('policy = "eager"', 'policy = "exact"', "policy"),
        ("[sizes]", "unknown = 1\n[sizes]", "unknown"),
        ("[sizes]", "[sizes", "no TOML"),
        ("[call]", "[options]\nis_causal = true\n\n[call]", 'need offset = "end"'),
        ('free = ["batch"', 'gradients = true\nfree = ["batch"', "gradients are asked"),
    ],
)
def test_a_wrong_problem_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in TEXT
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace(old, new), "utf-8")
    with pytest.raises(UsageError, match=f"mine.toml.*{said.replace('?', '.')}"):
        find(str(path))


def test_a_problem_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, "utf-8")
    assert replace(read(path), name="plain-numpy") == find("plain-numpy")


def test_another_seed_or_name_draws_other_numbers() -> None:
    problem = find("plain-numpy")
    one, same, other = (Draw(problem, seed).call("sharp") for seed in (1, 1, 2))
    assert one == same != other
    assert Draw(problem, 1).call("loud").recipe.stream != one.recipe.stream


@pytest.mark.parametrize("change", ["number value", "number key", "swap value"])
def test_a_change_is_small_and_shows(change: str) -> None:
    problem = find("decode-lengths")
    call = Draw(problem, 4).call("x", size="small")
    before, after = inputs_of(call), inputs_of(replace(call, change=change))
    operand = change.split()[1]
    differ = before[operand] != after[operand]
    assert 1 <= differ.sum() <= (1 if change.startswith("number") else 2 * before["key"].size)
    assert all(np.array_equal(before[n], after[n]) for n in before if n != operand)
    one, other = (certified(c, problem.policy) for c in (call, replace(call, change=change)))
    assert one is not None
    assert other is not None
    assert not np.array_equal(one.case.expected["output"].hi, other.case.expected["output"].hi)


def test_pages_and_packed_rows_hold_what_the_call_has() -> None:
    problem = find("flashinfer-paged-prefill")
    call = Draw(problem, 2).call("edge", size="small")
    made, inputs = dict(given(problem, call).arguments), inputs_of(call)
    starts, pages = made["kv_indptr"], made["kv_indices"]
    lengths, own = call.recipe.lengths, call.q_lens or (call.recipe.q_len,) * call.recipe.entries
    assert isinstance(lengths, tuple)
    assert len(set(pages.tolist())) == len(pages) < len(made["k_cache"])
    for entry, length in enumerate(lengths):
        slots = made["k_cache"][pages[starts[entry] : starts[entry + 1]]].reshape(-1, 8, 128)[:length]
        assert np.array_equal(slots.swapaxes(0, 1).astype(float), inputs["key"][entry, :, :length])
        first, end = made["qo_indptr"][entry : entry + 2]
        assert end - first == own[entry]
        assert np.array_equal(
            made["q"][first:end].swapaxes(0, 1).astype(float), inputs["query"][entry, :, : own[entry]]
        )


def test_results_of_another_form_are_refused() -> None:
    problem = find("flashinfer-paged-decode")
    call = Draw(problem, 2).call("edge", size="least")
    wrong = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(WrongFormError, match="returned 1 results, wanted 2: output, lse2"):
        results(problem, call, [wrong], {})
    with pytest.raises(WrongFormError, match=r"output has shape \(1, 2, 3\)"):
        results(problem, call, [wrong, wrong], {})
    with pytest.raises(WrongFormError, match="dtype int64"):
        results(problem, call, [wrong.astype(np.int64), wrong], {})


@pytest.mark.parametrize(
    "name", ["plain-numpy", "window", "flashinfer-mla-prefill", "sinks", "decode-lengths"]
)
def test_the_address_is_the_certified_answer(name: str) -> None:
    """The answer that is known without an oracle is that of the oracle."""
    problem = find(name)
    call = replace(Draw(problem, 3).call("address", size="small"), address=True, lse=False)
    assert address.possible(call.recipe)
    inputs = inputs_of(call)
    found = certified(call, problem.policy)
    assert found is not None
    golden, right = found.case.expected["output"], address.expected(call.recipe, inputs)
    rows = slice(None) if golden.rows is None else list(golden.rows)
    assert np.abs(golden.hi - right[..., rows, :]).max() < 1e-6
    assert not address.wrong(call.recipe, inputs, right)
    other = np.roll(right, 1, axis=-1)
    assert "asks key" in address.wrong(call.recipe, inputs, other)
