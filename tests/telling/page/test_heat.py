"""Heat maps, their cutting, the strip plot and the prose of requirements, as SVG and HTML say them."""

import re
from typing import Any

import numpy as np
import pytest

from conformance.telling.page.heat import SHARES, STEPS, errors, heat_map, legend, shares, signed
from conformance.telling.page.pictures import LARGEST, MANY, picture
from conformance.telling.page.prose import prose
from conformance.telling.page.render import FOLDER
from conformance.telling.page.strip import LEFT, WIDTH, spreads, strip_plot
from conformance.telling.page.words import index, kind, number


def drawn(values: Any, scale: Any, limit: float = 1.0) -> dict[str, str]:
    svg = heat_map(np.array(values, np.float64), scale, limit, "label", "0", "0")
    return dict(re.findall(r'<path class="([^"]+)" d="([^"]*)"/>', svg))


def test_colours_go_by_share_of_the_limit() -> None:
    values = np.array([0, 1e-9, 0.2, 0.21, 1, 7, -1e-9, -1, -7, np.nan, np.inf])
    assert signed(values, 1).tolist() == [0, 1, 1, 2, STEPS, STEPS, -1, -STEPS, -STEPS, 0, STEPS]
    assert signed(values, 0).tolist()[:5] == [0] * 5
    assert shares(np.array([0, 1e-9, 0.5, 1, 2])).tolist() == [0, 1, SHARES // 2, SHARES, SHARES]
    assert errors(np.array([0, 0.1, 0.25, 1, 1.0001, 10, 1e9, np.inf, np.nan])).tolist() == [
        0,
        1,
        1,
        4,
        5,
        5,
        7,
        7,
        7,
    ]


def test_equal_neighbours_are_one_stroke() -> None:
    assert drawn([[1, 1, 0, -1], [1, -1, -1, -1]], "signed") == {
        "p5": "M0 0.5h2M0 1.5h1",
        "n5": "M3 0.5h1M1 1.5h3",
    }
    assert drawn([[True, False, True]], "flag") == {"on": "M0 0.5h1M2 0.5h1"}
    assert drawn([[0, 1]], "share") == {"s8": "M1 0.5h1"}


def test_what_colour_alone_would_not_tell_has_a_mark() -> None:
    found = drawn([[np.nan, np.inf, -np.inf, 1]], "signed")
    assert {name: path.split("m")[0] for name, path in found.items()} == {
        "odd": "M0 0.5h3", "p5": "M3 0.5h1", "mark nan": "M0 0", "mark inf": "M1 0", "mark neg": "M2 0",
    }  # fmt: skip
    assert drawn([[0.5, 1, 1.5, np.inf]], "error")["mark out"] == "M2 0m.5 .5h0M3 0m.5 .5h0"


def test_every_class_has_a_colour_and_is_in_the_legend() -> None:
    style = (FOLDER / "style.css").read_text("utf-8")
    named = {css for _, colours in legend() for css, _ in colours} | {"odd"}
    possible = {f"{sign}{i}" for sign in "np" for i in range(1, STEPS + 1)} | {
        f"s{i}" for i in range(1, SHARES + 1)
    }
    possible |= {f"e{i}" for i in range(1, 8)} | {"z", "on", "odd"}
    assert named == possible
    light, dark = style.split("prefers-color-scheme: dark", 1)
    for css in possible:
        assert f".{css} {{ stroke: var(--" in style
    for css in possible - {"z"}:
        assert f"--{css}: #" in light
        assert f"--{css}: #" in dark.split("}\n}", 1)[0]


def test_large_matrices_are_cut_around_what_matters_and_say_so() -> None:
    array = np.zeros((3, 200, 100))
    whole = picture("x", array[:, :LARGEST, :LARGEST], "signed")
    assert (whole.cut, len(whole.matrices)) == ("", 3)
    cut = picture("x", array, "signed", near=(1, 199, 50))
    assert cut.cut == "shown: rows 152 to 199 of 200, columns 26 to 73 of 100"
    assert 'data-y="152" data-x="26"' in cut.matrices[0].svg
    assert f'viewBox="0 0 {LARGEST} {LARGEST}"' in cut.matrices[0].svg


def test_many_matrices_are_cut_but_never_the_one_that_matters() -> None:
    shown = picture("x", np.zeros((2, 10, 3, 4)), "signed", near=(1, 9, 0, 0))
    assert [m.label for m in shown.matrices] == ["[0, 0]", "[0, 1]", "[0, 2]", "[0, 3]", "[0, 4]", "[1, 9]"]
    assert shown.cut == f"shown: {MANY} of 20 matrices"


def test_sampled_rows_keep_their_numbers() -> None:
    assert 'data-y="5,70,900"' in picture("x", np.zeros((3, 2)), "signed", rows=(5, 70, 900)).matrices[0].svg


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3, 4), (2, 3, 0, 1)])
def test_empty_arrays_are_said(shape: tuple[int, ...]) -> None:
    shown = picture("x", np.zeros(shape), "signed")
    assert shown.matrices == ()
    assert shown.facts.endswith("empty")


def test_facts() -> None:
    assert picture("x", np.array(3.0), "signed").facts == "(), all 3"
    assert picture("x", np.array([1.0, np.nan, np.inf]), "signed").facts == "(3,), all 1, 1 NaN, 1 infinite"
    assert picture("x", np.array([True, False]), "flag").facts == "(2,), 1 of 2 true"


def test_the_strip_plot_puts_each_row_on_its_axis(make_report: Any, make_row: Any) -> None:
    errors_of = {"a/zero": 0.0, "a/low": 1e-9, "a/one": 1.0, "a/high": 1e9, "a/inf": float("inf")}
    rows = [
        make_row("fail" if error > 1 else "pass", case=case, error_over_bound=error)
        for case, error in errors_of.items()
    ]
    report = make_report(*rows, make_row("error", case="a/none"))
    svg = strip_plot([report])
    (dots,), (crosses,) = (
        re.findall(rf'<path class="{css}" d="([^"]*)"', svg) for css in ("dots", "crosses")
    )
    one = round(LEFT + WIDTH * 4 / 7, 1)
    assert {float(x) for x in re.findall(r"M([\d.]+) ", dots)} == {LEFT, one}
    assert {float(x) for x in re.findall(r"M([\d.]+) ", crosses)} == {LEFT + WIDTH}
    assert "1 = tolerance" in svg
    (spread,) = spreads([report])
    assert (spread.rows, spread.exact, spread.median, spread.most, spread.beyond) == (5, 1, "1", "1", 2)


def test_prose() -> None:
    text = "See `a < b` and **so** [there](x.md).\n\n| a | b |\n|---|---|\n\n```\n<code>\n```\n\n- one\n- two *2*"
    assert prose(text) == (
        "<p>See <code>a &lt; b</code> and <strong>so</strong> there.</p><pre>| a | b |\n|---|---|</pre>"
        "<pre>&lt;code&gt;</pre><ul><li>one</li><li>two <em>2</em></li></ul>"
    )
    assert prose("") == ""


def test_words() -> None:
    assert [number(x) for x in (None, 0.0, 1234.5, 1e-7, 5e20)] == ["", "0", "1.23e3", "1e-7", "5e20"]
    assert [number(x) for x in (float("nan"), float("inf"), -float("inf"))] == [
        "NaN",
        "\u221e",
        "\u2212\u221e",
    ]
    assert index((0, 12)) == "[0, 12]"
    assert [kind(v) for v in ("pass", "xpass", "fail", "crash", "xfail", "unsupported", "?")] == list(
        "ppxxxuu"
    )
