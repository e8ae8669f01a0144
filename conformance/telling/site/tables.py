"""The front page, the page of options and the page of each library."""

from collections.abc import Sequence

from conformance.names import FEATURES, PROFILES
from conformance.telling.requirements import Requirement
from conformance.telling.site.libraries import NO_FEATURE, Libraries, Library, Standing, reason_words, words
from conformance.telling.site.snippet import command, program, smallest
from conformance.vectors.case import Case
from conformance.version import SPEC_VERSION

MEANING = {
    "mask": "boolean mask",
    "attn_bias": "additive bias",
    "is_causal": "causality",
    "q_offset": "causality at an offset (decoding, chunks)",
    "window": "sliding window",
    "kv_lengths": "lengths of keys per batch entry",
    "scale": "a scale of its own",
    "softcap": "tanh softcap of the logits",
    "sinks": "attention sinks",
    "return_weights": "returns the weights",
    "return_lse": "returns the log-sum-exp",
    "cache": "a past of keys and values",
    "grad_lse": "the gradient of the log-sum-exp",
    "segments": "each query attends the keys of its own number",
    "gqa": "fewer key heads than query heads",
    "packed": "sequences one behind the other in one array",
    "paged": "keys and values in pages",
    "append": "writes to pages",
    "latent": "keys and values in shared rows",
    "merge": "joins partial results",
    "value_dim": "values wider or narrower than keys",
    "broadcast": "masks and biases that broadcast",
    "empty": "sizes of zero, rows with no key",
    "validation": "refuses wrong calls",
    "strict_masking": "NaN behind a mask reaches nothing",
    NO_FEATURE: "plain attention",
}


MOST, FEW = 8, 3
"""Requirements that the front page names; features that a profile is said to lack."""
WIDE = '<div class="wide" markdown tabindex="0" role="region" aria-label="{name}">'
"""What a table stands in that scrolls by itself, so that its head row and first column stay."""


def _cell(standing: Standing | None, place: str = "") -> str:
    """What stands in a table: a mark, or how many tests fail of those that were run, linked to a place if given."""
    if standing is None or standing.outcome == "not supported":
        return '<span class="not">-</span>'
    if standing.outcome == "passes":
        return f'<span class="passes" title="{standing.tests} tests">✓</span>'
    text = f"✗ {standing.share}"
    title = f'title="{standing.share} tests fail"'
    return f"[{text}]({place}){{ .fails {title} }}" if place else f'<span class="fails" {title}>{text}</span>'


def _place(library: Library, requirement: str) -> str:
    """Where a page of the first level finds the call that shows a requirement broken."""
    return f"libraries/{library.page}.md#{requirement.lower()}"


def _most_broken(of: Libraries, requirements: Sequence[Requirement]) -> list[str]:
    """A table of the requirements that most libraries break in their results, each linked to a call that shows it."""
    broken = [
        (r, [library for library in of.newest if _errs(library, r)]) for r in requirements if not r.withdrawn
    ]
    broken = sorted((each for each in broken if each[1]), key=lambda each: -len(each[1]))[:MOST]
    if not broken:
        return []
    lines = [
        "## What libraries get wrong most often",
        "",
        "| requirement | fails in: the call that shows it |",
        "|---|---|",
    ]
    for r, those in broken:
        links = ", ".join(f"[{library.label}]({_place(library, r.id)})" for library in those)
        lines.append(f"| [{r.label}](spec/{r.file}#{r.anchor}) {r.title} | {links} |")
    return [*lines, "", "[All requirements by library](matrix.md)", ""]


def _errs(library: Library, r: Requirement) -> bool:
    """Whether a call that has an answer gets a wrong one; what is not refused is no wrong result."""
    standing = library.requirements.get(r.id)
    return standing is not None and any("validation" not in row.features for row in standing.failing)


