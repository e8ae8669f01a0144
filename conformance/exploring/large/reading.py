"""A wrong row as a sentence: which key came in place of the one that was asked for."""

import numpy as np

from conformance.exploring.large.asked import place
from conformance.exploring.large.call import LOUD, Large
from conformance.exploring.large.contents import FIELDS, PLACES
from conformance.exploring.large.wanted import Wanted
from conformance.vectors.case import Array

OFF = 0.125
"""How far a digit may be from a whole number and still be read."""
SHARE = 0.25
"""How far the weight of a key may be off, as part of it, before it is said to be another one."""
NAMED = 3


def flagged(call: Large, got: Array, want: Wanted) -> Array:
    """The keys of each wrong row whose weights are wrong, [rows, members]; all that it asks for if none shows."""
    if call.members == LOUD:
        weights = got[:, :LOUD] * np.maximum(want.seen.sum(axis=1), 1)[:, None]
        off = ~(np.abs(weights - want.seen) <= SHARE)
        telling = off.any(axis=1) & ~off.all(axis=1)
        return np.where(telling[:, None], off, want.seen | ~want.seen.any(axis=1, keepdims=True))
    return want.seen | ~want.seen.any(axis=1, keepdims=True)


def sentence(call: Large, flat: int, got: Array, want: Wanted) -> str:
    """What one row asked for and what came; `want` holds that row alone."""
    entry, head, row = (int(x[0]) for x in place(call, np.array([flat])))
    where = f"output[{entry}, {head}, {row}]"
    if call.family == "counts":
        return f"{where}: {_uncounted(got, want.output[0])}"
    owner = f"head {head}" if call.group == 1 else f"key head {head // call.group}"
    of = f"of {owner}, entry {entry}"
    slots = [int(slot) for slot, seen in zip(want.slots[0], want.seen[0], strict=True) if seen]
    if not slots:
        return f"{where} sees no key and has to be zero; got {_plainly(got)}"
    some = f"key {want.slot[0]}" if len(slots) == 1 else f"keys {_few(slots)}"
    came = _loud(call, got, want) if call.members == LOUD else _came(call, got, want, entry, head)
    return f"{where} asked {some} {of}; got {came}"


def _came(call: Large, got: Array, want: Wanted, entry: int, head: int) -> str:
    if told := plainly(got):
        return told
    if told := _some_columns(got, want.output[0]):
        return told
    digits = np.array([got[n::FIELDS].mean() for n in range(FIELDS)])
    if abs(digits[0] - 1) > OFF / 2:
        return f"mass {digits[0]:.2g}"
    if call.members == 2 and (told := _weighed(call, got, want)):
        return told
    if np.abs(digits - np.rint(digits)).max() > OFF:
        return "a mixture of keys"
    address = [
        int(sum(round(digits[1 + PLACES * n + k]) * 16**k for k in range(PLACES))) for n in range(3)
    ]
    slot, owner, of = address
    words = [f"key {slot}{_apart(slot, want)}"]
    if owner != head // call.group:
        words.append(f"of {'head' if call.group == 1 else 'key head'} {owner}")
    if of != entry:
        words.append(f"of entry {of}")
    if slot >= call.kv_len or owner >= call.groups or of >= call.batch:
        return "a mixture of keys"
    return " ".join(words)


def _apart(slot: int, want: Wanted) -> str:
    asked = int(want.slot[0])
    if slot == asked:
        return ""
    return f" ({abs(slot - asked)} {'later' if slot > asked else 'earlier'})"


def _weighed(call: Large, got: Array, want: Wanted) -> str:
    """How two keys of one word are mixed."""
    from conformance.exploring.large.contents import fields

    one, other = (
        np.array([int(np.ravel(x)[0]) for x in fields(call, slot, slot * 0, slot * 0, slot * 0)], float)
        for slot in (want.slots[:, n] for n in range(2))
    )
    turn = [n for n in range(len(got)) if 1 <= n % FIELDS <= PLACES]
    step = (other - one)[turn]
    if not step.any():
        return ""
    share = float((got[turn] - one[turn]) @ step / (step @ step))
    if np.abs(got[turn] - one[turn] - share * step).max() > OFF or not -0.1 < share < 1.1:
        return ""
    hidden = [int(slot) for slot, seen in zip(want.slots[0], want.seen[0], strict=True) if not seen]
    weights = 1 - share, share
    told = " and ".join(f"{w:.2g} of key {int(s)}" for w, s in zip(weights, want.slots[0], strict=True))
    return told + (f", and key {hidden[0]} is hidden" if hidden and hidden[0] < call.kv_len else "")


def _loud(call: Large, got: Array, want: Wanted) -> str:
    """Which of 32 keys of one word are missing, counted twice, or read though they are hidden."""
    if told := plainly(got):
        return told
    if told := _some_columns(got[LOUD:], want.output[0][LOUD:]) if len(got) > LOUD + FIELDS else "":
        return told
    mass = got[LOUD]
    weights, seen, slots = got[:LOUD], want.seen[0], want.slots[0]
    others = float(np.median(weights[seen]))
    kinds: dict[str, list[int]] = {}
    for weight, shown, slot in zip(weights, seen, slots, strict=True):
        if shown and abs(weight) < SHARE * others:
            kinds.setdefault("missing", []).append(int(slot))
        elif shown and others > 0 and weight > (2 - SHARE) * others:
            kinds.setdefault("counted twice" if weight < 2.5 * others else "too heavy", []).append(int(slot))
        elif not shown and weight > SHARE * others:
            kinds.setdefault("read though hidden", []).append(int(slot))
    told = [
        f"{'key' if len(found) == 1 else 'keys'} {_few(found)} {kind}" for kind, found in kinds.items()
    ]
    if told:
        return ", ".join(told)
    if abs(mass - 1) > OFF / 2:
        return f"mass {mass:.2g}"
    return "keys of another word, head or entry"


def _uncounted(got: Array, want: Array) -> str:
    if told := plainly(got):
        return f"got {told}"
    column = int(np.argmax(np.abs(got - want)))
    return (
        f"{got[column]:.6g} of the weight lies on the keys that column {column} counts, wanted {want[column]:.6g}"
    )


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
