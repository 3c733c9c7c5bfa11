"""`fairlead audit`: what people did by hand."""

from collections.abc import Sequence

import click

from fairlead.cli.command import AppCommand
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.jobs import limit_option
from fairlead.cli.output import Output, show, shown
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import ago, as_json
from fairlead.core.admin import AuditLine


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead audit shop:app --limit 100 --json",
    short_help="See what people did by hand.",
)
@limit_option
@shown
@at_desk
def audit(desk: Desk, limit: int, output: Output) -> None:
    """Show the audit log: who did what, to which jobs and how many, newest first.

    An edit keeps the arguments it replaced; --json shows them.
    """
    show(
        desk,
        output,
        lambda store: store.audit_log(limit),
        _lines,
        lambda deeds: map(as_json, deeds),
    )


def _lines(deeds: Sequence[AuditLine]) -> list[str]:
    if not deeds:
        return ["nobody has done anything by hand"]
    columns = (
        Column("WHEN", right=True),
        Column("WHO", gives_way=True),
        Column("WHAT"),
        Column("COUNT", right=True),
        Column("TO", gives_way=True),
    )
    rows = [(ago(d.done_at), d.who, d.verb, f"{d.count:,}", d.target) for d in deeds]
    return table(columns, rows, screen_width())
