"""The source of the public site: what stands where, what is said of whom, and that every link leads somewhere."""

import json
import posixpath
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from telling.built_site import broken

from conformance.defects.bank import DEFECTS
from conformance.judging.verdict import Known, Worst
from conformance.names import FEATURES
from conformance.resources import schema, spec_directory
from conformance.telling.markdown import HEADING, LINK, prose
from conformance.telling.markdown import anchors as headings
from conformance.telling.report import Report
from conformance.telling.site import snippet
from conformance.telling.site.__main__ import main
from conformance.telling.site.libraries import read_libraries
from conformance.telling.site.tables import MEANING
from conformance.telling.site.writing import ASSETS, write
from conformance.vectors.load import load_vectors

CASES = {case.id: case for case in load_vectors().cases}
EMPTY, HAND = "mask/empty-row-is-zero", "attention/hand-sized"
NODE = shutil.which("node")


@pytest.fixture(scope="module")
def reports(make_report: Callable[..., Report], make_row: Callable[..., Any]) -> list[Report]:
    """Two versions of one library, of which MASK-3 fails for a known reason, and another one."""
    known = Known(
        "fail", "An empty row is NaN (MASK-3), not refused (none.md) (errors.md).", "https://example.com/1"
    )
    covers = CASES[EMPTY].covers
    rows = (
        make_row(case=HAND, covers=CASES[HAND].covers),
        make_row("xfail", case=EMPTY, covers=covers, known=known),
        make_row("unsupported", case="attention/softcap", covers=("ATT-5",)),
    )
    one = make_report(*rows)
    named = [("one", "1.9"), ("one", "1.10"), ("other<b>", "2")]
    found = []
    for name, version in named:
        target = type(one.target)(name, version, name, "eager")
        found.append(make_report(*rows, target=target))
    return found


