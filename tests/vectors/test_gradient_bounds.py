"""W of gradients against roundings at every place that a policy admits, with the worst signs for each element."""

import numpy as np
import pytest

from conformance.names import MHA_VJP, SDPA_VJP
from conformance.vectors.generate.float64_model import approximate
from conformance.vectors.generate.gradients.backward import backward
from conformance.vectors.generate.gradients.rounding_noise import STEP, Noise
from conformance.vectors.generate.gradients.simulate import coherence_of, simulate
from conformance.vectors.generate.gradients.worst_case import worst_gradients
from conformance.vectors.generate.normal_form import pose
from conformance.vectors.generate.policies import POLICY
from conformance.vectors.generate.random_inputs import Draws

POLICIES = [policy for key, policy in POLICY.items() if key[0] != "float64"]
B, SITES = 2, 20_000
PATHS = {"both": (4,), "product": (1, 2)}
"""Which of the eager stores one implementation does not have: the first two are of the scaled query and key, then
the product and the scaled product."""


class Chosen(Noise):
    """Roundings that are given: one number for each place, [draws, places], of which it counts those in use."""

    def __init__(self, kind, numbers, bits, left_out):
        super().__init__(kind, len(numbers), "", bits)
        self.numbers, self.used = numbers, 0
        self.left_out, self.stores = left_out, 0

    def eager(self, x, alike=None):
        self.stores += 1
        return x if self.stores in self.left_out else super().eager(x, alike)

    def _uniform(self, shape):
        count = int(np.prod(shape[1:]))
        found = self.numbers[:, self.used : self.used + count]
        self.used += count
        return found.reshape(shape) * STEP


def problem_of(name, layer=False, heads=2, kv_heads=1, n=2, m=3, past=1, sigma=1.0, exact=(), **given):
    """`exact` names operands of few bits; m counts the past."""
    draws = Draws(f"gradient-bounds/{name}")
    if layer:
        shapes = {"query": (B, n, 3), "key": (B, m - past, 3), "value": (B, m - past, 3)}
        shapes |= {f"w_{x}": (heads if x == "q" else kv_heads, 3, 2) for x in "qkv"} | {"w_o": (heads, 2, 3)}
        shapes |= {"b_q": (heads, 2), "b_k": (kv_heads, 2), "b_v": (kv_heads, 2), "b_o": (3,)}
        shapes["grad_output"] = (B, n, 3)
    else:
        shapes = {"query": (B, heads, n, 2), "key": (B, kv_heads, m - past, 2)}
        shapes |= {"value": (B, kv_heads, m - past, 2), "grad_output": (B, heads, n, 2)}
    if past:
        shapes |= {"past_key": (B, kv_heads, past, 2), "past_value": (B, kv_heads, past, 2)}
    arrays = {
        each: draws.gauss(*shape, sigma=sigma, bits=8 if each in exact else 24)
        for each, shape in shapes.items()
    }
    arrays |= {key: x for key, x in given.items() if isinstance(x, np.ndarray)}
    options = {key: x for key, x in given.items() if not isinstance(x, np.ndarray)}
    return pose(MHA_VJP if layer else SDPA_VJP, arrays, options, None)


_BIAS = Draws("gradient-bounds/given").gauss(2, 3, sigma=2.0)
_MASK = np.array([[True, False, True], [True, True, True]])
_WIDE = np.abs(Draws("gradient-bounds/wide").gauss(B, 3, 3, bits=24)) + 1.0
PROBLEMS = {
    "plain": problem_of("plain"),
    "peaked": problem_of("peaked", sigma=2.5),
    "exact-value": problem_of("exact-value", exact=("value",)),
    "exact-past": problem_of("exact-past", exact=("past_value", "grad_output")),
    "softcap": problem_of("softcap", softcap=1.0),
    "bias": problem_of("bias", attn_bias=_BIAS, scale=-0.3),
    "everything": problem_of(
        "everything",
        past=0,
        softcap=2.0,
        attn_bias=_BIAS,
        mask=_MASK,
        scale=2.0,
        sinks=np.array([0.5, -1.0]),
    ),
    "layer": problem_of("layer", layer=True, past=0),
    # projected values that nearly cancel, of which a sink's gradient has the errors
    "layer-sinks": problem_of(
        "layer-sinks",
        layer=True,
        past=0,
        value=_WIDE,
        w_v=np.full((1, 3, 2), 8.0),
        b_v=1.0 - np.full((1, 2), np.round(8.0 * _WIDE.sum(axis=-1).mean())),
        sinks=np.array([-1.0, 0.0]),
    ),
    "layer-past": problem_of("layer-past", layer=True, attn_bias=_BIAS),
}


def bias_shape(problem):
    return _BIAS.shape if problem.has_bias else ()


def slopes(problem, a, kind, bits, from_output, left_out):
    """Sum over the places of one kind of what one rounding of size 1 does to each gradient."""

    coherence = coherence_of(problem, a)

    def run(numbers):
        noise = Chosen(kind, numbers, bits, left_out)
        found = simulate(problem, a, noise, bias_shape(problem), from_output, coherence)
        return noise.used, found

    used, exact = run(np.zeros((1, SITES)))
    assert 0 < used <= SITES
    _, up = run(np.eye(used))
    _, down = run(-np.eye(used))
    return {name: np.abs(up[name] - down[name]).sum(axis=0) / (2 * STEP) for name in exact}


@pytest.mark.parametrize("from_output", [False, True], ids=["products", "output"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_roundings_of_any_signs_stay_below_w(name, path, from_output):
    problem = PROBLEMS[name]
    a = approximate(problem)
    given = {"from_output": from_output, "left_out": PATHS[path]}
    of = {kind: slopes(problem, a, kind, 53, **given) for kind in ("storage", "eager", "accumulation")}
    for policy in POLICIES:
        sizes = (policy.storage, policy.stored_logits, policy.accumulation)
        parts = list(zip(sizes, of.values(), strict=True))
        if policy.operand:
            parts.append((policy.operand, slopes(problem, a, "operand", policy.operand_bits, **given)))
        worst = worst_gradients(problem, a, backward(problem, a), policy, bias_shape(problem))
        shares = {}
        for argument, bound in worst.items():
            error = sum(size * slope[argument] for size, slope in parts)
            assert np.all(error <= bound), (policy.dtype, policy.name, argument)
            scored = bound > 0
            shares[argument] = (error[scored] / bound[scored]).max(initial=0.0)
        # sums err by less than n u_a, which is all there is in float32 without a reduced policy
        assert max(shares.values()) >= (0.3 if policy.name == "eager" else 0.6), (policy.dtype, policy.name)
