"""What is said of whole programs by others: `python tests/diagnosis/outside.py kernels [NAME ...]`.

Prints for each program of `tests/corpus/outside/SET` its fault as the author tells it, and what the diagnosis says;
rows that the right programs of the set fail as well are left out. `--verdicts` counts what was read of it.
"""

import argparse
import io
import sys
import time
import tomllib
import types
import warnings
from collections import Counter
from contextlib import redirect_stderr
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from wrong import edited, edits_of, rows_of

from conformance.diagnosis.search import diagnose
from conformance.exploring.experiment import experiments
from conformance.exploring.needed import settled
from conformance.exploring.worth import worth_asking
from conformance.running.runner import InProcess
from conformance.running.target import adopt
from conformance.telling.diagnosis import diagnosis_lines
from conformance.vectors.load import load_vectors

CORPUS = Path(__file__).parents[1] / "corpus" / "outside"
SETS = ("kernels", "layers", "gradients")
LATER = ("kernels_2", "layers_2", "gradients_2")
"""By three more authors; what was said of each was read once, and nothing was changed for those that are held out."""
WORDS = ("cause", "condition", "wrong", "nothing", "no failure")
READ = ("cause", "condition", "vague", "wrong", "nothing")


def faults(which: str) -> dict[str, dict[str, Any]]:
    """The faults of a set by the name of their program: what the author says of it, and its edits."""
    return tomllib.loads((CORPUS / which / "faults.toml").read_text("utf-8"))


def source(which: str, name: str, fault: dict[str, Any]) -> str:
    """The text of a wrong program: a right one of its set with the edits of its fault."""
    return edited(CORPUS / which / "right" / f"{fault['right']}.py", edits_of(fault), name)


def program(name: str, text: str) -> types.ModuleType:
    """A program anew; gradients of a past, which the suite does not ask for, are taken away."""
    made = types.ModuleType(name)
    exec(compile(text, f"{name}.py", "exec"), made.__dict__)
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
    cases, beside = load_vectors().cases, set()
    for path in (CORPUS / which / "right").glob("*.py"):
        made = program(path.stem, path.read_text("utf-8"))
        dtypes = adopt(made, path.stem).hello.dtypes
        beside |= {row.case for row in rows_of(made, cases, dtypes) if row.failed}
    for name, fault in sorted(faults(which).items()):
        if names and name not in names:
            continue
        text, began = source(which, name, fault), time.process_time()
        made = program(name, text)
        hello = adopt(made, name).hello
        rows = [row for row in rows_of(made, cases, hello.dtypes) if row.case not in beside]
        found = diagnose(rows, cases, hello.accuracy)
        if worth_asking(found):
            needs = experiments(found, rows, cases, hello.accuracy, lambda n=name, t=text: _asker(n, t))  # type: ignore[misc]
            found = settled(found, needs, hello.accuracy)
        print(
            f"{name}: {found.failed} rows fail, {time.process_time() - began:.1f} s\n  fault: {fault['fault']}"
        )
        print(f"  where: {fault['where']}")
        for line in diagnosis_lines(found):
            print(f"  said:  {line}", flush=True)


def _asker(name: str, text: str) -> InProcess:
    return InProcess(adopt(program(name, text), name))


def verdicts_read(file: str = "verdicts.toml") -> list[dict[str, Any]]:
    """How the sentences were read, by program."""
    return list(tomllib.loads((CORPUS / file).read_text("utf-8"))["program"])


def verdicts() -> None:
    """Counts what was read of the sentences, before the experiments were there and with them."""
    read = verdicts_read()
    for part in ("looked at", "held out"):
        those = [each for each in read if each["held"] == (part == "held out")]
        for when in ("before", "after"):
            count = Counter(each[when] for each in those if each["before"] != "no failure")
            right = count["cause"] + count["condition"]
            told = ", ".join(f"{word} {count[word]}" for word in WORDS[:4])
            print(f"{part}, {when}: right first in {right} of {count.total()} that fail ({told})")
        print(f"    no row fails: {sum(each['before'] == 'no failure' for each in those)} of {len(those)}")
    later = verdicts_read("later.toml")
    for which in (*LATER, ""):
        those = [each for each in later if each["held"] and each["name"].startswith(which)]
        count = Counter(each["first"] for each in those if each["first"] != "no failure")
        right = count["cause"] + count["condition"]
        told = ", ".join(f"{word} {count[word]}" for word in READ)
        of = which or "all three of the later sets"
        print(
            f"{of}, held out: right first in {right} of {count.total()} that fail ({told}), of {len(those)}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", nargs="?", choices=(*SETS, *LATER))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--verdicts", action="store_true", help="count what was read")
    asked = parser.parse_args()
    if asked.verdicts or not asked.set:
        verdicts()
    else:
        with warnings.catch_warnings(), np.errstate(all="ignore"), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            tell(asked.set, asked.names)
