"""Forward and backward once more in float64, with a rounding drawn at every site that a policy may round."""

import math
from dataclasses import dataclass

import numpy as np

from conformance.vectors.generate.float64_model import Approximation
from conformance.vectors.generate.gradients.rounding_noise import Noise
from conformance.vectors.generate.normal_form import Array, Bools, Problem, finite
from conformance.vectors.generate.summation_error import Alike, alike_in_all, sum_coherence

_T = (-1, -2)


@dataclass(frozen=True)
class _Site:
    """What every step of one simulation reads."""

    problem: Problem
    a: Approximation
    noise: Noise
    coherence: Array  # of sums over the keys of a row, [B, H, rows, 1]
    alike: Alike | None
    given: dict[str, Array]  # the operands, finite, [1, B, ...]
    exact: dict[str, bool]  # whether a matmul operand under the policy holds one


@dataclass(frozen=True)
class _Forward:
    """The forward pass by query head, rounded."""

    query: Array  # [draws, B, H, rows, d_k]
    key: Array  # [draws, B, H, kv_len, d_k]
    value: Array  # [draws, B, H, kv_len, d_v]
    weights: Array  # [draws, B, H, rows, kv_len]
    sink: Array  # its weight, [draws, B, H, rows]
    slope: Array  # 1 - tanh^2 of the softcap, [draws, B, H, rows, kv_len]
    stored: Array  # the output, [draws, B, H, rows, d_v]
    held: bool  # whether the value is exact


@dataclass(frozen=True)
class _Cotangent:
    """That of the output of each head."""

    head: Array  # [draws, B, H, rows, d_v]
    held: bool  # whether it is exact
    equal: Alike | None  # elements that are the same, as where the outputs are summed up


def simulate(
    problem: Problem,
    a: Approximation,
    noise: Noise,
    bias_shape: tuple[int, ...],
    from_output: bool,
    coherence: Array,
    alike: Alike | None = None,
    of_query: bool = False,
) -> dict[str, Array]:
    """Every gradient by argument name, [draws, ...]; batch axes flattened as in problem.inputs.

    Delta is made of the stored output, or else of the products of weights and their gradients. `coherence` is that of
    sums over the keys of a row, [B, H, rows, 1]. `alike` says which weights, of whatever rows, have one error where
    they are stored or are operands; without it each has its own. `of_query` asks for the gradient of the query alone,
    which comes first, so that its roundings are the same.
    """
    given = {name: finite(x)[None] for name, x in problem.inputs.items()}
    exact = {name: noise.holds(x[0]) for name, x in given.items()}
    site = _Site(problem, a, noise, coherence, alike, given, exact)
    # each step draws its roundings, so that their order is part of the result
    forward = _forward(site)
    cotangent = _cotangent(site)
    d_logits, delta = _of_logits(site, forward, cotangent, from_output)
    d_scores = _of_scores(site, forward, d_logits)
    d_query = noise.store(noise.eager(noise.product(d_scores, forward.key)))
    if of_query and not problem.layer:
        return {"query": d_query}
    d_key, d_value = _of_keys(site, forward, cotangent, d_scores)
    found = {"query": d_query, "key": d_key, "value": d_value}
    if problem.has_bias:
        found["attn_bias"] = noise.store(_to_bias(problem, noise, d_logits, bias_shape))
    if a.sinks is not None:
        shares = noise.eager(noise.compute(-forward.sink * delta[..., 0], 3.0))
        shares = noise.eager(noise.total(shares, (2,)))
        found["sinks"] = noise.store(_together(noise, shares, 0, len(problem.rows)))
    return _of_layer(site, forward, found) if problem.layer else found


def _forward(site: _Site) -> _Forward:
    """The forward pass; the weights are those that the backward pass computes again from the lse."""
    problem, a, noise, alike, coherence = site.problem, site.a, site.noise, site.alike, site.coherence
    query, key, value = (
        _heads(problem, noise, site.given, site.exact, name) for name in ("query", "key", "value")
    )
    # query and key are not exact once one of them is scaled
    held = not problem.layer and site.exact["value"] and site.exact.get("past_value", True)
    weights, sink, slope = _softmax(problem, a, noise, query, key, alike, coherence)
    # the logits of the stored output and those of the gradients may come from two passes
    again = weights
    if noise.kind in ("accumulation", "operand"):
        again = _softmax(problem, a, noise, query, key, alike, coherence)[0]
    recomputed = _recomputed(noise, a)
    weights, sink = weights * recomputed, sink * recomputed[..., 0]
    output = noise.product(noise.store(again, alike), value, (False, held), (alike, None), coherence)
    return _Forward(query, key, value, weights, sink, slope, noise.store(output), held)


