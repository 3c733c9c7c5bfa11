"""What a row of ours may hold: the one definition that claims, the audit and the repair share.

SQLite has no strict types: any column may hold a text, a number, bytes or nothing. A row is
*sound* if each column holds what is said here. What stands in its place if it is not is said
here too, so whatever was sound of a damaged row can be kept.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from fairlead.core.admin import PoolShare
from fairlead.core.entries import LONGEST_KEY, LONGEST_KIND
from fairlead.core.errors import DecodeError
from fairlead.core.ids import IdMaker
from fairlead.core.job import (
    ALONE,
    HIGHEST,
    LONGEST_ID,
    Instant,
    Level,
    PastAttempt,
    Place,
    Reason,
    Runs,
    Version,
    decode_options,
    read,
)
from fairlead.core.text import escaped
from fairlead.stores.records import text_of, text_or_none

LONGEST_NAME = 1_000
AT_ONCE = 100
"""How many rows are looked at together."""

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
Kind = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_KIND)]
Owner = Annotated[str, msgspec.Meta(max_length=LONGEST_ID)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_KEY)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
# The greatest of all ends SQLite's counting: after it, numbers are given out at random.
Seq = Annotated[int, msgspec.Meta(lt=2**63 - 1)]
LAST_REASON = 2**15 - 1
"""The last number that can say why a job is parked: PostgreSQL keeps it in two bytes."""
WhyParked = Annotated[int, msgspec.Meta(ge=0, le=LAST_REASON)]
Bits = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Step = Annotated[int, msgspec.Meta(ge=1, le=9_999)]


_new_id = IdMaker()
_decode_errors = msgspec.json.Decoder(tuple[PastAttempt, ...]).decode
_decode_capable = msgspec.json.Decoder(dict[str, int]).decode
_decode_pools = msgspec.json.Decoder(tuple[PoolShare, ...]).decode


class NotUtf8(bytes):
    """A text that is none."""


class Column(NamedTuple):
    """What a column may hold, and what stands in for anything else.

    `look` raises for a text that only its reader can judge. `instead` gets what was found and
    the time.
    """

    kind: Any
    instead: Callable[[Any, int], object]
    look: Callable[[str], object] | None = None


class Table(NamedTuple):
    """A table of ours: how people call its rows, and by which column; its key, all its columns.

    `excuses` says which problems of a row are known, and dealt with.
    """

    name: str
    called: str
    by: str
    key: str
    columns: Mapping[str, Column]
    excuses: Callable[[Mapping[str, object]], Iterable[str]] = lambda _row: ()

    @property
    def kinds(self) -> Any:  # noqa: ANN401 (a type made of types)
        """What several of its rows are, if all are sound."""
        row = tuple.__class_getitem__(tuple(column.kind for column in self.columns.values()))
        return list.__class_getitem__(row)

    # Statements on it, of names that stand in this module; values are parameters.

    @property
    def all_rows(self) -> str:
        """Read every row."""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"

    def one_row(self, key: object) -> str:
        """Read the row of a key."""
        return f"{self.all_rows}{self._at(key)}"

    def added_row(self, columns: Iterable[str]) -> str:
        """Add a row of these columns."""
        names = [name for name in self.columns if name in set(columns)]
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({_marks(names)})"

    def changed_row(self, columns: Iterable[str], key: object) -> str:
        """Change these columns of the row of a key."""
        sets = ", ".join(f"{name} = ?" for name in self.columns if name in set(columns))
        return f"UPDATE {self.name} SET {sets}{self._at(key)}"

    def removed_row(self, key: object) -> str:
        """Remove the row of a key."""
        return f"DELETE FROM {self.name}{self._at(key)}"

    def _at(self, key: object) -> str:
        """Say which row is meant, by its key as it is stored."""
        value = "CAST(? AS TEXT)" if isinstance(key, NotUtf8) else "?"
        return f" WHERE {self.key} IS {value}"

    def call(self, row: Sequence[object]) -> str:
        """Name a row for people."""
        value = row[list(self.columns).index(self.by)]
        return self.called.format(value if _is_plain(value) else shown(value))

    def problems(self, row: Sequence[object]) -> dict[str, str]:
        """Return what is wrong with a row, by column; nothing if it is sound."""
        found: dict[str, str] = {}
        for (name, column), value in zip(self.columns.items(), row, strict=True):
            try:
                msgspec.convert(value, column.kind)
                if column.look is not None and isinstance(value, str):
                    column.look(value)
            except (msgspec.MsgspecError, DecodeError) as problem:
                told = problem.problem if isinstance(problem, DecodeError) else str(problem)
                found[name] = f"its {name} is {shown(value)} ({told[:120]})"
        for name in self.excuses(dict(zip(self.columns, row, strict=True))) if found else ():
            found.pop(name, None)
        return found

    def is_above(self, row: Sequence[object], level: int) -> bool:
        """Say whether a row is that of a newer program: what looks damaged may be its way."""
        if "level" not in self.columns:
            return False
        found = row[list(self.columns).index("level")]
        return isinstance(found, int) and level < found <= HIGHEST


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def is_id(text: str) -> bool:
    """Say whether a text can be a job's id, or several of them in a row."""
    return text.isascii() and text.isprintable()


