"""Many runs of the whole suite still make a page that a browser opens at once."""

import time
from typing import Any

import numpy as np

from conformance.judging.verdict import Row
from conformance.names import DTYPES
from conformance.telling.page import render
from conformance.telling.page.failures import MOST_FAILURES
from conformance.vectors import load

MEBIBYTE = 2**20
RUNS = 10


def test_ten_runs_of_the_suite(make_report: Any, make_got: Any) -> None:
    """A tenth of the rows fail in each run, and everything in one."""
    vectors, random = load.load_vectors(), np.random.default_rng(5)

    answers = {
        case.id: tuple(
            make_got(name, np.ones(golden.shape, np.float32)) for name, golden in case.expected.items()
        )
        for case in vectors.cases
    }

    def row(case: Any, dtype: str, failed: bool) -> Row:
        verdict: Any = "fail" if failed else "pass"
        return Row(
            case.id, case.operation, dtype, verdict, case.covers, case.features,
            message="output[0, 1, 2, 3] is 1, wanted 0.123456789 +- 1.2e-07: 1.2e+09 times what is allowed" * failed,
            error_over_bound=float(10 ** random.normal(2 if failed else -1)),
            got=answers[case.id] if failed else (),
        )  # fmt: skip

    reports = [
        make_report(
            *(row(case, dtype, run == 0 or random.random() < 0.1) for case in vectors.cases for dtype in DTYPES),
            name=f"implementation-{run}", sha256=vectors.sha256,
        )
        for run in range(RUNS)
    ]  # fmt: skip
    assert sum(len(report.results) for report in reports) >= RUNS * 1650
    began = time.process_time()
    html = render(reports)
    seconds = time.process_time() - began
    print(f"{len(html.encode()) / MEBIBYTE:.2f} MiB in {seconds:.1f} s")
    assert len(html.encode()) < 7 * MEBIBYTE
    assert html.count('class="failure"') == MOST_FAILURES
    assert "more are in" in html
    assert "No room for more pictures is left on this page" in html
    assert seconds < 20
