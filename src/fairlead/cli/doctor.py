"""`fairlead doctor`: is everything all right?"""

import click
from msgspec.structs import asdict

from fairlead.cli.command import AppCommand, Exit, hinted
from fairlead.cli.desk import Desk, action, at_desk
from fairlead.cli.output import json_option
from fairlead.cli.words import counted, json_line
from fairlead.core.store import Backend
from fairlead.core.text import escaped
from fairlead.insight.doctor import Checkup, examine


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead doctor shop:app",
    short_help="Check the store and the set-up.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Put damaged rows right first, or move them out, and say what was done.",
)
@json_option
@at_desk
def doctor(desk: Desk, repair: bool, json: bool) -> None:
    """Check the store, its jobs, its workers and the app; each finding comes with its fix.

    Reads the whole store, which takes seconds per million jobs, and changes nothing
    without --repair. Workers may go on meanwhile. A damaged job that cannot be put right
    becomes a dead letter with the reason "unreadable". What is done is in `fairlead audit`.
    Exit code 4 says that something is wrong.
    """

    async def look(store: Backend) -> tuple[list[str], Checkup]:
        repaired = await store.repair(action("repair", "damaged rows")) if repair else []
        return repaired, await examine(store, desk.app)

    repaired, checkup = desk.run(look, check=repair)
    if json:
        click.echo(json_line({"repaired": repaired, **asdict(checkup)} if repair else checkup))
    else:
        if repair:
            _print_repaired(repaired)
        _print(checkup)
    if any(finding.grave for finding in checkup.findings):
        raise SystemExit(Exit.UNSUCCESSFUL)


def _print_repaired(repaired: list[str]) -> None:
    for sentence in repaired:
        click.echo(f"{click.style('mended', fg='green')}  {escaped(sentence)}")
    told = counted(len(repaired), "repair") if repaired else "nothing was damaged"
    click.echo(f"{told}\n")


def _print(checkup: Checkup) -> None:
    for label, text in checkup.facts.items():
        click.echo(f"{label:12} {escaped(text)}")
    click.echo()
    for finding in sorted(checkup.findings, key=lambda finding: not finding.grave):
        mark = (
            click.style("wrong", fg="red") if finding.grave else click.style("note ", fg="yellow")
        )
        click.echo(f"{mark}  {escaped(finding.problem)}")
        click.echo(f"  fix  {hinted(escaped(finding.remedy))}")
    if not checkup.findings:
        click.echo(click.style("all is well", fg="green"))
