from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs.py"


def test_a_test_that_draws(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS.parents[2]))
    pytester.makepyfile(
        f"""
        from conformance.pytest_plugin import explore
        options = dict(seed=1, seconds=300, cases=200, size="small", no_diagnose=True, x=True)
        test_wrong = explore("{PROGRAMS}:whole_tiles", **options)
        test_right = explore("{PROGRAMS}:right", **{{**options, "cases": 20}})
        test_absent = explore("nowhere.py:attention", **options)
        """
    )
    result = pytester.runpytest_subprocess("-p", "conformance.pytest_plugin")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*fails if  *kv_len a multiple of 16*", "*--replay x1_*"])
    result.stdout.fnmatch_lines(["*no file*nowhere.py*"])
