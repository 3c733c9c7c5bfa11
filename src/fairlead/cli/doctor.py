"""`fairlead doctor`: is everything all right?"""

from itertools import groupby
from typing import NamedTuple

import click
from msgspec.structs import asdict, replace

from fairlead.cli.command import AppCommand, Exit, hinted, say
from fairlead.cli.desk import Desk, action, at_desk
from fairlead.cli.output import json_option
from fairlead.cli.words import json_line
from fairlead.core.admin import NOT_MENDED, REPAIR, Finding
from fairlead.core.store import Store
from fairlead.core.text import counted, escaped
from fairlead.insight.doctor import MOST_ALIKE, Checkup, examine


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
    becomes a dead letter with the reason "unreadable". What is done is in `fairlead audit list`.
    Of findings that are alike the first ten are told, and how many more there are. Exit
    code 4 says that something is wrong.
    """

    async def look(store: Store) -> tuple[Repairs, Checkup]:
        told = await store.admin.repair(action("repair", "damaged rows")) if repair else []
        return _sorted(told), await examine(store, desk.app)

    repairs, checkup = desk.run(look, check=repair)
    if repair:
        checkup = replace(checkup, findings=[_tried(each) for each in checkup.findings])
    if json:
        say(json_line((_few(repairs) if repair else {}) | asdict(checkup)))
    else:
        if repair:
            _print_repairs(repairs, checkup)
        _print(checkup)
    if repairs.refused or any(finding.grave for finding in checkup.findings):
        raise SystemExit(Exit.UNSUCCESSFUL)


class Repairs(NamedTuple):
    """What a repair did, and what it had to leave; a sentence each."""

    mended: list[str]
    refused: list[str]


def _sorted(told: list[str]) -> Repairs:
    refused = [sentence for sentence in told if sentence.startswith(NOT_MENDED)]
    return Repairs([each for each in told if not each.startswith(NOT_MENDED)], refused)


def _tried(finding: Finding) -> Finding:
    """Advise no repair to whoever has just had one."""
    return replace(finding, remedy=_LEFT) if REPAIR in finding.remedy else finding


_LEFT = (
    "the repair could not; stop what writes there and repair again, or mend it with the tools of "
    "the database, or restore a backup"
)


def _few(repairs: Repairs) -> dict[str, object]:
    """Return the first sentences of each kind, and how many there are."""
    return {
        "repaired": repairs.mended[:MOST_ALIKE],
        "repaired_count": len(repairs.mended),
        "not_mended": repairs.refused[:MOST_ALIKE],
        "not_mended_count": len(repairs.refused),
    }


def _print_repairs(repairs: Repairs, checkup: Checkup) -> None:
    _print_some(click.style("mended", fg="green"), repairs.mended)
    _print_some(click.style("left  ", fg="red"), repairs.refused)
    told = counted(len(repairs.mended), "repair")
    if repairs.refused:
        told += f"; {len(repairs.refused):,} could not be made"
    elif not repairs.mended:
        found = any(finding.remedy == _LEFT for finding in checkup.findings)
        told = "nothing was mended" if found else "nothing was damaged"
    say(f"{told}\n")


def _print_some(mark: str, sentences: list[str]) -> None:
    for sentence in sentences[:MOST_ALIKE]:
        say(f"{mark}  {escaped(sentence)}")
    if len(sentences) > MOST_ALIKE:
        say(f"        and {len(sentences) - MOST_ALIKE:,} more like these")


def _print(checkup: Checkup) -> None:
    for label, text in checkup.facts.items():
        say(f"{label:12} {escaped(text)}")
    say()
    alike = groupby(checkup.findings, lambda finding: (finding.grave, finding.remedy))
    for (grave, remedy), findings in alike:
        mark = click.style("wrong", fg="red") if grave else click.style("note ", fg="yellow")
        more = 0
        for finding in findings:
            say(f"{mark}  {escaped(finding.problem)}")
            more += finding.more
        if more:
            say(f"       and {more:,} more like this")
        say(f"  fix  {hinted(escaped(remedy))}")
    if not checkup.findings:
        say(click.style("all is well", fg="green"))
