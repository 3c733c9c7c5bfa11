"""What people ask of the file: look, count, cancel, revive, delete, pause."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from fairlead.core.admin import (
    MOST_LISTED,
    NOT_MENDED,
    Action,
    AuditLine,
    ErrorGroup,
    Filter,
    Running,
    Waiting,
    Worker,
    reused,
)
from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.clock import Clock
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, Attempt, Job, JobRecord, State
from fairlead.core.selection import ClaimPlan, Head, Line, Snapshot
from fairlead.stores.records import (
    attempt_of,
    counts_of,
    group_of,
    line_of,
    places_of,
    record_of,
    running_of,
    text_of,
    waiting_of,
    worker_of,
)
from fairlead.stores.sqlite.audit import Damage
from fairlead.stores.sqlite.line import SqliteLine, cancel_waiting, decode_seqs
from fairlead.stores.sqlite.repair import repair
from fairlead.stores.sqlite.sound import exact
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.talk import UNREADABLE, ask, raise_unless_damage, tell, to_json
from fairlead.stores.sqlite.ways import Parked, enter_again, forget, hasten, ids_of, kind_of

_AFTER_ALL_IDS = b"\xff" * 64
"""Bytes come after every text, and nearly all others."""

_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode
_decode_waiting = msgspec.json.Decoder(list[tuple[int, JobId]]).decode


class _Held(Job, frozen=True, array_like=True, gc=False):
    """A running job as its row tells it."""


_decode_held = msgspec.json.Decoder(list[_Held]).decode


def find(connection: sqlite3.Connection, job_id: JobId) -> JobRecord | None:
    """Return a job in whatever state."""
    records = _records(connection.execute(statements()["find"], {"id": job_id}))
    return records[0] if records else None


def _records(cursor: sqlite3.Cursor) -> list[JobRecord]:
    names = [column[0] for column in cursor.description]
    return [record_of(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def _asked(which: Filter) -> dict[str, object]:
    """Return a filter as the statements take it; a list that asks nothing is NULL."""
    return places_of(which) | {
        "queues": to_json(which.queues) if which.queues else None,
        "tasks": to_json(which.tasks) if which.tasks else None,
        "states": to_json(which.states) if which.states else None,
        "tags": to_json(which.tags) if which.tags else None,
        "since": which.since,
        "error": which.error,
        "waits": to_json(which.waits) if which.waits else None,
        "at": which.at,
    }


def _statement(name: str, which: Filter) -> str:
    """Return the statement that finds what a filter means at the least cost."""
    return statements()[name if which.since is None else f"{name}_since"]


def jobs(
    connection: sqlite3.Connection, which: Filter, limit: int, before: JobId | None
) -> list[JobRecord]:
    """Return jobs that the filter means, newest first."""
    page = {"limit": min(limit, MOST_LISTED), "before": before or _AFTER_ALL_IDS}
    return _records(connection.execute(_statement("jobs", which), _asked(which) | page))


def groups(connection: sqlite3.Connection, which: Filter) -> list[ErrorGroup]:
    """Return failures by fingerprint."""
    rows = connection.execute(_statement("groups", which), _asked(which)).fetchall()
    return [group_of(row) for row in rows]


def attempts(connection: sqlite3.Connection, job_id: JobId) -> list[Attempt]:
    """Return the job's lines of the attempt log."""
    return _attempts(connection, "attempts", id=job_id)


def recent(
    connection: sqlite3.Connection, since: int, limit: int, queue: str | None
) -> list[Attempt]:
    """Return the last lines of the attempt log."""
    return _attempts(connection, "recent", since=since, limit=limit, queue=queue)


def _attempts(connection: sqlite3.Connection, statement: str, **values: object) -> list[Attempt]:
    """Read lines of the attempt log all at once; one by one, if somebody damaged one of them."""
    try:
        return _decode_attempts(ask(connection, statement, **values))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    rows = connection.execute(statements()[f"{statement}_rows"], values).fetchall()
    return [attempt_of(row) for row in rows]


