"""python -m conformance.vectors.generate: writes the vectors anew, or with --check compares them with the shipped."""

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from conformance.resources import checkout_project, vectors_directory
from conformance.vectors.case import Case
from conformance.vectors.generate.draft import Draft


def _built(draft: Draft) -> tuple[Case, bool]:
    from conformance.vectors.generate.build import build  # which needs python-flint

    try:
        return build(draft), draft.readable
    except Exception as error:
        raise RuntimeError(f"case {draft.id}: {error}") from error


def _generate(directory: Path) -> int:
    from conformance.vectors.generate.cases import drafts
    from conformance.vectors.generate.write import write

    with ProcessPoolExecutor() as pool:
        cases = list(pool.map(_built, drafts()))
    write(directory, cases)
    return len(cases)


def _differences(shipped: Path, fresh: Path) -> list[str]:
    names = sorted({path.name for folder in (shipped, fresh) for path in folder.iterdir()})
    return [
        name
        for name in names
        if not (shipped / name).is_file()
        or not (fresh / name).is_file()
        or (shipped / name).read_bytes() != (fresh / name).read_bytes()
    ]


def main() -> int:
    """Exit status 0, 1 if --check finds a difference, or 2 without the oracle or, to write, a checkout."""
    parser = argparse.ArgumentParser(prog="python -m conformance.vectors.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything would change")
    check = parser.parse_args().check
    if importlib.util.find_spec("flint") is None:
        parser.error("no module named 'flint': the oracle needs `pip install python-flint`")
    if not check and checkout_project() is None:
        parser.error("vectors are written in a checkout of the project; an installation has only --check")
    start = time.monotonic()
    shipped = vectors_directory()
    with tempfile.TemporaryDirectory() as folder:
        count = _generate(Path(folder))
        different = _differences(shipped, Path(folder))
        if not check:  # only when every case is there: an interrupted run loses nothing
            for path in shipped.iterdir():
                path.unlink()
            shutil.copytree(folder, shipped, dirs_exist_ok=True)
            print(
                f"{count} cases written in {time.monotonic() - start:.0f} s; files that changed: {len(different)}"
            )
            return 0
    print(
        f"{count} cases regenerated in {time.monotonic() - start:.0f} s; files that differ: {different or 'none'}"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
