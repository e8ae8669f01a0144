"""The vectors are the same on every machine: with the instructions that this one has, and without."""

import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import built_sample
import numpy as np
import pytest

pytestmark = pytest.mark.turns(3, whole=True)

ROOT = Path(__file__).parents[2]
FOUND = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
"""Instructions above the baseline that NumPy uses here. What it was built to need cannot be switched off."""
WIDE = [name for name in FOUND if name.startswith(("AVX512", "X86_V4"))]
PLAIN_BLAS = {"x86_64": "Prescott", "AMD64": "Prescott", "aarch64": "ARMV8", "arm64": "ARMV8"}
"""By machine, OpenBLAS' kernels for its oldest processor."""
SETTINGS = {
    "none above the baseline": {
        "NPY_DISABLE_CPU_FEATURES": " ".join(FOUND),
        "OPENBLAS_CORETYPE": PLAIN_BLAS.get(platform.machine(), ""),
    }
}
if WIDE and WIDE != FOUND:
    SETTINGS["no AVX-512"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(WIDE)}


def built(setting):
    """The sample, built by a process of its own."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE")
    }
    env = {
        **plain,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **{k: v for k, v in setting.items() if v},
    }
    program = [sys.executable, built_sample.__file__]
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def here():
    return built({})


def test_the_sample_has_every_kind_of_bound():
    drafts = built_sample.sample()
    assert len(drafts) >= 30
    assert {draft.operation for draft in drafts} >= {
        "multi_head_attention",
        "scaled_dot_product_attention_vjp",
    }
    options = {name for draft in drafts for name in (*draft.options, *draft.inputs)}
    assert options >= {
        "softcap",
        "sinks",
        "attn_bias",
        "return_lse",
        "return_weights",
        "past_key",
        "grad_output",
    }


@pytest.mark.covers("CONF-10")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_case_is_the_same_without_instructions_that_not_every_machine_has(setting):
    there = built(SETTINGS[setting])
    switched_off = set(SETTINGS[setting]["NPY_DISABLE_CPU_FEATURES"].split())
    assert switched_off.isdisjoint(there["found"])
    cases = here()["cases"]
    assert cases
    assert [name for name in cases if there["cases"][name] != cases[name]] == []
