"""The table of targets, with what `nox -s bench` reached on this machine.

python tests/benching/targets.py FOLDER [BENCH...] reads FOLDER/BENCH.json, of every bench unless some are named.
With --write PAGE it puts the table between the marks of that page too.
"""

import json
import math
import random
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import cpu_seconds

TARGETS = Path(__file__).with_name("targets.toml")
IMPORTS = ("", "import mha_core")
IMPORT_ROUNDS = 21
MARKS = "<!-- targets -->\n", "<!-- end of targets -->"
"""What the table stands between."""
NO_REASON = "**no reason yet: add `why` to targets.toml**"
LONGEST_FACTOR = 4
Results = Mapping[str, Mapping[str, Any]]


def targets() -> list[dict[str, Any]]:
    """The records of the file."""
    return tomllib.loads(TARGETS.read_text("utf-8"))["target"]


def reached(target: Mapping[str, Any], results: Results) -> float | None:
    """The figure that a target is about; None where its bench was not run."""
    if target["figure"] == "import":
        return import_cost()
    if target["figure"] == "seconds":
        found = results.get(target["bench"], {"commands": {}})["commands"].get(target["of"])
        return statistics.median(found) if found else None
    benches = [target["bench"], target.get("over_bench", target["bench"])]
    if not all(name in results for name in benches):
        return None
    ours, theirs = (results[name] for name in benches)
    if target["figure"] == "memory":
        extra = _row(ours["sizes"][-1], target.get("of"))["extra_memory"]
        return None if extra is None else extra / 2**20
    if target["figure"] == "growth":
        return growth(ours, target.get("of"))
    timed = {row["source"] for result in (ours, theirs) for row in result["sizes"][-1]["rivals"]}
    if not {target.get("of", target["over"]), target["over"]} <= timed:
        return None
    one, other = (_row(ours["sizes"][-1], target.get("of")), _row(theirs["sizes"][-1], target["over"]))
    if ours is not theirs:
        return statistics.median(one["cpu"]) / statistics.median(other["cpu"])
    return statistics.median(x / y for x, y in zip(one["cpu"], other["cpu"], strict=True))  # round by round


def growth(result: Mapping[str, Any], source: str | None) -> float:
    """The exponent of CPU time over length, from a quarter of the longest to the longest.

    Of the quickest samples: lengths are measured one after the other, and no round pairs them.
    """
    times = {size["shape"][2]: min(_row(size, source)["cpu"]) for size in result["sizes"]}
    longest = max(times)
    return math.log(times[longest] / times[longest // LONGEST_FACTOR], LONGEST_FACTOR)


def _row(size: Mapping[str, Any], source: str | None) -> Mapping[str, Any]:
    """A rival's row; the target's own is the first."""
    rows = size["rivals"]
    return rows[0] if source is None else next(row for row in rows if row["source"] == source)


def import_cost() -> float:
    """Milliseconds of CPU that the import takes beyond the start of Python, medians of fresh processes."""
    samples: dict[str, list[float]] = {code: [] for code in IMPORTS}
    for _ in range(IMPORT_ROUNDS):
        for code in random.sample(IMPORTS, len(IMPORTS)):
            before = cpu_seconds()
            subprocess.run([sys.executable, "-P", "-c", code], check=True)  # what is installed, compiled
            samples[code].append(cpu_seconds() - before)
    nothing, core = (statistics.median(samples[code]) for code in IMPORTS)
    return 1e3 * (core - nothing)


def verdict(target: Mapping[str, Any], figure: float | None) -> str:
    """`aim`, `met` or `missed`; `not measured` without a figure."""
    if figure is None:
        return "not measured"
    if figure <= target["aim"]:
        return "aim"
    return "met" if figure <= target.get("at_least", 0.0) else "missed"


def table(results: Results, names: Sequence[str] = ()) -> str:
    """Markdown: a row a target; of some benches where names are given."""
    lines = ["| target | at least | aim | reached | |", "| --- | ---: | ---: | ---: | --- |"]
    for target in targets():
        if names and target.get("bench") not in names:
            continue
        figure = reached(target, results)
        bar = f"{target['at_least']:g}" if "at_least" in target else "-"
        shown = "-" if figure is None else f"{figure:.3g}"
        said = verdict(target, figure)
        if said == "missed":
            said += f": {target.get('why', NO_REASON)}"
        lines.append(f"| {target['name']} | {bar} | {target['aim']:g} | {shown} | {said} |")
    return "\n".join(lines)


def where(results: Results) -> list[str]:
    """The machine that the figures are of, and how busy it was."""
    lines = []
    for machine in {
        json.dumps(result["machine"], sort_keys=True): result["machine"] for result in results.values()
    }.values():
        lines.append(
            f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, NumPy {machine['numpy']}"
        )
    parts = [part for result in results.values() for part in result.get("sizes", [result])]
    loads = [x for part in parts for x in part["load"] if x is not None]
    if loads:
        lines.append(f"load {min(loads):.1f} to {max(loads):.1f}")
    return lines


def read(path: Path) -> Any:
    """What a bench wrote; None of a file that an interrupted one left."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def written(page: str, text: str) -> str:
    """A page with another text between the marks."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}{text}\n{MARKS[1]}{after}"


def main(arguments: Sequence[str]) -> int:
    """Prints the table; 2 where there is nothing to read."""
    arguments = list(arguments)
    page = None
    if "--write" in arguments:
        place = arguments.index("--write")
        _, page = arguments.pop(place), Path(arguments.pop(place))
    folder, names = Path(arguments[0]) if arguments else None, arguments[1:]
    results = {
        path.stem: result
        for path in (sorted(folder.glob("*.json")) if folder else ())
        if (not names or path.stem in names) and (result := read(path)) is not None
    }
    if not results:
        print("give the folder of the files that `nox -s bench` wrote", file=sys.stderr)
        return 2
    text = "\n".join([table(results, names), "", *where(results)])
    print(text)
    if page is not None:
        page.write_text(written(page.read_text("utf-8"), text), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
