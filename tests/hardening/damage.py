"""Documents with something wrong in them: any JSON, and a valid document of which one part was changed."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

EVIL = (
    "\x1b[31m\x1b]0;title\x07\x1b[2J",
    "\u202eright to left\u2066\u200b\ufeff",
    "[bold red]markup[/] [link=file:///etc/passwd]x[/link]",
    "</script><script>alert(1)</script>",
    "]]><x/>&#0;&amp;\x00\ufffe",
    "::error file=a.py::owned",
    "##vso[task.setvariable variable=x]y ##[add-mask]z",
    "| a | `b` | <b> @everyone https://evil.example",
    "../../etc/passwd",
    "/etc/passwd\x00.json",
    "line\nbreak\r\x85\u2028\u2029end",
    "\ud800",
    "a" * 5000,
    '"""\n[[known]]\ncase = "x"\\',
)
"""Texts that would do something if somebody forgot to escape them."""

texts = st.sampled_from(EVIL) | st.text(max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([10**400, -1, 0, 1.0, 1e308, -0.0, 5e-324])
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
raws = st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "[" * 5000, "1" * 300, ""]
)
"""What json.dumps writes of no value."""
MARK = "\ue000 a place to put something raw \ue000"


@st.composite
def damaged(draw: Any, document: Any) -> str:
    """The JSON text of a document of which a part was replaced, removed, doubled or made no JSON."""
    changed = {"": copy.deepcopy(document)}
    raw = ""
    for _ in range(draw(st.integers(1, 3))):
        holders = [(holder, key) for holder, key in _places(changed)]
        holder, key = draw(st.sampled_from(holders))
        how = draw(st.sampled_from(["replace", "remove", "double", "raw", "move"]))
        if how == "replace":
            holder[key] = draw(values)
        elif how == "remove" and holder is not changed:
            del holder[key]
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif how == "move" and isinstance(holder, dict) and holder is not changed:
            holder[draw(texts)] = holder.pop(key)
        elif how == "raw":
            holder[key], raw = MARK, draw(raws)
    text = json.dumps(changed[""])
    text = text.replace(json.dumps(MARK), raw)
    cut = draw(st.integers(0, 20))
    return text[: len(text) * cut // 20] if 0 < cut < 20 and draw(st.integers(0, 9)) == 0 else text


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document, as what holds it and its key there."""
    keys = document if isinstance(document, dict) else range(len(document))
    for key in list(keys):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from _places(document[key])


def tried(refusal: type[Exception], call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What a call returns, or the text of its refusal, which is short; any other exception is a fault."""
    try:
        return call(*arguments), ""
    except refusal as error:
        said = str(error)
    assert 0 < len(said) < 2000
    return None, said
