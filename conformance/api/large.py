"""An exploration at production size: drawn, asked and told, as `Exploration` does the other sizes."""

from collections.abc import Callable, Generator

from conformance.errors import UsageError
from conformance.exploring.claims import Claims
from conformance.exploring.large.asking import GIB, SHARE, Asker, start
from conformance.exploring.large.call import Large, read_token
from conformance.exploring.large.draw import draw, needs
from conformance.exploring.large.search import LargeFound, LargeTally, search, taken
from conformance.exploring.search import Budget, Judged
from conformance.running.messages import Hello
from conformance.running.request import Request
from conformance.telling.terminal import counted

LOOKED = 64
"""Calls that are drawn to see whether a target claims any."""


class LargeTrials:
    """Asks one target calls of production size."""

    def __init__(self, request: Request, echo: Callable[[str], None] | None) -> None:
        self._request = request
        self._asker: Asker = start(request, echo)
        self.memory = 0.0  # bytes

    @property
    def hello(self) -> Hello:
        """What the target says of itself."""
        return self._asker.hello

    def settle(self, memory: float | None) -> None:
        """How much memory a call may take: so many GiB, or a part of what is free."""
        free = self._asker.room()
        self.memory = SHARE * free if memory is None else memory * GIB
        if self.memory > free:
            raise UsageError(
                f"--memory {memory:g} is more than the {free / GIB:.1f} GiB that are free where "
                f"{self._request.source} makes its arrays: give less"
            )

    def drawn(
        self, claims: Claims, policy: str, seed: int, budget: Budget, tally: LargeTally
    ) -> Generator[Judged | LargeFound, None, None]:
        """Draws until the budget is spent.

        Raises:
            UsageError: nothing of what the target claims is drawn.
        """
        calls = [draw(claims, seed, number) for number in range(LOOKED)]
        if not any(calls):
            raise UsageError(
                f"{self._request.source} claims nothing that --size large draws: it asks "
                "scaled_dot_product_attention, multi_head_attention and their gradients"
            )
        return search(self._asker, claims, policy, seed, budget, self.memory, tally)

    def replayed(
        self, text: str, claims: Claims, policy: str, tally: LargeTally
    ) -> Generator[Judged | LargeFound, None, None]:
        """Asks the call of a token.

        Raises:
            UsageError: the target does not support it, or it does not fit into memory.
        """
        call, source = read_token(text), self._request.source
        _check(call, claims, source)
        if call.memory > self.memory:
            raise UsageError(
                f"--replay: the call of this token takes some {call.memory / GIB:.1f} GiB, and "
                f"{self.memory / GIB:.1f} may be taken: give --memory {call.memory / GIB:.1f}"
            )
        tally.drawn = 1
        return taken(self._asker, claims, policy, call, "explore/replayed", self.memory, tally)

    def close(self) -> None:
        """Ends the target's process."""
        self._asker.close()

    def kill(self) -> None:
        """Ends it at once."""
        self._asker.kill()


def _check(call: Large, claims: Claims, source: str) -> None:
    if call.operation not in claims.operations or call.dtype not in claims.dtypes:
        raise UsageError(f"--replay: {source} does not support {call.operation} in {call.dtype}, as it asks")
    if lacking := sorted(needs(call) - claims.features):
        raise UsageError(
            f"--replay: the token needs {' and '.join(lacking)}, which the target does not support: {source}"
        )


def left_out(tally: LargeTally, memory: float) -> list[str]:
    """Which sizes memory, time or the target left out."""
    lines = [
        f"left out by --memory {memory / GIB:.1f}: {name}, which takes {least / GIB:.1f} GiB and more"
        for name, least in sorted(tally.left_out.items())
    ]
    for count, why in (
        (tally.slow, "would take longer than 30 s by what smaller ones took"),
        (tally.late, "had no answer within --timeout"),
        (tally.full, "found no memory, or no room in a line of the protocol"),
    ):
        if count:
            lines.append(f"left out: {counted(count, 'call')} that {why}")
    lines += [
        f"left out: {counted(tally.doubted.count(why), 'call')}: {why}"
        for why in dict.fromkeys(tally.doubted)
    ]
    return lines
