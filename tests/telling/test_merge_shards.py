"""The parts of a divided run: joined they are the whole run, and a part that is missing is named."""

import json
from dataclasses import replace

import pytest

import conformance
from conformance.telling.merge_shards import join
from conformance.version import SUITE_VERSION


class Plain:
    name = "plain"

    @staticmethod
    def attention(query, key, value):
        import numpy as np

        key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
        logits = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1], dtype=np.float32)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights @ value / weights.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def runs():
    options = {"in_process": True, "k": "heads", "fresh": "off"}
    parts = [conformance.run(Plain.attention, shard=f"{i}/3", **options) for i in (1, 2, 3)]
    return conformance.run(Plain.attention, **options), parts


def rows(report):
    return [(row.case, row.dtype, row.verdict) for row in report.results]


def test_all_parts_are_the_whole(runs):
    whole, parts = runs
    joined = join([parts[2], parts[0], parts[1]])
    (report,) = joined.reports
    assert joined.notes == ()
    assert rows(report) == rows(whole)
    assert (report.summary, report.status) == (whole.summary, whole.status)
    assert report.untested_requirements == whole.untested_requirements
    assert {n: (f.passed, f.failed) for n, f in report.features.items()} == {
        n: (f.passed, f.failed) for n, f in whole.features.items()
    }


def test_a_missing_part_is_named_and_leaves_it_incomplete(runs):
    _, parts = runs
    joined = join([parts[2], parts[0], parts[0]])
    (report,) = joined.reports
    assert joined.notes == ("attention: part 2/3 is missing",)
    assert report.status == "incomplete"
    assert len(report.results) == len(parts[0].results) + len(parts[2].results)


def test_a_part_that_was_interrupted_leaves_it_incomplete(runs):
    parts = [replace(part, options={**part.options, "k": None}) for part in runs[1]]
    assert join(parts).reports[0].status == "conformant"
    cut = replace(parts[1], results=parts[1].results[:-1])
    for those in ([parts[0], cut, parts[2]], [cut]):
        joined = join(those)
        assert joined.reports[0].status == "incomplete"
        assert joined.notes[0] == f"attention: the run ended after {cut.asked - 1} of {cut.asked} rows"
    assert join([*parts, cut]).reports[0].status == "conformant", "given again as a whole"


def test_another_suite_and_other_vectors_are_told(runs):
    whole, _ = runs
    other = replace(whole, suite_version="0.0.1", vectors_sha256="0" * 64)
    assert join([whole, other]).notes == (
        f"attention: judged by suite 0.0.1; this is {SUITE_VERSION}",
        "not all reports are of the same vectors: their counts do not compare",
    )


def test_what_was_not_divided_stays_as_it_is(runs):
    whole, parts = runs
    other = replace(parts[1], target=replace(parts[1].target, version="2"))
    joined = join([whole, parts[0], other])
    assert joined.reports[0] is whole
    assert len(joined.reports) == 3
    assert len(joined.notes) == 2


def test_a_joined_report_is_written_like_any(runs):
    (report,) = join(runs[1]).reports
    assert json.loads(json.dumps(report.to_json()))["options"]["shard"] is None