def _is_plain(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and 0 < len(value) < 200)


def shown(value: object) -> str:
    """Return what was found in a column as people can read it."""
    if isinstance(value, NotUtf8):
        return f"not UTF-8, {bytes(value[:20])!r}"
    return escaped(f"{value!r:.60}")


def _look_at_id(text: str) -> None:
    if not is_id(text):
        raise DecodeError("the id", "an id has ASCII characters only")


@lru_cache(maxsize=10_000)
def _look_at_name(text: str) -> None:
    if not text:
        raise DecodeError("the name", "there is none")


def _look_at_errors(text: str) -> None:
    read(_decode_errors, "the history of a job", text)


def _look_at_capable(text: str) -> None:
    read(_decode_capable, "what a worker knows", text)


def _look_at_pools(text: str) -> None:
    read(_decode_pools, "the pools of a worker", text)


def _text(value: object, _now: int) -> str:
    return text_of(value)


def _name(value: object, _now: int) -> str:
    return text_of(value)[:LONGEST_NAME] or "unreadable"


def _maybe(value: object, _now: int) -> str | None:
    return text_or_none(value)


def _always(value: object) -> Callable[[object, int], object]:
    return lambda _found, _now: value


def _at_once(_found: object, now: int) -> int:
    return now


def _fresh_id(_found: object, _now: int) -> str:
    return _new_id()


_NOTHING, _ZERO, _ONE = _always(None), _always(0), _always(1)
_ID = Column(Id, _fresh_id, _look_at_id)
_SEQ = Column(Seq, _ZERO)
_NAME = Column(Name, _name, _look_at_name)
_TEXT = Column(str, _text)
_TEXT_OR_NOTHING = Column(str | None, _maybe)
_AT = Column(Instant, _at_once)
_AT_OR_NOTHING = Column(Instant | None, _NOTHING)
_RUNS = Column(Runs, _ZERO)

# What a job is, wherever it stands.
_CALL = {
    "seq": _SEQ,
    "id": _ID,
    "queue": _NAME,
    "task": _NAME,
    "version": Column(Version, _ONE),
    "level": Column(Level, _ONE),
    "attached": Column(Bits, _ZERO),
    "run_at": _AT,
    "order_at": Column(Place, _at_once),
    "expires_at": _AT_OR_NOTHING,
    "enqueued_at": _AT,
    "payload": _TEXT,
    "options": Column(str | None, _NOTHING, decode_options),
    "attempt": _RUNS,
    "crashes": _RUNS,
    "fence": Column(Instant, _ZERO),
    "worker": Column(str | None, _maybe),
    "claimed_at": _AT_OR_NOTHING,
    "errors": Column(str | None, _NOTHING, _look_at_errors),
    "more": Column(str | None, _NOTHING),  # Fields of later programs: any text is sound.
}

