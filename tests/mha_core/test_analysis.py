"""What is measured of heads: the documents' own numbers, other derivations, every library, and what it refuses."""

import math

import numpy as np
import pytest
from array_libraries import library

import mha_core
from mha_core.analysis import (
    correlation,
    cosine,
    count_layer,
    coverage,
    diversity,
    entropy,
    head_importance,
    importance,
    prune_heads,
    rank,
    redundancy,
    silent_heads,
    subspace_angles,
    variance,
)

SDPA, MHA = mha_core.scaled_dot_product_attention, mha_core.multi_head_attention
RNG = np.random.default_rng(41)
TURN = np.array([[0.0, -1.0], [1.0, 0.0]])


def layer_weights(h=4, g=2, d_q=5, d_kv=6, d_vv=7, d_k=3, d_v=2, d_out=8):
    shapes = {
        "w_q": (h, d_q, d_k),
        "w_k": (g, d_kv, d_k),
        "w_v": (g, d_vv, d_v),
        "w_o": (h, d_v, d_out),
        "b_q": (h, d_k),
        "b_k": (g, d_k),
        "b_v": (g, d_v),
        "b_o": (d_out,),
        "sinks": (h,),
    }
    return {name: RNG.standard_normal(shape) for name, shape in shapes.items()}


def inputs(weights, n=3, m=5, batch=()):
    return [
        RNG.standard_normal((*batch, length, weights[w].shape[1]))
        for length, w in ((n, "w_q"), (m, "w_k"), (m, "w_v"))
    ]


def test_cosine_and_diversity():
    assert cosine(np.stack([np.eye(2), np.diag([1.0, -1])])).tolist() == [[1, 0], [0, 1]]  # DOC-93
    w = RNG.standard_normal((3, 4, 2))
    for i in range(3):
        for j in range(3):
            expected = np.vdot(w[i], w[j]) / (np.linalg.norm(w[i]) * np.linalg.norm(w[j]))
            assert cosine(w)[i, j] == pytest.approx(expected, rel=1e-13)
    pairs = [1 - abs(cosine(w)[i, j]) for i in range(3) for j in range(3) if i != j]
    assert diversity(w) == pytest.approx(np.mean(pairs), rel=1e-13)
    assert diversity(np.stack([np.eye(2), TURN])) == 1  # DOC-94: as diverse as can be, and one head twice
    assert diversity(np.stack([np.eye(2), 3 * np.eye(2)])) == 0
    assert math.isnan(diversity(w[:1]))
    gone = cosine(np.stack([w[0], 0 * w[0]]))
    assert np.isnan(gone).tolist() == [[False, True], [True, True]]
    assert cosine(1e300 * w) == pytest.approx(cosine(w))  # no square overflows
    assert np.isnan(diversity(np.stack([w[0], 0 * w[0]])))


def test_subspace_angles():
    plane = np.eye(4)[:, :2]
    assert subspace_angles(plane, np.eye(4)[:, 2:]) == pytest.approx([math.pi / 2] * 2)
    assert subspace_angles(plane, plane @ TURN) == pytest.approx([0, 0], abs=1e-15)
    for angle in (1e-9, 1e-3, 0.7, 0.8, 1.5):  # neither small ones nor large ones lose digits
        line = np.array([[math.cos(angle)], [0.0], [math.sin(angle)], [0.0]])
        assert subspace_angles(plane, line) == pytest.approx([angle], rel=1e-12)
        assert subspace_angles(line, plane) == pytest.approx([angle], rel=1e-12)
    narrow = np.hstack([plane[:, :1], 2 * plane[:, :1]])  # of rank 1
    assert subspace_angles(narrow, plane).shape == (1,)
    first, second = np.eye(2), np.diag([1.0, -1])
    assert cosine(np.stack([first, second]))[0, 1] == 0  # DOC-93: and yet one and the same plane
    assert subspace_angles(first, second) == pytest.approx([0, 0], abs=1e-15)


