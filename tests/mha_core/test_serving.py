"""The operations of serving against the definition, part by part and page by page, on every library, traced too."""

import functools
import itertools

import numpy as np
import pytest
import serving_draws as draws
from array_libraries import TOLERANCES, call, library

import mha_core

OPERATIONS = {
    "packed": (mha_core.packed_attention, draws.packed, draws.packed_by_definition),
    "paged": (mha_core.paged_attention, draws.paged, draws.paged_by_definition),
    "writing": (
        mha_core.paged_attention,
        functools.partial(draws.paged, writes=True),
        draws.paged_by_definition,
    ),
    "latent": (mha_core.latent_attention, draws.latent, draws.latent_by_definition),
}
TIMES = {"numpy": 60, "torch": 30, "array-api-strict": 20}


def check(operation, lib, problem, wanted, dtype="float64"):
    """The results on the arrays of a library are what the definition says, and the operands stay as they are."""
    arrays, options = problem
    kept = {name: x.copy() for name, x in arrays.items()}
    with np.errstate(all="ignore"):  # array-api-strict has no way to silence the NumPy below it
        got = call(operation, lib, arrays, options, dtype)
    for name, x in kept.items():
        np.testing.assert_array_equal(arrays[name], x, err_msg=name)
    assert set(got) == set(wanted)
    for name, x in got.items():
        assert x.shape == wanted[name].shape, name
        np.testing.assert_allclose(x.astype(np.float64), wanted[name], err_msg=name, **TOLERANCES[dtype])


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_operation(kind, name):
    operation, draw, define = OPERATIONS[kind]
    lib = library(name)
    for seed in range(TIMES[name]):
        problem = draw(np.random.default_rng(seed))
        check(operation, lib, problem, define(*problem))


def compiled(operation, jax):
    """The operation under jax.jit with every array traced."""

    @functools.wraps(operation)
    def call_compiled(**given):
        traced = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
        static = {name: x for name, x in given.items() if name not in traced}
        return jax.jit(functools.partial(operation, **static))(**traced)

    return call_compiled


@pytest.mark.parametrize(("kind", "traced"), [("writing", False), *((kind, True) for kind in OPERATIONS)])
def test_operation_on_jax(kind, traced):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    operation, draw, define = OPERATIONS[kind]
    done = 0
    for seed in itertools.count(200):
        arrays, options = draw(np.random.default_rng(seed))
        has_offset = "q_offset" in {**arrays, **options} or not draws.is_banded(options)
        if not has_offset or not all(x.size for x in arrays.values()):
            continue
        rounded = {
            name: x.astype("float32").astype("float64") if x.dtype.kind == "f" else x
            for name, x in arrays.items()
        }
        check(
            compiled(operation, jax) if traced else operation,
            library("jax"),
            (arrays, options),
            define(rounded, options),
            "float32",
        )
        done += 1
        if done == (2 if traced else 1):
            return
