"""`fairlead audit`: what people did by hand."""

from collections.abc import Sequence

import click

from fairlead.cli.command import AppCommand, Commands
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.output import Output, show, shown
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.which import limit_option
from fairlead.cli.words import ago, as_json
from fairlead.core.acts import AuditLine
from fairlead.core.text import SHOWN


@click.group(cls=Commands, epilog="Example: fairlead audit list shop:app --limit 100 --json")
def audit() -> None:
    """See what people did by hand."""


@audit.command(
    "list",
    cls=AppCommand,
    epilog="Example: fairlead audit list shop:app --limit 100 --json",
    short_help="List what people did, newest first.",
)
@limit_option
@shown
@at_desk
def list_(desk: Desk, limit: int, output: Output) -> None:
    """List the audit log: who did what, to which jobs and how many, newest first.

    WHO is what the program says. USER is whom the store knows it as, if it can tell.
    An edit keeps the arguments it replaced; --json shows them.
    """
    show(
        desk,
        output,
        lambda store: store.admin.audit_log(limit),
        _lines,
        lambda lines: map(as_json, lines),
    )


def _lines(lines: Sequence[AuditLine]) -> list[str]:
    if not lines:
        return ["nobody has done anything by hand"]
    columns = [
        Column("WHEN", right=True),
        Column("WHO", least=8),
        Column("WHAT"),
        Column("COUNT", right=True),
        Column("TO", least=16, most=SHOWN),
    ]
    rows = [
        [ago(line.done_at), line.who, line.verb, f"{line.count:,}", line.target] for line in lines
    ]
    if any(line.user for line in lines):
        columns.insert(2, Column("USER", least=8))
        for row, line in zip(rows, lines, strict=True):
            row.insert(2, line.user or "")
    return table(columns, rows, screen_width())
