"""`fairlead doctor`: is everything all right?"""

import click

from fairlead.cli.command import AppCommand, Exit, hinted
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.output import json_option
from fairlead.cli.words import json_line
from fairlead.core.text import escaped
from fairlead.insight.doctor import Checkup, examine


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead doctor shop:app",
    short_help="Check the store and the set-up.",
)
@json_option
@at_desk
def doctor(desk: Desk, json: bool) -> None:
    """Check the store, its jobs, its workers and the app; each finding comes with its fix.

    Reads the whole store, which takes seconds per million jobs, and changes nothing.
    Exit code 4 says that something is wrong.
    """
    checkup = desk.run(lambda store: examine(store, desk.app), check=False)
    if json:
        click.echo(json_line(checkup))
    else:
        _print(checkup)
    if any(finding.grave for finding in checkup.findings):
        raise SystemExit(Exit.UNSUCCESSFUL)


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
