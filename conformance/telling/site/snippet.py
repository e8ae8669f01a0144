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
    """Lines of NumPy; empty where an operand is too large to be written out, or the dtype is not NumPy's own."""
    if row.dtype == "bfloat16" or any(array.size > WRITTEN for array in case.inputs.values()):
        return ""
    lines = ["import numpy as np", "from numpy import inf, nan", ""]
    lines += [f"{name} = {_literal(array)}" for name, array in case.operands(row.dtype).items()]
    arguments = [f"{name}={name}" for name in case.inputs]
    arguments += [f"{name}={_plain(value)}" for name, value in case.options.items()]
    lines += ["", f"# {library}, through {implementations().get(library, 'its adapter')}:"]
    lines += [f"{row.operation}({', '.join(arguments)})"]
    if row.worst is not None:
        place = ", ".join(map(str, row.worst.index))
        lines.append(
            f"# {row.worst.output}[{place}] is {row.worst.got:.6g}, expected {row.worst.expected:.6g} "
            f"± {row.worst.allowed:.2g}"
        )
    elif row.message:
        lines.append(f"# {' '.join(row.message.split())[:160]}")
    return "\n".join(lines)


def command(row: Row, library: str) -> str:
    """The command that runs this test alone."""
    return f"mha-conformance run {library} -k {row.case} --dtype {row.dtype}"


def _literal(array: Array) -> str:
    values = array.astype(object) if array.dtype.kind in "biu" else array.astype(np.float64)
    return f"np.array({values.tolist()}, np.{'bool_' if array.dtype.kind == 'b' else array.dtype.name})"


def _plain(value: object) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)
