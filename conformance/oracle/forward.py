"""Every output of a call in numbers that know their own error: the formulas of spec/attention.md."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.vectors.generate.float64_model import Approximation, present
from conformance.vectors.generate.normal_form import Array, Problem, finite, for_each_head

Kind = Any
"""The class Near or Twofold, which have the same methods."""
Number = Any
"""One of them: all numbers of a call are of one kind."""
Bounded = tuple[Array, Array, Array]
"""High and low part of a result, and a bound on the error of their sum."""


@dataclass(frozen=True)
class Heads:
    """One call by query head."""

    query: Number  # [B, H, rows, d_k]
    key: Number  # [B, H, kv_len, d_k], the past in front
    value: Number  # [B, H, kv_len, d_v]
    fall: Number | None  # [B, H, rows, kv_len], exp(-2 |x|) where x enters the tanh; None without a softcap
    exponentials: Number  # [B, H, rows, kv_len], zero where nothing is seen
    sinks: Number | None  # [B, H, rows, 1], the exponential of the sink, zero where nothing is seen
    totals: Number  # [B, H, rows, 1], one where nothing is seen
    output: Number  # [B, H, rows, d_v]


def outputs(problem: Problem, a: Approximation, wanted: tuple[str, ...], kind: Kind) -> dict[str, Bounded]:
    """Every wanted output; where float64 shows something that is not finite, that is it."""
    heads = attend(problem, a, kind)
    seen = _seen(problem, a).any(axis=-1)
    found: dict[str, Number] = {
        "output": merged(problem, heads.output, kind) if problem.layer else heads.output
    }
    if "weights" in wanted:
        found["weights"] = heads.exponentials / heads.totals
    if "lse" in wanted:
        top = kind.of(finite(a.top))
        found["lse"] = (top + heads.totals.log()).map(lambda x: x[..., 0]).where(seen, finite(a.lse))
    for name, weight, bias in (("present_key", "w_k", "b_k"), ("present_value", "w_v", "b_v")):
        if name in wanted:
            found[name] = operand(problem, name.removeprefix("present_"), weight, bias, kind)
    shown = {"output": a.output, "weights": a.weights, "lse": a.lse, **present(problem, a)}
    return {name: _shown(found[name], shown[name]) for name in wanted}


def attend(problem: Problem, a: Approximation, kind: Kind) -> Heads:
    """Attention by head, without the output projection."""
    query = operand(problem, "query", "w_q", "b_q", kind)
    key, value = (
        operand(problem, name, f"w_{name[0]}", f"b_{name[0]}", kind).map(
            lambda x: for_each_head(x, problem.group) if problem.group > 1 else x
        )
        for name in ("key", "value")
    )
    scale = kind.root(problem.d_k) if problem.scale is None else kind.of(np.array(float(problem.scale)))
    logits, fall = (query @ key.map(lambda x: x.swapaxes(-1, -2))) * scale, None
    if problem.softcap is not None:
        cap, one = (kind.of(np.array(float(x))) for x in (problem.softcap, 1.0))
        x = logits / cap
        sign = np.where(x.parts()[0] < 0, -1.0, 1.0)
        fall = (x * kind.of(-2 * sign)).exp()
        endless = np.isinf(a.raw)  # the limit of tanh
        fall = fall.where(~endless)
        sign = np.where(endless, _sign(a.raw) * np.sign(problem.multiplier), sign)
        logits = (one - fall) / (one + fall) * cap * kind.of(sign)
    if problem.has_bias:
        logits = logits + kind.of(finite(problem.bias))
    seen, top = _seen(problem, a), kind.of(finite(a.top))
    some = np.isfinite(a.lse)[..., None]  # a key is seen, or there is a sink (MASK-16)
    exponentials = (logits - top).where(seen).exp().where(seen)
    totals, sinks = exponentials.total(keepdims=True), None
    if a.sinks is not None:
        depth = kind.of(finite(a.sinks)[:, None, None] + np.zeros(some.shape)) - top
        there = some & np.isfinite(a.sinks)[:, None, None]
        sinks = depth.where(there).exp().where(there)
        totals = totals + sinks
    totals = totals.where(some, 1.0)
    return Heads(query, key, value, fall, exponentials, sinks, totals, (exponentials @ value) / totals)


def operand(problem: Problem, name: str, weight: str, bias: str, kind: Kind) -> Number:
    """Heads of query, key or value, [B, H or G, length, d], the past in front."""
    x = kind.of(finite(problem.inputs[name]))
    if problem.layer:
        x = x.map(lambda x: x[:, None]) @ kind.of(problem.inputs[weight])
        if bias in problem.inputs:
            x = x + kind.of(problem.inputs[bias][:, None, :])
    past = problem.inputs.get(f"past_{name}")
    return x if past is None else x.behind(finite(past))


def merged(problem: Problem, heads: Number, kind: Kind) -> Number:
    """Heads side by side times W^O, plus b_o: [B, rows, d_out]."""
    w_o = problem.inputs["w_o"]
    rows = heads.map(lambda x: x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], w_o.shape[0] * w_o.shape[1]))
    found = rows @ kind.of(w_o.reshape(-1, w_o.shape[2]))
    return found + kind.of(problem.inputs["b_o"]) if "b_o" in problem.inputs else found


def _sign(x: Array) -> Array:
    """The sign of what may be infinite; zero for a NaN."""
    return np.where(np.isnan(x), 0.0, np.sign(x))


def _seen(problem: Problem, a: Approximation) -> Any:
    """What the balls see as well: a visible -inf weighs nothing, NaN and +inf are shown by float64 alone."""
    return problem.visible & np.isfinite(a.logits) & np.isfinite(a.lse)[..., None]


def _shown(found: Number, shown: Array) -> Bounded:
    high, low, error = found.parts()
    there = np.isfinite(shown)
    return np.where(there, high, shown), np.where(there, low, 0.0), np.where(there, error, 0.0)
