"""What `nox -s bench` does: measures what benches.toml names, into a folder, and ends with the table of targets.

python tests/benching/bench.py FOLDER [NAME...] measures all, or some. A measurement that fails is named at the end,
and the others are made all the same; --resume keeps those whose file is there and whole, --write puts the table into
spec/bench.md.
"""

import json
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import commands
import targets

BENCHES = Path(__file__).with_name("benches.toml")
PAGE = Path(__file__).parents[2] / "spec" / "bench.md"
COMMANDS = ("commands", "compiled")
"""What is measured of the suite itself."""


def declared() -> dict[str, Any]:
    """The tables of the file."""
    return tomllib.loads(BENCHES.read_text("utf-8"))


def names() -> list[str]:
    """All that can be measured, in order."""
    return [*declared()["benches"], *COMMANDS]


def words(name: str, folder: Path) -> list[str]:
    """The call that measures a bench, for `python`."""
    given = shlex.split(declared()["benches"][name])
    first = next((i for i, word in enumerate(given) if word.startswith("--")), len(given))
    against = [word for rival in given[1:first] for word in ("--against", rival)]
    plot = ["--plot", f"{folder}/{name}.svg"] if "--lengths" in given else []
    call = ["-P", "-m", "conformance", "bench", given[0], *against, *given[first:]]
    return [*call, "--json", f"{folder}/{name}.json", *plot]


def measure(name: str, folder: Path) -> bool:
    """Measures one into its file; whether that worked."""
    if name in COMMANDS:
        found = commands.measured(name, declared()[name])
        if found is not None:
            (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        return found is not None
    return subprocess.run([sys.executable, *words(name, folder)]).returncode == 0


def main(arguments: Sequence[str]) -> int:
    """1 where something could not be measured, 2 where the call is wrong."""
    flags = {word for word in arguments if word.startswith("--")}
    folder, *chosen = [word for word in arguments if word not in flags] or [""]
    if unknown := (set(chosen) - set(names())) | (flags - {"--write", "--resume"}):
        print(
            f"nothing is named {', '.join(sorted(unknown))}; there are {', '.join(names())}", file=sys.stderr
        )
        return 2
    if not folder:
        print("give the folder to write into", file=sys.stderr)
        return 2
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, name in enumerate(chosen or names(), 1):
        of = f"{number} of {len(chosen or names())}"
        if "--resume" in flags and targets.read(place / f"{name}.json") is not None:
            print(f"== {name} ({of}): kept", flush=True)
            continue
        print(f"== {name} ({of})", flush=True)
        start, used = time.monotonic(), commands.cpu_seconds()
        if not measure(name, place):
            failed.append(name)
        took, cpu = time.monotonic() - start, commands.cpu_seconds() - used
        print(f"== {name}: {took:.0f} s, {cpu:.0f} of a processor", flush=True)
    status = targets.main([folder, *chosen, *(["--write", str(PAGE)] if "--write" in flags else [])])
    if failed:
        print(f"not measured: {', '.join(failed)}; `-- --resume` tries them again", file=sys.stderr)
    return 1 if failed else status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
