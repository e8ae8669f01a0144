"""What the official ONNX cases and this suite notice of the bank's defects, each by its own tolerance and by others'.

python tests/third_party/onnx_comparison.py [-j PROCESSES] [--dtype DTYPE]...
"""

import argparse
import contextlib
import functools
import io
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.onnx_cases import OnnxCase, call_of, form_of, named, official_cases
from conformance.defects.bank import BANK
from conformance.defects.implementation import Implementation
from conformance.defects.kill import ordered
from conformance.defects.reference import REFERENCE
from conformance.dtypes import cast, dtype_name
from conformance.judging.judge import dtype_problem, judge, names_problem, shape_problem
from conformance.judging.measure import held_rows
from conformance.names import DTYPES, SDPA
from conformance.running.invoke import call
from conformance.running.target import adopt, load
from conformance.vectors.case import Array, Case
from conformance.vectors.generate.build import build
from conformance.vectors.generate.draft import Draft
from conformance.vectors.load import load_vectors

ONNX, OURS = "ONNX", "this suite"
FIXED = {
    ONNX: dict.fromkeys(DTYPES, (1e-3, 1e-7)),
    "numpy.testing": dict.fromkeys(DTYPES, (1e-7, 0.0)),
    "torch.testing": {
        "float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5),
    },
}  # fmt: skip
"""Rule -> relative and absolute tolerance by dtype: the defaults of three libraries."""
RULES = (*FIXED, OURS)
KINDS = {
    defect.id: kind for kind, defects in BANK.items() for defect in defects if not kind.startswith("grad_")
}
DEFECTS = tuple(defect for defects in BANK.values() for defect in defects if defect.id in KINDS)
"""Those of the forward operations: ONNX has no gradients."""
UNKNOWN_TO_ONNX = ("projections", "sinks", "lse", "validation")
"""Kinds of defects in what the operator Attention does not have, or its cases cannot ask: refusals."""
CORRECT = ("numpy", "torch")
"""Targets that stand for correct implementations, beside the reference of the bank."""


@dataclass(frozen=True)
class Both:
    """An official case, and the same call as a case of this suite with a derived tolerance."""

    onnx: OnnxCase
    call: Mapping[str, Any]
    case: Case
    dtype: str


def both(case: OnnxCase) -> Both:
    """An official case with golden values and bounds of its own inputs."""
    given = call_of(case)
    dtype = dtype_name(given["query"].dtype)
    arrays = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
    options = {name: x for name, x in given.items() if name not in arrays}
    inputs = {name: x if x.dtype.kind in "biu" else x.astype(np.float64) for name, x in arrays.items()}
    return Both(case, given, build(Draft(case.name, "", (), SDPA, inputs, options, only=(dtype,))), dtype)


def refused(both: Both, target: Any, policy: str) -> set[str]:
    """The rules that refuse a target's answer to an official case."""
    try:
        got = named(target.scaled_dot_product_attention(**both.call))
        outputs = {name: np.asarray(x) for name, x in got.items() if x is not None}
        form = form_of(both.onnx, outputs, target.scaled_dot_product_attention, both.call)
        form = {name: x for name, x in form.items() if x is not None}
    except Exception:
        return set(RULES)
    if any(np.shape(form.get(name)) != x.shape for name, x in both.onnx.wanted.items()):
        return set(RULES)
    found = {ONNX} if both.onnx.problem(form) else set()
    pairs = [
        (np.asarray(form[name], np.float64), np.asarray(x, np.float64))
        for name, x in both.onnx.wanted.items()
    ]
    found |= {rule for rule in FIXED if rule != ONNX and not _close(pairs, *FIXED[rule][both.dtype])}
    if judge(both.case, both.dtype, policy, outputs).verdict == "fail":
        found.add(OURS)
    return found


def refused_by_ours(case: Case, dtype: str, target: Any, policy: str) -> set[str] | None:
    """The rules that refuse a target's answer to a case of this suite; None if it does not support it."""
    with contextlib.redirect_stderr(io.StringIO()):
        answer = call(target, case.operation, case.operands(dtype), case.options, case.memory, case.repeat)
    if answer.kind == "unsupported":
        return None
    if case.raises:
        return set() if answer.kind == "error" else set(RULES)
    if answer.kind != "outputs":
        return set(RULES)
    outputs = answer.outputs
    if names_problem(case, outputs) or shape_problem(case, outputs) or dtype_problem(case, dtype, outputs):
        return set(RULES)
    pairs = [
        (held_rows(name, golden, outputs[name]).astype(np.float64), cast(golden.hi, dtype).astype(np.float64))
        for name, golden in case.expected.items()
    ]
    found = {rule for rule, tolerances in FIXED.items() if not _close(pairs, *tolerances[dtype])}
    return found | ({OURS} if judge(case, dtype, policy, outputs).verdict == "fail" else set())


def _close(pairs: Iterable[tuple[Array, Array]], rtol: float, atol: float) -> bool:
    with np.errstate(all="ignore"):
        return all(np.allclose(got, wanted, rtol, atol, equal_nan=True) for got, wanted in pairs)


