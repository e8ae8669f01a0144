"""The drawing of weights: the documents' squares, and texts that cannot break out of it."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from array_libraries import library

from mha_core.drawing import html, svg, terminal

TOKENS = ["The", "dog", "ate"]
DRAWN = np.stack([np.eye(3), np.eye(3)[[1, 0, 1]]])  # DOC-62
EVIL = ["<script>alert(1)</script>", "\x1b[31mred\n", "a\"&'b\x00"]
SPACE = "{http://www.w3.org/2000/svg}"


def test_the_documents_squares():
    rows = [line for line in terminal(DRAWN, TOKENS, shades="□■").splitlines() if "[" in line]
    assert [re.sub(r"\s+", " ", line).replace(" ]", "]") for line in rows] == [
        "The [■ □ □]", "dog [□ ■ □]", "ate [□ □ ■]", "The [□ ■ □]", "dog [■ □ □]", "ate [□ ■ □]",
    ]  # fmt: skip


def test_squares_stand_under_their_tokens():
    head, *rows = terminal(DRAWN[:1], ["a", "longer", "語語"], shades="□■").splitlines()[1:]
    assert head == " " * 8 + "a longer 語語"
    assert rows == ["a      [■ □      □   ]", "longer [□ ■      □   ]", "語語   [□ □      ■   ]"]


def test_shades():
    weights = np.array([[[0.0, 0.24, 0.25, 0.5, 0.75, 1.0, np.nan, -0.1]]])
    line = terminal(weights, ["q"], list("abcdefgh"), shades=" ░▒█").splitlines()[-1]
    assert line == "q [    ░ ▒ █ █ ?  ]"
    two = terminal(np.array([[[0.49, 0.5]]]), ["q"], ["a", "b"], shades="□■")
    assert two.splitlines()[-1] == "q [□ ■]"
    five = terminal(np.array([[[0, 0.3, 0.5, 0.7, 1]]]), ["q"], list("abcde"))
    assert five.splitlines()[-1] == "q [  ░ ▒ ▓ █]"


def test_a_notebook_shows_the_picture():
    assert svg(DRAWN, TOKENS)._repr_svg_() == svg(DRAWN, TOKENS)


def test_terminal_escapes_what_moves_the_cursor():
    text = terminal(np.full((1, 3, 3), 0.1), EVIL, titles=["\x07\r"])
    assert "\\x1b[31mred\\n" in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert text.startswith("\\x07\\r\n")
    assert len(text.splitlines()) == 5


def test_svg_holds_each_weight_and_token():
    weights = np.arange(12.0).reshape(2, 2, 3) / 12
    root = ElementTree.fromstring(svg(weights, ["q0", "q1"], ["k0", "k1", "k2"], titles=["one", "two"]))
    titles = [node.text for node in root.iter(f"{SPACE}title")]
    assert titles == [
        f"q{i} → k{j}: {weights[h, i, j]:.4g}" for h in range(2) for i in range(2) for j in range(3)
    ]
    opacities = [float(node.get("fill-opacity")) for node in root.iter(f"{SPACE}rect")]
    np.testing.assert_allclose(opacities, weights.ravel(), atol=5e-5)
    corners = {
        (group.get("transform"), node.get("x"), node.get("y"))
        for group in root.iter(f"{SPACE}g")
        for node in group.iter(f"{SPACE}rect")
    }
    assert len(corners) == 12
    assert {"one", "two", "q0", "k2"} <= {node.text for node in root.iter(f"{SPACE}text")}


def test_svg_and_page_are_escaped():
    weights = np.full((1, 3, 3), np.nan)
    root = ElementTree.fromstring(svg(weights, EVIL, titles=["</svg><b>"]))
    assert EVIL[0] in [node.text for node in root.iter(f"{SPACE}text")]
    assert {node.get("fill") for node in root.iter(f"{SPACE}rect")} == {"#c00"}

    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.found = set()

        def handle_starttag(self, tag, attrs):
            self.found.add(tag)

    tags = Tags()
    tags.feed(html(weights, EVIL, titles=["{figures}</svg><b>"], title="</title><script>{title}"))
    assert tags.found == {"html", "head", "meta", "title", "body", "h1", "svg", "g", "text", "rect"}


@pytest.mark.parametrize("name", ["array-api-strict", "torch", "jax"])
def test_every_library(name):
    weights = library(name).array(DRAWN, "float32")
    assert terminal(weights, TOKENS) == terminal(DRAWN, TOKENS)
    assert svg(weights, TOKENS) == svg(DRAWN, TOKENS)


def test_nothing_to_draw():
    assert terminal(np.zeros((1, 0, 0)), []) == "Head 1\n  "
    ElementTree.fromstring(svg(np.zeros((0, 2, 2)), ["a", "b"]))
    assert terminal(np.zeros((0, 2, 2)), ["a", "b"]) == ""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: terminal(DRAWN[0], TOKENS), r"weights has shape \(3, 3\) but needs \(H, q_len, kv_len\)"),
        (lambda: svg(DRAWN, TOKENS[:2]), "queries has 2 texts but weights of shape"),
        (lambda: html(DRAWN, TOKENS, TOKENS[:2]), "keys has 2 texts"),
        (lambda: svg(DRAWN, TOKENS, titles=["one"]), "titles has 1 texts .* needs 2"),
        (lambda: terminal(DRAWN, TOKENS, shades=""), "shades is empty"),
    ],
)
def test_what_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()
