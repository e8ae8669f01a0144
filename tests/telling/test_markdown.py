"""The reader of the specification's texts."""

from pathlib import Path

from conformance.telling.decisions import read_decisions
from conformance.telling.markdown import anchors, links, prose, sections, unlinked
from conformance.telling.requirements import read_requirements, requirements_of

TEXT = """# Title

Before `MUST`.

```python
# no heading
[no](link.md)
```

## Two words, and `code`

[a](b.md#c) and [d](#e)

### A-1 short name <a id="a-1"></a>

**It is
so.** *SHOULD · mask + window · since 1.0 · untested: why not*

A formula.

> **Rationale.** First,
> second. See [0002](decisions/0002-x.md).

After.

## Two words, and `code`
"""


def test_sections_and_their_lines() -> None:
    found = sections(TEXT)
    assert [(s.level, s.heading, s.line) for s in found] == [
        (1, "Title", 1),
        (2, "Two words, and `code`", 10),
        (3, "A-1 short name", 14),
        (2, "Two words, and `code`", 26),
    ]
    assert "# no heading" in found[0].body


def test_code_is_no_prose() -> None:
    words = dict(prose(TEXT))
    assert words[3] == "Before ."
    assert not {5, 6, 7, 8} & set(words)


def test_links() -> None:
    assert list(links(TEXT)) == [(12, "b.md#c"), (12, "#e"), (22, "decisions/0002-x.md")]
    assert unlinked("see [x](y.md) and [z](#z)") == "see x and z"


def test_anchors_are_those_of_code_hosts() -> None:
    assert anchors(TEXT) == {"title", "two-words-and-code", "a-1-short-name", "a-1", "two-words-and-code-1"}


def test_a_requirement_in_all_its_parts() -> None:
    (found,) = requirements_of("a.md", TEXT)
    assert (found.id, found.name, found.anchor) == ("A-1", "short name", "a-1")
    assert (found.label, found.title, found.line) == ("A-1 short name", "It is so.", 14)
    assert (found.level, found.features, found.untested) == ("SHOULD", ("mask", "window"), "why not")
    assert found.text == "A formula.\n\nAfter."
    assert found.rationale == "First,\nsecond. See [0002](decisions/0002-x.md)."
    assert found.decisions == ("decisions/0002-x.md",)


def test_the_ledger_s_entries_are_no_requirements() -> None:
    assert requirements_of("documents.md", "### DOC-1\n\nSomething.\n") == []
    assert not [r for r in read_requirements() if r.id.startswith("DOC-")]


def test_decisions(tmp_path: Path) -> None:
    assert [d.decision for d in read_decisions()].count("") == 0
    (tmp_path / "decisions").mkdir()
    (tmp_path / "decisions" / "0001-x.md").write_text("# 0001 X\n\n**Decision.** One\ntwo.\n\nThree.\n")
    (decision,) = read_decisions(tmp_path)
    assert (decision.path, decision.title, decision.decision) == ("decisions/0001-x.md", "0001 X", "One two.")
