"""The expressions of -k: words joined by `and`, `or`, `not` and parentheses, as in pytest."""

import re
from collections.abc import Callable, Iterator

from conformance.errors import UsageError

Matches = Callable[[str], bool]
"""Whether a word is true of something."""
Expression = Callable[[Matches], bool]

DEPTH = 50
"""How deep parentheses and `not` may nest: more than anybody types, less than Python's stack holds."""


def parse(text: str) -> Expression:
    """Compiles an expression.

    Raises:
        UsageError: it is not one.
    """
    tokens = re.findall(r"[()]|[^\s()]+", text)
    parser = _Parser(text, iter([*tokens, ""]))
    expression = parser.disjunction()
    if parser.token:
        raise parser.refusal()
    return expression


class _Parser:
    """One token ahead, and never back."""

    def __init__(self, text: str, tokens: Iterator[str]) -> None:
        self._text, self._tokens = text, tokens
        self.token = next(tokens)
        self._depth = 0

    def refusal(self) -> UsageError:
        found = f"at {self.token!r}" if self.token else "at its end"
        return UsageError(
            f"-k expression {self._text[:80]!r} cannot be read {found}; "
            "write words joined by `and`, `or`, `not` and parentheses, as in -k 'mask and not float16'"
        )

    def take(self) -> str:
        token, self.token = self.token, next(self._tokens, "")
        return token

    def disjunction(self) -> Expression:
        parts = [self.conjunction()]
        while self.token == "or":
            self.take()
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else lambda matches: any(part(matches) for part in parts)

    def conjunction(self) -> Expression:
        parts = [self.negation()]
        while self.token == "and":
            self.take()
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else lambda matches: all(part(matches) for part in parts)

    def negation(self) -> Expression:
        if self.token in ("", ")", "and", "or") or self._depth > DEPTH:
            raise self.refusal()
        word = self.take()
        if word not in ("not", "("):
            return lambda matches: matches(word)
        self._depth += 1
        inner = self.negation() if word == "not" else self.disjunction()
        self._depth -= 1
        if word == "not":
            return lambda matches: not inner(matches)
        if self.token != ")":
            raise self.refusal()
        self.take()
        return inner
