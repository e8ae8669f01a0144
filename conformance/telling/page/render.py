"""Puts the page together: reports and the suite's own texts in, one HTML document out."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.names import DTYPES
from conformance.telling.inventory import read_defects
from conformance.telling.page.answer import answers, feature_rows
from conformance.telling.page.causes import causes
from conformance.telling.page.failures import failures
from conformance.telling.page.heat import legend
from conformance.telling.page.matrix import case_rows, chapters, covered, requirement_rows
from conformance.telling.page.runs import apart, run_of
from conformance.telling.page.strip import spreads, strip_plot
from conformance.telling.page.words import CODES, OUTCOMES, SYMBOLS, kind
from conformance.telling.report import Report
from conformance.telling.requirements import named, read_requirements
from conformance.telling.terminal import safe
from conformance.vectors import load
from conformance.version import SPEC_VERSION, SUITE_VERSION

FOLDER = Path(__file__).parent


def render(reports: Sequence[Report]) -> str:
    """The page.

    Nothing in it is fetched from elsewhere, and its policy forbids that: only the script and the style that
    stand here run, by their hashes, so that not even text that escaped its escaping could.

    Raises:
        UsageError: the vectors or the specification are damaged.
    """
    vectors = load.load_vectors()
    known = {case.id: case for case in vectors.cases}
    cases = [known if report.vectors_sha256 == vectors.sha256 else {} for report in reports]
    texts = {requirement.id: requirement for requirement in read_requirements()}
    defects = {defect.id: defect for defect in read_defects()}
    told, left_out = failures(reports, cases, defects)
    for place, failure in enumerate(told):
        failure.id = f"f{place}"
    links = {(failure.run, failure.case): failure.id for failure in told}
    notes = {id_: case.note for of_run in cases for id_, case in of_run.items()}
    rows = case_rows(reports, notes, links)
    tested = set(covered(reports))
    style, script = (_asset(name) for name in ("style.css", "page.js"))
    runs = apart([run_of(i, report, texts, defects, vectors.sha256) for i, report in enumerate(reports, 1)])
    return _environment().get_template("template.html").render(
        suite_version=SUITE_VERSION,
        spec_version=SPEC_VERSION,
        runs=runs,
        answers=answers(reports, runs),
        features=feature_rows(reports),
        causes=causes(told),
        requirements=requirement_rows(reports, texts),
        numbers={id_: i for i, id_ in enumerate(covered(reports))},
        untested=[texts[id_] for id_ in texts if id_ not in tested and not texts[id_].withdrawn],
        failures=told,
        left_out=left_out,
        illustrated=sum(failure.evidence is not None for failure in told),
        cases=rows,
        parts=chapters(rows),
        outcomes=OUTCOMES,
        case_numbers={case.id: case.number for case in rows},
        total=sum(len(case.rows) for case in rows),
        chapters=sorted(chapter.name for chapter in chapters(rows)),
        operations=sorted({case.operation for case in rows}),
        dtypes=[d for d in DTYPES if any(row.dtype == d for case in rows for row in case.rows)],
        verdicts=[v for v in CODES if any(report.summary.get(v) for report in reports)],
        codes=CODES,
        symbols=SYMBOLS,
        named=named,
        kind=kind,
        plot=strip_plot(reports),
        spreads=spreads(reports),
        legend=legend(),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )


def _finalize(value: Any) -> Any:
    """Text of any origin without control and formatting characters; line ends stay."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(map(safe, value.split("\n")))
    return value


def _asset(name: str) -> Markup:
    """A file of this folder, which is ours and goes in as it is."""
    return Markup((FOLDER / name).read_text("utf-8"))


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
