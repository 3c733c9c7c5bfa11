"""`fairlead doctor`: is everything all right?"""

import click
import msgspec

from fairlead.cli.command import AppCommand, Exit
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.output import json_option
from fairlead.insight.doctor import Checkup, examine
from fairlead.log import escaped


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead doctor shop:app",
    short_help="Check the store and the set-up.",
)
@json_option
@at_desk
def doctor(desk: Desk, json: bool) -> None:
    """Check the store, its jobs, its workers and the app; each finding comes with its fix.

    Reads every job once. Changes nothing. Exit code 4 says that something is wrong.
    """

    async def look() -> Checkup:
        try:
            return await examine(desk.store, desk.app)
        finally:
            await desk.store.close()

    checkup = desk.alone(look)
    if json:
        click.echo(msgspec.json.encode(checkup).decode())
    else:
        _print(checkup)
    if any(finding.grave for finding in checkup.findings):
        raise SystemExit(Exit.UNSUCCESSFUL)


def _print(checkup: Checkup) -> None:
    for label, text in checkup.facts.items():
        click.echo(f"{label:12} {escaped(text)}")
    click.echo()
    for finding in checkup.findings:
        mark = (
            click.style("wrong", fg="red") if finding.grave else click.style("note ", fg="yellow")
        )
        click.echo(f"{mark}  {escaped(finding.problem)}")
        click.echo(f"  fix  {escaped(finding.remedy)}")
    if not checkup.findings:
        click.echo(click.style("all is well", fg="green"))
