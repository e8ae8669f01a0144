"""What `nox -s mutation` has found: a table by module, and every mutant that no test has killed.

`python tests/hardening/mutants.py` reads what mutmut has left under `mutants`.
"""

import json
import sys
from collections import Counter
from pathlib import Path

FOUND = {0: "survived", 1: "killed", 3: "killed", 24: "by time", 33: "not reached", 36: "by time"}
"""Exit status of pytest under a mutant, or mutmut's own -> what became of it."""
KINDS = ("killed", "by time", "survived", "not reached")


def main() -> int:
    """Prints both."""
    total, left = Counter[str](), list[str]()
    print(f"{'':<24}{'mutants':>9}{'tried':>9}" + "".join(f"{kind:>13}" for kind in KINDS))
    for path in sorted(Path("mutants/conformance").rglob("*.meta")):
        mutants = json.loads(path.read_text("utf-8"))["exit_code_by_key"]
        codes = {name: code for name, code in mutants.items() if code is not None}
        kinds = {name: "by time" if code < 0 else FOUND[code] for name, code in codes.items()}
        counts = Counter(kinds.values())
        line = [
            str(path.relative_to("mutants/conformance")).removesuffix(".py.meta"),
            len(mutants),
            len(codes),
        ]
        if mutants:
            print(told(line, counts))
            total.update({"mutants": len(mutants), "tried": len(codes), **counts})
        left += [f"{kind}: {name}" for name, kind in kinds.items() if kind in KINDS[2:]]
    print(told(["in all", total["mutants"], total["tried"]], total))
    print("\n".join(sorted(left)))
    return 0


def told(line: list[object], counts: Counter[str]) -> str:
    """A line of the table."""
    name, *numbers = line
    return f"{name:<24}" + "".join(f"{n:>9}" for n in numbers) + "".join(f"{counts[k]:>13}" for k in KINDS)


if __name__ == "__main__":
    sys.exit(main())
