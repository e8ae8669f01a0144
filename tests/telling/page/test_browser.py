"""The page in a real browser: filters, links, keyboard, no error, no request, and text that can be read."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from conformance.exploring.saved import read_cases
from conformance.telling.page import render
from conformance.vectors import load
from conformance.vectors.load import Vectors
from tests.telling.page.chromium import Browser, started

CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgb = (colour, under) => {
  canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (c) => c.map((v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = (e) => { for (; e; e = e.parentElement) {
  const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c)) return c; } return 'Canvas'; };
const low = [];
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
  if (['SCRIPT', 'OPTION', 'text'].includes(e.tagName)) continue;
  const under = behind(e), [a, b] = [light(rgb(getComputedStyle(e).color, under)), light(rgb(under, under))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) low.push([e.tagName, e.className, e.textContent.slice(0, 40), ratio]);
}
return low;
"""
UNNAMED = """
return [...document.querySelectorAll('select, input, button, a, summary, [role=region], form, nav')]
  .filter((e) => !(e.labels?.length || e.ariaLabel || e.getAttribute('aria-labelledby') || e.textContent.trim()))
  .map((e) => e.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(
    tmp_path: Path, make_report: Any, make_case: Any, make_row: Any, run_row: Any, vectors_are: Any
) -> Path:
    """Two runs: `wrong` fails a case of its own, `right` passes the other two."""
    case = make_case()
    vectors_are(Vectors((case,), "0" * 64, "1.0", "1"))
    failed = run_row(case, lambda query, key, value: value)
    layer = {"case": "b/c", "operation": "multi_head_attention", "covers": ("PROJ-1",)}
    wrong = make_report(
        failed, make_row(error_over_bound=0.5), make_row("unsupported", **layer), name="wrong"
    )
    right = make_report(make_row(error_over_bound=0.25), make_row(dtype="float64", **layer), name="right")
    path = tmp_path / "page.html"
    path.write_text(render([wrong, right]), "utf-8")
    return path


def test_no_error_and_no_request(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.choose() == "4 of 4 tests, 1 of 1 failing cases"
    assert browser.logs("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.logs("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]


@pytest.mark.parametrize(
    ("wanted", "said", "matrix"),
    [
        ({"run": "1"}, "2 of 4 tests, 0 of 1", ["\u2713 1", "\u2713 1"]),
        ({"verdict": "fectx"}, "1 of 4 tests, 1 of 1", ["\u2717 1/1", ""]),
        ({"verdict": "u"}, "1 of 4 tests, 0 of 1", ["\u2013", ""]),
        ({"chapter": "core"}, "1 of 4 tests, 1 of 1", ["\u2717 1/1", ""]),
        ({"dtype": "float64"}, "1 of 4 tests, 0 of 1", ["", "\u2713 1"]),
        ({"operation": "0"}, "2 of 4 tests, 0 of 1", ["\u2013", "\u2713 1"]),
        ({"text": "small CASE"}, "1 of 4 tests, 1 of 1", ["\u2717 1/1", ""]),
        ({"text": "what is allowed"}, "1 of 4 tests, 1 of 1", ["\u2717 1/1", ""]),
        ({"text": "proj-1"}, "2 of 4 tests, 0 of 1", ["\u2013", "\u2713 1"]),
        ({"run": "0", "verdict": "p"}, "1 of 4 tests, 0 of 1", ["\u2713 1"]),
        ({"text": "nothing is called so"}, "0 of 4 tests, 0 of 1", []),
    ],
)  # fmt: skip
def test_filters(browser: Browser, page: Path, wanted: dict[str, str], said: str, matrix: list[str]) -> None:
    browser.open(page)
    assert browser.choose(**wanted) == f"{said} failing cases"
    assert browser.shown("#matrix tbody td") == matrix
    assert len(browser.shown(".failure")) == int(said.split(", ")[1][0])
    browser.run("for (const box of document.querySelectorAll('.chapter')) box.open = true")
    assert len(browser.shown("#table tbody tr")) == int(said[0])
    assert browser.shown("#none") == ([] if ", 1" in said else ["No failure is left by the filters."])
    browser.choose()
    assert len(browser.shown("#matrix tbody td")) == 4


def test_a_number_of_failures_leads_to_them(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('#matrix td.x a').click()")
    assert browser.settled() == "1 of 4 tests, 1 of 1 failing cases"
    form = browser.run("return Object.fromEntries(new FormData(document.getElementById('filters')))")
    assert (form["run"], form["verdict"], form["text"]) == ("0", "fectx", "ATT-1")


def test_links_open_what_they_lead_to(browser: Browser, page: Path) -> None:
    browser.open(page)
    opened = (
        "const box = document.querySelector(arguments[0]);"
        "return [box.open, document.activeElement === box.firstElementChild];"
    )
    browser.choose(chapter="b")
    browser.run("document.querySelector('.blamed a').click()")
    assert browser.run(opened, "#r0 details") == [True, True], "and the filter that hid it is gone"
    browser.run("document.querySelector('#table td.x a').click()")
    assert browser.run(opened, ".failure") == [True, True]
    browser.open(page.with_name("page.html"))
    browser.driver.get(page.as_uri() + "#f0")
    assert browser.run("return document.querySelector('.failure').open")


def test_a_case_a_requirement_and_a_view_have_an_address(browser: Browser, page: Path) -> None:
    def visit(fragment: str) -> None:
        browser.open(page)
        browser.driver.get(f"{page.as_uri()}#{fragment}")
        browser.driver.refresh()
        browser.settled()

    visit("core/plain")
    assert browser.run("return document.querySelector('.failure').open")
    visit("ATT-1")
    assert browser.run("return document.querySelector('#matrix tr[data-id=ATT-1] details').open")
    visit("?chapter=b")
    assert browser.settled() == "2 of 4 tests, 0 of 1 failing cases"
    assert browser.shown(".cause") == []
    browser.choose(dtype="float64")
    assert browser.run("return location.hash") == "#?dtype=float64"
    browser.choose()
    assert browser.run("return location.hash") == ""


def test_chapters_fold_and_count_what_is_left(browser: Browser, page: Path) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    browser.open(page)
    chapters = "return [...document.querySelectorAll('.chapter')].map((c) => [c.dataset.chapter, c.open])"
    assert browser.run(chapters) == [["core", True], ["a", False], ["b", False]]
    counts = "return [...document.querySelectorAll('.counts')].map((c) => c.textContent.trim())"
    written = browser.run(counts)
    assert written == ["\u2717 1 failed", "\u2713 2 passed", "\u2713 1 passed \u2013 1 not supported"]
    browser.run("document.querySelector('.chapter[data-chapter=a] summary').focus()")
    browser.press(keys.ENTER)
    assert browser.run(chapters)[1] == ["a", True]
    browser.choose(run="1", chapter="b")
    assert browser.shown(".chapter > summary") == ["b \u2713 1 passed"]
    assert browser.run(chapters)[2] == ["b", True]
    browser.choose()
    assert browser.run(counts) == written
    browser.open(page)
    browser.driver.get(f"{page.as_uri()}#b/c")
    browser.driver.refresh()
    assert browser.run(chapters) == [["core", True], ["a", False], ["b", True]]


def test_a_case_is_saved(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page)
    browser.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved"))
    browser.run("document.querySelector('.failure').open = true; document.querySelector('.save').click()")
    path, end = tmp_path / "saved" / "core-plain.json", time.monotonic() + 20
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert [case.id for case in read_cases(path)] == ["core/plain"]
    assert browser.logs("browser") == []


def test_the_command_is_copied(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('.failure').open = true; document.querySelector('.copy').click()")
    browser.settled()
    assert browser.run("return document.querySelector('.copy').textContent") == "Copied"


def test_a_case_that_is_no_file_has_its_command_copied(
    browser: Browser, tmp_path: Path, make_report: Any, make_case: Any, make_row: Any, page_over: Any
) -> None:
    case = replace(make_case(), raises=True)
    path = tmp_path / "page.html"
    path.write_text(page_over(make_report(make_row("fail", case=case.id)), cases=(case,)).html, "utf-8")
    browser.open(path)
    browser.run("navigator.clipboard.writeText = async (text) => { document.copied = text; }")
    browser.run("document.querySelectorAll('.copy')[2].click()")
    browser.settled()
    assert browser.run("return document.copied") == "mha-conformance show core/plain --json > core-plain.json"


def test_keyboard(browser: Browser, page: Path) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    browser.open(page)
    browser.press(keys.TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.run("document.querySelector('.failure summary').focus()")
    browser.press(keys.ENTER, keys.TAB)
    assert browser.run("return document.querySelector('.failure').open")
    browser.run("document.querySelector('.heat').focus({focusVisible: true})")
    browser.press(keys.ARROW_RIGHT, keys.ARROW_DOWN)
    (label, values) = browser.run(
        "const e = document.activeElement; return [e.getAttribute('aria-label'), e.dataset.v]"
    )
    assert label.startswith("expected output[0]")
    assert values
    (said,) = browser.shown("#readout")
    name, _, number = said.partition(" = ")
    assert name == "expected output[0, 1, 1]"
    expected = load.load_vectors().cases[0].expected["output"].hi[0, 1, 1]
    assert float(number) == pytest.approx(expected, rel=1e-5)
    browser.press(keys.ARROW_UP, keys.ARROW_UP)
    assert browser.shown("#readout")[0].startswith("expected output[0, 0, 1] = ")
    browser.press(keys.ESCAPE, "/")
    assert browser.run("return document.activeElement.name") == "text"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_can_be_read(browser: Browser, page: Path, dark: bool, width: int) -> None:
    browser.open(page, dark, width)
    browser.run("for (const box of document.querySelectorAll('details')) box.open = true")
    assert browser.run(CONTRAST) == []
    assert browser.run(UNNAMED) == []
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    dim = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (dim == "rgb(255, 255, 255)") is not dark
    levels = browser.run(
        "return [...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_without_script_it_reads_all_the_same(browser: Browser, page: Path) -> None:
    browser.open(page, script=False)
    try:
        root = browser.command("DOM.getDocument", depth=-1)["root"]
        html = browser.command("DOM.getOuterHTML", nodeId=root["nodeId"])["outerHTML"]
        assert '<form id="filters" role="search" aria-label="Filters" hidden="">' in html
        assert html.count('class="heat"') == page.read_text("utf-8").count('class="heat"')
    finally:
        browser.command("Emulation.setScriptExecutionDisabled", value=False)


def test_hostile_text_runs_nothing(
    browser: Browser, tmp_path: Path, make_report: Any, make_row: Any, page_over: Callable[..., Any]
) -> None:
    text = (
        "</script></style></title><script>document.hurt = 1</script><img src=x onerror='document.hurt = 2'>"
    )
    row = make_row("fail", case=f"a/{text}", message=text, features=(text,))
    path = tmp_path / "hostile.html"
    path.write_text(
        page_over(make_report(row, name=text, version=text, environment={text: text})).html, "utf-8"
    )
    browser.open(path)
    assert browser.run("return document.hurt ?? 0") == 0
    assert browser.run("return [document.scripts.length, document.images.length]") == [1, 0]
    assert browser.choose(text="document.hurt") == "1 of 1 tests, 1 of 1 failing cases"
    assert browser.logs("browser") == []
