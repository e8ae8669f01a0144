"""A wrong row as a sentence: which key came in place of the one that was asked for."""

import warnings

import numpy as np

from conformance.exploring.large.asked import place
from conformance.exploring.large.call import LOUD, Large
from conformance.exploring.large.contents import FIELDS, PLACES, fields
from conformance.exploring.large.wanted import Wanted
from conformance.vectors.case import Array

OFF = 0.125
"""How far a digit may be from a whole number and still be read."""
SHARE = 0.25
"""How far the weight of a key may be off, as part of it, before it is said to be another one."""
NAMED = 3
MIXTURE = "a mixture of other keys, as if what was asked were not there"
OTHERS = "other keys, as if what was asked were not there"


def flagged(call: Large, got: Array, want: Wanted) -> Array:
    """The keys of each wrong row whose weights are wrong, [rows, members]; all that it asks for if none shows."""
    if call.members == LOUD:
        missing, twice, hidden = _kinds(got[:, :LOUD], want.seen)
        off = missing | twice | hidden
        telling = off.any(axis=1, keepdims=True) & ~off.all(axis=1, keepdims=True)
        return np.where(telling, off, want.seen | ~want.seen.any(axis=1, keepdims=True))
    if call.members == 2:
        weights, told = _weights(call, got, want)
        due = want.seen / np.maximum(want.seen.sum(axis=1, keepdims=True), 1)
        heavy = weights - due > SHARE / 4
        telling = told & heavy.any(axis=1)
        return np.where(telling[:, None], heavy, want.seen | ~want.seen.any(axis=1, keepdims=True))
    return want.seen | ~want.seen.any(axis=1, keepdims=True)


def sentence(call: Large, flat: int, got: Array, want: Wanted) -> str:
    """What one row asked for and what came; `want` holds that row alone."""
    entry, head, row = (int(x[0]) for x in place(call, np.array([flat])))
    where = f"output[{entry}, {row}] of head {head}" if call.layer else f"output[{entry}, {head}, {row}]"
    if call.family == "counts":
        return f"{where}: {_uncounted(got, want.output[0])}"
    owner = f"head {head}" if call.group == 1 else f"key head {head // call.group}"
    of = f"of {owner}, entry {entry}"
    slots = [int(slot) for slot, seen in zip(want.slots[0], want.seen[0], strict=True) if seen]
    if not slots:
        return f"{where} sees no key and has to be zero; got {_plainly(got)}"
    some = f"key {want.slot[0]}" if len(slots) == 1 else f"keys {_few(slots)}"
    came = (
        _loud(call, got, want, entry, head) if call.members == LOUD else _came(call, got, want, entry, head)
    )
    return f"{where} asked {some} {of}; got {came}"


def _came(call: Large, got: Array, want: Wanted, entry: int, head: int) -> str:
    if told := plainly(got):
        return told
    if told := _some_columns(got, want.output[0]):
        return told
    digits = np.array([got[n::FIELDS].mean() for n in range(FIELDS)])
    if abs(digits[0] - 1) > OFF / 2:
        return f"mass {digits[0]:.2g}"
    elsewhere = _elsewhere(call, digits, entry, head)
    if call.members == 2 and elsewhere:
        return f"those{elsewhere}"
    if call.members == 2 and (told := _weighed(call, got, want)):
        return told
    if np.abs(digits - np.rint(digits)).max() > OFF:
        return MIXTURE
    slot, owner, of = _address(digits)
    if slot >= call.kv_len or owner >= call.groups or of >= call.batch:
        return MIXTURE
    return f"key {slot}{_apart(slot, want)}{elsewhere}"


def _address(digits: Array) -> list[int]:
    """Key, head and entry."""
    return [int(sum(round(digits[1 + PLACES * n + k]) * 16**k for k in range(PLACES))) for n in range(3)]


def _elsewhere(call: Large, digits: Array, entry: int, head: int) -> str:
    """Which other head or entry was read; empty if none, or if that cannot be told."""
    if np.abs(digits - np.rint(digits))[1 + PLACES :].max() > OFF:
        return ""
    _, owner, of = _address(digits)
    if owner >= call.groups or of >= call.batch:
        return ""
    words = f" of {'head' if call.group == 1 else 'key head'} {owner}" if owner != head // call.group else ""
    return words + (f" of entry {of}" if of != entry else "")


def _apart(slot: int, want: Wanted) -> str:
    asked = int(want.slot[0])
    if slot == asked:
        return ""
    return f" ({abs(slot - asked)} {'later' if slot > asked else 'earlier'})"