def _cotangent(site: _Site) -> _Cotangent:
    """The cotangent of each head's output: of a layer, through the output projection."""
    noise, given, exact = site.noise, site.given, site.exact
    cotangent = given["grad_output"]
    if not site.problem.layer:
        return _Cotangent(cotangent, exact["grad_output"], _equal_rows(cotangent[0], cotangent.shape[1:]))
    w_o = given["w_o"].swapaxes(*_T)[:, None]
    head = noise.product(cotangent[:, :, None], w_o, (exact["grad_output"], exact["w_o"]))
    equal = _equal_rows(cotangent[0], head.shape[1:])
    return _Cotangent(noise.store(head, equal), False, equal)


def _of_logits(
    site: _Site, forward: _Forward, cotangent: _Cotangent, from_output: bool
) -> tuple[Array, Array]:
    """The gradient of the logits, [draws, B, H, rows, kv_len], and Delta less that of the lse, [..., 1]."""
    noise, weights = site.noise, forward.weights
    products = noise.eager(
        noise.product(
            cotangent.head,
            forward.value.swapaxes(*_T),
            (cotangent.held, forward.held),
            (cotangent.equal, None),
        )
    )
    products = np.where(site.problem.visible, products, 0.0)
    if from_output:
        delta = noise.total(cotangent.head * forward.stored, (3,))[..., None]
    else:
        delta = noise.total(noise.eager(weights * products), (3,), site.coherence[..., 0])
        delta = noise.eager(delta)[..., None]
    apart_from = [weights * products, weights * delta]
    if "grad_lse" in site.given:
        of_lse = noise.eager(np.where(np.isfinite(site.a.lse), site.given["grad_lse"], 0.0)[..., None])
        apart_from.append(weights * of_lse)
        delta = noise.eager(noise.compute(delta - of_lse))
    d_logits = noise.eager(noise.eager(weights * noise.eager(products - delta)))
    for apart in apart_from:  # each stored before their difference
        d_logits = d_logits + noise.eager(apart) - apart
    sizes: Array = np.abs(apart_from[0])
    for apart in apart_from[1:]:
        sizes = sizes + np.abs(apart)
    return noise.store(noise.shift(d_logits, sizes)), delta


def _of_scores(site: _Site, forward: _Forward, d_logits: Array) -> Array:
    """The gradient of the products of queries and keys, from that of the logits."""
    noise, problem = site.noise, site.problem
    d_scores = d_logits if problem.softcap is None else noise.eager(noise.eager(d_logits * forward.slope))
    return noise.eager(noise.compute(d_scores * problem.multiplier, 2.0))


def _of_keys(site: _Site, forward: _Forward, cotangent: _Cotangent, d_scores: Array) -> tuple[Array, Array]:
    """The gradients of the keys and values that are no past, summed over the heads of each group."""
    noise, problem, alike = site.noise, site.problem, site.alike
    new = slice(problem.kv_len - problem.inputs["key"].shape[-2], None)
    of_head = noise.of_heads if problem.group > 1 else noise.eager
    d_key = of_head(noise.product(d_scores.swapaxes(*_T), forward.query))
    transposed = None if alike is None else alike.transposed
    kept = noise.store(forward.weights, alike).swapaxes(*_T)
    exact = (False, cotangent.held)
    d_value = of_head(noise.product(kept, cotangent.head, exact, (transposed, cotangent.equal)))
    d_key, d_value = (noise.store(_grouped(problem, noise, x))[:, :, :, new] for x in (d_key, d_value))
    return d_key, d_value