def held(connection: sqlite3.Connection, worker: str) -> list[Job]:
    """Return the running jobs that this worker claimed."""
    try:
        return _held(connection, worker, None)
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    jobs: list[Job] = []
    for seq in decode_seqs(ask(connection, "held_seqs", worker=worker)):
        try:
            jobs += _held(connection, worker, seq)
        except UNREADABLE as problem:  # It is found out when its lease passes.
            raise_unless_damage(problem)
    return jobs


def _held(connection: sqlite3.Connection, worker: str, seq: int | None) -> list[Job]:
    rows = _decode_held(ask(connection, "held", worker=worker, seq=seq))
    return [Job(*msgspec.structs.astuple(row)) for row in rows]


def count(connection: sqlite3.Connection, which: Filter) -> dict[str, dict[State, int]]:
    """Count jobs by queue and state."""
    return counts_of(connection.execute(_statement("count", which), _asked(which)).fetchall())


def waiting(connection: sqlite3.Connection, now: int) -> dict[str, Waiting]:
    """Count the waiting jobs of each queue by what they wait for."""
    return waiting_of(connection.execute(statements()["waiting_counts"], {"now": now}).fetchall())


def running(connection: sqlite3.Connection, now: int) -> list[Running]:
    """Count running jobs by worker process, queue and task."""
    return running_of(connection.execute(statements()["running"], {"now": now}).fetchall())


def snapshot(connection: sqlite3.Connection, plan: ClaimPlan, limit: int, now: int) -> Snapshot:
    """Return what a claim with this plan would look at, by one state of the file."""
    connection.execute("BEGIN")
    try:
        stopped = paused(connection)
        lines = {
            q.name: Line(q, _standing(connection, plan, q.name, limit, now), q.name in stopped)
            for q in plan.queues
        }
    finally:
        connection.execute("ROLLBACK")
    return Snapshot(plan, now, lines)


def _standing(
    connection: sqlite3.Connection, plan: ClaimPlan, queue: str, limit: int, now: int
) -> list[Head]:
    capable = None if plan.capable is None else to_json(dict(plan.capable))
    values = {"queue": queue, "limit": limit, "now": now, "capable": capable}
    heads: list[Head] = []
    for row in connection.execute(statements()["standing"], values).fetchall():
        with suppress(msgspec.ValidationError):  # Somebody damaged it; a claim moves it out.
            heads.append(msgspec.convert((*row[:6], bool(row[6]), *row[7:]), Head))
    return heads


def ahead(connection: sqlite3.Connection, job_id: JobId, now: int) -> int:
    """Count the due jobs before this one in its queue."""
    return int(ask(connection, "ahead", id=job_id, now=now))


def unknown(connection: sqlite3.Connection) -> dict[tuple[str, int], int]:
    """Count the jobs that are parked for want of a capable worker, by task and version."""
    parked = {"parked": Parked.NO_CAPABLE_WORKER}
    rows = connection.execute(statements()["park_counts"], parked).fetchall()
    counts: Counter[tuple[str, int]] = Counter()
    for key, number in rows:
        counts[kind_of(text_of(key))] += number
    return dict(counts)