def front(of: Libraries, cases: int, requirements: Sequence[Requirement]) -> str:
    """The first page: what this is, one bar a library, what most of them break, what to do next."""
    number = sum(not r.withdrawn for r in requirements)
    lines = [
        "---",
        "hide: [toc]",
        "---",
        "# Who computes attention right?",
        "",
        f"**{len(of.newest)} libraries as they are, tested against {number} numbered requirements** of "
        f"[multi-head attention](spec/index.md), version {SPEC_VERSION}, by {cases} test cases whose expected "
        "values are proven.",
        "",
        '<div class="front" markdown>',
        "",
        "| library | version | requirements kept | tests passed | failed |",
        "|---|---|---|---|---|",
    ]
    ranked = sorted(of.newest, key=lambda x: (-x.kept / max(1, x.tried), x.name))
    for library in ranked:
        width = round(100 * library.kept / max(1, library.tried))
        bar = (
            f'<span class="bar"><span style="width:{width}%"></span></span> {library.kept} of {library.tried}'
        )
        lines.append(
            f"| [{library.label}](libraries/{library.page}.md) | {words(library.version)} | {bar} | {library.passed} "
            f"| {len(library.failing)} |"
        )
    lines += [
        "",
        "</div>",
        "",
        "A requirement is kept where no test fails because of it. What a library does not offer is not counted.",
        "",
        *_most_broken(of, requirements),
        "## Look further",
        "",
        "- [Which library has which option?](options.md)",
        "- [Requirement by library](matrix.md), and [two libraries side by side](compare.md)",
        "- [Try a mistake yourself](playground.md): attention of up to 8 x 8 in the browser",
        "- [All of it as JSON](data.md)",
        "",
        "## Test yours",
        "",
        "```console",
        "$ mha-conformance run attention.py:attention",
        "```",
        "",
        "Your function takes `query, key, value` and what it supports of `mask`, `is_causal`, `scale`, ... "
        "[The first steps](spec/tour.md), [one step in GitHub Actions](spec/in-ci.md).",
    ]
    return "\n".join(lines) + "\n"


