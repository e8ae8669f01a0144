"""Who accepts what: `python -m tests.judge.beside [--write]` asks five public rules and `judge` of 90 programs.

With --write the table of spec/judge.md is written anew; without it, the table is printed.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from conformance.problems.problem import find
from conformance.verdicts.serve import Bench
from tests.judge.kernels import RIGHT, WRONG
from tests.judge.rules import RULES, Function

PAGE = Path(__file__).parents[2] / "spec" / "judge.md"
BEGIN, END = "<!-- begin: beside -->", "<!-- end: beside -->"
OURS = "judge"
SEED = 20261129


def function(source: str) -> Function:
    """The function of a program, in this process."""
    found: dict[str, object] = {}
    exec(compile(source, "<program>", "exec"), found)
    made: Function = found["attention"]  # type: ignore[assignment]
    return made


def accepted(sources: Mapping[str, str]) -> dict[str, dict[str, bool]]:
    """Program -> judge -> whether it takes the program for right."""
    found = {
        name: {rule: ask(function(text)) for rule, ask in RULES.items()} for name, text in sources.items()
    }
    bench, problem = Bench(SEED), find("plain-numpy")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in sources.items():
                path = Path(folder, f"{name.replace('-', '_')}.py")
                path.write_text(text, "utf-8")
                found[name][OURS] = bench.judge(str(path), problem).accepted
    finally:
        bench.close()
    return found


def table(wrong: Mapping[str, Mapping[str, bool]], right: Mapping[str, Mapping[str, bool]]) -> str:
    """The table, in Markdown."""
    judges = [*RULES, OURS]
    lines = [
        f"| program | {' | '.join(judges)} |",
        f"|---|{'---|' * len(judges)}",
        *(
            f"| **{len(some)} {kind}: accepted** | "
            + " | ".join(str(sum(row[judge] for row in some.values())) for judge in judges)
            + " |"
            for kind, some in (("right", right), ("wrong", wrong))
        ),
    ]
    for some, good in ((wrong, False), (right, True)):
        for name, row in some.items():
            if good and all(row.values()):
                continue
            lines.append(
                f"| {name} | " + " | ".join("accepts" if row[judge] else "" for judge in judges) + " |"
            )
    return "\n".join(lines)


def main() -> int:
    """Writes or prints the table; 1 where `judge` is wrong about a program."""
    wrong, right = accepted(WRONG), accepted(RIGHT)
    made = table(wrong, right)
    if "--write" in sys.argv[1:]:
        text = PAGE.read_text("utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", "utf-8")
    else:
        print(made)
    missed = [name for name, row in wrong.items() if row[OURS]] + [
        n for n, row in right.items() if not row[OURS]
    ]
    print(f"{OURS}: {', '.join(missed) or 'right about all'}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
