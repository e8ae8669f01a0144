"""Which inputs of production size show which mistake, beside random numbers and a guessed tolerance.

    python tests/exploring/measure_large.py [--own] [--write]

Each mistake is planted in a tiled program in bfloat16 with float32 sums, and asked 512 queries of 2 heads and
2 entries over 16,384 keys. A second table is of mistakes that begin at other sizes, and of gradients. With --write
the tables go into spec/explore.md.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.append(str(Path(__file__).parent))

import large_gradients
import large_programs

from conformance.exploring.large.call import LOUD, Large
from conformance.exploring.large.making import host
from conformance.exploring.large.sampled import certified
from conformance.exploring.large.told import Told
from conformance.exploring.large.where import ask, given
from conformance.names import MHA_VJP, SDPA_VJP
from conformance.running.target import Target, adopt

PAGE = Path(__file__).parents[2] / "spec" / "explore.md"
ALIKE, OWN_SIZES = "large", "large own"
"""What the tables are called on the page: of one call, and of calls of the sizes at which mistakes begin."""
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
OWN: dict[str, Large] = {
    "index_wraps_at_32768": Large(q_len=64, kv_len=40_000, stream=3),
    "blocks_from_65535": Large(batch=2050, heads=32, groups=32, kv_len=40, stream=3),
    "entries_from_65535": Large(batch=65_537, kv_len=33, d_k=48, d_v=48, stream=3),
}
"""Mistakes that show from a size on, each with a call of that size."""
BACKWARD = {
    "few queries": Large(operation=SDPA_VJP, q_len=32, kv_len=32_769, stream=3),
    "a square": Large(operation=SDPA_VJP, q_len=1025, kv_len=1026, stream=3),
    "a layer": Large(operation=MHA_VJP, heads=4, groups=4, q_len=1024, kv_len=1024, stream=3),
}
"""Calls that gradients are asked for."""
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


def own_sizes() -> list[str]:
    """The table of mistakes that show at other sizes, and of those in gradients; `-` where no call is made so."""
    kinds = ("one key", "two keys", "32 keys", "sampled rows")
    lines = [f"| mistake | asked | {' | '.join(kinds)} | what is said |", "|---" * (len(kinds) + 3) + "|"]
    print("\n".join(lines), flush=True)

    def row(name: str, target: Target, call: Large, calls: dict[str, Large]) -> None:
        told = {kind: judged(target, each) for kind, each in calls.items()}
        said = next((each.message for each in told.values() if each.failed), "").rpartition("; ")[0]
        cells = [("seen" if told[kind].failed else "passes") if kind in told else "-" for kind in kinds]
        sizes = f"{call.batch} x {call.heads} x {call.q_len:,} over {call.kv_len:,} keys"
        lines.append(f"| {name.replace('_', ' ')} | {sizes} | {' | '.join(cells)} | {said} |")
        print(lines[-1], flush=True)

    for name, call in OWN.items():
        row(name, adopt(getattr(large_programs, name), name), call, {
            "one key": call, "two keys": replace(call, members=2), "32 keys": replace(call, members=LOUD),
            "sampled rows": replace(call, family="sampled", levels=4),
        })  # fmt: skip
    for name, mistake in large_gradients.MISTAKES.items():
        for words, call in BACKWARD.items():
            calls = {"two keys": replace(call, members=2, strided=True)}
            if not call.layer:
                calls["sampled rows"] = replace(call, family="sampled", few=True)
            row(f"{name}, {words}", large_gradients.target(call.operation, mistake), call, calls)
    return lines


def alike() -> list[str]:
    """The table of mistakes that one call shows."""
    programs = {"none": {}, **large_programs.MISTAKES, **large_programs.MISTAKES_OF_NO_EFFECT}
    for gone in ("heads_wrap_at_256", "index_wraps_at_65536", *OWN):
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
    return lines


def put(name: str, lines: list[str]) -> None:
    """Writes a table between its marks on the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = PAGE.read_text("utf-8").split(begin)
    PAGE.write_text("\n".join([head + begin, *lines, end + rest.split(end)[1]]), "utf-8")


def main() -> None:
    """Prints both tables, a line a mistake as soon as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the tables into spec/explore.md")
    parser.add_argument("--own", action="store_true", help="that of the sizes at which mistakes begin alone")
    given = parser.parse_args()
    tables = {OWN_SIZES: own_sizes} if given.own else {ALIKE: alike, OWN_SIZES: own_sizes}
    for name, table in tables.items():
        lines = table()
        if given.write:
            put(name, lines)


if __name__ == "__main__":
    main()
