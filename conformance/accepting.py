"""JSON Schema compiled into one function that says whether a document is valid, and not why: many times as fast.

Exact for the keywords that it knows. A schema with another keyword is refused, never half understood.
"""

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

ANNOTATIONS = frozenset({"$schema", "$defs", "title", "description"})
"""Keywords that accept everything."""
TYPES: dict[str, Check] = {
    "object": lambda x: isinstance(x, dict),
    "array": lambda x: isinstance(x, list),
    "string": lambda x: isinstance(x, str),
    "boolean": lambda x: isinstance(x, bool),
    "null": lambda x: x is None,
    "number": lambda x: isinstance(x, int | float) and not isinstance(x, bool),
    "integer": lambda x: (
        (isinstance(x, int) and not isinstance(x, bool)) or (isinstance(x, float) and x.is_integer())
    ),
}


class UnknownKeywordError(ValueError):
    """A schema that says more than is known here."""


def accepting(schema: Any, root: Mapping[str, Any]) -> Check:
    """Whether a document is valid by a schema, whose references are to the definitions of `root`.

    Raises:
        UnknownKeywordError: the schema has another keyword, or a value of one, than is known.
    """
    return _Compiler(root).check(schema)


class _Compiler:
    """Checks by schema, those of references made once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions = root["$defs"]
        self._made: dict[str, Check] = {}

    def check(self, schema: Any) -> Check:
        """All that a schema asks for."""
        if isinstance(schema, bool):
            return lambda _: schema
        checks = [self._keyword(name, schema) for name in schema if name not in ANNOTATIONS]
        if len(checks) == 1:
            return checks[0]
        return lambda x: all(check(x) for check in checks)

    def _keyword(self, name: str, schema: Mapping[str, Any]) -> Check:
        make = getattr(self, f"_{name.removeprefix('$')}_of", None)
        if make is None:
            raise UnknownKeywordError(name)
        made: Check = make(schema[name], schema)
        return made

    def _ref_of(self, where: str, _: Any) -> Check:
        name = where.removeprefix("#/$defs/")
        if name not in self._definitions:
            raise UnknownKeywordError(where)
        if name not in self._made:
            self._made[name] = lambda x: self._made[name](x)  # a definition may name itself
            self._made[name] = self.check(self._definitions[name])
        return self._made[name]

    def _type_of(self, names: str | list[str], _: Any) -> Check:
        kinds = [TYPES[name] for name in ([names] if isinstance(names, str) else names)]
        return kinds[0] if len(kinds) == 1 else lambda x: any(kind(x) for kind in kinds)

    def _enum_of(self, values: list[Any], _: Any) -> Check:
        if not all(isinstance(x, str | int) and not isinstance(x, bool) for x in values):
            raise UnknownKeywordError("enum of other things than strings and whole numbers")
        known = frozenset(values)
        return lambda x: isinstance(x, str | int | float) and not isinstance(x, bool) and x in known

    def _const_of(self, value: Any, _: Any) -> Check:
        return self._enum_of([value], _)

    def _minimum_of(self, least: float, _: Any) -> Check:
        return lambda x: not TYPES["number"](x) or x >= least

    def _minLength_of(self, least: int, _: Any) -> Check:  # noqa: N802 - the keyword's own name
        return lambda x: not isinstance(x, str) or len(x) >= least

    def _maxItems_of(self, most: int, _: Any) -> Check:  # noqa: N802
        return lambda x: not isinstance(x, list) or len(x) <= most

    def _items_of(self, schema: Any, _: Any) -> Check:
        check = self.check(schema)
        return lambda x: not isinstance(x, list) or all(map(check, x))

    def _required_of(self, names: list[str], _: Any) -> Check:
        needed = frozenset(names)
        return lambda x: not isinstance(x, dict) or needed <= x.keys()

    def _propertyNames_of(self, schema: Any, _: Any) -> Check:  # noqa: N802
        check = self.check(schema)
        return lambda x: not isinstance(x, dict) or all(map(check, x))

    def _properties_of(self, properties: Mapping[str, Any], _: Any) -> Check:
        checks = {name: self.check(schema) for name, schema in properties.items()}
        return lambda x: (
            not isinstance(x, dict) or all(checks[name](value) for name, value in x.items() if name in checks)
        )

    def _additionalProperties_of(self, schema: Any, whole: Mapping[str, Any]) -> Check:  # noqa: N802
        check, named = self.check(schema), frozenset(whole.get("properties", ()))
        if schema is False:
            return lambda x: not isinstance(x, dict) or x.keys() <= named
        return lambda x: (
            not isinstance(x, dict) or all(check(value) for name, value in x.items() if name not in named)
        )

    def _oneOf_of(self, schemas: list[Any], _: Any) -> Check:  # noqa: N802
        checks = [self.check(schema) for schema in schemas]
        return lambda x: sum(check(x) for check in checks) == 1
