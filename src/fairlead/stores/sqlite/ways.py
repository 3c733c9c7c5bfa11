"""The ways of a job: into the line, out of it, aside and back. Every verb takes these.

No other file moves jobs. `attached` says what a job has besides its row, and goes with it from
place to place in the same statement; `entries.py` removes that before the job is forgotten.
"""

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob, State
from fairlead.core.selection import LOOK
from fairlead.core.store import BATCH
from fairlead.stores.sqlite.entries import forget_some
from fairlead.stores.sqlite.sound import exact
from fairlead.stores.sqlite.statements import put_statement, statements
from fairlead.stores.sqlite.talk import (
    UNREADABLE,
    Hand,
    ask,
    raise_unless_damage,
    tell,
    to_json,
)

Refused = dict[int, sqlite3.IntegrityError]
"""What could not be written, by sequence number, and why."""

PLACES = ("dead", "finished")
_PUT_SIZES = (1_000, 256, 64, 16, 4, 1)

_decode_ids = msgspec.json.Decoder(set[JobId]).decode
_decode_keys = msgspec.json.Decoder(list[str]).decode


class Moment(NamedTuple):
    """When a verb runs, by the store's clock, and the level of the program that runs it."""

    now: int
    level: int


class Parked(IntEnum):
    """Why a job is not in the order; limits have numbers of their own (`limits.LIMITED`).

    A new reason is a new number, and what for, its key says. Programs that do not know a number
    leave its jobs alone.
    """

    NOT_DUE = 1
    NO_CAPABLE_WORKER = 2


_NOT_DUE = int(Parked.NOT_DUE)  # SQLite takes plain numbers faster.


# In


def enter(connection: Hand, jobs: Sequence[NewJob], now: int) -> list[bool]:
    """Take jobs into the line, on any connection to the file; says for each whether it is new."""
    if len(jobs) == 1:
        return _enter_some(connection, jobs, now)
    fresh: list[bool] = []
    start = 0
    for size in _PUT_SIZES:
        while len(jobs) - start >= size:
            fresh += _enter_some(connection, jobs[start : start + size], now)
            start += size
    return fresh


def _enter_some(connection: Hand, jobs: Sequence[NewJob], now: int) -> list[bool]:
    values: list[object] = []
    for job in jobs:
        due = job.due_at(now)
        size = len(job.payload) if job.payload.isascii() else len(job.payload.encode())
        if job.options is not None:
            size += len(job.options.encode())
        values += (
            job.id,
            job.queue,
            job.task,
            job.version,
            job.level,
            _NOT_DUE if due > now else 0,
            due,
            due - job.priority * SECOND,
            job.ends_at(now),
            now,
            size,
            job.payload,
            job.options,
        )
    put = connection.execute(put_statement(len(jobs)), values)
    count = put.rowcount
    if count == len(jobs):
        return [True] * len(jobs)
    if not count:
        return [False] * len(jobs)
    upto = put.lastrowid or 0
    added = _decode_ids(ask(connection, "added", after=upto - count, upto=upto))
    if len(added) < count:
        ids = to_json([job.id for job in jobs])
        added = _decode_ids(ask(connection, "added_now", ids=ids, now=now))
    fresh = []
    for job in jobs:
        fresh.append(job.id in added)
        added.discard(job.id)  # An id that stands twice in the batch is new only once.
    return fresh


def enter_again(
    connection: sqlite3.Connection,
    job_ids: Collection[JobId],
    states: Collection[State],
    by: Moment,
) -> list[JobId]:
    """Take jobs that ended in one of these states back into the line, due now."""
    values = _which(job_ids, states, by.level)
    lifted: list[JobId] = []
    for place in PLACES:
        ids = ids_of(connection, f"lift_{place}", {**values, "now": by.now})
        _forget_in(connection, place, _which(ids, states, by.level))
        lifted += ids
    return lifted


# Out


class End(NamedTuple):
    """One kind of end of a run, or of a wait: jobs that share it are written together."""

    state: State
    counts: bool = True
    crashed: bool = False
    shared_deaths: int = 0
    reason: str | None = None


def leave(connection: Hand, end: End, results: Mapping[int, object], now: int) -> Refused:
    """Take jobs out of the line, to the finished ones or to the dead letters.

    They are given by sequence number, with their results. Those that the engine refuses, because
    their id has ended already, are left as they are, and returned.
    """
    return apart(partial(_leave, connection, end, now), results)


def _leave(connection: Hand, end: End, now: int, results: Mapping[int, object]) -> None:
    told: dict[str, object] = {"reason": end.reason, "results": to_json(results), "now": now}
    told |= {"uncounted": not end.counts, "crashed": end.crashed}
    if end.state is State.DEAD:
        tell(connection, "bury", **told)
    else:
        tell(connection, "finish", state=end.state, **told)
    tell(connection, "remove", seqs=to_json(list(results)))