@functools.cache
def material() -> tuple[tuple[Both, ...], tuple[Case, ...]]:
    """Both sets of cases, read once in each process."""
    ours = tuple(case for case in load_vectors().cases if not case.operation.endswith("_vjp"))
    return tuple(both(case) for case in official_cases()), ours


@functools.cache
def blind(side: str, name: str, dtype: str) -> frozenset[str]:
    """The rules that refuse a case's right answer: what they say of a wrong one is no evidence."""
    official, ours = material()
    reference = Implementation(REFERENCE)
    if side == ONNX:
        (case,) = (case for case in official if case.case.id == name)
        return frozenset(refused(case, reference, "fused"))
    (mine,) = (mine for mine in ours if mine.id == name)
    return frozenset(refused_by_ours(mine, dtype, adopt(reference, "reference"), "fused") or ())


def killed(number: int, dtypes: Sequence[str]) -> tuple[set[str], set[str]]:
    """The rules that notice a defect, by a case whose right answer they take: on the official cases, and on ours."""
    official, ours = material()
    defect = DEFECTS[number]
    everything = set(RULES)
    by_onnx: set[str] = set()
    by_ours: set[str] = set()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what a defect makes of an empty row is no news
        implementation = defect.implementation()
        for case in official:
            unfit = blind(ONNX, case.case.id, case.dtype)
            if everything - by_onnx - unfit:
                by_onnx |= refused(case, implementation, "fused") - unfit
        for dtype in dtypes:
            target = adopt(defect.implementation(), defect.id)
            for mine in ordered(defect, ours):
                if not mine.judged(dtype, "fused"):
                    continue
                unfit = blind(OURS, mine.id, dtype)
                if everything - by_ours - unfit:
                    by_ours |= (refused_by_ours(mine, dtype, target, "fused") or set()) - unfit
    return by_onnx, by_ours


def alarms(dtypes: Sequence[str]) -> tuple[dict[str, int], int, dict[str, int], int]:
    """False alarms of each rule and the number of runs: on the official cases, and on ours."""
    official, ours = material()
    on_onnx, on_ours, runs = dict.fromkeys(RULES, 0), dict.fromkeys(RULES, 0), 0
    reference = Implementation(REFERENCE)
    with np.errstate(all="ignore"):
        for case in official:
            for rule in refused(case, reference, "fused"):
                on_onnx[rule] += 1
        for target in (adopt(reference, "reference"), *map(load, CORRECT)):
            for mine in ours:
                for dtype in dtypes:
                    if mine.raises or not mine.judged(dtype, "fused"):
                        continue
                    found = refused_by_ours(mine, dtype, target, "fused")
                    runs += found is not None
                    for rule in found or ():
                        on_ours[rule] += 1
    return on_onnx, len(official), on_ours, runs


def table(kills: Sequence[tuple[set[str], set[str]]], dtypes: Sequence[str]) -> str:
    """A row for each set of cases under each rule, as Markdown."""
    shown = [number for number, defect in enumerate(DEFECTS) if not defect.equivalent]
    within = [number for number in shown if KINDS[DEFECTS[number].id] not in UNKNOWN_TO_ONNX]
    on_onnx, onnx_runs, on_ours, our_runs = alarms(dtypes)
    rows = [
        f"| cases | tolerance of | defects noticed, of {len(shown)} | of the {len(within)} in what the operator has "
        "| false alarms |",
        "|---|---|---|---|---|",
    ]
    for side, (name, alarm, runs) in enumerate(
        (("93 of ONNX", on_onnx, onnx_runs), (f"this suite's, {' '.join(dtypes)}", on_ours, our_runs))
    ):
        for rule in RULES:
            counts = [sum(rule in kills[number][side] for number in numbers) for numbers in (shown, within)]
            cells = (f"{n} ({n / of:.0%})" for n, of in zip(counts, (len(shown), len(within)), strict=True))
            rows.append(
                f"| {name} | {rule} | {' | '.join(cells)} | {alarm[rule]} of {runs} ({alarm[rule] / runs:.1%}) |"
            )
    return "\n".join(rows)


def alarms_by_dtype() -> str:
    """False alarms on this suite's cases: a row a rule, a column a dtype, as Markdown."""
    columns = [alarms([dtype])[2:] for dtype in DTYPES]
    rows = [
        "| false alarms on this suite's cases | " + " | ".join(DTYPES) + " |",
        "|---|" + "---|" * len(DTYPES),
    ]
    for rule in RULES:
        cells = (f"{alarm[rule]} of {runs} ({alarm[rule] / runs:.1%})" for alarm, runs in columns)
        rows.append(f"| {rule} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Plants every defect, counts, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-j", type=int, default=1, help="processes")
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, help="of this suite's cases; float32 by default"
    )
    asked = parser.parse_args()
    dtypes = asked.dtype or ["float32"]
    start = time.monotonic()
    work: Callable[[int], tuple[set[str], set[str]]] = functools.partial(killed, dtypes=dtypes)
    with multiprocessing.get_context("spawn").Pool(asked.j) as pool:
        kills = pool.map(work, range(len(DEFECTS)), chunksize=8)
    print(table(kills, dtypes))
    print(f"\n{alarms_by_dtype()}")
    print(f"\n{len(DEFECTS)} defects, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
