"""Several threads give the bits of one, where they are allowed, and hold BLAS meanwhile."""

import functools
import importlib
import math
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import mha_core
from mha_core import scaled_dot_product_attention, scaled_dot_product_attention_vjp, threads

threads_module = importlib.import_module("mha_core.pool")
RNG = np.random.default_rng(31)


@pytest.fixture
def seen(monkeypatch):
    """The threads that compute; every call is large enough for several, and BLAS is held."""
    names = set()

    def watched(function, *arguments):
        names.add(threading.current_thread().name)
        return function(*arguments)

    for module, name in (("attend", "in_place"), ("attend_vjp", "in_place_vjp")):
        module = importlib.import_module(f"mha_core.{module}")
        monkeypatch.setattr(module, name, functools.partial(watched, getattr(module, name)))
    monkeypatch.setattr(threads_module, "LARGE", 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return names


def heads():
    return [RNG.standard_normal((2, 4, 600, 8)).astype(np.float32) for _ in range(4)]


@pytest.mark.covers("IND-6")
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_bias": RNG.standard_normal((600, 600))}])
def test_the_bits_are_those_of_one_thread(seen, options):
    arrays = heads()
    arrays[1][1, 2, 5, 3] = math.nan  # a head that is computed exactly
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in (1, 2, 5):
            seen.clear()
            with threads(number):
                output = scaled_dot_product_attention(*arrays[:3], **options)
                results.append([output, *scaled_dot_product_attention_vjp(*arrays, **options).values()])
            assert (seen == {threading.current_thread().name}) == (number == 1)
            assert len(seen) <= 2 * number
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_small_calls_have_one_thread(seen, monkeypatch):
    monkeypatch.setattr(threads_module, "LARGE", 2**40)
    with threads(2):
        scaled_dot_product_attention(*heads()[:3])
    assert seen == {threading.current_thread().name}


def test_without_anything_that_holds_blas_there_is_one_thread(seen, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    for name in threads_module.OF_BLAS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads_module, "_controller", lambda: None)
    with threads(2):
        scaled_dot_product_attention(*heads()[:3])
    assert seen == {threading.current_thread().name}


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None, "many"])
def test_other_numbers_are_refused(number):
    with pytest.raises(ValueError, match="number of threads of at least 1"), threads(number):
        pass


def imported(code="print(threads_module._allowed())", **variables):
    environment = {
        n: x for n, x in os.environ.items() if n not in (*threads_module.OF_BLAS, threads_module.WORKER)
    }
    environment |= {"PYTHONPATH": str(Path(mha_core.__file__).parents[1])} | variables
    program = f"import importlib, mha_core; threads_module = importlib.import_module('mha_core.pool'); {code}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_environment_chooses():
    assert imported(MHA_CORE_THREADS="3").stdout.split() == ["3"]
    assert imported(OPENBLAS_NUM_THREADS="1").stdout.split() == ["1"]
    assert imported(PYTEST_XDIST_WORKER="gw0").stdout.split() == ["1"]
    assert int(imported().stdout) >= 1
    done = imported(MHA_CORE_THREADS="all")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: MHA_CORE_THREADS='all' but needs a number of threads of at least 1"
    )
