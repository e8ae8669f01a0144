"""Kills a run with SIGKILL at random times, again and again: the report is valid each time, and is gone on with.

`python tests/hardening/kills.py [RUNS] [SEED]` prints what was seen; exit status 1 if anything was not as it should be.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from conformance.errors import UsageError
from conformance.telling.file_lock import beside
from conformance.telling.report import Report, read_report

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "conformance", "run", "numpy", "-q", "--no-diagnose", "--fresh", "off"]
PART = ["-k", "mask or window or cache", "--dtype", "float32", "--dtype", "float16", "-j", "2"]


def main(runs: int = 50, seed: int = 1) -> int:
    """Kills, looks, goes on."""
    draw = random.Random(seed)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path, straight = Path(folder) / "r.json", Path(folder) / "straight.json"
        began = time.monotonic()
        subprocess.run([*RUN, *PART, "--report", str(straight)], cwd=ROOT, check=True, capture_output=True)
        longest, wanted = time.monotonic() - began, read_report(straight)
        straight.unlink()
        killed = resumed = whole = without = held = 0
        while killed < runs:
            more = ["--resume", str(path)] if path.exists() else ["--report", str(path)]
            resumed += path.exists()
            ended = run_and_kill(more, draw.uniform(0.0, longest))
            if ended == 0:  # it was done before its time
                whole += 1
                faults += unlike(read_report(path), wanted)
                path.unlink()
                held = 0
                continue
            killed += 1
            if ended != -signal.SIGKILL:
                faults.append(f"kill {killed}: the run ended with {ended}")
            if not path.exists():
                without += 1
                continue
            try:
                report = read_report(path)
            except UsageError as error:
                faults.append(f"kill {killed}: {error}")
                path.unlink()
                continue
            if len(report.results) < held:
                faults.append(f"kill {killed}: {held} rows were there, {len(report.results)} are")
            if any(not row.passed and row.executed for row in report.results):
                faults.append(f"kill {killed}: a row does not pass")
            held = len(report.results)
        if path.exists():
            subprocess.run([*RUN, *PART, "--resume", str(path)], cwd=ROOT, check=False, capture_output=True)
            faults += unlike(read_report(path), wanted)
            resumed, whole = resumed + 1, whole + 1
        left = [p.name for p in Path(folder).iterdir() if p not in (path, beside(path))]
        orphans = workers()
    print(
        f"{killed} runs killed, {without} of them before there was a report; {resumed} resumed, {whole} of them to "
        f"their end; {len(left)} files left half written, {orphans} processes left, {len(faults)} faults"
    )
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults or orphans else 0


def run_and_kill(more: list[str], seconds: float) -> int:
    """The exit status of a run that is killed after so many seconds; 0 if it ended before."""
    process = subprocess.Popen(
        [*RUN, *PART, *more], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    late = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < late:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    return process.wait()


def unlike(report: Report, wanted: Report) -> list[str]:
    """What of a report that was put together is not as in one that was never killed."""
    if _told(report) == _told(wanted):
        return []
    return ["a resumed report is not the one of a run that was never killed"]


def _told(report: Report) -> object:
    rows = [(row.case, row.dtype, row.verdict, row.error_over_bound, row.grade) for row in report.results]
    return report.status, report.summary, report.profiles, rows


def workers() -> int:
    """Workers of these runs that are still there a second after the last one ended."""
    time.sleep(1.0)
    listing = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=False).stdout
    mine = "conformance.running.worker -- numpy"
    return sum(mine in line and line.split()[0] == "1" for line in listing.splitlines())


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
