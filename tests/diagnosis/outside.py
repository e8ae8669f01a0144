"""What is said of whole programs by others: `python tests/diagnosis/outside.py kernels [NAME ...]`.

Prints for each program of `tests/corpus/outside/SET` its fault as the author tells it, and what the diagnosis says;
rows that the right programs of the set fail as well are left out. `--verdicts` counts what was read of it.
"""

import argparse
import importlib.util
import io
import sys
import time
import tomllib
import types
import warnings
from collections import Counter
from contextlib import redirect_stderr
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from wrong import rows_of

from conformance.diagnosis.search import diagnose
from conformance.exploring.experiment import experiments, worth_asking
from conformance.running.runner import InProcess
from conformance.running.target import adopt
from conformance.telling.diagnosis import diagnosis_lines
from conformance.vectors.load import load_vectors

CORPUS = Path(__file__).parents[1] / "corpus" / "outside"
SETS = ("kernels", "layers", "gradients")
WORDS = ("cause", "condition", "wrong", "nothing", "no failure")


def program(path: Path) -> types.ModuleType:
    """A program anew; gradients of a past, which the suite does not ask for, are taken away."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    for name in ("scaled_dot_product_attention_vjp", "multi_head_attention_vjp"):
        if hasattr(made, name):
            setattr(made, name, _without_past(getattr(made, name)))
    return made


def _without_past(function: Any) -> Any:
    @wraps(function)
    def asked(*args: Any, **options: Any) -> Any:
        return {k: x for k, x in function(*args, **options).items() if k not in ("past_key", "past_value")}

    return asked


def tell(which: str, names: list[str]) -> None:
    """Prints fault and diagnosis of each program of a set."""
    cases, folder = load_vectors().cases, CORPUS / which
    faults = tomllib.loads((folder / "faults.toml").read_text("utf-8"))
    beside = set()
    for path in (folder / "right").glob("*.py"):
        made = program(path)
        dtypes = adopt(made, path.stem).hello.dtypes
        beside |= {row.case for row in rows_of(made, cases, dtypes) if row.failed}
    for path in sorted(folder.glob("*.py")):
        if names and path.stem not in names:
            continue
        made, began = program(path), time.process_time()
        hello = adopt(made, path.stem).hello
        rows = [row for row in rows_of(made, cases, hello.dtypes) if row.case not in beside]
        found = diagnose(rows, cases, hello.accuracy)
        if worth_asking(found):
            needs = experiments(found, rows, cases, hello.accuracy, lambda p=path: _asker(p))  # type: ignore[misc]
            found = replace(found, experiments=tuple(each.sentence for each in needs))
        fault = faults.get(path.stem) or next(f for f in faults.values() if f.get("file") == path.name)
        print(
            f"{path.stem}: {found.failed} rows fail, {time.process_time() - began:.1f} s\n  fault: {fault['fault']}"
        )
        print(f"  where: {fault['where']}")
        for line in diagnosis_lines(found):
            print(f"  said:  {line}", flush=True)


def _asker(path: Path) -> InProcess:
    return InProcess(adopt(program(path), path.stem))


def verdicts() -> None:
    """Counts what was read of the sentences, before the experiments were there and with them."""
    read = tomllib.loads((CORPUS / "verdicts.toml").read_text("utf-8"))["program"]
    for part in ("looked at", "held out"):
        those = [each for each in read if each["held"] == (part == "held out")]
        for when in ("before", "after"):
            count = Counter(each[when] for each in those if each["before"] != "no failure")
            right = count["cause"] + count["condition"]
            told = ", ".join(f"{word} {count[word]}" for word in WORDS[:4])
            print(f"{part}, {when}: right first in {right} of {count.total()} that fail ({told})")
        print(f"    no row fails: {sum(each['before'] == 'no failure' for each in those)} of {len(those)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", nargs="?", choices=SETS)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--verdicts", action="store_true", help="count what was read")
    asked = parser.parse_args()
    if asked.verdicts or not asked.set:
        verdicts()
    else:
        with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            tell(asked.set, asked.names)
