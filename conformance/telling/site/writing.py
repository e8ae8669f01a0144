"""Writes the source of the site: Markdown, data and the configuration of the generator."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.defects.record import read_record
from conformance.errors import UsageError
from conformance.telling.badge import picture
from conformance.telling.inventory import read_defects
from conformance.telling.markdown import links
from conformance.telling.report import Report
from conformance.telling.requirements import Requirement
from conformance.telling.site import book, catalogue, tables
from conformance.telling.site.data import document
from conformance.telling.site.libraries import Libraries, read_libraries
from conformance.vectors.case import Case

ASSETS = Path(__file__).parent / "assets"
NAME = "Attention, conformant"
PLAYED = 5
"""Cases that the playground names for a mistake."""


def write(
    reports: Sequence[Report],
    cases: Sequence[Case],
    spec: Path,
    out: Path,
    address: str = "",
    repository: str = "",
) -> None:
    """Writes `out`/mkdocs.yml and `out`/docs.

    Args:
        reports: one or more runs of each library, in any order.
        cases: the stored cases.
        spec: the folder of the specification.
        out: a folder that is new or empty.
        address: where the site will stand; empty where that is not known.
        repository: the address of the source; empty where that is not known.

    Raises:
        UsageError: there is no report, one of a run that ran nothing or did not end, or `out` holds something.
    """
    _check(reports, out)
    libraries = read_libraries(reports)
    shelf = book.shelf(spec, cases, libraries.newest, repository.rstrip("/"))
    texts = dict(shelf.requirements)
    by_id = {case.id: case for case in cases}
    docs = out / "docs"
    chapters = list(catalogue.pages(cases, libraries.newest, texts))
    pages = dict([*book.pages(shelf), *chapters])
    pages["index.md"] = tables.front(libraries, len(cases), list(texts.values()))
    pages["options.md"] = tables.options(libraries)
    pages["matrix.md"] = tables.matrix(libraries, list(texts.values()))
    for library in libraries.newest:
        history = libraries.history[library.name]
        pages[f"libraries/{library.page}.md"] = tables.library_page(library, history, texts, by_id, address)
    pages["compare.md"] = _scripted(
        "Two libraries side by side", "compare", "What one keeps and the other does not."
    )
    about = "Attention of one head, right and with a mistake, in your browser. The numbers are weights in percent."
    pages["playground.md"] = _scripted("Try a mistake", "playground", about)
    pages["data.md"] = DATA.replace("SITE", address.rstrip("/") or "SITE")
    for name, text in pages.items():
        _put(docs / name, text)
    for library in libraries.newest:
        _put(docs / "badges" / f"{library.page}.svg", picture(library.report))
    _put(docs / "site.json", _json(document(libraries, list(texts.values()), shelf.covering)))
    _put(docs / "playground.json", _json(_mistakes(texts, by_id)))
    for path in (*ASSETS.iterdir(), *(spec / "schema").glob("*.json")):
        _put(docs / ("schema" if path.suffix == ".json" else "assets") / path.name, path.read_text("utf-8"))
    _put(out / "mkdocs.yml", _json(_configuration(libraries, spec, address, repository)))


def _check(reports: Sequence[Report], out: Path) -> None:
    if not reports:
        raise UsageError(
            "the site has no report: give one or more, as `mha-conformance run --report` writes them"
        )
    for report in reports:
        if not report.executed or not report.ended:
            what = "ran no test" if not report.executed else f"lacks {report.lacking} of {report.asked} tests"
            raise UsageError(f"the report of {report.target.name} {what}: give one of a whole run")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} holds something: give a folder that is new or empty")


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", newline="\n")


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _scripted(title: str, name: str, about: str) -> str:
    return (
        f"---\nhide: [toc]\n---\n# {title}\n\n{about}\n\n"
        f'<div id="{name}">This page needs JavaScript.</div>\n\n'
        f'<script type="module" src="assets/{name}.js"></script>\n'
    )


DATA = """\
# All of it as JSON

