"""A run as JUnit XML, which every CI reads: a suite for each chapter, a case for each row."""

import re
from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from conformance.judging.verdict import Row
from conformance.telling.report import Report
from conformance.telling.requirements import named_all
from conformance.telling.table import chapters
from conformance.telling.terminal import safe

NO_CHARACTER = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


def junit(report: Report) -> str:
    """The XML document of a report."""
    suites = Element("testsuites", name=clean(f"mha-conformance {report.target.name}"))
    for chapter in chapters([report]):
        rows = [row for row in report.results if row.chapter == chapter]
        suite = _suite(suites, chapter, rows)
        _properties(
            suite,
            {
                "target": report.target.name,
                "target_version": report.target.version or "",
                "accuracy": report.target.accuracy,
                "status": report.status,
                "suite_version": report.suite_version,
                "spec_version": report.spec_version,
                "vectors_sha256": report.vectors_sha256,
            },
        )
        for row in rows:
            _case(suite, row)
    _baseline(suites, report)
    for count in ("tests", "failures", "errors", "skipped"):
        suites.set(count, str(sum(int(suite.get(count, "0")) for suite in suites)))
    ElementTree.indent(suites, " ")
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def kind(row: Row) -> str:
    """The element that a row's verdict is told by; empty for a pass."""
    if row.verdict in ("fail", "xpass"):
        return "failure"
    if row.verdict in ("error", "crash", "timeout"):
        return "error"
    return "" if row.verdict == "pass" else "skipped"


def _suite(suites: Element, name: str, rows: Iterable[Row]) -> Element:
    rows = list(rows)
    kinds = [kind(row) for row in rows]
    return SubElement(
        suites,
        "testsuite",
        name=clean(name),
        tests=str(len(rows)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=f"{sum(row.seconds for row in rows):.3f}",
    )


def _case(suite: Element, row: Row) -> None:
    case = SubElement(
        suite,
        "testcase",
        classname=clean(row.case.replace("/", ".")),
        name=clean(f"{row.case}[{row.dtype}]"),
        time=f"{row.seconds:.3f}",
    )
    measures = {"error_over_bound": row.error_over_bound, "rms_over_sigma": row.rms_over_sigma}
    _properties(
        case,
        {
            "operation": row.operation,
            "covers": " ".join(row.covers),
            "features": " ".join(row.features),
            "verdict": row.verdict,
            **{name: f"{value:.3g}" for name, value in measures.items() if value is not None},
        },
    )
    if kind(row):
        said = f"{row.judged}: {row.message}" if row.verdict != "xpass" else row.message
        why = (
            f"{row.known.reason} {row.known.report} ({said})"
            if row.verdict == "xfail" and row.known
            else row.message
        )
        told = SubElement(case, kind(row), type=row.verdict, message=clean(why))
        if kind(row) in ("failure", "error"):
            told.text = clean(f"{row.case} {row.dtype} ({named_all(row.covers)}): {row.message}")


def _baseline(suites: Element, report: Report) -> None:
    """What is wrong with the baseline: it fails the run, so it stands here as well."""
    if report.baseline is None or not report.baseline.problems:
        return
    number = str(len(report.baseline.problems))
    suite = SubElement(
        suites, "testsuite", name="baseline", tests=number, failures=number, errors="0", skipped="0", time="0"
    )
    for problem in report.baseline.problems:
        case = SubElement(suite, "testcase", classname="baseline", name=clean(problem), time="0")
        SubElement(case, "failure", type="baseline", message=clean(problem))


def _properties(parent: Element, values: dict[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in values.items():
        if value:
            SubElement(properties, "property", name=name, value=clean(value))


def clean(text: str) -> str:
    """The text with what is no character of XML, or would move a cursor, escaped."""
    return NO_CHARACTER.sub(lambda match: match[0].encode("unicode_escape").decode(), safe(text))
