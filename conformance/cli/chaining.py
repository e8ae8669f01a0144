"""`mha-conformance chain`: what a requirement still lacks, and the machine's part of making it."""

import subprocess
import sys
from collections.abc import Sequence

import click

from conformance.cli.exit_codes import CONFORMANT, FAILED, PROGRAM, examples
from conformance.defects.record import UPDATE, read_record
from conformance.running.suggestions import known
from conformance.telling.requirements import ID, named
from conformance.telling.terminal import console, counted, plain
from conformance.telling.trace.chain import BUILD, INDEX, Chains, Link, SameIdError, read_chains
from conformance.telling.trace.links import read_links


@click.command(epilog=examples("chain", "chain MASK-3", "chain MASK-3 --run"))
@click.argument("name", metavar="[REQUIREMENT]", default="")
@click.option(
    "--run",
    "run_all",
    is_flag=True,
    help="Run the machine's part first: build cases, search for who shows new defects, run numpy, write the index.",
)
def chain(name: str, run_all: bool) -> int:
    """Say what REQUIREMENT still lacks, from its text to the index, and what to do next; exit 1 if something.

    Without REQUIREMENT it says so of each that lacks something. For contributors: it reads a checkout.
    """
    try:
        chains = read_chains(read_links(reader="chain"), read_record())
    except SameIdError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        return FAILED
    names = [r.id for r in chains.links.requirements]
    if name and not ID.fullmatch(name.upper()):
        name = known("requirement", name, names)
    name = name.upper()
    if run_all:
        for command in commands(chains, name):
            click.echo(f"$ {command}")
            if status := subprocess.run([sys.executable, *command.split()[1:]], check=False).returncode:
                click.echo(
                    f"`{command}` ended with {status}: correct it and run this command again", err=True
                )
                return FAILED
        words = [
            "-m",
            "conformance",
            "chain",
            *([name] if name else []),
        ]  # in a new process: this one has read the old vectors
        return subprocess.run([sys.executable, *words], check=False).returncode
    return tell(chains, [name] if name else list(dict.fromkeys(names)), every=bool(name))


def commands(chains: Chains, name: str) -> list[str]:
    """What the machine does for a requirement, or for all, in this order."""
    asked = not name or any(name in draft.covers for draft in chains.drafts)
    return [
        *([BUILD] if chains.unbuilt else []),
        f"{UPDATE} -q",
        *([f"python -m conformance run numpy -q{f' -k {name}' if name else ''}"] if asked else []),
        INDEX,
    ]


def tell(chains: Chains, names: Sequence[str], every: bool) -> int:
    """Prints the chains of some requirements; where not every one is wanted, those that lack something.

    Cases that are not built as declared are told of whatever they cover.
    """
    out, lacking = console(), 0
    for name in names:
        links = chains.of(name)
        lacks = any(link.missing for link in links)
        lacking += lacks
        if lacks or every:
            for line in lines(name, links):
                out.print(plain(line), soft_wrap=True)
    beside = chains.beside(names)
    for line in beside:
        out.print(plain(line), soft_wrap=True)
    if not every:
        amount = counted(lacking, "requirement") if lacking else "no requirement"
        out.print(
            plain(f"{amount} of {len(names)} {'lacks' if lacking < 2 else 'lack'} a link"), soft_wrap=True
        )
    return FAILED if lacking or beside else CONFORMANT


def lines(name: str, links: Sequence[Link]) -> list[str]:
    """A chain for people: what stands, what is missing, and what to do next."""
    found = [named(name)]
    for link in links:
        found.append(f"  {link.name:<12} {f'missing: {link.missing}' if link.missing else link.found}")
    after = next((link.then for link in links if link.missing), "")
    if not after:
        return [*found, "  nothing is missing"]
    by_machine = f"; or `python -m conformance chain {name} --run`" if after.startswith("python -m") else ""
    return [*found, f"  next: {f'`{after}`{by_machine}' if by_machine else after}"]