def _weights(call: Large, got: Array, want: Wanted) -> tuple[Array, Array]:
    """What the two keys of a word weigh in each row, and whether the row is a mixture of them at all."""
    one, other = (
        np.stack(fields(call, slot, slot * 0, slot * 0, slot * 0), axis=-1).astype(float)
        for slot in (want.slots[:, n] for n in range(2))
    )
    turn = [n for n in range(got.shape[-1]) if 1 <= n % FIELDS <= PLACES]
    step, rest = (other - one)[:, turn], (got - one)[:, turn]
    size = (step**2).sum(axis=1)
    with np.errstate(all="ignore"):
        share = (rest * step).sum(axis=1) / np.where(size > 0, size, 1)
        off = np.abs(rest - share[:, None] * step).max(axis=1)
    told = (size > 0) & (off <= OFF) & (np.abs(share - 0.5) < 0.6)
    return np.stack([1 - share, share], axis=-1), told


def _weighed(call: Large, got: Array, want: Wanted) -> str:
    """How the two keys of a word are mixed."""
    weights, told = _weights(call, got[None], want)
    if not told[0]:
        return ""
    hidden = [int(slot) for slot, seen in zip(want.slots[0], want.seen[0], strict=True) if not seen]
    shares = zip(weights[0], want.slots[0], strict=True)
    mixed = " and ".join(f"{weight:.2g} of key {int(slot)}" for weight, slot in shares)
    return mixed + (f", and key {hidden[0]} is hidden" if hidden and hidden[0] < call.kv_len else "")


def _loud(call: Large, got: Array, want: Wanted, entry: int, head: int) -> str:
    """Which of 32 keys of one word are missing, counted twice, or read though they are hidden."""
    if told := plainly(got):
        return told
    if told := _some_columns(got[LOUD:], want.output[0][LOUD:]) if len(got) > LOUD + FIELDS else "":
        return told
    words = "missing", "counted twice", "read though hidden"
    kinds = {
        word: [int(slot) for slot in want.slots[0][there[0]]]
        for word, there in zip(words, _kinds(got[None, :LOUD], want.seen), strict=True)
        if there.any()
    }
    lines = [f"{'key' if len(found) == 1 else 'keys'} {_few(found)} {kind}" for kind, found in kinds.items()]
    if lines:
        return ", ".join(lines)
    if abs(got[LOUD] - 1) > OFF / 2:
        return f"mass {got[LOUD]:.2g}"
    digits = np.array([got[LOUD + n :: FIELDS].mean() for n in range(FIELDS)])
    elsewhere = _elsewhere(call, digits, entry, head)
    return f"those{elsewhere}" if elsewhere else OTHERS


def _kinds(weights: Array, seen: Array) -> tuple[Array, Array, Array]:
    """Which keys of 32 are missing, weigh twice what the others do, or are read though they are hidden."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows that see nothing
        due = np.where(seen.any(axis=1), np.nanmedian(np.where(seen, weights, np.nan), axis=1), 0)[:, None]
    there = due > 0
    missing = there & seen & (np.abs(weights) < SHARE * due)
    return missing, there & seen & (weights > (2 - SHARE) * due), ~seen & (weights > SHARE * due) & there


def _uncounted(got: Array, want: Array) -> str:
    if told := plainly(got):
        return f"got {told}"
    column = int(np.argmax(np.abs(got - want)))
    return f"{got[column]:.6g} of the weight lies on the keys that column {column} counts, wanted {want[column]:.6g}"


def plainly(got: Array) -> str:
    """What is no number, or nothing at all; empty where there is more to say."""
    if np.isnan(got).any():
        return "NaN"
    if np.isinf(got).any():
        return "infinity"
    return "zeros, as of no key at all" if not got.any() else ""


def _some_columns(got: Array, want: Array) -> str:
    """That some columns are right and others are not."""
    wrong = np.flatnonzero(np.abs(got - want) > OFF)
    if len(want) <= FIELDS or not 0 < len(wrong) < len(want):
        return ""
    right = np.setdiff1d(np.arange(len(want)), wrong)
    blocks = [n for n in range(0, len(want), FIELDS) if np.isin(np.arange(n, n + FIELDS), right).all()]
    if not blocks:
        return ""
    return f"what was asked in columns {blocks[0]} to {blocks[0] + FIELDS - 1}, and not in column {wrong[0]}"


def _plainly(got: Array) -> str:
    return plainly(got) or f"{got[np.argmax(np.abs(got))]:.4g}"


def _few(slots: list[int]) -> str:
    shown = ", ".join(map(str, slots[:NAMED]))
    return shown if len(slots) <= NAMED else f"{shown} and {len(slots) - NAMED} more"
