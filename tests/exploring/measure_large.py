"""Which inputs of production size show which mistake, beside random numbers and a guessed tolerance.

    python tests/exploring/measure_large.py [--write]

Each mistake is planted in a tiled program in bfloat16 with float32 sums, and asked 512 queries of 2 heads and
2 entries over 16,384 keys. With --write the table goes into spec/explore.md.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.append(str(Path(__file__).parent))

import large_programs

from conformance.exploring.large.call import LOUD, Large
from conformance.exploring.large.making import host
from conformance.exploring.large.sampled import certified
from conformance.exploring.large.told import Told
from conformance.exploring.large.where import ask, given
from conformance.running.target import Target, adopt

PAGE = Path(__file__).parents[2] / "spec" / "explore.md"
BEGIN, END = "<!-- large: begin -->", "<!-- large: end -->"
CALL = Large(
    dtype="bfloat16",
    batch=2,
    heads=2,
    groups=2,
    q_len=512,
    kv_len=16_384,
    causal=True,
    offset=16_384 - 512,
    stream=3,
)
KINDS: dict[str, Large] = {
    "one key": CALL,
    "two keys": replace(CALL, members=2),
    "32 keys": replace(CALL, members=LOUD),
    "counts": replace(CALL, family="counts"),
    "rising counts": replace(CALL, family="counts", levels=4),
    "sampled rows": replace(CALL, family="sampled", levels=4),
}
GUESSED = 1e-2
"""The tolerance, absolute and relative, that is usual for bfloat16."""


def judged(target: Target, call: Large) -> Told:
    """What became of a call."""
    told = ask(target, call, "fused")
    return told if told.pieces is None else certified(call, "fused", told)


def answer(target: Target) -> Any:
    """What a program gives for ordinary random numbers."""
    call = replace(CALL, family="sampled")
    arguments = given(target, call, host(call.dtype))
    return target.calls[call.operation].function(**arguments).astype(np.float64)


def main() -> None:
    """Prints the table, a line a mistake as soon as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the table into spec/explore.md")
    write = parser.parse_args().write
    programs = {"none": {}, **large_programs.MISTAKES, **large_programs.MISTAKES_OF_NO_EFFECT}
    for gone in ("heads_wrap_at_256", "entries_from_65535", "index_wraps_at_65536"):
        del programs[gone]
    lines = [
        f"| mistake | random, 1e-2 | {' | '.join(KINDS)} | what is said |",
        "|---" * (len(KINDS) + 3) + "|",
    ]
    print("\n".join(lines), flush=True)
    exact = None
    for name, mistake in programs.items():
        program = large_programs.program(**mistake, inside=ml_dtypes.bfloat16)
        program.dtypes, program.accuracy = ("bfloat16",), "fused"
        target = adopt(program, name)
        found = answer(target)
        exact = found if exact is None else exact
        near = np.allclose(found, exact, rtol=GUESSED, atol=GUESSED)
        told = {kind: judged(target, call) for kind, call in KINDS.items()}
        said = next((each.message for each in told.values() if each.failed), "")
        cells = [
            "passes" if near else "seen",
            *("seen" if each.failed else "passes" for each in told.values()),
        ]
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {said.rpartition('; ')[0]} |")
        print(lines[-1], flush=True)
    if write:
        head, rest = PAGE.read_text("utf-8").split(BEGIN)
        tail = rest.split(END)[1]
        PAGE.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail, "utf-8")


if __name__ == "__main__":
    main()
