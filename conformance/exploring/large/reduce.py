"""The smallest call of production size that fails as a drawn one, as far as some calls lead."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from conformance.exploring.large.call import LOUD, Large, token
from conformance.exploring.large.told import Told
from conformance.names import SDPA, SDPA_VJP

CALLS = 60
SECONDS = 40.0
"""What a reduction may take; a call that has begun is waited for."""
SIZES = ("batch", "heads", "q_len", "kv_len", "d_k")
"""In the order in which they are made smaller."""


@dataclass
class Reduction:
    """One failure, made smaller; what is asked is remembered."""

    ask: Callable[[Large], Told]
    allowed: Callable[[Large], bool]
    now: Large
    told: Told
    edges: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # size -> the largest that passes, the next
    free: list[str] = field(default_factory=list)  # what it does not depend on
    calls: int = 0

    def __post_init__(self) -> None:
        self._until = time.monotonic() + SECONDS
        self._known: dict[str, Told] = {token(self.now): self.told}

    @property
    def _spent(self) -> bool:
        return self.calls >= CALLS or time.monotonic() > self._until

    def fails(self, call: Large) -> bool:
        """Whether a call fails in the same way."""
        if not self.allowed(call):
            return False
        name = token(call)
        if name not in self._known:
            if self._spent:
                return False
            self.calls += 1
            self._known[name] = self.ask(call)
        return _kind(self._known[name]) == _kind(self.told)

    def run(self) -> Large:
        """The key in question asked by every query, options off, then sizes down."""
        key = self.told.key
        if key is not None and key < self.now.kv_len and self.fails(asking := replace(self.now, at=key)):
            self.now = asking
        for each in _plainer(self.now):
            changed = each(self.now)
            if changed != self.now and self.fails(changed):
                self.now = changed
        for name in SIZES:  # a call each, before any takes several
            self._least(name)
        for name in SIZES:
            self._bisected(name)
        return self.now

    @property
    def last(self) -> Told:
        """What was told of the smallest call."""
        return self._known[token(self.now)]

    def _least(self, name: str) -> None:
        """The least size of all, if it fails."""
        least = least_of(self.now, name)
        if getattr(self.now, name) > least and self.fails(smallest := sized(self.now, name, least)):
            self.now = smallest
            self.free.append(name)

    def _bisected(self, name: str) -> None:
        """The least size that fails: between one that passes and one that fails, those beside powers of two first."""
        high, low = getattr(self.now, name), least_of(self.now, name)
        if high <= low or self.fails(sized(self.now, name, low)):
            return
        edges = [n for power in range(1, 31) for n in (2**power - 1, 2**power, 2**power + 1)]
        while high - low > 1 and not self._spent:
            between = [n for n in edges if low < n < high]
            middle = between[len(between) // 2] if between else (low + high) // 2
            if self.fails(call := sized(self.now, name, middle)):
                high, self.now = middle, call
            else:
                low = middle
        self.edges[name] = (low, high)


def _kind(told: Told) -> str:
    return told.kind if told.failed else "pass"


def least_of(call: Large, name: str) -> int:
    """The least size that a call may have."""
    return {"d_k": min(64, call.d_k), "kv_len": call.members}.get(name, 1)


def sized(call: Large, name: str, size: int) -> Large:
    """The call with another size; what depends on it follows."""
    if name == "heads":
        groups = size if call.groups == call.heads else 1
        return replace(call, heads=size, groups=groups)
    if name == "d_k":
        d_v = size if call.d_v == call.d_k else call.d_v
        return replace(call, d_k=size, d_v=d_v)
    changed = replace(call, **{name: size})  # type: ignore[arg-type]
    if name == "kv_len" and call.at is not None:
        changed = replace(changed, at=min(call.at, size - 1))
    if name == "kv_len":
        changed = replace(changed, past=min(call.past, size - 1))
    if call.q_len == call.kv_len and name == "kv_len":
        changed = replace(changed, q_len=size)
    if isinstance(call.offset, int):
        at_end = call.offset == max(call.kv_len - call.q_len, 0)
        changed = replace(changed, offset=max(changed.kv_len - changed.q_len, 0) if at_end else call.offset)
    return changed


def _plainer(call: Large) -> Iterator[Callable[[Large], Large]]:
    """The call with less of it, one thing at a time."""
    yield lambda c: replace(c, bias=False)
    if call.layer and call.family != "sampled":
        yield lambda c: replace(c, operation=SDPA_VJP if c.gradients else SDPA, bias=False)
    yield lambda c: replace(c, lse=False)
    yield lambda c: replace(c, past=0)
    yield lambda c: replace(c, sinks=False)
    yield lambda c: replace(c, softcap=None)
    yield lambda c: replace(c, scale=None)
    yield lambda c: replace(c, mask="", biased=False)
    yield lambda c: replace(c, biased=False)
    yield lambda c: replace(
        c, lengths=False, offset=max(c.kv_len - c.q_len, 0) if c.offset == "e" else c.offset
    )
    yield lambda c: replace(c, window=None, offset=c.offset if c.causal else None)
    yield lambda c: replace(c, causal=False, offset=c.offset if c.window is not None else None)
    yield lambda c: replace(c, d_v=c.d_k if c.d_k >= LOUD + 16 or c.members < LOUD else c.d_v)
    yield lambda c: replace(c, strided=False)
    yield lambda c: replace(c, levels=1) if c.family == "counts" else c
    if not call.gradients and call.family == "address":
        yield lambda c: replace(c, members=1, strided=False)