def _of_layer(site: _Site, forward: _Forward, of_heads: dict[str, Array]) -> dict[str, Array]:
    """The gradients of a layer, from those of the operands of its heads."""
    noise, given, exact = site.noise, site.given, site.exact
    found = dict(of_heads)
    for name in ("query", "key", "value"):
        found |= _projected(noise, given, exact, name, of_heads[name])
    z, cotangent = forward.stored.swapaxes(*_T), given["grad_output"]
    parts = noise.eager(noise.product(z, cotangent[:, :, None], (False, exact["grad_output"])))
    found["w_o"] = noise.store(_together(noise, parts, 0, z.shape[-1]))
    if "b_o" in given:
        tokens = noise.eager(noise.total(cotangent, (1,)))
        found["b_o"] = noise.store(_together(noise, tokens, 0, cotangent.shape[2]))
    return found


def _heads(
    problem: Problem, noise: Noise, given: dict[str, Array], exact: dict[str, bool], name: str
) -> Array:
    """One operand by query head, [draws, B, H, length, d], the past in front."""
    x = given[name]
    if problem.layer:
        weight, bias = f"w_{name[0]}", f"b_{name[0]}"
        x = noise.product(x[:, :, None], given[weight][:, None], (exact[name], exact[weight]))
        if bias in given:
            x = noise.compute(noise.store(x) + given[bias][:, None, :, None, :])
        x = noise.store(x)
    if f"past_{name}" in given:
        past = given[f"past_{name}"]
        x = np.concatenate([np.broadcast_to(past, (x.shape[0], *past.shape[1:])), x], axis=-2)
    return x if name == "query" else np.repeat(x, problem.group, axis=2)


def alike_weights(problem: Problem, a: Approximation, bits: int) -> Alike | None:
    """The weights that may have one and the same error when they are rounded to so many bits, if there are several."""
    found = alike_in_all(*_logarithms(problem, a), 2.0**-bits)
    return found if found.any else None


def coherence_of(problem: Problem, a: Approximation) -> Array:
    """How many weights of a row are alike in float32, on average: terms of its sums. [B, H, rows, 1]."""
    logarithms, visible = _logarithms(problem, a)
    flat = (math.prod(visible.shape[:-1]), visible.shape[-1])
    found = sum_coherence(logarithms.reshape(flat), visible.reshape(flat), 2.0**-24)
    return found.reshape(*visible.shape[:-1], 1)


def _logarithms(problem: Problem, a: Approximation) -> tuple[Array, Bools]:
    visible = problem.visible & np.isfinite(a.logits)
    return np.where(visible, a.logits - finite(a.lse)[..., None], 0.0), visible


def _softmax(
    problem: Problem,
    a: Approximation,
    noise: Noise,
    query: Array,
    key: Array,
    alike: Alike | None,
    coherence: Array,
) -> tuple[Array, Array, Array]:
    """Weights, the sink's weight [draws, B, H, rows] and 1 - tanh^2, with the roundings of the logits."""
    query, key = noise.eager(query), noise.eager(key)  # where both are scaled first
    scaled = noise.eager(noise.product(query, key.swapaxes(*_T)) * problem.multiplier)
    scaled = noise.eager(noise.compute(scaled), alike if problem.softcap is None else None)
    logits, slope = scaled, np.ones((1, 1, 1, 1, 1))
    if problem.softcap is not None:
        steep = noise.eager(np.tanh(noise.eager(scaled) / problem.softcap), alike)
        steep = noise.compute(steep, 4.0)
        logits = noise.eager(problem.softcap * steep, alike)
        slope = noise.eager(1 - steep**2)
    if problem.has_bias:
        logits = noise.eager(noise.compute(logits + problem.bias), alike)
    top = finite(a.top)[None]
    rest = finite(a.lse)[..., None] - top  # >= 0, with the sink in the top or without
    fall = noise.shift(logits - top, np.sqrt(logits**2 + (logits - top - rest) ** 2))
    fall = np.where(problem.visible, noise.eager(fall - rest, alike) + rest, -np.inf)
    raised = noise.eager(noise.compute(np.exp(fall), 2.0), alike)
    total = noise.total(raised, (3,), coherence[..., 0])[..., None]
    sink = np.zeros((1, 1, 1, 1))
    if a.sinks is not None:
        given_sinks = finite(a.sinks)[:, None, None]
        depth = noise.shift(given_sinks - top, np.abs(given_sinks) + np.abs(top))
        depth = noise.eager(depth - rest) + rest
        sink = noise.eager(noise.compute(np.exp(depth), 2.0)) * np.isfinite(a.sinks)[:, None, None]
        total = total + sink
        sink = sink[..., 0]
    some: Bools = np.isfinite(a.lse)
    total = np.where(some[..., None], total, 1.0)
    total = noise.eager(noise.compute(total, 3.0))
    weights = noise.eager(raised / total, alike)
    return weights, noise.eager(np.where(some, sink / total[..., 0], 0.0)), slope


