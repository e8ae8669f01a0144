"""The answer before this one: no later call may write to what an earlier one returned (IND-7)."""

from collections.abc import Callable, Mapping
from typing import Any

from conformance.vectors.case import Array


class Previous:
    """What the last call returned, and the bytes that it held then."""

    def __init__(self) -> None:
        self._held: list[tuple[str, Any, bytes]] = []

    def hold(self, returned: Mapping[str, Any], outputs: Mapping[str, Array]) -> None:
        """Keeps the returned objects, and what is in them now."""
        self._held = [(name, value, outputs[name].tobytes()) for name, value in returned.items()]

    def changed(self, take: Callable[[Any], Array]) -> str:
        """The first result of the last call that no longer holds what it held; empty if all do."""
        return next((name for name, value, held in self._held if _bytes(take, value) not in (held, None)), "")


def _bytes(take: Callable[[Any], Array], value: Any) -> bytes | None:
    try:
        return take(value).tobytes()
    except Exception:  # such as an array of a jitted function that it was donated
        return None
