"""Compare the tables, indexes and views of the file with those of a new one.

Without an index no queue is served, and a trigger that ignores what we write makes jobs vanish.
An index or a view follows from the tables and is made again by a repair. What was in a table
does not come back by itself, and what somebody added is for a person to judge.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import NamedTuple

from fairlead.stores.sqlite.migrate import NOTES, build, newest, version
from fairlead.stores.sqlite.statements import migrations

_ALL = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_COMMENT = re.compile(r"--[^\n]*")
_AROUND = re.compile(r" ?([(),]) ?")

_REFUSES = re.compile(r"\b(check|references|unique|generated|as)\b", re.IGNORECASE)

_WHOLE = re.compile(r",(unique|primary key|check|foreign key)\(.*", re.IGNORECASE)

_LOST = "restore a backup, for its rows are lost"


class Thing(NamedTuple):
    """A table, an index, a view or a trigger, and the statement that makes it."""

    kind: str
    name: str
    table: str
    sql: str

    @property
    def shape(self) -> tuple[str, str]:
        """What it is, however its statement was laid out."""
        return self.kind, _AROUND.sub(r"\1", " ".join(_COMMENT.sub("", self.sql).split()))

    @property
    def drop(self) -> str:
        """The statement that removes it; for what is ours, whose names are."""
        return f"DROP {self.kind} IF EXISTS {self.name}"


class Flaw(NamedTuple):
    """What is not as in a new file, and what to do; without a remedy, a repair mends it."""

    name: str
    problem: str
    remedy: str | None = None
    grave: bool = True


def flaws(connection: sqlite3.Connection) -> Iterator[Flaw]:
    """Find what of ours is missing or different, and what somebody added to it.

    After steps of a newer program, what is different is of its making.
    """
    found = _things(connection)
    is_newer = version(connection) > newest()
    for name, ours in _ours().items():
        theirs = found.get(name)
        if theirs is not None and (theirs.shape == ours.shape or _grew(ours, theirs)):
            continue
        if is_newer and _kind_of(theirs) == ours.kind:
            continue
        if ours.kind == "index" and _kind_of(found.get(ours.table)) != "table":
            continue  # It went with its table, which is told already.
        yield _flaw(ours, theirs)
    for name, other in () if is_newer else found.items():
        if name not in _ours() and other.table.lower() in _ours() and _meddles(other):
            yield Flaw(
                name,
                f"the {other.kind} {other.name} on {other.table} is not ours, and can change or "
                "refuse what is written there",
                f"look at it, and unless you need it: DROP {other.kind.upper()} {_quoted(other)}",
                grave=False,
            )


def _grew(ours: Thing, theirs: Thing) -> bool:
    """Say whether a table is ours with further columns, which cannot refuse what we write.

    A newer program may have added them; a column that is added has a default, or may be empty.
    SQLite puts it before what holds for the whole table.
    """
    kind, text = ours.shape
    columns = _WHOLE.sub("", text.rpartition(")")[0])
    end = text.removeprefix(columns)
    more = theirs.shape[1].removeprefix(f"{columns},").removesuffix(end)
    return theirs.shape == (kind, f"{columns},{more}{end}") and not _REFUSES.search(more)


def _flaw(ours: Thing, theirs: Thing | None) -> Flaw:
    """Tell what is wrong with something of ours."""
    what = f"the {ours.kind} {ours.name}"
    if theirs is None:
        return Flaw(ours.name, f"{what} is missing", _LOST if ours.kind == "table" else None)
    if theirs.kind != ours.kind:
        drop = f"look at it, and DROP {theirs.kind.upper()} {_quoted(theirs)}"
        then = _LOST if ours.kind == "table" else "then fairlead doctor --repair"
        return Flaw(ours.name, f"a {theirs.kind} stands in place of {what}", f"{drop}; {then}")
    if ours.kind == "table":
        changed = f"{what} was changed, and may refuse what is written to it"
        return Flaw(ours.name, changed, "compare it with that of a new file", grave=False)
    return Flaw(ours.name, f"{what} is not as it was made")


def mend(connection: sqlite3.Connection, name: str) -> str | None:
    """Make an index or a view again; says what was done, None if nothing had to be."""
    if not any(flaw.name == name and flaw.remedy is None for flaw in flaws(connection)):
        return None
    ours = _ours()[name]
    connection.execute(ours.drop)
    connection.execute(ours.sql)
    return f"the {ours.kind} {ours.name} is made again"


def _kind_of(thing: Thing | None) -> str | None:
    return thing and thing.kind


def _meddles(thing: Thing) -> bool:
    """Say whether something on a table of ours can do more than to make a search faster."""
    return thing.kind == "trigger" or "unique" in thing.sql.lower()


def _quoted(thing: Thing) -> str:
    return '"' + thing.name.replace('"', '""') + '"'


def _things(connection: sqlite3.Connection) -> dict[str, Thing]:
    return {row[1].lower(): Thing(*row) for row in connection.execute(_ALL).fetchall()}


@cache
def _ours() -> dict[str, Thing]:
    """Return what there is in a new file."""
    with closing(sqlite3.connect(":memory:")) as new:
        new.execute(NOTES)
        for step in migrations():
            build(new, step)
        return _things(new)
