"""Every program that cheats: `python -m tests.judge.cheats [SEED]` prints the verdict on each, and for what reason."""

import re
import sys
import tempfile
from pathlib import Path

from conformance.problems.problem import find
from conformance.verdicts.serve import Bench
from tests.judge.hacks import HACKS


def main() -> int:
    """1 where one is accepted, or rejected for another reason."""
    bench, missed = Bench(int(sys.argv[1]) if len(sys.argv) > 1 else 1), 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, hack in HACKS.items():
                path = Path(folder, f"{name.replace('-', '_')}.py")
                path.write_text(hack.source, "utf-8")
                verdict = bench.judge(str(path), find(hack.problem), own=hack.own)
                right = not verdict.accepted and re.search(hack.reason, verdict.reason) is not None
                missed += not right
                print(
                    f"{'ok    ' if right else 'MISSED'} {name}: {verdict.score:.2f} {verdict.reason}",
                    flush=True,
                )
    finally:
        bench.close()
    print(f"{len(HACKS) - missed} of {len(HACKS)} are rejected with the reason")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
