"""What a program says that nobody asked for is neither kept nor waited for."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.running.process import UNREAD_LINES, Process
from conformance.running.protocol import ProtocolError
from conformance.running.request import Request
from conformance.running.session import MOST_CHUNKS, Session

TARGET = """
import numpy as np

def good(query, key, value):
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)
"""

FLOOD = """
import sys
line = sys.stdin.readline()
sys.stdout.write("{}\\n")
while True:
    sys.stdout.write("more\\n" * 10000)
    sys.stderr.write("m" * 50000)
"""


def test_a_flood_that_nobody_reads_is_not_kept() -> None:
    process = Process([sys.executable, "-c", FLOOD])
    try:
        assert process.ask(b"x\n", 20.0) == b"{}\n"
        time.sleep(0.5)
        assert process._received.qsize() <= UNREAD_LINES
        assert len(process._tail) <= 8192
        with pytest.raises(ProtocolError, match="more than one line"):
            process.ask(b"x\n", 5.0)
    finally:
        process.kill()


def test_of_what_a_target_writes_the_end_is_kept(target: Path, make_case: Any) -> None:
    session = Session(Request(target=f"{target}:good"), [make_case()])
    try:
        for n in range(MOST_CHUNKS + 10):
            session._heard.append(f"{n} ")
        assert session.heard.startswith("10 11 ")
        assert session.row(session.questions[0]).verdict == "pass"
    finally:
        session.close()