def _equal_rows(cotangent: Array, shape: tuple[int, ...]) -> Alike | None:
    """Which elements of the heads' cotangents, [B, H, rows, d_v], are the same, since rows of the cotangent are."""
    if not cotangent.size:
        return None
    rows = cotangent.reshape(-1, cotangent.shape[-1])
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(first) == len(rows):
        return None
    # of the first row that is equal, [B, 1 or H, rows]
    place = first[which.ravel()].reshape(shape[0], -1, shape[2])
    if cotangent.ndim == 3:
        batch, row = np.divmod(place, shape[2])
        place = (batch * shape[1] + np.arange(shape[1])[:, None]) * shape[2] + row
    return Alike(place[..., None] * shape[3] + np.arange(shape[3]), True, 1.0)


def _recomputed(noise: Noise, a: Approximation) -> Array:
    """What a row's weights change by as exp(logit - lse), whose two parts were stored. [draws, B, H, rows, 1]."""
    top, lse = finite(a.top)[None], finite(a.lse)[None, ..., None]
    return noise.shift(np.ones_like(lse), 4 * np.abs(lse - top) + np.abs(top) + 3 * np.abs(lse))


def _grouped(problem: Problem, noise: Noise, x: Array) -> Array:
    """[draws, B, H, ...], each a sum over the rows, summed over the heads of each group."""
    grouped = x.reshape(x.shape[0], problem.size, problem.num_kv_heads, problem.group, *x.shape[3:])
    return _together(noise, grouped, 2, len(problem.rows))


def _to_bias(problem: Problem, noise: Noise, x: Array, bias_shape: tuple[int, ...]) -> Array:
    """The gradient of the logits, summed over the axes that the bias broadcasts over, one after the other."""
    axes = (*problem.batch, *x.shape[2:])
    x = x.reshape(x.shape[0], *axes)
    aligned = (1,) * (len(axes) - len(bias_shape)) + bias_shape
    summed = [i for i, (n, want) in enumerate(zip(axes, aligned, strict=True)) if want == 1 and n != 1]
    terms = 1
    for i in summed:
        before, terms = terms, terms * axes[i]
        x = noise.eager(np.expand_dims(noise.total(x, (i,), before), i + 1))
    return x.reshape(x.shape[0], *bias_shape)


def _projected(
    noise: Noise, given: dict[str, Array], exact: dict[str, bool], name: str, gradient: Array
) -> dict[str, Array]:
    """The gradients of an operand, its projection and bias; `gradient` is [draws, B, heads, length, d]."""
    weight, bias = f"w_{name[0]}", f"b_{name[0]}"
    w = given[weight].swapaxes(*_T)[:, None]  # [1, 1, heads, d, width]
    into = noise.eager(noise.product(gradient, w, (False, exact[weight])))
    outer = noise.eager(noise.product(given[name][:, :, None].swapaxes(*_T), gradient, (exact[name], False)))
    found = {name: noise.store(_together(noise, into, 1, gradient.shape[-1]))}
    found[weight] = noise.store(_together(noise, outer, 0, gradient.shape[3]))
    if bias in given:
        tokens = noise.eager(noise.total(gradient, (2,)))
        found[bias] = noise.store(_together(noise, tokens, 0, gradient.shape[3]))
    return found


def _together(noise: Noise, x: Array, axis: int, terms: int) -> Array:
    """What holds a sum of so many terms in each place, summed over an axis as well: one sum of all terms."""
    return noise.total(x, (axis,), terms) if x.shape[axis + 1] != 1 else np.take(x, 0, axis + 1)
