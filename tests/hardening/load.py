"""Many targets after one another, in one process, and the memory that this takes.

`python tests/hardening/load.py [TARGETS [SHARD]]` runs twenty mistaken targets in all dtypes, with two workers each,
on a part of the suite; exit status 1 if memory grows from run to run, or a thread, a process or a file is left.
It starts itself anew with one heap for all threads: glibc gives each thread one, and keeps the free end of each,
which `malloc_trim` cannot hand back; what that costs is no memory that the suite holds, and would hide what is.
"""

import ctypes
import gc
import os
import resource
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import conformance
from conformance.defects.bank import DEFECTS
from conformance.names import DTYPES

WARM = 8
"""Runs after which caches are full."""
GROWTH = 8 * 2**20
"""Bytes by which the last run may hold more than the one after which caches were full."""
ONE_HEAP = "MALLOC_ARENA_MAX"
PLUGIN = """
from conformance.defects.bank import DEFECTS
target = next(defect for defect in DEFECTS if defect.id == {id!r}).implementation()
"""


def main(count: int = 20, shard: str = "1/12") -> int:
    """Runs the targets, and says what each left."""
    held, objects, rows, began = list[int](), list[int](), 0, time.monotonic()
    files = descriptors()
    with tempfile.TemporaryDirectory() as folder:
        for number, defect in enumerate(DEFECTS[:: len(DEFECTS) // count][:count]):
            plugin = Path(folder) / f"target{number}.py"
            plugin.write_text(PLUGIN.format(id=defect.id), "utf-8")
            report = conformance.run(
                f"{plugin}:target",
                report=Path(folder) / f"{number}.json",
                shard=shard,
                j=2,
                fresh="off",
                no_diagnose=True,
            )
            assert {row.dtype for row in report.results if row.executed} == set(DTYPES)
            rows += report.executed
            del report
            gc.collect()
            objects.append(len(gc.get_objects()))
            before = resident()
            trim()
            held.append(resident())
            print(
                f"{number + 1:>3} {defect.id:<40} {held[-1] / 2**20:7.1f} MiB, {before / 2**20:.1f} with what is free",
                flush=True,
            )
    left = descriptors() - files
    threads, growth = threading.active_count() - 1, held[-1] - held[min(WARM, count) - 1]
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{count} targets, {rows} rows in {time.monotonic() - began:.0f} s; {held[-1] / 2**20:.0f} MiB held, "
        f"{growth / 2**20:+.1f} since run {WARM}, {objects[-1] - objects[0]:+} objects; "
        f"a worker takes {worker:.0f} MiB; {threads} threads, {left} open files left"
    )
    return int(growth > GROWTH or objects[-1] > 1.05 * objects[0] or threads > 0 or left > 0)


def trim() -> None:
    """Hands back what is free in the heap."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def descriptors() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def resident() -> int:
    """Bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    if ONE_HEAP not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, ONE_HEAP: "1"})
    del os.environ[ONE_HEAP]  # the workers run as they do for everybody
    words = sys.argv[1:]
    sys.exit(main(*([int(words[0])] if words else []), *words[1:2]))
