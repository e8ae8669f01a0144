"""`python -m conformance.defects`: every planted defect against the vectors."""

import sys

import click

from conformance.defects.bank import DEFECTS
from conformance.defects.kill import ENOUGH
from conformance.defects.lines import KIND
from conformance.defects.work import Wanted, confirmed, mended, searched
from conformance.errors import UsageError
from conformance.resources import checkout_project


@click.command()
@click.option("-k", "word", default="", help="Only defects with this in their ID or kind.")
@click.option("--policy", type=click.Choice(["fused", "eager"]), default="fused", show_default=True)
@click.option("--all", "every", is_flag=True, help=f"Run every case, not only until {ENOUGH} show a defect.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@click.option("-q", "quiet", is_flag=True, help="Problems and totals only.")
@click.option(
    "--recorded", is_flag=True, help="Confirm the first kill on record of each defect and dtype, in seconds."
)
@click.option(
    "--search-if-stale",
    is_flag=True,
    help="With --recorded: where bank, judge or vectors changed since the search, see also that no case shows "
    "what is excused.",
)
@click.option("--missing", is_flag=True, help="Search for what is not on record or no longer holds, only.")
@click.option(
    "--since",
    default="",
    metavar="COMMIT",
    help="With --missing or --search-if-stale: ask of what is excused only the cases that changed since the commit "
    "that wrote the record, and all cases of the kinds of defects that changed.",
)
@click.option(
    "--write", is_flag=True, help="Write what was searched for into the record, unless there is a problem."
)
def main(
    word: str,
    policy: str,
    every: bool,
    as_json: bool,
    quiet: bool,
    recorded: bool,
    search_if_stale: bool,
    missing: bool,
    since: str,
    write: bool,
) -> None:
    """Runs planted defects; exit 1 if one is not shown where it must be, or shown where it cannot be.

    Without --recorded and --missing it searches for the cases that show each, for minutes.

    Example: python -m conformance.defects -k softcap --all
    """
    wanted = Wanted(word, policy, every, as_json, quiet, write, since)
    chosen = [defect for defect in DEFECTS if word in defect.id or word == KIND[defect.id]]
    if not chosen:
        raise click.UsageError(f"no defect has {word!r} in its ID or kind")
    if recorded and (missing or write):
        raise click.UsageError(
            "--recorded searches for nothing: leave out --missing and --write, or --recorded"
        )
    if search_if_stale and not recorded:
        raise click.UsageError("--search-if-stale goes with --recorded")
    if since and not (missing or search_if_stale):
        raise click.UsageError("--since goes with --missing or --search-if-stale")
    if (recorded or missing or write) and (policy != "fused" or every):
        raise click.UsageError(
            f"the record is of the policy fused and of {ENOUGH} cases: leave out --policy and --all"
        )
    if as_json and (recorded or missing or write):
        raise click.UsageError("--json prints a search: leave out --recorded, --missing and --write")
    if write and checkout_project() is None:
        raise click.UsageError(
            "the record is written in a checkout of the project, and this is an installation"
        )
    try:
        if recorded:
            problems = confirmed(wanted, chosen, search_if_stale)
        elif missing:
            problems = mended(wanted, chosen)
        else:
            problems = searched(wanted, chosen)
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
