"""The suite as tests of pytest: items, choices, failures, processes, and runs that do not use it."""

import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from conformance.resources import spec_directory

pytestmark = pytest.mark.turns(2, whole=True)

FEW = ("-k", "hand-sized or scale-zero or bias-rank-2")
"""Cases of core, of `scale` and of `attn_bias`: one passes, one is claimed, one is not."""
TWO = ("-p", "xdist", "-n", "2")


def outcomes(result: pytest.RunResult) -> dict[str, int]:
    return {k: n for k, n in result.parseoutcomes().items() if k not in ("warnings", "deselected")}


def processes(project: pytest.Pytester) -> set[str]:
    return set((project.path / "pids").read_text().split())


def test_one_item_for_each_case_and_dtype(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--mha-target", "mine.py:good", *FEW, "-v")
    assert result.ret == 0
    assert re.search(r"collected (\d+) items / (\d+) deselected / 3 selected", result.stdout.str())
    assert outcomes(result) == {"passed": 2, "skipped": 1}
    result.stdout.fnmatch_lines_random([
        "mha::attention/hand-sized[[]float32[]] PASSED*",
        "mha::attention/scale-zero[[]float32[]] PASSED*",
        "mha::attention/bias-rank-2[[]float32[]] SKIPPED (unsupported: does not support attn_bias*",
    ])  # fmt: skip
    assert len(processes(project)) == 1, "one process for all"


def test_choosing_by_requirement_mark_dtype_and_feature(project: pytest.Pytester) -> None:
    (project.path / "test_own.py").write_text("def test_own(): pass")
    target = ("--mha-target", "mine.py:good", "--co", "-q")
    by_mark = project.runpytest_subprocess(*target, "-m", "not mha").outlines
    assert [line for line in by_mark if "::" in line] == ["test_own.py::test_own"]
    by_requirement = project.runpytest_subprocess(*target, "-k", "ATT-4", "--mha-feature", "scale").outlines
    items = [line for line in by_requirement if line.startswith("mha::")]
    assert "mha::attention/scale-zero[float32]" in items
    assert all(line.endswith("[float32]") for line in items)


def test_a_failure_says_all_that_is_known(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--mha-target", "mine.py:wrong", *FEW, "-x")
    assert result.ret == 1
    assert outcomes(result)["failed"] == 1
    result.stdout.fnmatch_lines([
        "fail: output[[]*[]] is *, wanted * +- *: * times what is allowed (NUM-1); * (ATT-1 weighted *, ATT-3 *)",
        "  case      attention/hand-sized float32: *",
        "  requires  ATT-1 weighted sum of values: The output is the sum of the visible values, each times its weight.",
        f"            {spec_directory()}/attention.md#att-1",
        f"            {spec_directory()}/attention.md#att-3",
        "  got       * at output[[]*[]]",
        "  expected  *",
        "  allowed   +- *",
        "  more      mha-conformance show attention/hand-sized",
        "*stderr of the target*",
        "printed",
        "FAILED mha::attention/hand-sized[[]float32[]] - *fail: output*",
    ])  # fmt: skip
    heading = re.compile(r'^### ATT-3 .* <a id="att-3"></a>$', re.MULTILINE)
    assert heading.search((spec_directory() / "attention.md").read_text("utf-8")), "the link leads somewhere"


@pytest.mark.parametrize("words", [(), TWO])
def test_the_mistake_is_named_at_the_end(project: pytest.Pytester, words: tuple[str, ...]) -> None:
    result = project.runpytest_subprocess("--mha-target", "mine.py:unscaled", *words, "-k", "sizes")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["mha: diagnosis: *scale*This explains * (ATT-3*"])
    quiet = project.runpytest_subprocess("--mha-target", "mine.py:unscaled", "--mha-no-diagnose", *FEW)
    quiet.stdout.no_fnmatch_line("*diagnosis*")


BASELINE = """baseline_version = 1
[[known]]
case = "attention/hand-sized"
reason = "one is added"
"""


@pytest.mark.covers("CONF-14", "CONF-15")
@pytest.mark.parametrize("words", [(), TWO])
def test_known_failures(project: pytest.Pytester, words: tuple[str, ...]) -> None:
    known = project.path / "known.toml"
    known.write_text(BASELINE)
    asked = ("--mha-baseline", "known.toml", *words, "-k", "hand-sized or bias-rank-2", "-rx")
    result = project.runpytest_subprocess("--mha-target", "mine.py:wrong", *asked)
    assert (result.ret, outcomes(result)) == (0, {"xfailed": 1, "skipped": 1})
    result.stdout.fnmatch_lines(["XFAIL mha::attention/hand-sized[[]float32[]] - *one is added: output*"])
    result = project.runpytest_subprocess("--mha-target", "mine.py:good", *asked)
    assert (result.ret, outcomes(result)) == (1, {"failed": 1, "skipped": 1})
    result.stdout.fnmatch_lines(["*passes, though known.toml knows it to fail*"])
    known.write_text(BASELINE + BASELINE.partition("\n")[2].replace("hand-sized", "bias-rank-2"))
    result = project.runpytest_subprocess("--mha-target", "mine.py:wrong", *asked)
    assert (result.ret, outcomes(result)) == (1, {"xfailed": 1, "skipped": 1})
    result.stdout.fnmatch_lines(["mha: known.toml: attention/bias-rank-2: it is stale: *(CONF-15)"])


@pytest.mark.covers("CONF-7")
def test_nothing_executed_is_no_success(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--mha-target", "mine.py:refusing", *FEW)
    assert result.ret == 1
    assert outcomes(result) == {"skipped": 3}
    result.stdout.fnmatch_lines(["mha: nothing was executed: the target supports none of 3 cases"])


def test_a_profile_needs_all_of_itself(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--mha-target", "mine.py:good", "--mha-profile", "encoder", *FEW)
    assert outcomes(result) == {"passed": 1, "failed": 1}
    result.stdout.fnmatch_lines(
        [
            "error: does not support attn_bias, which the profile encoder needs (ATT-7 additive bias, SHAPE-7 *)"
        ]
    )


def test_workers_of_xdist_have_a_process_each(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--mha-target", "mine.py:good", *TWO, "-k", "sizes")
    assert result.ret == 0
    passed = outcomes(result)["passed"]
    assert passed > 10
    calls = (project.path / "pids").read_text().split()
    assert len(calls) >= passed
    assert len(set(calls)) == 2


def test_junit_names_cases_and_requirements(project: pytest.Pytester) -> None:
    project.runpytest_subprocess("--mha-target", "mine.py:wrong", *FEW, "--junitxml", "out.xml")
    (case,) = (
        case
        for case in ET.parse(project.path / "out.xml").iter("testcase")
        if case.get("name") == "attention/hand-sized[float32]"
    )
    assert case.get("classname") == "mha"
    assert [(p.get("name"), p.get("value")) for p in case.iter("property")] == [("mha", "ATT-1 ATT-3")]
    failure = case.find("failure")
    assert failure is not None
    assert "attention.md#att-1" in str(failure.text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mha-target", "mine.py:goood"), "did you mean 'good'?"),
        (
            ("--mha-target", "numpy", "--mha-dtype", "float23"),
            "unknown dtype 'float23'; did you mean 'float32'?",
        ),
    ],
)
def test_what_is_wrong_with_the_call_is_one_line(
    project: pytest.Pytester, words: tuple[str, ...], message: str
) -> None:
    result = project.runpytest_subprocess(*words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = (line for line in result.errlines if line.startswith("ERROR: "))
    assert message in line
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


# In test files


def test_one_line_in_a_test_file(project: pytest.Pytester) -> None:
    (project.path / "tests").mkdir()
    (project.path / "src").mkdir()
    (project.path / "mine.py").rename(project.path / "src" / "mine.py")
    (project.path / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (project.path / "tests" / "test_it.py").write_text(
        "import conformance.pytest_plugin\n\n"
        "test_attention = conformance.pytest_plugin.cases('mine:good', k='hand-sized or scale-zero')\n"
    )
    result = project.runpytest_subprocess("-v")
    assert outcomes(result) == {"passed": 2}
    result.stdout.fnmatch_lines(
        ["tests/test_it.py::test_attention[[]attention/hand-sized-float32[]] PASSED*"]
    )
    chosen = project.runpytest_subprocess("-k", "ATT-4", "-m", "mha", *TWO)
    assert outcomes(chosen) == {"passed": 1}


def test_objects_and_files_beside_the_test(project: pytest.Pytester) -> None:
    folder = project.mkdir("tests")
    (project.path / "mine.py").rename(folder / "mine.py")
    (folder / "test_it.py").write_text(
        "from conformance.pytest_plugin import cases\nimport mine\n"
        "test_object = cases(mine.good, k='hand-sized')\n"
        "test_file = cases('mine.py:wrong', k='hand-sized')\n"
        "test_same = cases('mine.py:wrong', k='hand-sized')\n"
    )
    result = project.runpytest_subprocess()
    assert outcomes(result) == {"passed": 1, "failed": 2}
    assert len(processes(project)) == 2, "the tests' own, and one for the target that two of them name"


def test_a_target_that_cannot_be_loaded_is_an_error_of_its_file(project: pytest.Pytester) -> None:
    (project.path / "test_it.py").write_text(
        "from conformance.pytest_plugin import cases\ntest_attention = cases('nunpy')\ndef test_own(): pass\n"
    )
    result = project.runpytest_subprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*no backend, module or file named 'nunpy'; did you mean 'numpy'?*"])
    assert "Traceback" not in result.stdout.str()


# Runs that do not use it


def test_a_run_without_it_loads_nothing_of_the_suite(project: pytest.Pytester) -> None:
    (project.path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_unconfigure():\n"
        "    print('loaded', *sorted(m for m in sys.modules if m.split('.')[0] in ('conformance', 'numpy', 'rich')))\n"
    )
    (project.path / "test_own.py").write_text("def test_own(): pass")
    for words in (("--co",), ()):
        result = project.runpytest_subprocess("-W", "error", "--strict-markers", *words)
        assert result.ret == 0
        (loaded,) = (line for line in result.outlines if line.startswith("loaded"))
        assert loaded.split()[1:] == [
            "conformance",
            "conformance.pytest_plugin",
            "conformance.telling",
            "conformance.telling.pytest_summary",
            "conformance.version",
        ]


def test_the_distribution_registers_it_by_its_module_s_name() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {
        "conformance.pytest_plugin": "conformance.pytest_plugin"
    }, "any other name would clash with -p conformance.pytest_plugin"
    assert os.environ.get("PYTEST_PLUGINS") is None, "these tests do not need it themselves"
