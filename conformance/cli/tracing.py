"""`mha-conformance trace`."""

import click

from conformance.cli.exit_codes import CONFORMANT, FAILED, examples
from conformance.cli.inspecting import print_json
from conformance.telling.terminal import console, counted, plain
from conformance.telling.trace import kills
from conformance.telling.trace.holes import holes
from conformance.telling.trace.index import write_index
from conformance.telling.trace.links import links_json, read_links


@click.command(epilog=examples("trace"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every link both ways, and the holes.")
@click.option("--write", is_flag=True, help="Write spec/INDEX.md first.")
@click.option(
    "--kills", "run_kills", is_flag=True, help="Run every defect against the cases, which takes minutes."
)
def trace(as_json: bool, write: bool, run_kills: bool) -> int:
    """Trace requirements, cases, defects and tests to each other; exit 1 if there is a hole."""
    links = read_links()
    if write:
        write_index(links)
    found = [*holes(links), *kills.holes(links, run_kills)]
    if as_json:
        print_json({**links_json(links), "holes": [{"where": h.where, "what": h.what} for h in found]})
        return FAILED if found else CONFORMANT
    out = console()
    for hole in found:
        out.print(plain(str(hole)), soft_wrap=True)
    amount = counted(len(found), "hole") if found else "no hole"
    out.print(plain(f"{amount} in {links.words}"), soft_wrap=True)
    return FAILED if found else CONFORMANT