def paused(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the paused queues."""
    return {text_of(queue) for (queue,) in connection.execute(statements()["paused"]).fetchall()}


def workers(connection: sqlite3.Connection, now: int) -> list[Worker]:
    """Return the workers that are announced and live."""
    rows = connection.execute(statements()["workers"], {"now": now, "latest": LATEST})
    return [worker_of(*row) for row in rows]


def audit_log(connection: sqlite3.Connection, limit: int, job_id: JobId | None) -> list[AuditLine]:
    """Return the audit log, newest first."""
    statement = statements()["audit_log" if job_id is None else "audit_log_of"]
    rows = connection.execute(statement, {"limit": limit, "job_id": job_id}).fetchall()
    return [line_of(row) for row in rows]


class Request(NamedTuple):
    """What a person wants done with some jobs."""

    job_ids: Collection[JobId]
    by: Action
    states: Collection[State] = ()
    reason: str = ""


class Edit(NamedTuple):
    """A new payload for a dead letter that still has the old one."""

    job_id: JobId
    was: str
    payload: str
    version: int
    by: Action


class Repaired(NamedTuple):
    """What became of damaged rows: what was done, and why others stay as they are, by place."""

    mended: list[str]
    refused: dict[tuple[str, object], str]


class SqliteHand:
    """The changes people make, as the writer runs them: items in, an answer for each."""

    def __init__(self, clock: Clock, line: SqliteLine) -> None:
        self._clock = clock
        self._line = line

    def cancel(
        self, connection: sqlite3.Connection, requests: Sequence[Request]
    ) -> list[dict[JobId, JobRecord]]:
        """Cancel waiting jobs, mark running ones; returns each as it is then."""
        return [self._cancel(connection, request) for request in requests]

    def _cancel(self, connection: sqlite3.Connection, request: Request) -> dict[JobId, JobRecord]:
        touched = self._once(connection, request, "cancel", self._cancel_now)
        with exact(connection):
            found = {job_id: find(connection, job_id) for job_id in touched}
        return {job_id: record for job_id, record in found.items() if record is not None}

    def _cancel_now(self, connection: sqlite3.Connection, request: Request) -> list[JobId]:
        by = self._line.moment()
        which = {"ids": to_json(list(request.job_ids)), "level": by.level}
        touched: list[JobId] = []
        if State.RUNNING in request.states:
            touched += ids_of(connection, "ask_cancel", {**which, "reason": request.reason})
        if State.WAITING in request.states:
            waiting = _decode_waiting(ask(connection, "waiting", **which))
            seqs = [seq for seq, _ in waiting]
            refused = cancel_waiting(connection, seqs, request.reason, by)
            touched += [job_id for seq, job_id in waiting if seq not in refused]
        return touched

    def revive(
        self, connection: sqlite3.Connection, requests: Sequence[Request]
    ) -> list[list[JobId]]:
        """Put jobs back into the line, due now."""
        self._line.look_again()
        return [self._once(connection, each, "revive", self._revive) for each in requests]

    def _revive(self, connection: sqlite3.Connection, request: Request) -> list[JobId]:
        by = self._line.moment()
        soon = State.WAITING in request.states
        hastened = hasten(connection, request.job_ids, by) if soon else []
        return hastened + enter_again(connection, request.job_ids, request.states, by)

    def delete(
        self, connection: sqlite3.Connection, requests: Sequence[Request]
    ) -> list[list[JobId]]:
        """Forget final jobs."""
        return [self._once(connection, each, "delete", self._delete) for each in requests]

    def _delete(self, connection: sqlite3.Connection, request: Request) -> list[JobId]:
        return forget(connection, request.job_ids, request.states, self._line.level)

    def _once(
        self, connection: sqlite3.Connection, request: Request, verb: str, do: "_Do"
    ) -> list[JobId]:
        """Do something to jobs, and write it down; of a repeat, say what the first came to."""
        asked = list(request.job_ids)
        call = _Call(request.by, mark_of(verb, asked, sorted(request.states), request.reason))
        past = _past(connection, call)
        done = answer_in(past, call.mark, asked)
        if done is None:
            done = do(connection, request)
            answers = with_answer(past, call.mark, asked, set(done))
            self._note(connection, call.by, len(done), answers, _only(asked))
        return done

    def edit(self, connection: sqlite3.Connection, edits: Sequence[Edit]) -> list[bool]:
        """Replace payloads of dead letters, and keep the old ones in the audit log."""
        return [self._edit(connection, edit) for edit in edits]

    def _edit(self, connection: sqlite3.Connection, edit: Edit) -> bool:
        call = _Call(edit.by, mark_of("edit", *edit[:4]))
        if _is_repeat(connection, call):
            return True
        values: dict[str, object] = {"id": edit.job_id, "was": edit.was, "payload": edit.payload}
        values |= {"version": edit.version, "level": self._line.level}
        done = tell(connection, "edit", **values) > 0
        if done:
            answers = with_answer(_past(connection, call, edit.was), call.mark, (), ())
            self._note(connection, edit.by, 1, answers, edit.job_id, edit.was)
        return done

    def pause(
        self, connection: sqlite3.Connection, items: Sequence[tuple[str, Action]]
    ) -> list[bool]:
        """Pause queues."""
        return [self._switch(connection, "pause", *item) for item in items]

    def resume(
        self, connection: sqlite3.Connection, items: Sequence[tuple[str, Action]]
    ) -> list[bool]:
        """Resume queues."""
        return [self._switch(connection, "resume", *item) for item in items]

    def _switch(
        self, connection: sqlite3.Connection, statement: str, queue: str, by: Action
    ) -> bool:
        call = _Call(by, mark_of(statement, queue))
        past = _past(connection, call)
        done = answer_in(past, call.mark, [queue])
        if done is None:
            done = [queue] * tell(connection, statement, queue=queue)
            answers = with_answer(past, call.mark, [queue], done)
            self._note(connection, by, len(done), answers)
        return bool(done)

    def note(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Action, int, JobId | None]]
    ) -> list[None]:
        """Add to the audit log what was done by other verbs."""
        for by, number, job_id in items:
            call = _Call(by, mark_of("note", number, job_id))
            past = _past(connection, call)
            if answer_in(past, call.mark, ()) is None:
                answers = with_answer(past, call.mark, (), ())
                self._note(connection, by, number, answers, job_id)
        return [None] * len(items)

    def repair(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Action, Sequence[Damage]]]
    ) -> list[Repaired]:
        """Put damaged rows right; says what was done."""
        return [self._repair(connection, by, found) for by, found in items]

    def _repair(
        self, connection: sqlite3.Connection, by: Action, found: Sequence[Damage]
    ) -> Repaired:
        at = self._line.moment()
        mended: list[str] = []
        refused: dict[tuple[str, object], str] = {}
        for damage in found:
            try:
                with _in_one_step(connection):
                    done = repair(connection, damage, at)
                mended += [done] if done else []
            except (sqlite3.IntegrityError, *UNREADABLE) as problem:
                if not isinstance(problem, sqlite3.IntegrityError):
                    raise_unless_damage(problem)
                refused[damage.place] = f"{NOT_MENDED} this: {damage.problem}; SQLite: {problem}"
        if mended:
            past = _past(connection, _Call(by, ""))
            self._note(connection, by, len(mended), past)
        return Repaired(mended, refused)

    def _note(
        self,
        connection: sqlite3.Connection,
        by: Action,
        number: int,
        answers: str,
        job_id: JobId | None = None,
        before: str | None = None,
    ) -> None:
        """Add a call to the line of its action, with all answers of that."""
        line = msgspec.structs.asdict(by) | {"job_id": job_id, "before": before}
        now = self._clock.now()
        tell(connection, "note", now=now, count=number, answers=answers, **line)


class _Call(NamedTuple):
    """A call that a person made: who, and the mark of what is asked."""

    by: Action
    mark: str


_Do = Callable[[sqlite3.Connection, Request], list[JobId]]


def _past(connection: sqlite3.Connection, call: _Call, before: str | None = None) -> str:
    """Return the answers of an action so far; raise if another one has its id."""
    row = connection.execute(statements()["noted"], {"id": call.by.id}).fetchone()
    if row is None:
        return ""
    *line, replaced, answers = row
    is_new = answer_in(answers, call.mark, ()) is None
    if line != _line(call.by) or (is_new and (replaced is not None or before is not None)):
        raise reused(call.by)
    return answers if isinstance(answers, str) else ""


def _is_repeat(connection: sqlite3.Connection, call: _Call) -> bool:
    """Say whether a call was made before."""
    row = connection.execute(statements()["noted"], {"id": call.by.id}).fetchone()
    if row is None:
        return False
    *line, _, answers = row
    return line == _line(call.by) and answer_in(answers, call.mark, ()) is not None


def _line(by: Action) -> list[str]:
    return [by.who, by.verb, by.target]


def _only(job_ids: Sequence[JobId]) -> JobId | None:
    """Return the id of a job that is alone."""
    return job_ids[0] if len(job_ids) == 1 else None


@contextmanager
def _in_one_step(connection: sqlite3.Connection) -> Iterator[None]:
    """Do all of something or nothing of it: a job that is half moved would be in two places."""
    connection.execute("SAVEPOINT step")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO step")
        raise
    finally:
        connection.execute("RELEASE step")