def test_rank():
    value = RNG.standard_normal((1, 5, 3))
    uniform = SDPA(0 * value, value, value, return_weights=True)
    assert rank(value[0]) == 3
    assert rank(uniform.weights[0]) == rank(uniform.output[0]) == 1  # DOC-23
    pair = RNG.standard_normal((2, 1)), RNG.standard_normal((2, 1)), RNG.standard_normal((2, 2))
    assert rank(SDPA(*(x[None] for x in pair)))[0] == 2  # DOC-24: above d_k = 1
    assert rank(np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3))])).tolist() == [3, 1, 0]
    assert rank(np.diag([1.0, 1e-3]), rtol=1e-2) == 1
    assert rank(np.diag([1.0, 1e-3]).astype(np.float16)) == 2  # the small one is no rounding of float32


def test_coverage():
    assert coverage(np.array([[[0.25, 0.75]], [[0.75, 0.25]]])) == (2, (1, 1))  # DOC-95
    same = np.full((2, 3, 4), 0.25)
    assert coverage(same) == (1, (1, 1))
    assert coverage(np.stack([np.eye(3), np.full((3, 3), 1 / 3)])) == (3, (3, 1))


def test_entropy():
    weights = np.array([[0.5, 0.5, 0], [1, 0, 0], [0, 0, 0], [1 / 3] * 3])
    assert entropy(weights) == pytest.approx([math.log(2), 0, 0, math.log(3)])
    assert not np.signbit(entropy(weights)).any()
    zero = np.zeros((1, 4, 2))
    uniform = SDPA(zero, zero, zero, return_weights=True).weights
    assert entropy(uniform) == pytest.approx(np.full((1, 4), math.log(4)))  # DOC-115


def test_importance_and_variance_and_redundancy():
    z = RNG.standard_normal((6, 2, 3, 4))  # samples, H, q_len, d_v
    assert importance(z) == pytest.approx([np.linalg.norm(z[:, h].mean(0)) for h in range(2)])
    plus_minus = np.array([-1.0, 1.0]).reshape(2, 1, 1, 1)
    assert importance(plus_minus) == 0  # DOC-105: and may be all there is
    assert variance(z) == pytest.approx([np.var(z[:, h], axis=0).sum() for h in range(2)])
    assert variance(z.reshape(2, 3, 2, 3, 4)) == pytest.approx(variance(z))
    twice = np.repeat(plus_minus, 2, axis=1)
    layer = twice.sum(1)  # DOC-107: two equal heads of variance 1, w_o = 1, give 4
    assert variance(twice).sum() == 2
    assert variance(layer[:, None]) == 4
    a, b = RNG.standard_normal((2, 4, 3))
    expected = np.linalg.norm(a @ b.T) / (np.linalg.norm(a) * np.linalg.norm(b))
    assert redundancy(np.stack([a, b]))[0, 1] == pytest.approx(expected)
    assert redundancy(np.stack([np.eye(2)] * 2)) == pytest.approx(1 / math.sqrt(2))  # DOC-106
    assert redundancy(np.array([[[1.0, 0]], [[0, 1.0]]]))[0, 1] == 0
    assert np.isnan(redundancy(np.stack([a, 0 * a]))[0, 1])
    assert redundancy(z).shape == (6, 2, 2)
    assert redundancy(1e200 * z) == pytest.approx(redundancy(z))


def test_correlation():
    z = RNG.standard_normal((50, 2, 3))
    expected = np.corrcoef(z.reshape(50, 6), rowvar=False).reshape(2, 3, 2, 3)
    assert correlation(z) == pytest.approx(expected)
    s = 0.575
    uncorrelated = np.array([[[-s], [s]], [[0], [0]], [[s], [s]]])
    assert correlation(uncorrelated)[0, 0, 1, 0] == pytest.approx(
        0
    )  # DOC-96: and the first tells all of the second
    constant = np.full((3, 1, 1), 0.1)
    assert np.isnan(correlation(np.concatenate([constant, z[:3, :1, :1]], axis=1))[0, 0, 1, 0])


class Counting:
    """A namespace that counts the multiplications of matrix products and the exponentials."""

    def __init__(self, xp):
        self.xp, self.multiplications, self.exponentials = xp, 0, 0

    def __getattr__(self, name):
        return getattr(self.xp, name)

    def matmul(self, a, b):
        product = self.xp.matmul(a, b)
        self.multiplications += product.size * a.shape[-1]
        return product

    def exp(self, x, *args, **kwargs):
        self.exponentials += x.size
        return self.xp.exp(x, *args, **kwargs)


