"""The expressions of -k: words joined by `and`, `or`, `not` and parentheses, as in pytest."""

import re
from collections.abc import Callable, Iterator

from conformance.errors import UsageError

Matches = Callable[[str], bool]
"""Whether a word is true of something."""
Expression = Callable[[Matches], bool]


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

    def refusal(self) -> UsageError:
        found = f"at {self.token!r}" if self.token else "at its end"
        return UsageError(
            f"-k expression {self._text!r} cannot be read {found}; "
            "write words joined by `and`, `or`, `not` and parentheses, as in -k 'mask and not float16'"
        )

    def take(self) -> str:
        token, self.token = self.token, next(self._tokens, "")
        return token

    def disjunction(self) -> Expression:
        left = self.conjunction()
        while self.token == "or":
            self.take()
            left = _either(left, self.conjunction())
        return left

    def conjunction(self) -> Expression:
        left = self.negation()
        while self.token == "and":
            self.take()
            left = _both(left, self.negation())
        return left

    def negation(self) -> Expression:
        if self.token in ("", ")", "and", "or"):
            raise self.refusal()
        word = self.take()
        if word == "not":
            inner = self.negation()
            return lambda matches: not inner(matches)
        if word != "(":
            return lambda matches: matches(word)
        inner = self.disjunction()
        if self.token != ")":
            raise self.refusal()
        self.take()
        return inner


def _either(left: Expression, right: Expression) -> Expression:
    return lambda matches: left(matches) or right(matches)


def _both(left: Expression, right: Expression) -> Expression:
    return lambda matches: left(matches) and right(matches)
