"""CPU seconds of whole commands of the suite, the processes that they start included."""

import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from conformance.benching.machine import load, machine

ALIKE = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
"""As users have it: compiled modules are kept."""
KEEP = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
FOLDER = "JAX_COMPILATION_CACHE_DIR"


def measured(table: str, calls: Mapping[str, Any]) -> dict[str, Any] | None:
    """Samples of every call by its words; None where one fails.

    Of the table `commands` the value is how many times a call is made, after one that is not counted where it is
    more than once. Of `compiled` it is the call itself, which is made twice with one new folder for what JAX compiles.
    """
    before, samples = load(), {}
    for name, value in calls.items():
        found = _compiled(value) if table == "compiled" else _repeated(name, value)
        if found is None:
            return None
        samples.update(found)
    return {"machine": machine(), "load": [before, load()], "commands": samples}


def _repeated(call: str, times: int) -> dict[str, list[float]] | None:
    samples = [_seconds(call, {}) for _ in range(times + (times > 1))]
    seconds = [sample for sample in samples[times > 1 :] if sample is not None]
    return {call: seconds} if len(seconds) == times else None


def _compiled(call: str) -> dict[str, list[float]] | None:
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (_seconds(call, {FOLDER: folder, **KEEP}) for _ in range(2))
    return None if cold is None or warm is None else {f"{call}, cold": [cold], f"{call}, warm": [warm]}


def cpu_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(call: str, more: Mapping[str, str]) -> float | None:
    """CPU seconds of a call and of all that it waits for; None where it fails."""
    before = cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "conformance", *shlex.split(call)],
        capture_output=True,
        text=True,
        env={**os.environ, **ALIKE, **more},
    )
    seconds = cpu_seconds() - before
    print(f"{call}: {seconds:.3g} CPU seconds", flush=True)
    if done.returncode:
        print(done.stderr or done.stdout, file=sys.stderr)
        return None
    return seconds
