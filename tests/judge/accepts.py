"""How often right programs are accepted: `python -m tests.judge.accepts --seeds 200 [--first 0]`.

Each of the 30 right programs stays in one process for all seeds. Prints a line for each rejection, and the count.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from conformance.problems.problem import find
from conformance.verdicts.asker import Asker
from conformance.verdicts.verdict import judge_program
from tests.judge.kernels import RIGHT


def main() -> int:
    """1 where one is rejected."""
    parser = argparse.ArgumentParser(prog="python -m tests.judge.accepts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--problem", default="plain-numpy")
    asked = parser.parse_args()
    problem, rejected, verdicts, began = find(asked.problem), 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        askers = {}
        for name, text in RIGHT.items():
            path = Path(folder, f"{name.replace('-', '_')}.py")
            path.write_text(text, "utf-8")
            askers[name] = Asker(problem)
            if why := askers[name].load(str(path)):
                raise SystemExit(f"{name}: {why}")
        for seed in range(asked.first, asked.first + asked.seeds):
            for name, asker in askers.items():
                verdict = judge_program(name, problem, seed, asker=asker, keep=True)
                verdicts += 1
                if not verdict.accepted:
                    rejected += 1
                    print(f"seed {seed}: {name}: {verdict.reason} {verdict.replay}", flush=True)
            print(
                f"seed {seed}: {verdicts} verdicts, {rejected} rejected, {time.monotonic() - began:.0f} s",
                flush=True,
            )
        for asker in askers.values():
            asker.close()
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
