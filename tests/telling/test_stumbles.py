"""What newcomers type and write first is answered by what they need next."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.names import FEATURES
from conformance.telling.badge import badge_of
from conformance.telling.diagnosis import diagnosis_lines
from conformance.telling.inventory import features
from conformance.telling.terminal import console, table_width

TARGET = """
import numpy as np

def attention(query, key, value):
    return value

def of_pages(query, key_cache, value_cache, block_tables, seq_lens):
    return query

def of_parts(q, k, v, cu_seqlens_q, cu_seqlens_k):
    return q

def of_nothing(query, key, value, blocks):
    return query
"""
Called = Callable[..., tuple[int, str, str]]


def refused(command: Called, *words: object) -> str:
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    return err


def test_the_colons_of_pytest(command: Called, target: Path) -> None:
    assert f"did you mean {target}:attention?" in refused(command, "run", f"{target}::attention")


@pytest.mark.parametrize(
    ("word", "meant"), [("rn", "run"), ("lst", "list"), ("mine.py:attention", "run mine.py:attention")]
)
def test_an_unknown_command(command: Called, word: str, meant: str) -> None:
    assert f"No such command '{word}'; did you mean '{meant}'?" in refused(command, word)


def test_a_word_far_from_every_command(command: Called) -> None:
    assert "did you mean" not in refused(command, "qqqqqqq")


@pytest.mark.parametrize(("word", "held"), [("mask", "MASK-3"), ("gqa", "HEAD-2"), ("LAT", "LAT-1")])
def test_a_chapter_or_feature_is_explained_by_its_requirements(command: Called, word: str, held: str) -> None:
    status, out, _ = command("explain", word)
    assert status == 0
    first, *lines = out.splitlines()
    assert re.match(rf"{word} is a chapter or a feature with {len(lines)} requirements?:$", first)
    assert any(line.startswith(f"  {held} ") for line in lines)


def test_a_word_that_is_nothing_gets_the_nearest(command: Called) -> None:
    assert "unknown requirement 'maks'; did you mean 'mask'?" in refused(command, "explain", "maks")
    assert "`mha-conformance list requirements` names all" in refused(command, "explain", "qqqqqqq")


def test_each_feature_has_a_meaning() -> None:
    entries = {entry["name"]: entry for entry in features()}
    assert list(entries) == list(FEATURES)
    assert all(entry["meaning"] for entry in entries.values())
    assert entries["paged"]["claimed"] == "by having the function"
    assert entries["gqa"]["claimed"] == "by default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import numpy\n\nx = undefined\n", r"mine\.py: NameError: .*\(line 3\)"),
        ("def f():\n    raise ValueError('no')\n\nf()\n", r"mine\.py: ValueError: no \(line 2\)"),
        ("import nothing_of_this_name\n", r"mine\.py: no module named .*\(line 1\)"),
        ("def f(:\n", r"mine\.py: SyntaxError: .*line 1"),
    ],
)
def test_an_error_at_import_names_the_line(
    command: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    assert re.search(said, refused(command, "run", "mine.py:attention", "--in-process"))


def test_a_library_that_an_adapter_needs(command: Called, tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text("import flash_attn_of_nobody")
    assert "install it for" in refused(command, "run", path, "--in-process")
    from conformance.running.locating import _missing

    words = _missing(ModuleNotFoundError("no", name="flash_attn.layers"), None)
    assert words == "no module named 'flash_attn.layers'; install it with: pip install flash-attn"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("of_pages", "it looks like paged_attention, where key_cache is key_pages, value_cache is value_pages, "
                     "block_tables is page_table, seq_lens is kv_lengths: wrap it"),
        ("of_parts", "it looks like packed_attention, where cu_seqlens_q is q_starts, cu_seqlens_k is kv_starts"),
        ("of_nothing", "or wrap it in a function of query, key, value"),
    ],
)  # fmt: skip
def test_a_signature_of_another_library(command: Called, target: Path, name: str, words: str) -> None:
    assert words in refused(command, "run", f"{target}:{name}", "--in-process")


def test_tables_with_sentences_are_folded_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table_width(console()) == 120
    monkeypatch.setenv("COLUMNS", "300")
    assert table_width(console()) == 300


def test_no_name_in_a_list_is_cut(command: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert "\u2026" not in command("list", "cases")[1]


def test_a_card_has_a_name_of_its_own(
    command: Called, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("-k", "hand-sized and attention", "--no-diagnose", "--in-process")
    assert "wrote card mha-card.svg" in command("run", f"{target}:attention", "--card", *words)[1]
    assert Path("mha-card.svg").stat().st_size > 0


def test_the_badge_of_one_operation_names_it(make_report: Any, make_row: Any) -> None:
    from dataclasses import replace

    whole = make_report(make_row())
    one = replace(whole, options={**(whole.options or {}), "op": "merge_attention"})
    assert badge_of(whole).message == "core 100 %"
    assert badge_of(one).message == "merge_attention 100 %"
    assert "only merge_attention" in badge_of(one).claim
    assert "profile" not in badge_of(one).claim


def test_why_failures_could_not_be_analysed(make_row: Any) -> None:
    from conformance.diagnosis.finding import Diagnosed

    found = Diagnosed((), 4, 1)
    rows = [make_row("crash"), make_row("timeout"), make_row("timeout"), make_row("fail")]
    (line,) = (line for line in diagnosis_lines(found, rows) if "analysed" in line)
    assert line == "3 failures could not be analysed: a timeout (2), a crash (1)"


def test_answers_that_are_too_large_to_keep_are_told_together(make_row: Any) -> None:
    from conformance.diagnosis.finding import Diagnosed
    from conformance.running.stored_output import TOO_LARGE

    sizes = ("76800 characters in base64", "92120 characters in base64")
    rows = [replace(make_row("fail"), got=(), got_left_out=f"{size}, {TOO_LARGE}") for size in sizes]
    (line,) = (line for line in diagnosis_lines(Diagnosed((), 2, 0), rows) if "analysed" in line)
    assert line == "2 failures could not be analysed: an answer too large to keep (2)"
