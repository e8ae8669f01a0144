"""Where a bench ran: what its figures hold for."""

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from conformance.running.process import THREADS
from conformance.version import SUITE_VERSION


def machine() -> dict[str, Any]:
    """Versions, processor, BLAS and the threads that the environment allows."""
    return {
        "suite": SUITE_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": {name: os.environ.get(name) for name in THREADS},
        "numpy": np.__version__,
        "numpy_blas": _blas(),
    }


def load() -> float | None:
    """The load of the last minute; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _blas() -> dict[str, str]:
    """The BLAS that NumPy was built with, its kernel among what it says."""
    config: Any = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {})
    return {key: str(found[key]) for key in ("name", "version", "openblas configuration") if key in found}
