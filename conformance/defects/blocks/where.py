"""A mistake that is made in some calls only: by size, by path, by what is given."""

from collections.abc import Callable
from typing import Any

from conformance.defects.call import Call
from conformance.defects.defect import Change
from conformance.defects.reference import REFERENCE

Test = Callable[[Call], Any]


def where(test: Test, change: Change) -> Change:
    """The change in calls that pass the test, and the reference in all others."""

    def step(name: str) -> Callable[..., Any]:
        wrong, right = change[name], getattr(REFERENCE, name)

        def chosen(*given: Any) -> Any:
            call = next(x for x in given if isinstance(x, Call))
            return (wrong if test(call) else right)(*given)

        return chosen

    return {name: step(name) for name in change}


def one_query(c: Call, keys: int = 64) -> bool:
    """One query over many keys: the path that splits them."""
    return c.q_len == 1 and c.kv_len >= keys


def whole(c: Call, tile: int = 64) -> bool:
    """Queries and keys fill tiles."""
    return c.q_len > 0 and c.kv_len > 0 and c.q_len % tile == 0 and c.kv_len % tile == 0
