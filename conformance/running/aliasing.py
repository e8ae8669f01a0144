"""The call before this one: nobody may write to what it returned (IND-7), and its memory may be used again (IND-4)."""

from collections.abc import Callable, Mapping
from typing import Any

from conformance.vectors.case import Array


class Previous:
    """What the last call was given and returned, and the bytes that it held then."""

    def __init__(self) -> None:
        self._held: list[tuple[str, Any, bytes]] = []
        self._given: Mapping[str, tuple[Array, Any]] = {}

    def keep(self, given: Mapping[str, tuple[Array, Any]]) -> None:
        """Keeps operands and what was given for them: as long as they live, others lie elsewhere."""
        self._given = given

    def again(self, name: str, array: Array) -> tuple[Array, Any] | None:
        """The memory of an operand of the call before, with the numbers of this one; None where it does not fit.

        What the call before returned may share that memory, so that it is not looked at any more.
        """
        held, given = self._given.get(name, (None, None))
        if held is None or held.shape != array.shape or held.dtype != array.dtype or not _plain(held, array):
            return None
        self._held = []
        held[...] = array
        return held, given

    def hold(self, returned: Mapping[str, Any], outputs: Mapping[str, Array]) -> None:
        """Keeps the returned objects, and what is in them now."""
        self._held = [(name, value, outputs[name].tobytes()) for name, value in returned.items()]

    def changed(self, take: Callable[[Any], Array]) -> str:
        """The first result of the last call that no longer holds what it held; empty if all do."""
        return next((name for name, value, held in self._held if _bytes(take, value) not in (held, None)), "")


def _plain(held: Array, array: Array) -> bool:
    return held.flags.writeable and held.strides == array.strides


def _bytes(take: Callable[[Any], Array], value: Any) -> bytes | None:
    try:
        return take(value).tobytes()
    except Exception:  # such as an array of a jitted function that it was donated
        return None
