"""`mha-conformance judge`."""

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import click

from conformance.cli.exit_codes import CONFORMANT, FAILED, PROGRAM, examples
from conformance.cli.interrupts import interruptible
from conformance.errors import UsageError
from conformance.problems.problem import Problem, find
from conformance.telling.terminal import MESSAGE, console, counted, plain, shorten
from conformance.verdicts.asker import TIMEOUT
from conformance.verdicts.serve import Bench, answers, batch, programs
from conformance.verdicts.verdict import ALL, Outcome, Verdict, as_json, judge_program, read_token


@click.command(
    epilog=examples(
        "judge kernel.py --problem kernelbench-97",
        "judge kernel.py --problem my_problem.toml --json",
        "judge kernels/ --problem training > verdicts.jsonl",
        "judge --serve --problem plain-float32",
    )
)
@click.argument("target", required=False)
@click.option(
    "--problem", metavar="NAME|FILE", help="What is asked: a name of `list problems`, or a TOML file."
)
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the calls; a new one by default."
)
@click.option("--own", is_flag=True, help="Reject a program that calls the attention of a library.")
@click.option("--replay", metavar="TOKEN", help="Make the check of a token once more, and no other.")
@click.option("--serve", is_flag=True, help="Read JSON lines from stdin, and answer each with one line.")
@click.option("--device", metavar="DEV", help="Device on which the arrays are made.")
@click.option(
    "--timeout",
    type=float,
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="Time limit per call.",
)
@click.option("--json", "json_", is_flag=True, help="Print one line of JSON.")
@click.option("-v", "verbose", is_flag=True, help="Print every check.")
def judge(
    target: str | None,
    problem: str | None,
    seed: int | None,
    own: bool,
    replay: str | None,
    serve: bool,
    device: str | None,
    timeout: float,
    json_: bool,
    verbose: bool,
) -> int:
    """Accept or reject the program TARGET on one problem, by fresh calls.

    TARGET is a file of Python, path/to/file.py:attribute, package.module:attribute, or a folder of files, each of
    which is then told by a line of JSON. The problem says which class or function of it is called.
    Exit status: 0 if it is accepted (of a folder, if all are), 1 if it is rejected, 2 if the call is wrong.
    """
    chosen = secrets.randbelow(2**32) if seed is None else seed
    if serve:
        if target or replay:
            raise UsageError("--serve takes its programs from stdin: leave out TARGET and --replay")
        if problem is not None:
            find(problem)
        with interruptible():
            return _serve(Bench(chosen, own=own, device=device, timeout=timeout), problem)
    if target is None:
        raise UsageError("TARGET is missing: give a file of Python, or --serve")
    if problem is None:
        raise UsageError(f"--problem is missing: name one of `{PROGRAM} list problems`, or a TOML file")
    asked = find(problem)
    _check_target(target)
    with interruptible():
        if Path(target).is_dir():
            if replay:
                raise UsageError("--replay makes a check of one program: give a file, not a folder")
            return _folder(Bench(chosen, own=own, device=device, timeout=timeout), Path(target), asked)
        check, chosen = read_token(replay, asked) if replay else (ALL, chosen)
        only = "" if check == ALL else check
        out = console()

        def told(outcome: Outcome) -> None:
            if verbose and not json_:
                mark = "ok    " if outcome.passed else "FAILED"
                words = f": {outcome.reason}" if outcome.reason else ""
                out.print(
                    plain(shorten(f"{mark} {outcome.check:14} {outcome.asks}{words}", MESSAGE)),
                    soft_wrap=True,
                )

        verdict = judge_program(
            target, asked, chosen, own=own, device=device, timeout=timeout, only=only, told=told
        )
    if json_:
        click.echo(json.dumps(verdict.json))
    else:
        _print(out.print, verdict, target, asked, chosen)
    return CONFORMANT if verdict.accepted else FAILED


def _check_target(target: str) -> None:
    path = target.rpartition(":")[0] if ".py:" in target else target
    if path.endswith(".py") and not Path(path).is_file():
        raise UsageError(f"no file {path!r}")
    if not path.endswith(".py") and not Path(path).is_dir():
        module = path.partition(":")[0]
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"{target!r} is no file of Python, no folder, and no package.module:attribute")


def _print(out: Callable[..., None], verdict: Verdict, target: str, problem: Problem, seed: int) -> None:
    failed = [each.check for each in verdict.outcomes if not each.passed]
    passed = len(verdict.outcomes) - len(failed)
    word = "accepted" if verdict.accepted else "rejected"
    of = (
        f"{passed} of {counted(len(verdict.outcomes), 'check')} pass"
        if verdict.outcomes
        else "it was not called"
    )
    lines = [f"{word}: {of}, score {verdict.score:.2f}, problem {problem.name}, seed {seed}"]
    if not verdict.accepted:
        lines += [f"  {verdict.reason}"]
        lines += [f"  failed: {', '.join(failed)}"] if failed else []
        lines += [f"  again:  {PROGRAM} judge {target} --problem {problem.name} --replay {verdict.replay}"]
    for line in lines:
        out(plain(shorten(line, MESSAGE)), soft_wrap=True)


def _folder(bench: Bench, folder: Path, problem: Problem) -> int:
    status = CONFORMANT
    try:
        for path, verdict in batch(bench, programs(folder), problem):
            click.echo(json.dumps(as_json(verdict, {"program": str(path)})))
            status = status if verdict.accepted else FAILED
    finally:
        bench.close()
    return status


def _serve(bench: Bench, problem: str | None) -> int:
    try:
        for reply in answers(bench, sys.stdin, problem):
            click.echo(json.dumps(reply))
    finally:
        bench.close()
    return CONFORMANT
