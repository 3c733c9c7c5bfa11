"""What people do to the file, as the writer runs it: once, and told in the audit log."""

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from fairlead.core.acts import (
    Action,
    Cancel,
    Deed,
    Delete,
    Edit,
    Note,
    Pause,
    Resume,
    Revive,
    reused,
)
from fairlead.core.admin import NOT_MENDED
from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.clock import Clock
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.stores.sqlite.audit import Damage
from fairlead.stores.sqlite.line import SqliteLine, cancel_waiting
from fairlead.stores.sqlite.repair import repair
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.talk import UNREADABLE, ask, raise_unless_damage, tell, to_json
from fairlead.stores.sqlite.ways import enter_again, forget, hasten, ids_of, lose_entries

_decode_waiting = msgspec.json.Decoder(list[tuple[int, JobId]]).decode


class Repaired(NamedTuple):
    """What became of damaged rows: what was done, and why others stay as they are, by place."""

    mended: list[str]
    refused: dict[tuple[str, object], str]


class SqliteActs:
    """The changes people make: items in, an answer for each."""

    def __init__(self, clock: Clock, line: SqliteLine) -> None:
        self._clock = clock
        self._line = line

    def act(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Deed, Action]]
    ) -> list[list[str]]:
        """Do what people want done; returns what each was done to."""
        return [self._act(connection, deed, by) for deed, by in items]

    def _act(self, connection: sqlite3.Connection, deed: Deed, by: Action) -> list[str]:
        match deed:
            case Cancel(ids, reason, states):
                call = _Call(by, mark_of("cancel", list(ids), sorted(states), reason))
                return self._once(connection, call, ids, lambda: self._cancel(connection, deed))
            case Revive(ids, states):
                call = _Call(by, mark_of("revive", list(ids), sorted(states)))
                return self._once(connection, call, ids, lambda: self._revive(connection, deed))
            case Delete(ids, states):
                call = _Call(by, mark_of("delete", list(ids), sorted(states)))
                level = self._line.level
                return self._once(
                    connection, call, ids, lambda: forget(connection, ids, states, level)
                )
            case Edit():
                return self._edit(connection, deed, by)
            case Pause(queue) | Resume(queue):
                return self._switch(connection, deed, queue, by)
            case Note(count, job_id):
                call = _Call(by, mark_of("note", count, job_id))
                past = _past(connection, call)
                if answer_in(past, call.mark, ()) is None:
                    answers = with_answer(past, call.mark, (), ())
                    self._note(connection, by, count, answers, job_id)
                return []

    def lose_entries(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Delete, Action]]
    ) -> list[int]:
        """Remove some entries of jobs that people are about to delete; returns how many of each.

        That comes before the deletion, in transactions of its own: there may be very many.
        """
        return [self._lose_entries(connection, deed, by) for deed, by in items]

    def _lose_entries(self, connection: sqlite3.Connection, deed: Delete, by: Action) -> int:
        count = lose_entries(connection, deed.ids, deed.states, self._line.level)
        if count:
            self._note(connection, by, 0, _past(connection, _Call(by, "")), _only(list(deed.ids)))
        return count

    def _once(
        self,
        connection: sqlite3.Connection,
        call: "_Call",
        ids: Collection[JobId],
        do: Callable[[], list[JobId]],
    ) -> list[str]:
        """Do something to jobs, and write it down; of a repeat, say what the first came to."""
        asked = list(ids)
        past = _past(connection, call)
        done = answer_in(past, call.mark, asked)
        if done is None:
            done = do()
            answers = with_answer(past, call.mark, asked, set(done))
            self._note(connection, call.by, len(done), answers, _only(asked))
        return list(done)

    def _cancel(self, connection: sqlite3.Connection, deed: Cancel) -> list[JobId]:
        by = self._line.moment()
        which = {"ids": to_json(list(deed.ids)), "level": by.level}
        touched: list[JobId] = []
        if State.RUNNING in deed.states:
            touched += ids_of(connection, "ask_cancel", {**which, "reason": deed.reason})
        if State.WAITING in deed.states:
            waiting = _decode_waiting(ask(connection, "waiting", **which))
            seqs = [seq for seq, _ in waiting]
            refused = cancel_waiting(connection, seqs, deed.reason, by)
            touched += [job_id for seq, job_id in waiting if seq not in refused]
        return touched

    def _revive(self, connection: sqlite3.Connection, deed: Revive) -> list[JobId]:
        self._line.look_again()
        by = self._line.moment()
        soon = State.WAITING in deed.states
        hastened = hasten(connection, deed.ids, by) if soon else []
        return hastened + enter_again(connection, deed.ids, deed.states, by)

    def _edit(self, connection: sqlite3.Connection, edit: Edit, by: Action) -> list[str]:
        call = _Call(by, mark_of("edit", edit.id, edit.was, edit.payload, edit.version))
        if _is_repeat(connection, call):
            return [edit.id]
        values: dict[str, object] = {"id": edit.id, "was": edit.was, "payload": edit.payload}
        values |= {"version": edit.version, "level": self._line.level}
        if not tell(connection, "edit", **values):
            return []
        answers = with_answer(_past(connection, call, edit.was), call.mark, (), ())
        self._note(connection, by, 1, answers, edit.id, edit.was)
        return [edit.id]

    def _switch(
        self, connection: sqlite3.Connection, deed: Pause | Resume, queue: str, by: Action
    ) -> list[str]:
        statement = "pause" if isinstance(deed, Pause) else "resume"
        call = _Call(by, mark_of(statement, queue))
        past = _past(connection, call)
        done = answer_in(past, call.mark, [queue])
        if done is None:
            done = [queue] * tell(connection, statement, queue=queue)
            answers = with_answer(past, call.mark, [queue], done)
            self._note(connection, by, len(done), answers)
        return done

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
