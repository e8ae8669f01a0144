"""One request measured: the result as JSON holds it."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from conformance.benching.machine import load, machine
from conformance.benching.memory import extra_memory
from conformance.benching.problem import problem_of
from conformance.benching.request import Request
from conformance.benching.rivals import OtherResultError, Rival, check_agreement, outputs_of, rival, target_of
from conformance.benching.timing import measured, ratios, spread
from conformance.errors import UsageError
from conformance.running.process import THREADS, environment

BENCH_VERSION = 1
WARM_LENGTH = 8
MEASURE, MEMORY = "measure", "memory"


def in_fresh_process(request: Request, task: str = MEASURE) -> Any:
    """What `measure` or `memory` says of a request, in a process whose threads were pinned before any import.

    Raises:
        UsageError: the process says why it cannot, or ends without a word.
        OtherResultError: a rival computes something else than the target.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "conformance.benching", task, str(answer)]
        done = subprocess.run(
            command,
            input=json.dumps(request.data()),
            text=True,
            stdout=sys.stderr,  # what a target prints is no part of a result
            env=environment(os.environ | _threads(request)),
            check=False,
        )
        if not answer.is_file():
            raise UsageError(f"the measuring process ended with status {done.returncode}; see above")
        data = json.loads(answer.read_text("utf-8"))
    if "error" in data:
        raise OtherResultError(data["error"]) if data["other"] else UsageError(data["error"])
    return data["result"]


def _threads(request: Request) -> dict[str, str]:
    """The variables that say how many threads libraries use, where the request does."""
    return {} if request.threads is None else dict.fromkeys(THREADS, str(request.threads))


def memory(request: Request) -> int | None:
    """The extra memory of the one target of a request."""
    (source,) = request.targets
    target = target_of(source, request.operation, request.dtype)
    small = rival(source, target, problem_of(request.at(WARM_LENGTH)))
    return extra_memory(rival(source, target, problem_of(request)).run, small.run)


def measure(request: Request) -> dict[str, Any]:
    """The target and its rivals on one size after the other."""
    sizes = [request.at(length) for length in request.lengths] or [request]
    return {
        "bench_version": BENCH_VERSION,
        "request": request.data(),
        "machine": machine(),
        "sizes": [_at_size(size) for size in sizes],
    }


def _at_size(request: Request) -> dict[str, Any]:
    problem = problem_of(request)
    ready: list[Rival] = []
    wanted = None
    for source in request.targets:
        target = target_of(source, request.operation, request.dtype)
        outputs = outputs_of(source, target, problem)
        wanted = outputs if wanted is None else wanted
        check_agreement(source, outputs, wanted, request.dtype)
        ready.append(rival(source, target, problem))
    before = load()
    runs = {r.source: r.run for r in ready}
    samples, calls = measured(runs, request.rounds, random.Random(request.seed))
    after = load()
    ours = samples[request.targets[0]]
    rows = []
    for r in ready:
        theirs = samples[r.source]
        cpu, wall = ([getattr(s, clock) for s in theirs] for clock in ("cpu", "wall"))
        rows.append(
            {
                "source": r.source,
                "name": r.target.hello.name,
                "version": r.target.hello.version,
                "calls": calls[r.source],
                "cpu": cpu,
                "wall": wall,
                "cpu_quartiles": spread(cpu),
                "wall_quartiles": spread(wall),
                "cpu_ratio": ratios([s.cpu for s in ours], cpu),
                "wall_ratio": ratios([s.wall for s in ours], wall),
                "extra_memory": _extra_memory(request, r.source),
            }
        )
    return {
        "shape": list(request.shape),
        "kv_len": request.shape[2] if request.kv_len is None else request.kv_len,
        "load": [before, after],
        "rivals": rows,
    }


def _extra_memory(request: Request, source: str) -> int | None:
    if not request.memory:
        return None
    size: int | None = in_fresh_process(dataclasses.replace(request, targets=(source,)), MEMORY)
    return size