@pytest.fixture(scope="module")
def source(reports: list[Report], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "source"
    write(
        reports, list(CASES.values()), spec_directory(), out, "https://example.com", "https://example.org/x"
    )
    return out


def test_a_requirement_fails_where_a_known_reason_names_it(reports: list[Report]) -> None:
    libraries = read_libraries(reports)
    assert [(x.name, x.version) for x in libraries.newest] == [("one", "1.10"), ("other<b>", "2")]
    assert [x.version for x in libraries.history["one"]] == ["1.10", "1.9"]
    of = libraries.newest[0].requirements
    assert of["MASK-3"].outcome == "fails"
    assert [row.case for row in of["MASK-3"].failing] == [EMPTY]
    assert {name for name, standing in of.items() if standing.outcome == "fails"} == {"MASK-3"}
    assert of["ATT-5"].outcome == "not supported"
    assert of["ATT-1"].outcome == "passes"


def test_what_nobody_explains_is_put_to_the_requirement_that_tells_most(
    make_report: Callable[..., Report], make_row: Callable[..., Any]
) -> None:
    rows = [make_row("fail", case=f"a/{n}", covers=("ATT-1", "MASK-3")) for n in range(4)]
    rows += [make_row(case=f"b/{n}", covers=("ATT-1",)) for n in range(9)]
    of = read_libraries([make_report(*rows)]).newest[0].requirements
    assert of["MASK-3"].outcome == "fails"
    assert of["ATT-1"].outcome == "passes"


def test_every_link_leads_to_a_page_and_an_anchor(source: Path) -> None:
    docs = source / "docs"
    pages = {path.relative_to(docs).as_posix(): path.read_text("utf-8") for path in docs.rglob("*.md")}
    own = {name: set(re.findall(r"\{#([\w-]+)\}", text)) for name, text in pages.items()}
    anchors = {name: own[name] | headings(text) for name, text in pages.items()}
    checked = 0
    for name, text in pages.items():
        for _, line in prose(text):
            for target in LINK.findall(line):
                if target.startswith("http"):
                    continue
                path, _, anchor = target.partition("#")
                at = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
                assert (docs / at).is_file(), f"{name}: {target}"
                if re.fullmatch(r"[a-z]+-\d+", anchor) or at.startswith("cases/"):
                    assert not anchor or anchor in anchors[at], f"{name}: {target}"
                    checked += bool(anchor)
    assert checked > 1500
    assert all(
        not HEADING.fullmatch(line)[3]
        for line in pages["spec/mask.md"].splitlines()
        if HEADING.fullmatch(line)
    )


def test_a_requirement_says_who_passes_it_and_what_shows_it(source: Path) -> None:
    mask = (source / "docs/spec/mask.md").read_text("utf-8")
    part = mask.partition("### MASK-3 ")[2].partition("### MASK-4 ")[0]
    assert "{#mask-3}" in part
    assert re.search(r"\[✗ one\]\(\.\./libraries/one\.md#mask-3\)\{ \.fails", part)
    first = next(case.id for case in CASES.values() if "MASK-3" in case.covers)
    assert f"[`{first}`](../cases/{first.replace('/', '.md#')})" in part
    page = (source / "docs/libraries/one.md").read_text("utf-8")
    told = "An empty row is NaN (MASK-3), not refused (none.md) ([errors](../spec/errors.md))."
    assert page.count(told) == 2, "under the requirement, and in the table of reasons"
    assert "https://example.com/1" in page
    assert f"$ mha-conformance run one -k {EMPTY} --dtype float32" in page
    assert "| 1.9 |" in page
    assert "https://example.com/badges/one.svg" in page


@pytest.mark.parametrize("page", ["matrix.md", "options.md"])
def test_a_wide_table_scrolls_by_itself(source: Path, page: str) -> None:
    text = (source / "docs" / page).read_text("utf-8")
    before, _, table = text.partition('<div class="wide" markdown tabindex="0"')
    assert "\n|" not in before
    assert table.count("\n|") > 4
    assert text.endswith("\n\n</div>\n")
    assert ".wide thead th" in (source / "docs/assets/site.css").read_text("utf-8")


def test_every_feature_has_its_meaning() -> None:
    assert set(FEATURES) <= set(MEANING)


def test_a_link_of_the_built_site_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text('<a href="a/#here">1</a><a href="a/#not">2</a><img src="x.svg">')
    (tmp_path / "a/index.html").write_text('<p id="here"><a href="..">1</a><a href="https://b">2</a>')
    assert broken(tmp_path) == ["index.html: a/#not", "index.html: x.svg"]
    (tmp_path / "x.svg").touch()
    (tmp_path / "a/index.html").write_text('<p id="here"><a id="not" href="..">1</a>')
    assert broken(tmp_path) == []


def test_the_data_is_of_its_schema(source: Path) -> None:
    data = json.loads((source / "docs/site.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema("site")).validate(data)
    assert data["libraries"][0]["requirements"]["MASK-3"]["cases"] == [EMPTY]
    assert [x["version"] for x in data["libraries"][0]["versions"]] == ["1.10", "1.9"]


def test_names_from_a_report_are_no_markup(source: Path) -> None:
    text = (source / "docs/index.md").read_text("utf-8")
    assert "other<b>" not in text


def test_a_program_to_paste_makes_the_call(
    make_row: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[HAND]
    value = float(case.expected["output"].hi[0, 2, 0])
    row = make_row("fail", case=HAND, worst=Worst("output", (0, 2, 0), 7.0, value, 1e-7))
    exec(snippet.program(row, case, "numpy"), {})
    assert float(capsys.readouterr().out) == pytest.approx(value, rel=1e-6)
    written = snippet.program(make_row("fail", case=HAND, message="it is <so>"), case, "numpy")
    assert written.endswith("\n# it is <so>")
    exec(written, {})
    assert capsys.readouterr().out == "outputs \n"


def test_the_front_page_leads_to_the_call(source: Path) -> None:
    front = (source / "docs/index.md").read_text("utf-8")
    assert front.count("[one](libraries/one.md#mask-3)") == 1
    assert "[✗ 1 of 1](libraries/one.md#mask-3){ .fails" in (source / "docs/matrix.md").read_text("utf-8")
    assert "fails in [one](../libraries/one.md#mask-3)" in (source / "docs/cases/mask.md").read_text("utf-8")


def test_a_profile_that_a_library_does_not_offer_is_not_failed(source: Path) -> None:
    page = (source / "docs/libraries/one.md").read_text("utf-8")
    assert "| encoder | not supported: no `mask`, `attn_bias`, `broadcast` and 1 more |" in page


def test_the_smallest_case_is_taken(make_row: Callable[..., Any]) -> None:
    rows = [make_row("fail", case=name) for name in ("attention/plain", HAND, "not/known")]
    assert snippet.smallest(rows, CASES).case == HAND
    assert snippet.smallest(rows[2:], CASES) is None


def test_wrong_calls_are_refused(
    reports: list[Report], tmp_path: Path, make_report: Callable[..., Report]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    path = tmp_path / "run.json"
    path.write_text(json.dumps(reports[0].to_json()), "utf-8")
    nothing = tmp_path / "nothing.json"
    nothing.write_text(json.dumps(make_report().to_json()), "utf-8")
    for words, said in (
        ([], "the site has no report"),
        ([str(nothing)], "ran no test"),
        ([str(tmp_path / "absent.json")], "cannot be read"),
        ([str(path), "--out", str(tmp_path / "full")], "holds something"),
    ):
        result = CliRunner().invoke(
            main, [*words, *([] if "--out" in words else ["--out", str(tmp_path / "new")])]
        )
        assert result.exit_code == 2
        assert said in result.output.replace("\n", " ")
    assert CliRunner().invoke(main, [str(path), "--out", str(tmp_path / "new")]).exit_code == 0


@pytest.mark.skipif(NODE is None, reason="there is no node on this machine")
def test_the_playground_computes_attention_and_its_mistakes_show(tmp_path: Path) -> None:
    """Stored cases of one head through the playground's own program: right without a mistake, wrong with each."""
    asked = [case for case in CASES.values() if _playable(case)]
    calls = [
        {name: _of_one_head(case, case.inputs[name]).tolist() for name in case.inputs}
        | {"options": {NAMES[name]: value for name, value in case.options.items()}}
        for case in asked
    ]
    (tmp_path / "calls.json").write_text(json.dumps(calls), "utf-8")
    program = f"""
        import {{ attention, MISTAKES }} from {json.dumps((ASSETS / "attention.js").as_uri())};
        import {{ readFileSync }} from "node:fs";
        const calls = JSON.parse(readFileSync({json.dumps(str(tmp_path / "calls.json"))}));
        const run = (c, m) => attention(c.query, c.key, c.value, {{ ...c.options, mask: c.mask }}, m).output;
        const text = (x) => JSON.stringify(x, (_, v) => (Number.isNaN(v) ? "nan" : v));
        console.log(text({{ right: calls.map((c) => run(c, "")), names: Object.keys(MISTAKES),
          wrong: Object.keys(MISTAKES).map((m) => calls.map((c) => run(c, m))) }}));
    """
    done = subprocess.run(
        [str(NODE), "--input-type=module", "-e", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    assert len(asked) > 20
    for case, output in zip(asked, answer["right"], strict=True):
        np.testing.assert_allclose(
            output, _of_one_head(case, case.expected["output"].hi), rtol=1e-9, atol=1e-12
        )
    assert set(answer["names"]) <= {defect.id for defect in DEFECTS}
    used = {name for case in asked for name in (*case.options, *case.inputs)}
    for name, outputs in zip(answer["names"], answer["wrong"], strict=True):
        defect = next(defect for defect in DEFECTS if defect.id == name)
        if {f for f in defect.features if f != "empty"} <= used:
            assert outputs != answer["right"], name


NAMES = {
    "is_causal": "isCausal",
    "q_offset": "qOffset",
    "window": "window",
    "softcap": "softcap",
    "scale": "scale",
}


def _playable(case: Any) -> bool:
    """At most 8 x 8, and only what the playground knows."""
    if case.operation != "scaled_dot_product_attention" or case.raises or set(case.expected) != {"output"}:
        return False
    if set(case.inputs) - {"query", "key", "value", "mask"} or set(case.options) - set(NAMES):
        return False
    arrays = [case.inputs[name] for name in ("query", "key", "value")]
    small = max(arrays[0].shape[-2], arrays[1].shape[-2]) <= 8 and all(array.size for array in arrays)
    window = case.options.get("window")
    return small and all(np.isfinite(x).all() for x in arrays) and (window is None or None not in window)


def _of_one_head(case: Any, array: Any) -> Any:
    """The first head of the first batch entry of an operand or the output, [rows, columns]."""
    if array.dtype == np.bool_:
        rows, keys = case.inputs["query"].shape[-2], case.inputs["key"].shape[-2]
        array = np.broadcast_to(array, (*array.shape[:-2], rows, keys))
    return array[(0,) * (array.ndim - 2)]
