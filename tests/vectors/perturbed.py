"""Attention in float64 with an error at every place where a policy admits one, many draws at once.

Written from the list of roundings in spec/bounds.md, not from the bounds: what is rounded, not what it costs.
"""

import numpy as np


class Errors:
    """Hands out numbers of [-1, 1], one for each rounding, in units of what the rounding may be off by.

    `numbers` is [draws, sites], taken in the order of the calls. With `sequential` a sum is a loop in which every
    partial sum is rounded; otherwise one error of n u |x|.|y| stands for all of it, which no order exceeds.
    """

    def __init__(self, numbers, sequential=False):
        self.numbers, self.sequential, self.used = numbers, sequential, 0

    def take(self, shape):
        size = int(np.prod(shape))
        taken = self.numbers[:, self.used : self.used + size].reshape(-1, *shape)
        self.used += size
        return taken

    def rounded(self, x, *units):
        """x after a rounding by each of the units."""
        for unit in units:
            if unit:
                x = x * (1 + unit * self.take(x.shape[1:]))
        return x

    def operand(self, x, policy):
        """x as an operand of a matrix product: rounded either way, or, under tf32t, cut off."""
        if not policy.operand:
            return x
        number = self.take(x.shape[1:])
        return x * (1 + policy.operand * ((number - 1) / 2 if policy.name == "tf32t" else number))

    def total(self, terms, unit, visible=None):
        """The sum of terms over their last axis."""
        if self.sequential:
            sums = np.zeros(terms.shape[:-1])
            for i in range(terms.shape[-1]):
                sums = self.rounded(sums + self.rounded(terms[..., i], unit), unit)
            return sums
        count = terms.shape[-1] if visible is None else visible.sum(axis=-1)
        sums = terms.sum(axis=-1)
        return sums + count * unit * np.abs(terms).sum(axis=-1) * self.take(sums.shape[1:])


def attention(problem, policy, errors, path):
    """Output, weights and lse of a problem of one batch entry; each [draws, ...].

    `path` is where the scale is applied: to the "query", to the "product", or its root to "both" operands.
    """
    draws = len(errors.numbers)
    heads = [_head(problem, policy, errors, path, h, draws) for h in range(problem.num_heads)]
    results = {name: np.stack([head[name] for head in heads], axis=1) for name in ("weights", "lse")}
    results["output"] = np.stack([head["z"] for head in heads], axis=1)  # [draws, H, rows, d_v]
    if problem.layer:
        results["output"] = _merged(problem, policy, errors, results["output"])
    else:
        results["output"] = errors.rounded(results["output"], policy.storage)
    return results


def _projected(problem, policy, errors, name, h, draws):
    x = np.broadcast_to(
        problem.inputs[name][0 if problem.layer else (0, h)], (draws, *problem.inputs[name].shape[-2:])
    )
    if not problem.layer:
        return x
    letter = name[0]
    w = problem.inputs[f"w_{letter}"][h]
    x = errors.total(x[:, :, None, :] * w.T, policy.accumulation)
    if f"b_{letter}" in problem.inputs:
        x = errors.rounded(x, policy.storage)
        x = errors.rounded(x + problem.inputs[f"b_{letter}"][h], policy.accumulation)
    return errors.rounded(x, policy.storage)


def _head(problem, policy, errors, path, h, draws):
    u_a, u_l = policy.accumulation, policy.stored_logits
    g = h // problem.group
    query = _projected(problem, policy, errors, "query", h, draws)
    key = _projected(problem, policy, errors, "key", g, draws)
    value = _projected(problem, policy, errors, "value", g, draws)
    visible = problem.visible[0, h]
    c = problem.multiplier
    if path == "query":
        query = errors.rounded(query * c, u_a, u_a, u_l)
        x = _products(problem, policy, errors, query, key)
        x = errors.rounded(x, u_l)
    elif path == "both":
        root = np.sqrt(abs(c))
        query = errors.rounded(query * np.sign(c) * root, u_a, u_a, u_l)
        key = errors.rounded(key * root, u_a, u_a, u_l)
        x = errors.rounded(_products(problem, policy, errors, query, key, scaled=True), u_l)
    else:
        x = _products(problem, policy, errors, query, key)
        x = errors.rounded(errors.rounded(x, u_l) * c, u_a, u_a, u_l)
    if problem.softcap is not None:
        x = errors.rounded(x / problem.softcap, u_a, u_l)
        x = errors.rounded(np.tanh(x), u_a, u_a, u_l)
        x = errors.rounded(x * problem.softcap, u_a, u_l)
    if problem.has_bias:
        x = errors.rounded(x + errors.rounded(np.broadcast_to(problem.bias[0, h], x.shape), u_l), u_a, u_l)
    sink = problem.inputs["sinks"][h] if "sinks" in problem.inputs else -np.inf
    some = visible.any(axis=-1)
    x = np.where(visible, x, -np.inf)
    top = np.maximum(x.max(axis=-1, keepdims=True), sink)
    top = np.where(some[:, None], top, 0.0)
    fall = np.where(visible, x - top, 0.0)
    powers = np.where(visible, errors.rounded(np.exp(errors.rounded(fall, u_a, u_l)), 3 * u_a, u_l), 0.0)
    terms = powers
    if np.isfinite(sink):
        extra = errors.rounded(np.exp(errors.rounded(sink - top, u_a, u_l)), 3 * u_a, u_l)
        terms = np.concatenate([powers, np.where(some[:, None], extra, 0.0)], axis=-1)
    total = np.where(some, errors.total(terms, u_a, visible), 1.0)
    lse = errors.rounded(top[..., 0] + errors.rounded(np.log(total), 2 * u_a), u_a, policy.storage)
    inverse = errors.rounded(1 / errors.rounded(total, u_l), 2 * u_a, u_l)
    weights = errors.rounded(powers * inverse[..., None], u_a, policy.storage)
    operand = errors.operand(weights, policy)
    if _reduces(problem, policy, value):
        value = errors.operand(value, policy)
    z = errors.total(operand[:, :, None, :] * np.swapaxes(value, 1, 2)[:, None], u_a, visible[:, None, :])
    return {"weights": weights, "lse": np.where(some, lse, -np.inf), "z": z}


def _reduces(problem, policy, operand):
    """Whether a reduced format has to round an operand: it was projected, or has more bits than the format."""
    return problem.layer or bool((np.frexp(operand)[0] * 2**policy.operand_bits % 1).any())


def _products(problem, policy, errors, query, key, scaled=False):
    query = errors.operand(query, policy)
    if scaled or _reduces(problem, policy, key):
        key = errors.operand(key, policy)
    return errors.total(query[:, :, None, :] * key[:, None], policy.accumulation)


def _merged(problem, policy, errors, z):
    z = errors.operand(errors.rounded(z, policy.storage), policy)
    w = errors.operand(np.broadcast_to(problem.inputs["w_o"], (len(z), *problem.inputs["w_o"].shape)), policy)
    terms = z[..., None, :] * np.swapaxes(w, 2, 3)[:, :, None]  # [draws, H, rows, d_out, d_v]
    terms = np.moveaxis(terms, 1, -2).reshape(len(z), z.shape[2], w.shape[-1], -1)
    output = errors.total(terms, policy.accumulation)
    if "b_o" in problem.inputs:
        output = errors.rounded(
            errors.rounded(output, policy.storage) + problem.inputs["b_o"], policy.accumulation
        )
    return errors.rounded(output, policy.storage)
