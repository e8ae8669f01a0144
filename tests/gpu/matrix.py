"""The suite for torch and JAX on one GPU, a table and a report for each run: `python tests/gpu/matrix.py`.

Exit status: 0 all that must conform does, 1 something does not or time is up, 2 a run cannot be made.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
HALVES = ("float16", "bfloat16")
ALL = ("float32", *HALVES)
FORWARD = "not gradient"


@dataclass(frozen=True)
class Setting:
    """One run; where it `must`, all has to pass: the project's own code, not the kernels of others."""

    name: str
    target: str
    dtypes: tuple[str, ...]
    must: bool = True
    expression: str = ""


SETTINGS = (
    Setting("torch", "torch", ALL),
    Setting("torch-portable", "torch-portable", ALL),
    Setting("torch-tf32", str(HERE / "tf32_torch.py"), ("float32",)),
    Setting("torch-sdpa-flash", "torch-sdpa-flash", HALVES, must=False),
    Setting("torch-sdpa-efficient", "torch-sdpa-efficient", ALL, must=False),
    Setting("torch-sdpa-math", "torch-sdpa-math", ALL, must=False),
    Setting("jax-jit", "jax-jit", ALL, expression=FORWARD),
    Setting("jax-tf32", str(HERE / "tf32_jax.py"), ("float32",), expression=FORWARD),
    Setting("jax", "jax", ("float32",), expression=FORWARD),
    *(Setting(name, name, HALVES, must=False) for name in ("flash-attn", "flashinfer", "vllm", "xformers")),
)
"""In this order, so that what matters most has been run when time is up."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    setting: Setting
    status: (
        str  # of the report; `not run`, `nothing` = it supports no case here, `absent` = no library, `broken`
    )
    counts: dict[str, int]
    worst: float  # largest share of what an element may be off
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether it fails the script."""
        return self.status == "broken" or (self.setting.must and self.failed)

    @property
    def failed(self) -> bool:
        """Whether it shows less than that all went well."""
        amiss = any(self.counts.get(word) for word in ("fail", "error", "crash", "timeout"))
        return amiss or not self.counts.get("pass") or self.status == "not run"


def command(setting: Setting, device: str, report: Path, jobs: int, extra: Sequence[str]) -> list[str]:
    """The call of the suite for a setting; an expression is given beside its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-k", default="")
    own, rest = parser.parse_known_args(extra)
    both = " and ".join(f"({part})" for part in (setting.expression, own.k) if part)
    dtypes = [word for dtype in setting.dtypes for word in ("--dtype", dtype)]
    words = ["run", setting.target, "--device", device, *dtypes, "-j", str(jobs), "--report", str(report)]
    return [sys.executable, "-m", "conformance", *words, "-q", *(["-k", both] if both else []), *rest]


def outcome(setting: Setting, status: int, message: str, report: Path, seconds: float) -> Outcome:
    """What an ended run says."""
    if status not in (0, 1):
        nothing = "nothing was executed" in message
        absent = not setting.must and "no module named" in message
        print(f"{setting.name}: {message.strip()}", file=sys.stderr)
        word = "nothing" if nothing else "absent" if absent else "broken"
        return Outcome(setting, word, {}, 0.0, seconds)
    read = json.loads(report.read_text("utf-8"))
    shares = [float(share) for row in read["results"] if (share := row["error_over_bound"]) is not None]
    return Outcome(setting, read["status"], read["summary"], max(shares, default=0.0), seconds)


def matrix(
    settings: Sequence[Setting], device: str, reports: Path, jobs: int, limit: float, extra: Sequence[str],
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:  # fmt: skip
    """Runs the settings one after the other, none longer than there is time."""
    reports.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # several processes share the GPU
    end, outcomes = clock() + limit, []
    for setting in settings:
        start, report = clock(), reports / f"{setting.name}.json"
        report.unlink(missing_ok=True)
        words = command(setting, device, report, jobs, extra)
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                timeout=max(0.01, end - start), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            outcomes.append(Outcome(setting, "not run", {}, 0.0, clock() - start))
            continue
        outcomes.append(outcome(setting, done.returncode, done.stderr, report, clock() - start))
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a run."""
    lines = [f"{'run':22}{'dtypes':27}{'pass':>6}{'fail':>6}{'unsupported':>13}{'worst':>8}{'s':>6}  status"]
    for found in outcomes:
        counts = found.counts
        failed = sum(counts.get(word, 0) for word in ("fail", "error", "crash", "timeout"))
        lines.append(
            f"{found.setting.name:22}{' '.join(found.setting.dtypes):27}{counts.get('pass', 0):6}{failed:6}"
            f"{counts.get('unsupported', 0):13}{found.worst:8.2f}{found.seconds:6.0f}  {found.status}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints the table, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports" / "gpu")
    parser.add_argument(
        "--only", action="append", choices=[setting.name for setting in SETTINGS], help="may be given again"
    )
    parser.add_argument("-j", type=int, default=min(8, os.cpu_count() or 1), help="workers of a run")
    parser.add_argument(
        "--seconds", type=float, default=470, help="for all of it; what is left then is not run"
    )
    given, extra = parser.parse_known_args(arguments)  # what is left goes to `mha-conformance run`
    chosen = [setting for setting in SETTINGS if not given.only or setting.name in given.only]
    outcomes = matrix(chosen, given.device, given.reports, given.j, given.seconds, extra)
    print(table(outcomes))
    if any(found.status == "broken" for found in outcomes):
        return 2
    return 1 if any(found.wrong for found in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