[`site.json`](site.json) holds every requirement and how each library fares, in the form of
[`schema/site.json`](schema/site.json). Its `site_version` changes when a field is renamed or removed; new fields do not
change it.

```python
import json, urllib.request

site = json.load(urllib.request.urlopen("SITE/site.json"))
print([x["name"] for x in site["libraries"] if x["requirements"]["MASK-3"]["outcome"] == "fails"])
```
"""


def _mistakes(requirements: dict[str, Requirement], cases: dict[str, Case]) -> list[dict[str, Any]]:
    """The bank's mistakes that no variant is, with cases that catch them."""
    record = read_record()
    found = []
    for defect in read_defects():
        kills = record.kills.get(defect.id, {})
        names = dict.fromkeys(name for kill in kills.values() for name in kill)
        known = [cases[name] for name in names if name in cases][:PLAYED]
        if defect.variant or not known:
            continue
        violated = [requirements[name] for name in defect.violates if name in requirements]
        found.append(
            {
                "id": defect.id,
                "sentence": defect.sentence,
                "features": sorted(defect.features),
                "violates": [{"label": r.label, "page": f"spec/{r.chapter}/#{r.anchor}"} for r in violated],
                "cases": [
                    {"id": case.id, "page": "cases/{}/#{}".format(*case.id.split("/", 1))} for case in known
                ],
            }
        )
    return found


def _configuration(of: Libraries, spec: Path, address: str, repository: str) -> dict[str, Any]:
    """What MkDocs reads; JSON is YAML."""
    chapters = [
        {"Overview": "spec/index.md"},
        *({Path(name).stem: f"spec/{name}"} for name in _in_order(spec)),
        {"The definition": "spec/definition.md"},
    ]
    return {
        "site_name": NAME,
        **({"site_url": address} if address else {}),
        **({"repo_url": repository} if repository else {}),
        "use_directory_urls": True,
        "nav": [
            {
                "Libraries": [
                    "index.md",
                    {"Options": "options.md"},
                    {"Requirements": "matrix.md"},
                    {"Compare": "compare.md"},
                ]
                + [{library.name: f"libraries/{library.page}.md"} for library in of.newest]
            },
            {"Specification": chapters},
            {"Cases": "cases/index.md"},
            {"Playground": "playground.md"},
            {"Data": "data.md"},
        ],
        "not_in_nav": "/spec/decisions/\n/cases/",
        "theme": {
            "name": "material",
            "font": False,  # nothing is fetched from elsewhere
            "features": ["navigation.tabs", "navigation.indexes", "content.code.copy", "search.suggest"],
            "palette": [
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "primary": "teal",
                    "toggle": {"icon": "material/weather-night", "name": "Dark"},
                },
                {
                    "media": "(prefers-color-scheme: dark)",
                    "scheme": "slate",
                    "primary": "teal",
                    "toggle": {"icon": "material/weather-sunny", "name": "Light"},
                },
            ],
        },
        "extra_css": ["assets/site.css"],
        "markdown_extensions": [
            "attr_list",
            "md_in_html",
            "tables",
            "admonition",
            "pymdownx.details",
            "pymdownx.superfences",
            {"toc": {"permalink": True, "toc_depth": 3}},
        ],
        "plugins": ["search"],
        "validation": {"links": {"anchors": "warn", "absolute_links": "ignore"}},
    }


def _in_order(spec: Path) -> list[str]:
    """The chapters and guides in the order in which the overview names them."""
    overview = (spec / "README.md").read_text("utf-8")
    named = [target.partition("#")[0] for _, target in links(overview)]
    every = {path.name for path in spec.glob("*.md")} - {"README.md", *book.LEFT_OUT}
    first = [name for name in dict.fromkeys(named) if name in every]
    return [*first, *sorted(every - set(first))]
