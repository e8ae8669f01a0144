"""Programs that the tests here run, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import mha_core

EIGHT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # a warning, of a file that is half written, would be an error
}
"""Variables by which JAX finds eight devices on any machine."""


def run(*command, **variables):
    """What a program prints, once it ended well."""
    environment = os.environ | variables | {"PYTHONPATH": str(Path(mha_core.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
