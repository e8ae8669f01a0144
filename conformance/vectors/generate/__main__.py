"""python -m conformance.vectors.generate: builds cases and writes the vectors, or with --check compares them.

Without a name, --changed or --share it builds every case; with several of these what any of them names.
Cases that are declared and not shipped are always built.
"""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from conformance.errors import UsageError
from conformance.resources import checkout_project, vectors_directory
from conformance.vectors.case import Case
from conformance.vectors.generate.draft import Draft
from conformance.vectors.load import load_vectors

NAMED = 20
"""Cases that a line names at most."""


def _built(draft: Draft) -> Case:
    from conformance.vectors.generate.build import build  # which needs python-flint

    try:
        return build(draft)
    except Exception as error:
        raise RuntimeError(f"case {draft.id}: {error}") from error


def _all(drafts: list[Draft], processes: int | None) -> dict[str, Case]:
    """The cases of drafts, by ID; without a pool where it would have one process."""
    processes = min(len(drafts), processes or os.cpu_count() or 1)
    if processes <= 1:
        return {draft.id: _built(draft) for draft in drafts}
    with ProcessPoolExecutor(processes) as pool:
        return {case.id: case for case in pool.map(_built, drafts)}


def _shipped(whole: bool) -> dict[str, Case]:
    """The cases that are there; none where they cannot be read and all are built anew."""
    try:
        return {case.id: case for case in load_vectors().cases}
    except UsageError:
        if whole:
            return {}
        raise


def _stale(drafts: Mapping[str, Draft], shipped: Mapping[str, Case]) -> set[str]:
    """The cases whose declarations changed."""
    from conformance.vectors.generate.changed import differs

    return {name for name, case in shipped.items() if name in drafts and differs(drafts[name], case)}


def _differences(shipped: Path, fresh: Path) -> list[str]:
    names = sorted({path.name for folder in (shipped, fresh) for path in folder.iterdir()})
    return [
        name
        for name in names
        if not (shipped / name).is_file()
        or not (fresh / name).is_file()
        or (shipped / name).read_bytes() != (fresh / name).read_bytes()
    ]


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - NAMED} more" if len(ordered) > NAMED else ""
    return (", ".join(ordered[:NAMED]) + more) or "none"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m conformance.vectors.generate", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help="a case by its ID, or all of a chapter")
    parser.add_argument("--changed", action="store_true", help="the cases whose declarations changed")
    parser.add_argument(
        "--share", metavar="I/N", help="the I-th of N parts of the cases, always the same ones"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything would change")
    parser.add_argument("-j", dest="processes", type=int, metavar="N", help="processes; one a CPU by default")
    return parser


def main() -> int:
    """Exit status 0, 1 if --check finds a difference, or 2 if what is asked for cannot be done."""
    parser = _parser()
    given = parser.parse_args()
    if given.processes is not None and given.processes < 1:
        parser.error(f"-j is {given.processes}; it is at least 1")
    if importlib.util.find_spec("flint") is None:
        parser.error("no module named 'flint': the oracle needs `pip install python-flint`")
    if not given.check and checkout_project() is None:
        parser.error("vectors are written in a checkout of the project; an installation has only --check")
    try:
        return _run(given)
    except UsageError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    from conformance.vectors.generate.cases import drafts as declared
    from conformance.vectors.generate.write import same, write

    start = time.monotonic()
    drafts = {draft.id: draft for draft in declared()}
    whole = not given.names and given.share is None and not given.changed
    shipped = _shipped(whole)
    wanted, left = _wanted(given, whole, drafts, shipped)
    built = _all([drafts[name] for name in drafts if name in wanted], given.processes)
    cases = [built[name] if name in built else shipped[name] for name in drafts]
    other = {name for name, case in built.items() if name not in shipped or not same(case, shipped[name])}
    other |= shipped.keys() - drafts.keys()
    folder = vectors_directory()
    with tempfile.TemporaryDirectory() as fresh:
        write(Path(fresh), [(case, drafts[case.id].readable) for case in cases])
        different = _differences(folder, Path(fresh))
        if not given.check:  # only when every case is there: an interrupted run loses nothing
            for path in folder.iterdir():
                path.unlink()
            shutil.copytree(fresh, folder, dirs_exist_ok=True)
    does, seconds = "differ" if given.check else "changed", time.monotonic() - start
    print(f"{len(built)} of {len(cases)} cases built in {seconds:.0f} s")
    print(f"files that {does}: {_listed(different)}; cases that {does}: {_listed(other)}")
    if left:
        print(f"not built, though their declarations changed (--changed builds them): {_listed(left)}")
    return 1 if given.check and (different or left) else 0


def _wanted(
    given: argparse.Namespace, whole: bool, drafts: Mapping[str, Draft], shipped: Mapping[str, Case]
) -> tuple[set[str], set[str]]:
    """The cases to build, and those that are left out though their declarations changed."""
    from conformance.vectors.generate.select import chosen

    if whole:
        return set(drafts), set()
    named = chosen(given.names, given.share, drafts)
    stale = _stale(drafts, shipped)
    wanted = named | (drafts.keys() - shipped.keys()) | (stale if given.changed else set())
    return wanted, stale - wanted


if __name__ == "__main__":
    sys.exit(main())