@pytest.mark.parametrize(("n", "m", "past", "batch"), [(3, 5, 0, ()), (1, 9, 8, (2,)), (4, 4, 0, (2, 3))])
def test_counts_are_those_of_what_runs(n, m, past, batch, monkeypatch):
    weights = layer_weights()
    sinks = weights.pop("sinks")
    assert sinks.shape == (4,)
    counted = {}

    def namespace(*arrays):
        xp = original(*arrays)
        return counted.setdefault(xp, Counting(xp))

    import array_api_compat

    from mha_core import arrays

    original = array_api_compat.array_namespace
    x = inputs(weights, n, m - past, batch)
    before = {
        "past_key": RNG.standard_normal((*batch, 2, past, 3)),
        "past_value": RNG.standard_normal((*batch, 2, past, 2)),
    }
    monkeypatch.setattr(arrays, "_NAMESPACES", {})  # found once for each type, and here anew
    monkeypatch.setattr(array_api_compat, "array_namespace", namespace)
    result = MHA(*x, **weights, **before, return_weights=True)
    monkeypatch.undo()
    (counter,) = counted.values()
    counts = count_layer(weights, n, m, past=past, batch=math.prod(batch))
    assert counter.multiplications == counts.multiplications > 0
    assert counter.exponentials == counts.exponentials == result.weights.size
    assert counts.parameters == sum(w.size for w in weights.values())
    kept = result.present_key.size + result.present_value.size
    assert counts.cache == kept
    queries = heads = math.prod(batch) * 4 * n
    assert counts.memory == kept + queries * 3 + heads * 2 + result.weights.size


