"""Put a damaged row right, or move it out: at the claim that meets it, and in `doctor --repair`.

What a row may hold is said in `sound.py`. A job of which only marks are damaged is put right.
Any other becomes a dead letter, reason `unreadable`, of all that was sound of it; one whose id
cannot be kept, because it is none or belongs to another job, gets a new id. Lines of logs are
put right or removed, and so is all that is written anew soon: workers, pauses.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.failure import described
from fairlead.core.ids import IdMaker
from fairlead.core.job import LONGEST_HEAD_START, Attached, PastAttempt, Reason, State
from fairlead.stores.sqlite.audit import CLOCKS_APART, LONGEST_LEASE, SHAPE, Damage
from fairlead.stores.sqlite.shape import mend
from fairlead.stores.sqlite.sound import (
    ATTEMPTS,
    DEAD,
    ENTRIES,
    FINISHED,
    LIVE,
    NOTES,
    PAUSED,
    STEPS,
    WORKERS,
    Table,
    exact,
)
from fairlead.stores.sqlite.statements import migrations
from fairlead.stores.sqlite.ways import End, Moment, Parked, kind_key, leave

Row = dict[str, Any]

_MARKS = frozenset(
    {
        *("seq", "parked", "park_key", "order_at", "lease_until", "worker", "claimed_at", "cancel"),
        *("size", "shared_deaths", "errors", "attached", "more"),
    }
)
"""The columns of a live job that follow from others, or without which it can run all the same."""

_PLACES = {FINISHED.name: "finished", DEAD.name: "a dead letter"}
_KNOWN = {name: f"SELECT 1 FROM {name} WHERE id = ?" for name in _PLACES}
_SEQS = {
    table.name: f"SELECT coalesce(max(seq), 0) FROM {table.name} WHERE seq < 1 << 62"
    for table in (LIVE, FINISHED, DEAD, NOTES)
}

_LOGGED = "SELECT 1 FROM fairlead_attempt WHERE job_id = ? AND fence = ? AND seq <> ?"

_LIVES = "SELECT 1 FROM fairlead_job WHERE id = ?"
_OWNS = "SELECT 1 FROM fairlead_entry WHERE owner = ? AND owner <> ''"

_OWN_ANEW = "UPDATE fairlead_entry SET owner = ? WHERE owner = ? AND owner <> ''"

_new_id = IdMaker()
_encode = msgspec.json.Encoder().encode
_decode_history = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Seen(NamedTuple):
    """A row as it is stored, what it comes to when all of it is sound, and what is wrong."""

    stored: Row
    sound: Row
    problems: Mapping[str, str]

    def changed(self, *but: str) -> Row:
        """Return what is sound now and was not before, except these columns."""
        return {
            name: value
            for name, value in self.sound.items()
            if name not in but and (name in self.problems or value != self.stored[name])
        }


def see(connection: sqlite3.Connection, table: Table, key: object, now: int) -> Seen | None:
    """Read a row, whatever is in it; None if it is gone."""
    with exact(connection):
        row = connection.execute(table.one_row(key), (key,)).fetchone()
    if row is None:
        return None
    stored = dict(zip(table.columns, row, strict=True))
    problems = table.problems(row)
    sound = {
        name: table.columns[name].instead(value, now) if name in problems else value
        for name, value in stored.items()
    }
    return Seen(stored, sound, problems)


def move_out(connection: sqlite3.Connection, seq: int, by: Moment, problem: str = "") -> str | None:
    """Make a dead letter of a live job; says what was done.

    None, if the job is gone, or a newer program's: what looks damaged may be its way.
    """
    now = by.now
    seen = see(connection, LIVE, seq, now)
    if seen is None or LIVE.is_above(list(seen.stored.values()), by.level):
        return None
    sound = seen.sound
    problems = list(seen.problems.values())
    if other := _elsewhere(connection, sound["id"]):
        problems.append(f"job {sound['id']} is {other}, too")
        sound["id"] = _new_id()
    if not problems:
        problems.append(problem or "it does not fit where it belongs")
    told = f"the stored row cannot be read: {', '.join(problems)}"
    _set_order(sound)
    sound["errors"] = _remembered(sound, told, now)
    if type(seen.stored["options"]) is str:
        sound["options"] = seen.stored["options"]  # However they are: they can be looked at.
    changed = seen.changed("seq")
    connection.execute(LIVE.changed_row(changed, seq), (*changed.values(), seq))
    if "id" in changed:
        connection.execute(_OWN_ANEW, (sound["id"], seen.stored["id"]))
    end = End(State.DEAD, reason=Reason.UNREADABLE)
    refused = leave(connection, end, {seq: None}, now)
    if refused:
        raise refused[seq]
    return f"job {sound['id']} is a dead letter now: {', '.join(problems)}"


def _remembered(sound: Row, told: str, now: int) -> str:
    """Return the history of a job with what is wrong with it; the rest of it stays as it is."""
    before = sound["errors"]
    history = [] if before is None else _decode_history(before)
    failure = described("Unreadable", told)
    past = PastAttempt(
        attempt=0,
        outcome="failed",
        worker=None,
        claimed_at=None,
        started_at=None,
        finished_at=now,
        error=failure.error,
        message=failure.message,
        fingerprint=failure.fingerprint,
    )
    return _encode([*history, past]).decode()


def repair(connection: sqlite3.Connection, damage: Damage, by: Moment) -> str | None:
    """Put one row right; says what was done, None if nothing had to be."""
    now = by.now
    if damage.table is SHAPE:
        return mend(connection, str(damage.key))
    seen = see(connection, damage.table, damage.key, now)
    if damage.table is STEPS:
        return _repair_step(connection, damage.key, seen, now)
    if seen is None or damage.table.is_above(list(seen.stored.values()), by.level):
        return None
    if damage.table in (ATTEMPTS, WORKERS, PAUSED, ENTRIES):
        return _remove(connection, damage, seen, now)
    if damage.table is LIVE:
        if set(seen.problems) - _MARKS or _elsewhere(connection, seen.sound["id"]):
            return move_out(connection, seen.stored["seq"], by)
        _agree(seen, now)
    else:
        _finish_well(connection, damage.table, seen.sound)
    if damage.table is not NOTES and connection.execute(_OWNS, (seen.sound["id"],)).fetchone():
        seen.sound["attached"] |= Attached.ENTRIES
    return _write(connection, damage.table, damage.key, seen)


def _repair_step(
    connection: sqlite3.Connection, key: object, seen: Seen | None, now: int
) -> str | None:
    """Note that a step was applied, which there is in the tables; forget one that never was."""
    if seen is not None and not seen.problems:
        return None
    serves: dict[object, int] = {step.number: step.serves for step in migrations()}
    if seen is not None and "version" not in seen.problems and key not in serves:
        return None  # What a newer program did is for it to say.
    connection.execute(STEPS.removed_row(key), (key,))
    if seen is not None and "version" in seen.problems:
        return f"step {key} of the schema is forgotten: there is no such step"
    connection.execute(STEPS.added_row(STEPS.columns), (key, now, serves[key]))
    return f"step {key} of the schema is noted as applied"


def _remove(connection: sqlite3.Connection, damage: Damage, seen: Seen, now: int) -> str | None:
    """Remove a row, unless it was written anew since somebody saw the damage."""
    if not seen.problems and not _is_odd(connection, damage, seen, now):
        return None
    connection.execute(damage.table.removed_row(damage.key), (damage.key,))
    return f"removed, because {damage.problem}"


def _is_odd(connection: sqlite3.Connection, damage: Damage, seen: Seen, now: int) -> bool:
    """Say whether a row should not be there, though each of its columns is sound."""
    if damage.table is WORKERS:
        return bool(seen.sound["live_until"] > now + LONGEST_LEASE)
    if damage.table is ATTEMPTS:
        run = (seen.stored["job_id"], seen.stored["fence"], damage.key)
        return connection.execute(_LOGGED, run).fetchone() is not None
    if damage.table is ENTRIES:
        owner = seen.stored["owner"]
        return (
            owner != ""
            and connection.execute(_LIVES, (owner,)).fetchone() is None
            and not (_elsewhere(connection, owner))
        )
    return False


def _finish_well(connection: sqlite3.Connection, table: Table, sound: Row) -> None:
    """Make the rest of an ended job, or of a line of the audit log, agree."""
    if table is NOTES:
        return
    _set_order(sound)
    if table is FINISHED and sound["state"] not in ("done", "cancelled"):
        sound["state"] = "cancelled"
    if table is DEAD:
        sound["reason"] = sound["reason"] or Reason.UNREADABLE.value
        if _elsewhere(connection, sound["id"], [FINISHED]):
            sound["id"] = _new_id()


def _agree(seen: Seen, now: int) -> None:
    """Make the marks of a live job agree with each other."""
    _, sound, problems = seen
    signs = [sound["worker"] is not None, sound["claimed_at"] is not None]
    signs.append("lease_until" not in problems and sound["lease_until"] > 0)
    running = sum(signs) > 1  # What two of three say is true.
    if running:
        if not 0 < sound["lease_until"] <= now + LONGEST_LEASE:
            sound["lease_until"] = now
        sound["worker"] = sound["worker"] if sound["worker"] is not None else "unknown"
        if sound["claimed_at"] is None:
            sound["claimed_at"] = sound["fence"] or sound["enqueued_at"]
        sound["fence"] = sound["fence"] or max(1, sound["claimed_at"])
    else:
        sound |= {"lease_until": 0, "worker": None, "claimed_at": None, "cancel": None}
    _set_order(sound)
    if sound["parked"] > Parked.NO_CAPABLE_WORKER and sound["park_key"] is None:
        sound["parked"] = 0
    if running and sound["parked"] == Parked.NOT_DUE:
        sound["parked"] = 0
    elif not running and sound["parked"] == 0 and sound["run_at"] > now + CLOCKS_APART:
        sound["parked"] = int(Parked.NOT_DUE)
    if sound["parked"] == Parked.NO_CAPABLE_WORKER:
        sound["park_key"] = kind_key(sound["task"], sound["version"])
    elif sound["parked"] < Parked.NO_CAPABLE_WORKER:
        sound["park_key"] = None
    sound["size"] = len(sound["payload"].encode()) + len((sound["options"] or "").encode())


def _set_order(sound: Row) -> None:
    """Bring a job's place back to within a day of its time: that which is nearer to its birth."""
    run_at, order_at, born = sound["run_at"], sound["order_at"], sound["enqueued_at"]
    if abs(run_at - order_at) <= LONGEST_HEAD_START * SECOND:
        return
    nearer = min(run_at, max(0, order_at), key=lambda at: abs(at - born))
    sound |= {"run_at": nearer, "order_at": nearer}


def _write(connection: sqlite3.Connection, table: Table, key: object, seen: Seen) -> str | None:
    """Write what is sound now and was not before."""
    changed = seen.changed()
    if not changed:
        return None
    name = table.call(list(seen.sound.values()))
    if "seq" in changed:
        changed["seq"] = 1 + max(seq for (seq,) in connection.execute(_SEQS[table.name]))
    connection.execute(table.changed_row(changed, key), (*changed.values(), key))
    told = ", ".join(seen.problems.values()) or f"its {', '.join(changed)} did not agree"
    if "id" in changed and "id" not in seen.problems:
        told = f"its id was {seen.stored['id']}, and that job is finished"
    return f"{name} is put right: {told}"


def _elsewhere(
    connection: sqlite3.Connection, job_id: object, places: Iterable[Table] = (FINISHED, DEAD)
) -> str | None:
    """Say where else there is a job of this id that has ended."""
    for table in places:
        if connection.execute(_KNOWN[table.name], (job_id,)).fetchone():
            return _PLACES[table.name]
    return None