def options(of: Libraries) -> str:
    """Feature by library, true since it was run."""
    names = [f"[{library.label}](libraries/{library.page}.md)" for library in of.newest]
    lines = [
        "---",
        "hide: [toc]",
        "---",
        "# Which library has which option?",
        "",
        "✓ every test passes; ✗ *n of m* tests fail; - not offered, or not through the adapter used here. "
        "Each cell is what a run showed.",
        "",
        WIDE.format(name="Options by library"),
        "",
        f"| | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    for name in (NO_FEATURE, *FEATURES):
        cells = [_cell(library.features[name]) for library in of.newest]
        head = MEANING.get(name, "")
        label = head if name == NO_FEATURE else f"`{name}`" + (f" {head}" if head else "")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    versions = [words(library.version) for library in of.newest]
    lines.append(f"| version | {' | '.join(versions)} |")
    lines.append(f"| dtypes tested | {' | '.join(', '.join(x.dtypes) for x in of.newest)} |")
    lines += ["", "</div>"]
    return "\n".join(lines) + "\n"


def matrix(of: Libraries, requirements: Sequence[Requirement]) -> str:
    """Requirement by library."""
    names = [f"[{library.label}](libraries/{library.page}.md)" for library in of.newest]
    lines = [
        "---",
        "hide: [toc]",
        "---",
        "# Requirement by library",
        "",
        "✓ no test fails because of it; ✗ *n of m* tests fail because of it, with a link to the call that shows it; "
        "- nothing of it was run.",
        "",
        WIDE.format(name="Requirements by library"),
        "",
        f"| requirement | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    for r in requirements:
        standings = [library.requirements.get(r.id) for library in of.newest]
        cells = [_cell(s, _place(x, r.id)) for x, s in zip(of.newest, standings, strict=True)]
        if not r.withdrawn and any(s and s.outcome != "not supported" for s in standings):
            lines.append(f"| [{r.label}](spec/{r.file}#{r.anchor}) | {' | '.join(cells)} |")
    lines += ["", "</div>"]
    return "\n".join(lines) + "\n"


def library_page(
    library: Library,
    history: Sequence[Library],
    requirements: dict[str, Requirement],
    cases: dict[str, Case],
    address: str = "",
) -> str:
    """The badge, the profiles, what fails with the smallest call that shows it, the versions."""
    report = library.report
    lines = [f"# {library.label} {words(library.version)}", "", f"![badge](../badges/{library.page}.svg)", ""]
    if address:
        badge = f"{address.rstrip('/')}/badges/{library.page}.svg"
        lines += ["The badge, to paste:", "", "```markdown", f"![attention]({badge})", "```", ""]
    lines += [
        f"Tolerance policy `{report.target.accuracy}`; {', '.join(library.dtypes)}; {library.passed} tests pass, "
        f"{len(library.failing)} fail, {report.summary.get('unsupported', 0)} need what it does not offer.",
        "",
        "| profile | |",
        "|---|---|",
        *(f"| {name} | {_profile(library, name)} |" for name in PROFILES),
        "",
    ]
    broken = {name: s for name, s in library.requirements.items() if s.outcome == "fails"}
    lines += [f"## What fails: {len(broken)} requirements", ""] if broken else ["## Nothing fails", ""]
    for name, standing in broken.items():
        lines += _broken(library, name, standing, requirements.get(name), cases)
    if library.kinds:
        lines += ["## By reason", "", "| tests | reason | report |", "|---|---|---|"]
        for kind in library.kinds:
            where = f"[public report]({kind.report})" if kind.report else "none"
            lines.append(f"| {len(kind.rows)} | {reason_words(kind.reason) or 'not known'} | {where} |")
        lines.append("")
    lines += [
        "## Versions",
        "",
        "| version | tests passed | failing | requirements kept |",
        "|---|---|---|---|",
    ]
    for one in history:
        lines.append(
            f"| {words(one.version)} | {one.passed} | {len(one.failing)} | {one.kept} of {one.tried} |"
        )
    lines += ["", "## Run it again", "", "```console", f"$ mha-conformance run {library.name}", "```", ""]
    return "\n".join(lines)


def _profile(library: Library, name: str) -> str:
    """How a library fares in a profile; what it lacks where it does not offer all of it."""
    lacking = [x for x in PROFILES[name] if library.features[x].outcome == "not supported"]
    if lacking:
        more = f" and {len(lacking) - FEW} more" if len(lacking) > FEW else ""
        return f"not supported: no {', '.join(f'`{x}`' for x in lacking[:FEW])}{more}"
    return library.report.profiles.get(name, "incomplete")


def _broken(
    library: Library, name: str, standing: Standing, r: Requirement | None, cases: dict[str, Case]
) -> list[str]:
    label = f"{r.label}" if r else name
    lines = [f"### {label} {{#{name.lower()}}}", ""]
    if r:
        lines += [f"[{r.title}](../spec/{r.file}#{r.anchor})", ""]
    reasons = list(dict.fromkeys(row.known.reason for row in standing.failing if row.known))
    reports = list(
        dict.fromkeys(row.known.report for row in standing.failing if row.known and row.known.report)
    )
    lines += [reason_words(reason) for reason in reasons]
    lines += [f"[Public report]({address})" for address in reports]
    lines += ["", f"{standing.share} tests fail because of it.", ""]
    row = smallest(standing.failing, cases)
    if row is not None:
        case = cases[row.case]
        chapter, _, short = row.case.partition("/")
        lines += [
            f"The smallest: [`{row.case}`](../cases/{chapter}.md#{short}) in {row.dtype}. {case.note}",
            "",
        ]
        written = program(row, case, library.name)
        if written:
            lines += ["```python", written, "```", ""]
        lines += ["```console", f"$ {command(row, library.name)}", "```", ""]
    return lines