def test_counts_of_the_documents():
    def square(d_model, h, d_k):
        w = np.zeros((h, d_model, d_k))
        return {"w_q": w, "w_k": w, "w_v": w, "w_o": np.zeros((h, d_k, d_model)), "b_o": None}

    for h in (1, 2, 4):  # DOC-76: 264 for three tokens, whatever the heads
        assert count_layer(square(4, h, 4 // h), 3, 3).multiplications == 264
        assert count_layer(square(4, h, 4 // h), 3, 3).exponentials == 9 * h
    assert count_layer(square(4, 2, 4), 3, 3).multiplications == 2 * 264
    assert count_layer(square(512, 8, 64), 1, 1).parameters == 4 * 512**2  # DOC-60
    assert count_layer(square(2, 1, 1), 1, 1).multiplications == 4 * 2 + 2  # DOC-100
    assert count_layer(square(4, 1, 1), 1, 2).memory == 8  # DOC-102
    with pytest.raises(ValueError, match="past=4 but it is a part of kv_len=3"):
        count_layer(square(4, 1, 4), 3, 3, past=4)


def test_head_importance_is_the_slope_of_a_gate():
    weights = layer_weights()
    x, grad = inputs(weights, batch=(2,)), RNG.standard_normal((2, 3, 8))
    mask = RNG.random((3, 5)) < 0.7

    def loss(gates):
        gated = {**weights, "w_o": weights["w_o"] * gates[:, None, None]}
        return (MHA(*x, **gated, mask=mask) * grad).sum()

    step = 1e-6
    slopes = [(loss(1 + step * e) - loss(1 - step * e)) / (2 * step) for e in np.eye(4)]
    found = head_importance(*x, grad, weights=weights, mask=mask)
    np.testing.assert_allclose(found, np.abs(slopes), rtol=1e-7)
    assert found.min() > 1e-3


@pytest.mark.parametrize("heads", [(), (1,), (0, 1), (2, 3), (0, 2), (1, 2, 3), (0, 1, 3)])
def test_pruning_silent_heads_changes_nothing(heads):
    weights = layer_weights()
    weights["w_o"][list(heads)] = 0
    x = inputs(weights)
    pruned = prune_heads(weights, heads)
    assert silent_heads(weights) == heads
    assert set(pruned) == set(weights)
    assert pruned["w_q"].shape[0] == 4 - len(heads)
    np.testing.assert_allclose(MHA(*x, **pruned), MHA(*x, **weights), rtol=1e-12, atol=1e-14)
    grad = RNG.standard_normal((3, 8))
    found = head_importance(*x, grad, weights=weights)
    assert (found[list(heads)] == 0).all()


def test_pruned_weights_are_smaller_and_a_heard_head_is_missed():
    weights = layer_weights()
    pruned = prune_heads(weights, [2, 3])
    assert {name: pruned[name].shape[0] for name in ("w_q", "w_k", "w_v", "w_o", "sinks")} == {
        "w_q": 2, "w_k": 1, "w_v": 1, "w_o": 2, "sinks": 2
    }  # fmt: skip
    assert sum(w.size for w in pruned.values()) < sum(w.size for w in weights.values())
    x = inputs(weights)
    assert abs(MHA(*x, **pruned) - MHA(*x, **weights)).max() > 0.1
    uneven = prune_heads(layer_weights(h=6, g=2), [3])  # three and two readers: each gets a head of its own
    assert uneven["w_k"].shape[0] == uneven["w_q"].shape[0] == 5
    assert prune_heads(layer_weights(h=6, g=2), [4, 5, 0])["w_k"].shape[0] == 3
    assert prune_heads(layer_weights(h=8, g=2), [4, 5])["w_k"].shape[0] == 3  # 4 and 2: pairs


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: prune_heads(layer_weights(), [4]), "head 4 is to go but there are heads 0 to 3"),
        (lambda: prune_heads(layer_weights(), [-1]), "head -1"),
        (lambda: prune_heads(layer_weights(), range(4)), "all 4 heads"),
        (lambda: cosine(np.eye(2)), r"w has shape \(2, 2\) but needs \(H, d_in, d\)"),
        (lambda: subspace_angles(np.eye(2), np.eye(3)), "d_in=3 but first has d_in=2"),
        (lambda: entropy(np.ones(2)), r"weights has shape \(2,\)"),
        (lambda: importance(np.zeros((0, 2, 3, 4))), "at least one sample"),
        (lambda: correlation(np.ones(2)), "samples"),
    ],
)
def test_what_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()


@pytest.mark.parametrize("name", ["array-api-strict", "torch", "jax"])
def test_every_library(name):
    lib = library(name)
    z, w, grad = (
        RNG.standard_normal((4, 2, 3, 2)),
        RNG.standard_normal((2, 4, 2)),
        RNG.standard_normal((3, 2)),
    )
    close = {"rtol": 1e-4, "atol": 1e-5}
    measures = [
        (cosine, w),
        (rank, w),
        (importance, z),
        (variance, z),
        (redundancy, z),
        (entropy, np.abs(z)),
        (lambda x: subspace_angles(x[0, ...], x[1, ...]), w),
        (lambda x: correlation(x[..., 0, :]), z),
    ]
    for measure, x in measures[:2] if name == "jax" else measures:  # it compiles each operation
        np.testing.assert_allclose(lib.numpy(measure(lib.array(x, "float32"))), measure(x), **close)
    assert diversity(lib.array(w, "float32")) == pytest.approx(diversity(w), rel=1e-5)
    assert coverage(lib.array(w, "float32")) == coverage(w)
    if name == "jax":
        return
    weights = {"w_q": w, "w_k": w, "w_v": w, "w_o": RNG.standard_normal((2, 2, 2))}
    given = {part: lib.array(x, "float32") for part, x in weights.items()}
    tokens = RNG.standard_normal((3, 4))
    found = head_importance(*[lib.array(tokens, "float32")] * 3, lib.array(grad, "float32"), weights=given)
    np.testing.assert_allclose(
        lib.numpy(found), head_importance(*[tokens] * 3, grad, weights=weights), **close
    )
    for part, x in prune_heads(given, [0]).items():
        np.testing.assert_array_equal(lib.numpy(x), weights[part][1:].astype(np.float32))
    assert silent_heads({"w_o": lib.array(np.zeros((2, 1, 1)), "float32")}) == (0, 1)


def test_16_bits_are_measured_in_float32():
    big = np.full((2, 300, 300), 200.0, np.float16)  # whose squares sum far beyond float16
    assert cosine(big).dtype == np.float32
    assert cosine(big)[0, 1] == 1
    assert importance(big)[0] == pytest.approx(60000)
