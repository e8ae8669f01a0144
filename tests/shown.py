"""What a page shows of a command, against what the command prints: every word, and no count.

Counts of cases move with every case. They are compared as `#`; with WRITE_FIGURES in the environment, which
`nox -s readme` sets, those in the page are replaced by those of the run.
"""

import os
import re
from pathlib import Path

COUNT = re.compile(
    r"\b\d+(?= (?:pass|fail|error|unsupported|failures|cases|rows|requirements|of \d+)\b)|(?<=\d of )\d+\b"
)


def masked(line: str) -> str:
    """A line with its counts as `#` and each run of spaces as one: the width of a table is that of the terminal."""
    return " ".join(COUNT.sub("#", line).split())


def assert_shows(page: Path, lines: list[str], output: str) -> None:
    """Every line that a page shows stands in the output, in this order; a line may end in `...`."""
    rest = output.splitlines()
    for line in lines:
        wanted = masked(line)
        start = wanted.removesuffix("...")
        if not start:
            continue
        found = [
            number
            for number, got in enumerate(map(masked, rest))
            if got == wanted or (start != wanted and got.startswith(start))
        ]
        assert found, (
            f"{page.name} shows {line!r}, which is not printed after what precedes it (counts, which "
            "`nox -s readme` writes, do not matter)"
        )
        if "WRITE_FIGURES" in os.environ:
            write_counts(page, line, rest[found[0]])
        rest = rest[found[0] + 1 :]


def write_counts(page: Path, line: str, got: str) -> None:
    """Puts the counts of what a command printed into a line of a page."""
    counts = iter(COUNT.findall(got))
    text = page.read_text("utf-8")
    assert f"\n{line}\n" in text, line
    page.write_text(text.replace(f"\n{line}\n", f"\n{COUNT.sub(lambda _: next(counts), line)}\n", 1), "utf-8")
