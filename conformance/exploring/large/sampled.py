"""Sampled rows under the ordinary bound: the edges of every axis and some between, made anew on this side."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.exploring.counter import Dice
from conformance.exploring.large import contents
from conformance.exploring.large.call import Large
from conformance.exploring.large.judged import Pieces, Told
from conformance.exploring.large.making import host
from conformance.exploring.large.seen import TILES, shown, sinks
from conformance.judging.judge import judge
from conformance.names import REDUCED_POLICIES, SDPA, SDPA_VJP
from conformance.oracle import Certified, UnjudgedError, certify
from conformance.oracle.certify import WrongOracleError
from conformance.running.protocol import decode_array, encode_array
from conformance.vectors.case import Array

PAIRS = 1 << 20
"""Pairs of a query and a key that are judged, in all."""
BACKWARD = 1 << 16
PLACES = 6
"""Heads of entries of which rows are judged."""
NUMBERS = 1 << 25
"""Numbers of the keys and values of these, in all; of gradients, whose roundings are drawn many times, fewer."""
BACKWARD_NUMBERS = 1 << 21
ROWS = 16
EDGES = (0, 255, 256, 65_535, 65_536)
"""Entries and heads on whose sides programs go wrong."""


@dataclass(frozen=True)
class Sample:
    """Some rows of one head of one entry."""

    entry: int
    head: int
    rows: tuple[int, ...]


def samples(call: Large) -> tuple[Sample, ...]:
    """Which rows are judged: the first, the last, both sides of edges, and others."""
    dice = Dice("samples", call.stream, call.batch, call.heads)
    pairs, numbers = (BACKWARD, BACKWARD_NUMBERS) if call.gradients else (PAIRS, NUMBERS)
    every = max(pairs // call.kv_len, 1)
    most = max(numbers // (call.kv_len * (call.d_k + call.d_v)), 1)
    entries = _edges(dice, call.batch, EDGES, PLACES)
    heads = _edges(dice, call.heads, EDGES, PLACES)
    count = min(PLACES, max(call.batch, call.heads), call.batch * call.heads, every, most)
    found = []
    for n in range(count):
        rows = _edges(
            dice, call.q_len, (n + k for n in TILES for k in (-1, 0)), min(ROWS, max(every // count, 1))
        )
        found.append(Sample(entries[n % len(entries)], heads[(n + n // len(entries)) % len(heads)], rows))
    return tuple(dict.fromkeys(found))


def affordable(call: Large) -> bool:
    """Whether rows of a call can be judged in seconds."""
    return not call.gradients or call.kv_len * (call.d_k + call.d_v) <= BACKWARD_NUMBERS


def _edges(dice: Dice, size: int, edges: Iterable[int], most: int) -> tuple[int, ...]:
    """At most so many numbers below a size: the last, the first, edges, others."""
    some = [edge for edge in edges if edge < size]
    wanted = dict.fromkeys([size - 1, 0, *dice.order(some)[: max(most // 2, 1)]])
    while len(wanted) < min(most, size):
        wanted[dice.below(size)] = None
    return tuple(list(wanted)[:most])


def taken(call: Large, answer: Pieces) -> dict[str, Any]:
    """What came for the rows that are judged, encoded."""
    found = {}
    for number, sample in enumerate(samples(call)):
        for name in ("query",) if call.gradients else ("output", *(["lse"] if call.lse else [])):
            rows = [
                answer.piece(name, (_one(sample.entry), _one(sample.head), _one(row))).reshape(1, -1)
                for row in sample.rows
            ]
            found[f"{number}/{name}"] = encode_array(np.concatenate(rows))
    return found


def _one(number: int) -> slice:
    return slice(number, number + 1)


def certified(call: Large, policy: str, told: Told) -> Told:
    """The judgement of the rows that came, by expected values that are certified on the spot."""
    assert told.pieces is not None
    own = "eager" if policy in REDUCED_POLICIES and call.dtype != "float32" else policy
    rows = wrong = 0
    first = ""
    for number, sample in enumerate(samples(call)):
        names = [name.partition("/")[2] for name in told.pieces if name.startswith(f"{number}/")]
        outputs = {name: decode_array(name, told.pieces[f"{number}/{name}"]) for name in names}
        try:
            message = _judged(call, sample, own, outputs)
        except (UnjudgedError, WrongOracleError):
            return replace(told, kind="unjudged", pieces=None)
        rows += len(sample.rows)
        wrong += bool(message) * len(sample.rows)
        first = first or message
    return replace(told, message=first, rows=rows, wrong=wrong, pieces=None)


def _judged(call: Large, sample: Sample, policy: str, outputs: dict[str, Array]) -> str:
    """What is wrong in some rows of a head; nothing where all is right."""
    if _certified(call, sample, policy, look=True).passes(_headed(sample, outputs), policy) is not None:
        return ""
    found = _certified(call, sample, policy)
    first = judge(found.case, found.dtype, policy, _headed(sample, outputs))
    if first.verdict == "pass":
        return ""
    if first.worst is not None and len(sample.rows) > 1:  # ball arithmetic confirms one row, which is long
        row = first.worst.index[2]
        one = replace(sample, rows=(sample.rows[row],))
        if told := _judged(call, one, policy, {name: x[row : row + 1] for name, x in outputs.items()}):
            return told
    judgement = found.judge(_headed(sample, outputs), policy)
    if judgement.verdict == "pass":
        return ""
    message = judgement.message
    if judgement.worst is not None:
        index = judgement.worst.index
        place = (sample.entry, sample.head, sample.rows[index[2]], *index[3:])
        message = message.replace(_told(index), _told(place), 1)
    return message


def _certified(call: Large, sample: Sample, policy: str, look: bool = False) -> Certified:
    options: dict[str, object] = {"return_lse": True} if call.lse and not call.gradients else {}
    for option in ("softcap", "scale"):
        if getattr(call, option) is not None:
            options[option] = getattr(call, option)
    rows = tuple(range(len(sample.rows))) if call.gradients else None
    return certify(
        SDPA_VJP if call.gradients else SDPA,
        reduced(call, sample),
        options,
        call.dtype,
        rows=rows,
        policies=(policy,),
        name="explore/sampled",
        look=look,
    )


def _headed(sample: Sample, outputs: dict[str, Array]) -> dict[str, Array]:
    """Rows as those of one head of one entry."""
    shape = (1, 1, len(sample.rows))
    return {name: x.reshape(shape if name == "lse" else (*shape, -1)) for name, x in outputs.items()}


def _told(index: Iterable[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def reduced(call: Large, sample: Sample) -> dict[str, Array]:
    """The rows of a head as a call of their own: what they see is said by a mask."""
    make = host("float64")
    base = (sample.entry * call.heads + sample.head) * call.q_len
    owner = sample.entry * call.groups + sample.head // call.group
    keys = owner * call.kv_len, (owner + 1) * call.kv_len
    inputs: dict[str, Array] = {
        "query": np.concatenate(
            [contents.query(call, make, base + row, base + row + 1) for row in sample.rows]
        ),
        "key": contents.key(call, make, *keys),
        "value": contents.value(call, make, *keys),
    }
    if call.gradients:
        inputs["grad_output"] = np.concatenate(
            [contents.grad_output(call, make, base + row, base + row + 1) for row in sample.rows]
        )
    inputs = {name: array[None, None] for name, array in inputs.items()}
    if call.sinks:
        inputs["sinks"] = sinks(call)[sample.head : sample.head + 1]
    rows, slots = np.array(sample.rows), np.arange(call.kv_len)
    seen = shown(call, np.array([sample.entry]), rows[:, None], slots)
    return inputs if seen.all() else {**inputs, "mask": seen}
