"""Sampled rows under the ordinary bound, made anew on this side."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from conformance.exploring.large import contents, layer
from conformance.exploring.large.call import Large
from conformance.exploring.large.making import host
from conformance.exploring.large.sampling import OF_KEYS, KeySample, Sample, key_samples, samples
from conformance.exploring.large.seen import shown, sinks
from conformance.exploring.large.told import Told
from conformance.judging.judge import judge
from conformance.names import REDUCED_POLICIES
from conformance.oracle import Certified, UnjudgedError, certify
from conformance.oracle.certified import WrongOracleError
from conformance.running.protocol import decode_array
from conformance.vectors.case import Array


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
    for number, keys in enumerate(key_samples(call)):
        outputs = {
            name: decode_array(name, told.pieces[f"{OF_KEYS}{number}/{name}"]) for name in ("key", "value")
        }
        try:
            message = judged_keys(call, keys, own, outputs)
        except (UnjudgedError, WrongOracleError):
            return replace(told, kind="unjudged", pieces=None)
        rows += len(keys.slots)
        wrong += bool(message) * len(keys.slots)
        first = first or message
    return replace(told, message=first, rows=rows, wrong=wrong, pieces=None)


def _judged(call: Large, sample: Sample, policy: str, outputs: dict[str, Array]) -> str:
    """What is wrong in some rows of a head; nothing where all is right."""
    if _certified(call, sample, policy, look=True).passes(_headed(call, sample, outputs), policy) is not None:
        return ""
    found = _certified(call, sample, policy)
    first = judge(found.case, found.dtype, policy, _headed(call, sample, outputs))
    if first.verdict == "pass":
        return ""
    if first.worst is not None and len(sample.rows) > 1:  # ball arithmetic confirms one row, which is long
        row = first.worst.index[_axis(call, first.worst.output)]
        one = replace(sample, rows=(sample.rows[row],))
        if told := _judged(call, one, policy, {name: x[row : row + 1] for name, x in outputs.items()}):
            return told
    judgement = found.judge(_headed(call, sample, outputs), policy)
    if judgement.verdict == "pass":
        return ""
    message = judgement.message
    if judgement.worst is not None:
        index = judgement.worst.index
        axis = _axis(call, judgement.worst.output)
        head = index[1:2] if call.layer else (sample.head,)
        place = (sample.entry, *(head if axis == 2 else ()), sample.rows[index[axis]], *index[axis + 1 :])
        message = message.replace(_told(index), _told(place), 1)
    return message


def judged_keys(call: Large, sample: KeySample, policy: str, outputs: dict[str, Array]) -> str:
    """What is wrong in the gradients of some keys, [slots, width] each; nothing where all is right."""
    places = tuple(slot - sample.keys[0] for slot in sample.slots)
    inputs = reduced_to_keys(call, sample)
    whole = {}
    for name, x in outputs.items():
        whole[name] = np.zeros((1, 1, inputs["key"].shape[-2], x.shape[-1]), x.dtype)
        whole[name][0, 0, list(places)] = x
    options = {name: getattr(call, name) for name in ("scale",) if getattr(call, name) is not None}
    for look in (True, False):
        found = certify(
            call.operation, inputs, options, call.dtype, keys=places, policies=(policy,),
            name="explore/sampled-keys", look=look,
        )  # fmt: skip
        if look and found.passes(whole, policy) is not None:
            return ""
    judgement = found.judge(whole, policy)
    if judgement.verdict == "pass":
        return ""
    message = judgement.message
    if judgement.worst is not None:
        index = judgement.worst.index
        place = (sample.entry, sample.head, index[2] + sample.keys[0], *index[3:])
        message = message.replace(_told(index), _told(place), 1)
    return message


def reduced_to_keys(call: Large, sample: KeySample) -> dict[str, Array]:
    """The rows that see some keys, and the keys that these see, as a call of their own; a mask says what they see."""
    make, first, end = host("float64"), min(sample.rows), max(sample.rows) + 1
    heads = [
        (sample.entry * call.heads + sample.head * call.group + h) * call.q_len for h in range(call.group)
    ]
    owner = (sample.entry * call.groups + sample.head) * call.kv_len
    keys = owner + sample.keys[0], owner + sample.keys[1]
    inputs: dict[str, Array] = {
        "query": np.stack([contents.query(call, make, n + first, n + end) for n in heads])[None],
        "key": contents.key(call, make, *keys)[None, None],
        "value": contents.value(call, make, *keys)[None, None],
        "grad_output": np.stack([contents.grad_output(call, make, n + first, n + end) for n in heads])[None],
    }
    rows, slots = np.array(sample.rows), np.arange(*sample.keys)
    for name in ("query", "grad_output"):
        inputs[name] = inputs[name][:, :, rows - first]
    seen = shown(call, np.array([sample.entry]), rows[:, None], slots)
    return inputs if seen.all() else {**inputs, "mask": seen}


def _certified(call: Large, sample: Sample, policy: str, look: bool = False) -> Certified:
    options: dict[str, object] = {"return_lse": True} if call.lse and not call.gradients else {}
    for option in ("softcap", "scale"):
        if getattr(call, option) is not None:
            options[option] = getattr(call, option)
    rows = tuple(range(len(sample.rows))) if call.gradients else None
    return certify(
        call.operation,
        reduced(call, sample),
        options,
        call.dtype,
        rows=rows,
        policies=(policy,),
        name="explore/sampled",
        look=look,
    )


def _axis(call: Large, name: str) -> int:
    """Which axis of a result is that of the rows."""
    return 1 if call.layer and name != "lse" else 2


def _headed(call: Large, sample: Sample, outputs: dict[str, Array]) -> dict[str, Array]:
    """Rows as those of one head of one entry, or of a layer."""
    if call.layer:
        return {name: x.T[None] if name == "lse" else x[None] for name, x in outputs.items()}
    shape = (1, 1, len(sample.rows))
    return {name: x.reshape(shape if name == "lse" else (*shape, -1)) for name, x in outputs.items()}


def _told(index: Iterable[int]) -> str:
    return f"[{', '.join(map(str, index))}]"


def reduced(call: Large, sample: Sample) -> dict[str, Array]:
    """The rows of a head as a call of their own: what they see is said by a mask."""
    make = host("float64")
    if call.layer:
        return _seen_by(call, sample, _layered(call, sample))
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
    return _seen_by(call, sample, inputs)


def _layered(call: Large, sample: Sample) -> dict[str, Array]:
    """One entry of a layer, of whose queries some are kept."""
    make, e = host("float64"), sample.entry
    rows = [layer.scattered(call, make, "query", e * call.q_len + row, 1) for row in sample.rows]
    inputs: dict[str, Array] = {
        "query": np.concatenate(rows),
        "key": layer.scattered(call, make, "key", e * call.kv_len, call.kv_len),
        "value": layer.scattered(call, make, "value", e * call.kv_len, call.kv_len),
    }
    inputs = {**{name: x[None] for name, x in inputs.items()}, **layer.weights(call, make)}
    return {**inputs, "sinks": sinks(call)} if call.sinks else inputs


def _seen_by(call: Large, sample: Sample, inputs: dict[str, Array]) -> dict[str, Array]:
    rows, slots = np.array(sample.rows), np.arange(call.kv_len)
    seen = shown(call, np.array([sample.entry]), rows[:, None], slots)
    return inputs if seen.all() else {**inputs, "mask": seen}
