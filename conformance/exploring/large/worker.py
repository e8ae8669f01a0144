"""A worker that also makes, asks and reads calls of production size: `python -m conformance.exploring.large.worker`."""

import importlib
import sys
from contextlib import suppress
from typing import Any

from conformance.exploring.large.call import read_token
from conformance.exploring.large.where import ask
from conformance.running.memory_limit import free
from conformance.running.target import Target

MODULE = "conformance.exploring.large.worker"
ASK, ROOM = "large", "room"
"""The messages that it knows beside those of the line protocol."""


def room(target: Target) -> float:
    """Bytes that are free where the target's arrays are made."""
    device = target.device
    if target.array_type == "torch" and device is not None and device.startswith("cuda"):
        with suppress(Exception):
            return float(importlib.import_module("torch").cuda.mem_get_info(device)[0])
    if target.array_type == "jax":
        with suppress(Exception):
            stats: Any = importlib.import_module("jax").devices((device or "").partition(":")[0] or None)[0]
            told = stats.memory_stats()
            return float(told["bytes_limit"] - told["bytes_in_use"])
    return free()


def _ask(target: Target, message: dict[str, Any]) -> dict[str, Any]:
    return ask(target, read_token(message["token"]), message["policy"]).as_message()


def _room(target: Target, message: dict[str, Any]) -> dict[str, Any]:
    found = room(target)
    return {"bytes": found if found < float("inf") else None}


if __name__ == "__main__":
    from conformance.running.worker import main

    sys.exit(main(others={ASK: _ask, ROOM: _room}))