def apart(write: Callable[[Mapping[int, object]], None], jobs: Mapping[int, object]) -> Refused:
    """Write for these jobs; for each alone, if the engine refuses one of them."""
    try:
        write(jobs)
    except sqlite3.IntegrityError as problem:
        if len(jobs) == 1:
            return dict.fromkeys(jobs, problem)
        parts = (apart(write, {seq: value}) for seq, value in jobs.items())
        return {seq: problem for part in parts for seq, problem in part.items()}
    return {}


def lose_entries(
    connection: Hand, job_ids: Collection[JobId], states: Collection[State], level: int
) -> int:
    """Remove some entries of jobs that are about to be deleted; returns how many."""
    values = _which(job_ids, states, level)
    return sum(forget_some(connection, place, values) for place in PLACES)


def forget(
    connection: sqlite3.Connection,
    job_ids: Collection[JobId],
    states: Collection[State],
    level: int,
) -> list[JobId]:
    """Remove jobs that ended in one of these states, for good, with the entries they still have."""
    values = _which(job_ids, states, level)
    while lose_entries(connection, job_ids, states, level):
        pass
    return [job_id for place in PLACES for job_id in _forget_in(connection, place, values)]


def _forget_in(
    connection: sqlite3.Connection, place: str, values: Mapping[str, Any]
) -> list[JobId]:
    return ids_of(connection, f"forget_{place}", values)


def _which(job_ids: Collection[JobId], states: Collection[State], level: int) -> dict[str, object]:
    return {"ids": to_json(list(job_ids)), "states": to_json(list(states)), "level": level}


def forget_old(connection: sqlite3.Connection, before: int, level: int) -> int:
    """Remove some jobs that were done or cancelled before this time; returns how many.

    What is above the level is stepped over, and so is what still has entries.
    """
    old = {"before": before, "level": level, "batch": BATCH, "look": BATCH + LOOK}
    return tell(connection, "prune_finished", **old)


def ids_of(
    connection: sqlite3.Connection, statement: str, values: Mapping[str, Any]
) -> list[JobId]:
    """Run a statement that returns the ids of what it changed."""
    return [job_id for (job_id,) in connection.execute(statements()[statement], values).fetchall()]


# Aside and back


def wait_again(connection: Hand, end: End, times: Mapping[int, object], now: int) -> Refused:
    """Let jobs that ran wait: for their new due times, or at their old places if they have none."""
    return apart(partial(_wait_again, connection, end, now), times)


def _wait_again(connection: Hand, end: End, now: int, times: Mapping[int, object]) -> None:
    counts = {"uncounted": not end.counts, "crashed": end.crashed, "now": now}
    tell(
        connection,
        "wait_again",
        times=to_json(times),
        shared_deaths=end.shared_deaths,
        not_due=_NOT_DUE,
        **counts,
    )


def park(connection: Hand, reason: int, keys: Mapping[int, str]) -> None:
    """Take jobs out of the order: sequence numbers with what each waits for."""
    tell(connection, "park", parked=reason, keys=to_json(keys))


def bring_back_due(connection: sqlite3.Connection, now: int) -> int:
    """Put jobs into the order whose time has come; returns how many."""
    return tell(connection, "bring_back_due", now=now, batch=BATCH)


def bring_back_known(connection: sqlite3.Connection, capable: Mapping[str, int] | None) -> int:
    """Put jobs back into the order that wait for a worker with these tasks; None knows all."""
    if capable is None:
        return tell(connection, "bring_back_unknown", batch=BATCH)
    return tell(connection, "bring_back_known", capable=to_json(dict(capable)), batch=BATCH)


def bring_back(connection: sqlite3.Connection, reason: int, is_open: Callable[[str], bool]) -> int:
    """Put jobs back into the order whose key is open now; returns how many."""
    keys = [key for key in _park_keys(connection, reason) if is_open(key)]
    if not keys:
        return 0
    return tell(connection, "bring_back_parked", parked=reason, keys=to_json(keys), batch=BATCH)


def _park_keys(connection: sqlite3.Connection, reason: int) -> list[str]:
    """Return what jobs are parked for."""
    try:
        return _decode_keys(ask(connection, "park_keys", parked=reason))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    # Somebody damaged a key; it opens for nobody.
    with exact(connection):
        rows = connection.execute(statements()["park_counts"], {"parked": reason}).fetchall()
    return [key for key, _ in rows if isinstance(key, str)]


def hasten(connection: sqlite3.Connection, job_ids: Collection[JobId], by: Moment) -> list[JobId]:
    """Let waiting jobs run now and not later."""
    values = {"ids": to_json(list(job_ids)), "now": by.now, "level": by.level}
    rows = connection.execute(statements()["hasten"], values).fetchall()
    if rows:
        tell(connection, "bring_back_hastened", seqs=to_json([seq for seq, _ in rows]))
    return [job_id for _, job_id in rows]


# What keys say


def kind_key(task: str, version: int) -> str:
    """Name a kind of call, as the key under which jobs wait for a worker that knows it.

    Those of one task stand together, by version.
    """
    return f"{task} {version:010}"


def kind_of(key: str) -> tuple[str, int]:
    """Return the task and the version that such a key names."""
    task, _, version = key.rpartition(" ")
    return task, int(version) if version.isdecimal() else 0