LIVE = Table(
    "fairlead_job",
    "job {}",
    "id",
    "seq",
    {
        **_CALL,
        "parked": Column(WhyParked, _ZERO),
        "park_key": Column(str | None, _NOTHING),
        "lease_until": Column(Instant, _at_once),
        "cancel": Column(str | None, _NOTHING),
        "size": Column(Size, _ZERO),
        "shared_deaths": Column(Runs, _always(ALONE)),
    },
)
_ENDED = {
    **_CALL,
    "finished_at": _AT,
    "reason": _TEXT_OR_NOTHING,
}
FINISHED = Table(
    "fairlead_finished",
    "finished job {}",
    "id",
    "seq",
    {
        **_ENDED,
        "state": Column(str, _always("cancelled")),
        "result": _TEXT_OR_NOTHING,
    },
)


def _known_by_reason(dead: Mapping[str, object]) -> Iterable[str]:
    """Excuse options that made a job a dead letter: a person may want to see them."""
    known = dead["reason"] == Reason.UNREADABLE and type(dead["options"]) is str
    return ("options",) if known else ()


DEAD = Table("fairlead_dead", "dead letter {}", "id", "seq", _ENDED, _known_by_reason)
ATTEMPTS = Table(
    "fairlead_attempt",
    "the line of job {} in the attempt log",
    "job_id",
    "seq",
    {
        "seq": _SEQ,
        "job_id": _ID,
        "fence": Column(Instant, _ZERO),
        "attempt": _RUNS,
        "task": _NAME,
        "queue": _NAME,
        "pool": _TEXT_OR_NOTHING,
        "worker": _TEXT_OR_NOTHING,
        "ready_at": _AT,
        "claimed_at": _AT,
        "started_at": _AT_OR_NOTHING,
        "finished_at": _AT,
        "outcome": _TEXT,
        "fingerprint": _TEXT_OR_NOTHING,
    },
)
WORKERS = Table(
    "fairlead_worker",
    "worker {}",
    "id",
    "id",
    {
        "id": Column(Name, _name, _look_at_name),
        "capable": Column(str, _always("{}"), _look_at_capable),
        "pools": Column(str, _always("[]"), _look_at_pools),
        "processes": Column(Runs, _ONE),
        "started_at": _AT,
        "live_until": _AT,
        "level": Column(Level, _ONE),
    },
)
PAUSED = Table("fairlead_paused", "the pause of queue {}", "queue", "queue", {"queue": _NAME})
NOTES = Table(
    "fairlead_audit",
    "line {} of the audit log",
    "seq",
    "seq",
    {
        "seq": _SEQ,
        "id": Column(Name, _fresh_id, _look_at_name),
        "done_at": _AT,
        "who": _TEXT,
        "verb": _TEXT,
        "target": _TEXT,
        "count": Column(Runs, _ZERO),
        "job_id": _TEXT_OR_NOTHING,
        "before": _TEXT_OR_NOTHING,
        "answers": _TEXT,
    },
)
ENTRIES = Table(
    "fairlead_entry",
    "entry {}",
    "key",
    "seq",
    {
        "seq": _SEQ,
        "kind": Column(Kind, _NOTHING),
        "owner": Column(Owner, _NOTHING),
        "key": Column(Key, _NOTHING),
        "version": Column(Instant, _ZERO),
        "due_at": _AT_OR_NOTHING,
        "expires_at": _AT_OR_NOTHING,
        "value": Column(str, _NOTHING),
    },
)
STEPS = Table(
    "fairlead_migration",
    "step {} of the schema",
    "version",
    "version",
    {"version": Column(Step, _ZERO), "applied_at": _AT, "serves": Column(Level, _ONE)},
)
TABLES = (LIVE, FINISHED, DEAD, ATTEMPTS, WORKERS, PAUSED, NOTES, ENTRIES, STEPS)


@contextmanager
def exact(connection: sqlite3.Connection) -> Iterator[None]:
    """Read what is stored as it is: a text that is not UTF-8 as `NotUtf8`."""
    before = connection.text_factory
    connection.text_factory = _exactly
    try:
        yield
    finally:
        connection.text_factory = before


def _exactly(text: bytes) -> str | NotUtf8:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return NotUtf8(text)
