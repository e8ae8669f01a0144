"""Of wrong answers it is said at once that they are right in another layout, where they are."""

import numpy as np
import pytest

import conformance
from conformance.cli import main
from conformance.judging.verdict import Row
from conformance.running import runner
from conformance.running.events import Noticed
from conformance.running.request import Request
from conformance.telling.merge_shards import join
from conformance.telling.report import read_report
from conformance.vectors.load import load_vectors

CASES = [case for case in load_vectors().cases if case.chapter in ("attention", "mask")]


def attention(query, key, value, *, mask=None):
    logits = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1], dtype=np.float32)
    logits = logits if mask is None else np.where(mask, logits, np.float32(-1e30))
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ value).astype(query.dtype)


attention.features = {"mask"}


def swap(x):
    return x.swapaxes(-3, -2) if x.ndim > 2 else x


def flash(query, key, value, *, mask=None):
    return swap(attention(swap(query), swap(key), swap(value), mask=mask))


def half_flash(query, key, value):
    return swap(attention(query, key, value))


def unscaled(query, key, value):
    return attention(query * query.dtype.type(query.shape[-1] ** 0.5), key, value)


flash.features = {"mask"}
half_flash.features = unscaled.features = set()


def declared(query, key, value):
    return flash(query, key, value)


declared.features, declared.layout = set(), "blhd"


def events(target):
    return list(runner.run(Request(target=target), CASES))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (flash, 'is right in the layout (batch, length, heads, width): set layout = "blhd"'),
        (half_flash, "is right with its heads and length exchanged: return (batch, heads, length, width)"),
    ],
)
def test_it_is_said_before_the_first_failure(target, words):
    found = events(target)
    place = next(n for n, event in enumerate(found) if isinstance(event, Noticed))
    failing = [n for n, event in enumerate(found) if isinstance(event, Row) and event.failed]
    assert words in found[place].what
    assert place < failing[0]
    assert sum(isinstance(event, Noticed) for event in found) == 1


@pytest.mark.parametrize("target", [attention, unscaled, declared])
def test_nothing_is_said_of_what_another_layout_does_not_help(target):
    assert not any(isinstance(event, Noticed) for event in events(target))
    assert any(isinstance(event, Row) and event.failed for event in events(target)) == (target is unscaled)


def test_it_is_said_of_an_output_next_to_what_nobody_asked_for():
    def talkative(query, key, value):
        return {"output": half_flash(query, key, value), "lse": query[..., 0]}

    talkative.features = set()
    (noticed,) = (event for event in events(talkative) if isinstance(event, Noticed))
    assert "is right with its heads and length exchanged" in noticed.what


def test_a_report_keeps_it(tmp_path):
    path = tmp_path / "r.json"
    few = {"dtype": "float32", "k": "attention or mask", "no_diagnose": True, "fresh": "off"}
    report = conformance.run(half_flash, report=path, **few)
    assert "is right with its heads and length exchanged" in report.noticed
    assert read_report(path).noticed == report.noticed
    (whole,) = join([read_report(path)]).reports
    assert whole.noticed == report.noticed
    assert conformance.run(half_flash, resume=path, **few).noticed == report.noticed
    assert conformance.run(attention, **few).noticed == ""


def test_it_is_printed_at_the_end(capsys):
    call = ["run", f"{__file__}:half_flash", "--dtype", "float32", "-k", "attention", "--no-diagnose"]
    assert main(call) == 1
    out = capsys.readouterr().out
    assert "by experiment the output for attention/" in out
