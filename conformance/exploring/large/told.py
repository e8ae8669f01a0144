"""What becomes of a call, and the results that it is told from."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from conformance.vectors.case import Array

JUDGED = 1 << 26
"""Numbers of a result that are judged; of more, as many blocks of rows, spread from the first to the last."""
KEPT = 1 << 13
"""Wrong and right rows that are kept to find what tells them apart."""


@dataclass(frozen=True)
class Told:
    """What became of a call."""

    kind: str  # judged, error, wrong, unsupported, memory, crash, timeout
    message: str = ""
    rows: int = 0  # judged
    wrong: int = 0
    needs: str = ""  # what the wrong rows have in common
    key: int | None = None  # one whose weight is wrong
    seconds: float = 0.0
    pieces: dict[str, Any] | None = None  # of sampled rows: what came, encoded

    def after(self, seconds: float) -> "Told":
        """The same, with the time that the call took."""
        return replace(self, seconds=seconds)

    @property
    def failed(self) -> bool:
        """Whether the target is wrong here."""
        return self.kind in ("error", "wrong", "crash") or self.wrong > 0

    def as_message(self) -> dict[str, Any]:
        """For a line of JSON."""
        return asdict(self)


class Pieces(Protocol):
    """Results that are read in parts."""

    @property
    def names(self) -> tuple[str, ...]:
        """Which there are."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one."""

    def piece(self, name: str, index: tuple[slice, ...]) -> Array:
        """A part of one."""


def some(found: list[Any], most: int) -> list[Any]:
    """At most so many, from the first to the last."""
    if len(found) <= most:
        return found
    return [found[round(n * (len(found) - 1) / max(most - 1, 1))] for n in range(most)]
