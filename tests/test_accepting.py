"""The compiled check of a message says what JSON Schema says, of right and of wrong ones."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.accepting import UnknownKeywordError, accepting
from conformance.reading import validator
from conformance.resources import schema

PROTOCOL = schema("protocol")
ARRAY = {"dtype": "float32", "shape": [1, 2], "data": "AAAAAAAAAAA="}
MESSAGES = {
    "started": {
        "name": "x",
        "version": None,
        "dtypes": ["float32"],
        "features": ["mask"],
        "operations": ["multi_head_attention"],
        "accuracy": "eager",
        "environment": {"numpy": "2"},
    },
    "run": {
        "cmd": "run",
        "id": "a",
        "operation": "multi_head_attention",
        "inputs": {"query": ARRAY},
        "options": {"window": [1, None], "is_causal": True},
        "repeat": 2,
    },
    "answer": {"id": "a", "outputs": {"output": ARRAY}},
}
VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    1.5,
    "",
    "run",
    "float32",
    "x",
    [],
    {},
    [1],
    [-1],
    [0.0],
    [True],
    ["mask"],
    ARRAY,
]


def places(x, path=()):
    """Every place in a document."""
    yield path
    if isinstance(x, dict | list):
        for name in x if isinstance(x, dict) else range(len(x)):
            yield from places(x[name], (*path, name))


def changed(document, path, how, value):
    """A document with another value at a place, without that place, or with one more name beside it."""
    if not path:
        return value
    document = copy.deepcopy(document)
    holder = document
    for name in path[:-1]:
        holder = holder[name]
    if how == "set":
        holder[path[-1]] = value
    elif how == "drop":
        del holder[path[-1]]
    elif isinstance(holder, dict):
        holder["another"] = value
    else:
        holder.append(value)
    return document


@given(st.data())
@pytest.mark.parametrize("kind", [*MESSAGES, "start", "refused", "outputs", "unsupported", "error"])
def test_it_says_what_the_schema_says(kind, data):
    document = data.draw(
        st.sampled_from([*MESSAGES.values(), {"id": "a", "error": "b"}, {"cmd": "start", "protocol": 1}])
    )
    for _ in range(data.draw(st.integers(0, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        how = data.draw(st.sampled_from(["set", "drop", "add"]))
        document = changed(document, path, how, data.draw(st.sampled_from(VALUES)))
    document = json.loads(json.dumps(document))
    whole = {"$ref": f"#/$defs/{kind}", "$defs": PROTOCOL["$defs"]}
    assert accepting(whole, PROTOCOL)(document) == validator(whole).is_valid(document)


@pytest.mark.parametrize("kind", MESSAGES)
def test_right_messages_are_accepted(kind):
    assert accepting({"$ref": f"#/$defs/{kind}"}, PROTOCOL)(MESSAGES[kind])


@pytest.mark.parametrize(
    "said", [{"pattern": "a"}, {"enum": [1.5]}, {"const": True}, {"items": {"uniqueItems": True}}]
)
def test_other_keywords_are_refused(said):
    with pytest.raises(UnknownKeywordError):
        accepting(said, {"$defs": {}})


def test_a_definition_may_name_itself():
    tree = {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    accepts = accepting({"$ref": "#/$defs/tree"}, tree)
    assert accepts([[], [[]]])
    assert not accepts([[], [[1]]])
