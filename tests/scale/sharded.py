"""Counts what eight devices of JAX send each other; prints one JSON object by case. Run by test_sharding.py."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mha_core import multi_head_attention, multi_head_attention_vjp, scaled_dot_product_attention

KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
RANDOM = np.random.default_rng(0)
B, H, LENGTH, D, WIDTH = 8, 8, 6, 16, 4
OPTIONS = {"is_causal": True, "softcap": 5.0}


def draw(*shape):
    return (RANDOM.standard_normal(shape) / 2).astype(np.float32)


def operands(groups):
    weights = {"w_q": draw(H, D, WIDTH), "w_k": draw(groups, D, WIDTH), "w_v": draw(groups, D, WIDTH)}
    weights |= {"w_o": draw(H, WIDTH, D), "b_q": draw(H, WIDTH), "b_o": draw(D), "sinks": draw(H)}
    weights |= {"mask": RANDOM.random((B, H, LENGTH, LENGTH)) < 0.7, "attn_bias": draw(1, H, LENGTH, LENGTH)}
    return draw(B, LENGTH, D), weights | {"kv_lengths": RANDOM.integers(1, LENGTH, B)}, draw(B, LENGTH, D)


def layer(x, given, grad):
    return multi_head_attention(x, x, x, **given, **OPTIONS)


def explicit(x, given, grad):
    return multi_head_attention_vjp(x, x, x, grad, **given, **OPTIONS)


def value_and_gradient(x, given, grad):
    variables = {n: w for n, w in given.items() if n[:2] in ("w_", "b_", "si", "at")}
    output, back = jax.vjp(lambda x, v: layer(x, given | v, grad), x, variables)
    return (output, *back(grad))


def count(operation, axes, groups=H):
    """How often each kind of message is in the program, whose results are those of one NumPy pass."""
    batch, heads = ("batch" if "batch" in axes else None), ("heads" if "heads" in axes else None)
    shape = {("batch",): (8, 1), ("heads",): (1, 8), ("batch", "heads"): (2, 4)}[axes]
    mesh = Mesh(np.asarray(jax.devices()).reshape(shape), ("batch", "heads"))
    x, given, grad = operands(groups)
    spread = {"b_o": (), "mask": (batch, heads), "attn_bias": (None, heads), "kv_lengths": (batch,)}
    if groups < 4:
        spread |= {"w_k": (), "w_v": ()}  # fewer than there are devices: on each of them

    def put(array, *names):
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*names)))

    placed = {n: put(w, *spread.get(n, (heads,))) for n, w in given.items()}
    program = jax.jit(operation).lower(put(x, batch), placed, put(grad, batch)).compile()
    got = program(put(x, batch), placed, put(grad, batch))
    wanted = (explicit if operation is value_and_gradient else operation)(x, given, grad)
    if operation is value_and_gradient:
        d_x = wanted.pop("query") + wanted.pop("key") + wanted.pop("value")
        wanted = (layer(x, given, grad), d_x, wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), got, wanted)
    text = program.as_text()
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}
    return {kind: n for kind, n in counts.items() if n}


def check_without_compiling():
    """Heads that are spread stay where they are, operation by operation."""
    mesh = Mesh(np.asarray(jax.devices()), ("heads",))
    heads = [draw(2, H, LENGTH, WIDTH) for _ in range(3)]
    spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "heads"))) for x in heads]
    got = scaled_dot_product_attention(*spread, **OPTIONS)
    assert {shard.data.shape for shard in got.addressable_shards} == {(2, 1, LENGTH, WIDTH)}
    wanted = scaled_dot_product_attention(*heads, **OPTIONS)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


assert jax.device_count() == 8
assert jnp.zeros(1).dtype == jnp.float32
check_without_compiling()
print(
    json.dumps(
        {
            "heads": count(layer, ("heads",)),
            "batch": count(layer, ("batch",)),
            "both": count(layer, ("batch", "heads")),
            "grouped": count(layer, ("batch", "heads"), groups=4),
            "gradient by heads": count(value_and_gradient, ("heads",)),
            "gradient by batch": count(value_and_gradient, ("batch",)),
            "explicit gradient by heads": count(explicit, ("heads",)),
        }
    )
)
