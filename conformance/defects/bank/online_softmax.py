"""A loop over blocks of keys: running maxima, rescaling, blocks that are left out or read twice."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.defects.blocks.edges import FAMILY, ends, family, in_parts
from conformance.defects.blocks.loop import every, loop, never
from conformance.defects.call import Call
from conformance.defects.defect import Defect
from conformance.defects.reference import column
from conformance.vectors.case import Array


def _zero(before: Array, now: Array, own: Array) -> Any:
    return before.dtype.type(0)


def _inverted(before: Array, now: Array, own: Array) -> Any:
    return np.exp(now - before)


def _base_two(before: Array, now: Array, own: Array) -> Any:
    return np.exp2(before - now)


def _of_base_two_maxima(before: Array, now: Array, own: Array) -> Any:
    return np.exp((before - now) * np.log2(np.e).astype(before.dtype))


def _twice(before: Array, now: Array, own: Array) -> Any:
    return np.exp(2 * (before - now))


def _by_own(before: Array, now: Array, own: Array) -> Any:
    return np.exp(before - own)


def _own(now: Array, own: Array) -> Array:
    return own


def _first(begins: Array, length: int) -> Iterator[Array]:
    return iter(list(every(begins, length))[:1])


def _last(begins: Array, length: int) -> Iterator[Array]:
    return iter(list(every(begins, length))[-1:])


def _but_last(begins: Array, length: int) -> Iterator[Array]:
    return iter(list(every(begins, length))[:-1])


def _but_first(begins: Array, length: int) -> Iterator[Array]:
    return iter(list(every(begins, length))[1:])


def _every_other(begins: Array, length: int) -> Iterator[Array]:
    return iter(list(every(begins, length))[::2])


def _moved_back(begins: Array, length: int) -> Iterator[Array]:
    """The last block is made whole by keys of the one before."""
    size = int(ends(begins, length)[0])
    for begin in begins:
        start = max(min(int(begin), length - size), 0)
        yield np.arange(start, min(start + size, length))


def _sink_for_each(c: Call, total: Array, final: Array, blocks: int) -> Any:
    return total if c.sinks is None else total + max(blocks - 1, 0) * np.exp(column(c, c.sinks) - final)


def _online(**wrong: Any) -> dict[str, Any]:
    """A family by block size; in some kernels the sink is what the loop begins with."""
    found = in_parts(lambda e: loop(e, **wrong))
    found["variants"] |= {
        f"{label}, which begin with the sink": loop(edges, sink_first=True, **wrong)
        for label, edges in FAMILY.items()
    }
    return found


DEFECTS = (
    Defect("online-no-rescale",
           "Your online softmax rescales neither output nor denominator when a later block raises the maximum.",
           ("ATT-2",), **_online(output=never, total=never)),
    Defect("online-sum-not-rescaled",
           "Your online softmax rescales the output but not the denominator when a later block raises the maximum.",
           ("ATT-2",), **_online(total=never)),
    Defect("online-output-not-rescaled",
           "Your online softmax rescales the denominator but not the output when a later block raises the maximum.",
           ("ATT-2",), **_online(output=never)),
    Defect("online-own-maximum",
           "Each block of keys subtracts its own maximum, and nothing that is held is rescaled.", ("ATT-2",),
           **_online(output=never, total=never, base=_own)),
    Defect("online-own-maximum-rescaled",
           "Each block of keys subtracts its own maximum, while what is held is rescaled to the running one.",
           ("ATT-2",), **family(lambda e: loop(e, base=_own))),
    Defect("online-rescaled-by-own-maximum",
           "Your online softmax rescales by the maximum of the block, not by the running one.", ("ATT-2",),
           **_online(output=_by_own, total=_by_own)),
    Defect("online-rescale-inverted",
           "Your online softmax rescales by exp(new - old) of the maxima: it is exp(old - new).", ("ATT-2",),
           **_online(output=_inverted, total=_inverted)),
    Defect("online-output-rescale-inverted",
           "Your online softmax rescales the output by exp(new - old) of the maxima: it is exp(old - new).",
           ("ATT-2",), **_online(output=_inverted)),
    Defect("online-rescale-in-base-two",
           "Your online softmax rescales by a power of 2, while its exponentials are powers of e.",
           ("ATT-2",), **_online(output=_base_two, total=_base_two)),
    Defect("online-rescale-of-base-two-maxima",
           "Your maxima are in units of log 2, and what rescales earlier blocks is exp of their difference, not exp2.",
           ("ATT-2",), **_online(output=_of_base_two_maxima, total=_of_base_two_maxima)),
    Defect("online-output-rescale-of-base-two-maxima",
           "Your maxima are in units of log 2, and what rescales the output is exp of their difference, not exp2.",
           ("ATT-2",), **_online(output=_of_base_two_maxima)),
    Defect("online-rescaled-twice",
           "Your online softmax rescales output and denominator twice when the maximum rises.", ("ATT-2",),
           **_online(output=_twice, total=_twice)),
    Defect("online-output-rescaled-twice",
           "Your online softmax rescales the output twice when the maximum rises.", ("ATT-2",),
           **_online(output=_twice)),
    Defect("online-rescaled-late",
           "Your online softmax rescales after it has added the new block, which is thereby rescaled too.",
           ("ATT-2",), **family(lambda e: loop(e, late=(True, True)))),
    Defect("online-output-rescaled-late",
           "Your online softmax rescales the output after it has added the new block.", ("ATT-2",),
           **family(lambda e: loop(e, late=(True, False)))),
    Defect("online-output-rescaled-late-from-zero",
           "Your online softmax rescales the output after it has added the new block, and wipes the first one.",
           ("ATT-2",), **family(lambda e: loop(e, late=(True, False), first=0.0))),
    Defect("online-maximum-falls",
           "The maximum of your online softmax is that of the last block, not the largest so far.",
           ("ATT-2",), **family(lambda e: loop(e, forgets=True))),
    Defect("online-sum-rescaled-late",
           "Your online softmax rescales the denominator after it has added the new block.", ("ATT-2",),
           **family(lambda e: loop(e, late=(False, True)))),
    Defect("online-divided-in-each-block",
           "Your online softmax divides each block by the denominator so far and never multiplies that back.",
           ("ATT-2",), **family(lambda e: loop(e, divided=True))),
    Defect("online-output-overwritten",
           "Each block of keys overwrites the output, while the denominator is summed over all of them.",
           ("ATT-2", "ATT-1"), **_online(output=_zero)),
    Defect("online-sum-overwritten",
           "Each block of keys overwrites the denominator, while the output is summed over all of them.",
           ("ATT-2",), **_online(total=_zero)),
    Defect("first-block-of-keys-only", "Only the first block of keys is read.", ("ATT-1",),
           **family(lambda e: loop(e, visited=_first))),
    Defect("last-block-of-keys-only",
           "Only the last block of keys counts: each overwrites output and denominator.", ("ATT-1",),
           **family(lambda e: loop(e, visited=_last))),
    Defect("last-block-of-keys-lost", "The last block of keys is never read, be it whole or not.", ("ATT-1",),
           **family(lambda e: loop(e, visited=_but_last), reach="")),
    Defect("first-block-of-keys-lost", "The first block of keys is never read.", ("ATT-1",),
           **family(lambda e: loop(e, visited=_but_first), reach="")),
    Defect("every-other-block-of-keys-lost", "Every other block of keys is skipped.", ("ATT-1",),
           **family(lambda e: loop(e, visited=_every_other))),
    Defect("last-block-of-keys-overlaps",
           "The last block of keys is moved back to be whole, so that keys of the one before count twice.",
           ("ATT-1",), **family(lambda e: loop(e, visited=_moved_back))),
    Defect("sink-in-every-block", "The sink is added to the denominator once for every block of keys.",
           ("ATT-12",), features=("sinks",), **in_parts(lambda e: loop(e, sink=_sink_for_each))),
    Defect("online-loop-correct",
           "A softmax in blocks of 16 keys with a running maximum and a loop, as it should be.",
           ("ATT-2",), family(loop)["change"], equivalent="another order of the same sums"),
)  # fmt: skip
