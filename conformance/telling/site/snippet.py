"""A failing test as a few lines that can be pasted: the operands, the call, what came and what was expected."""

import math
from collections.abc import Sequence

import numpy as np

from conformance.judging.verdict import Row
from conformance.running.locating import implementations
from conformance.vectors.case import Array, Case

WRITTEN = 200
"""Numbers up to which an operand is written out."""
PREFERRED = ("float32", "float64", "float16", "bfloat16")


def smallest(rows: Sequence[Row], cases: dict[str, Case]) -> Row | None:
    """The failing test with the fewest numbers, in float32 if it fails there; None where no case is known."""
    known = [row for row in rows if row.case in cases]
    if not known:
        return None
    return min(known, key=lambda row: (_size(cases[row.case]), row.case, PREFERRED.index(row.dtype)))


def _size(case: Case) -> int:
    return sum(math.prod(array.shape) for array in case.inputs.values())


def program(row: Row, case: Case, library: str) -> str:
    """Lines of Python that make the call where the suite and the library are installed, and print what is wrong.

    Empty where an operand is too large to be written out, or the dtype is not NumPy's own.
    """
    if row.dtype == "bfloat16" or any(array.size > WRITTEN for array in case.inputs.values()):
        return ""
    lines = ["import numpy as np", "from numpy import inf, nan"]
    lines += [
        "from conformance.running.invoke import call",
        "from conformance.running.target import load",
        "",
    ]
    lines += [f"{name} = {_literal(array)}" for name, array in case.operands(row.dtype).items()]
    inputs = ", ".join(f"{name}={name}" for name in case.inputs)
    options = ", ".join(f"{name}={_plain(value)}" for name, value in case.options.items())
    memory = ", ".join(f"{name}={how!r}" for name, how in case.memory.items())
    lines += ["", f"# {library}, through {implementations().get(library, 'its adapter')}:"]
    given = f"dict({inputs}), dict({options}), dict({memory})"
    given += f", {case.repeat}" if case.repeat != 1 else ""
    lines += ["answer = call(", f"    load({library!r}), {row.operation!r},", f"    {given}", ")"]
    if row.worst is not None:
        place = ", ".join(map(str, row.worst.index))
        lines += [
            f"print(answer.outputs[{row.worst.output!r}][{place}])",
            f"# {row.worst.got:.6g}, expected {row.worst.expected:.6g} ± {row.worst.allowed:.2g}",
        ]
    else:
        lines += ["print(answer.kind, answer.message)", f"# {' '.join(row.message.split())[:160]}"]
    return "\n".join(lines)


def command(row: Row, library: str) -> str:
    """The command that runs this test alone."""
    return f"mha-conformance run {library} -k {row.case} --dtype {row.dtype}"


def _literal(array: Array) -> str:
    values = array.astype(object) if array.dtype.kind in "biu" else array.astype(np.float64)
    return f"np.array({values.tolist()}, np.{'bool_' if array.dtype.kind == 'b' else array.dtype.name})"


def _plain(value: object) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)
