"""Rows of the SQL stores as the values people see; what somebody damaged is told, not hidden.

Where a row comes as an array, its fields stand in the order that is said here. It is read as "at
least these": a new field goes behind the last one, with a default. The values of `core` may have
their fields in any order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from fairlead.core.acts import LIVE, AuditLine
from fairlead.core.admin import ErrorGroup, Filter, PoolShare, Running, Wait, Waiting, Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, Attempt, Gate, JobRecord, State, decode_errors, read

FINISHED = frozenset({State.DONE, State.CANCELLED})


class AttemptRow(msgspec.Struct, frozen=True, array_like=True):
    """A line of the attempt log."""

    job_id: JobId
    fence: int
    attempt: int
    task: str
    queue: str
    pool: str | None
    worker: str | None
    ready_at: int
    claimed_at: int
    started_at: int | None
    finished_at: int
    outcome: str
    fingerprint: str | None

    @property
    def line(self) -> Attempt:
        """The line as people see it."""
        return Attempt(**asdict(self))


_decode_capable = msgspec.json.Decoder(dict[str, Any]).decode
_decode_pools = msgspec.json.Decoder(tuple[PoolShare, ...]).decode


def text_of(value: object) -> str:
    """Return what stands where a text should be, as far as it can be read."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def text_or_none(value: object) -> str | None:
    """Do the same where there may be nothing."""
    return None if value is None else text_of(value)


def number_of(value: object) -> int:
    """Return what stands where a number should be; nothing else is one."""
    return value if isinstance(value, int) else 0


def instant_of(value: object) -> int | None:
    """Return what stands where an instant should be, if it is one."""
    return value if isinstance(value, int) and 0 <= value <= LATEST else None


def record_of(row: Mapping[str, Any], gate: Gate | None) -> JobRecord:
    """Return a row of the record views as the job it tells of, as far as it can be read.

    `gate` is the one that the job is parked for.
    """
    run_at, order_at = instant_of(row["run_at"]), row["order_at"]
    placed = run_at is not None and isinstance(order_at, int)
    state = state_of(row["state"])
    reason = text_or_none(row["reason"])
    if state is None and reason is None:
        reason = f"its state is {text_of(row['state'])!r:.80}"
    return JobRecord(
        id=JobId(text_of(row["id"])),
        task=text_of(row["task"]),
        version=number_of(row["version"]),
        queue=text_of(row["queue"]),
        state=state or State.CANCELLED,
        payload=text_of(row["payload"]),
        options=text_or_none(row["options"]),
        priority=(number_of(run_at) - order_at) // SECOND if placed else 0,
        attempt=number_of(row["attempt"]),
        crashes=number_of(row["crashes"]),
        shared_deaths=number_of(row["shared_deaths"]),
        level=number_of(row.get("level", 1)),
        fence=number_of(row["fence"]),
        run_at=number_of(run_at),
        enqueued_at=number_of(instant_of(row["enqueued_at"])),
        expires_at=instant_of(row["expires_at"]),
        gate=gate,
        worker=text_or_none(row["worker"]),
        claimed_at=instant_of(row["claimed_at"]),
        lease_until=instant_of(row["lease_until"]),
        cancel_requested=bool(row["cancel_requested"]),
        finished_at=instant_of(row["finished_at"]),
        result=text_or_none(row["result"]),
        reason=reason,
        errors=decode_errors(text_or_none(row["errors"])),
    )


def state_of(name: object) -> State | None:
    """Return a state by its name; none, if somebody wrote another."""
    try:
        return State(text_of(name))
    except ValueError:
        return None


def counts_of(rows: Iterable[tuple[Any, Any, int]]) -> dict[str, dict[State, int]]:
    """Return counts by queue and state; a job in no known state counts as cancelled."""
    counts: defaultdict[str, Counter[State]] = defaultdict(Counter)
    for queue, state, number in rows:
        counts[text_of(queue)][state_of(state) or State.CANCELLED] += number
    return {queue: dict(numbers) for queue, numbers in counts.items()}


def running_of(rows: Iterable[tuple[Any, Any, Any, int, Any]]) -> list[Running]:
    """Return counts by worker, queue and task, and since when the first of each runs."""
    found: dict[tuple[str, str, str], Running] = {}
    for worker, queue, task, number, claimed_at in rows:
        whose = text_of(worker), text_of(queue), text_of(task)
        since = number_of(instant_of(claimed_at))
        before = found.get(whose, Running(*whose, 0, since))
        found[whose] = Running(*whose, before.count + number, min(before.claimed_at, since))
    return [found[whose] for whose in sorted(found)]


def waiting_of(rows: Iterable[tuple[Any, str, int, Any]]) -> dict[str, Waiting]:
    """Return counts by queue and what is waited for, and since when the first due job is due."""
    found: dict[str, Waiting] = {}
    for queue, wait, number, due_at in rows:
        name = text_of(queue)
        before = found.get(name, Waiting())
        since = instant_of(due_at) if wait == Wait.DUE else None
        times = [at for at in (before.oldest, since) if at is not None]
        counts = {wait: getattr(before, wait) + number}
        found[name] = replace(before, **counts, oldest=min(times, default=None))
    return found


def worker_of(row: Sequence[object]) -> Worker:
    """Return a worker as it announced itself; what cannot be read of it, it does not know."""
    name, capable, pools, processes, started_at, live_until, level = row
    return Worker(
        id=text_of(name),
        capable=known_tasks(capable),
        pools=_pools(pools),
        processes=number_of(processes),
        started_at=number_of(started_at),
        live_until=number_of(live_until),
        level=number_of(level),
    )


def known_tasks(capable: object) -> dict[str, int]:
    """Return what a worker knows, as far as this program can tell; a newer one may say more."""
    try:
        told = read(_decode_capable, "what a worker knows", text_of(capable))
    except DecodeError:
        return {}
    return {task: version for task, version in told.items() if type(version) is int}


def _pools(pools: object) -> tuple[PoolShare, ...]:
    """Read what a worker announced; what one of another version wrote may be beyond us."""
    try:
        return read(_decode_pools, "the pools of a worker", text_of(pools))
    except DecodeError:
        return ()


def attempt_of(row: Sequence[Any]) -> Attempt:
    """Return a line of the attempt log; a time that cannot be read is that of the next step."""
    job_id, fence, number, task, queue, pool, worker, *times, outcome, mark = row
    ready_at, claimed_at, started_at, finished_at = map(instant_of, times)
    ended = next((at for at in (finished_at, started_at, claimed_at, ready_at) if at), 0)
    claimed = ended if claimed_at is None else claimed_at
    return Attempt(
        job_id=JobId(text_of(job_id)),
        fence=number_of(fence),
        attempt=number_of(number),
        task=text_of(task),
        queue=text_of(queue),
        pool=text_or_none(pool),
        worker=text_or_none(worker),
        ready_at=claimed if ready_at is None else ready_at,
        claimed_at=claimed,
        started_at=started_at,
        finished_at=ended,
        outcome=text_of(outcome),
        fingerprint=text_or_none(mark),
    )


def line_of(row: Sequence[Any]) -> AuditLine:
    """Return a line of the audit log, as far as it can be read."""
    done_at, who, verb, target, count, before = row
    return AuditLine(
        done_at=number_of(instant_of(done_at)),
        who=text_of(who),
        verb=text_of(verb),
        target=text_of(target),
        count=number_of(count),
        before=text_or_none(before),
    )


def group_of(row: Sequence[Any]) -> ErrorGroup:
    """Return failures that are alike, as far as they can be read."""
    mark, error, message, tasks, number, first_at, last_at, job_id = row
    return ErrorGroup(
        fingerprint=text_or_none(mark),
        error=text_or_none(error),
        message=text_or_none(message),
        tasks=tuple(sorted(msgspec.json.decode(tasks))),
        count=number,
        first_at=number_of(instant_of(first_at)),
        last_at=number_of(instant_of(last_at)),
        job=JobId(text_of(job_id)),
    )


def places_of(which: Filter) -> dict[str, bool]:
    """Say in which places there may be jobs that a filter means."""
    states = set(which.states)
    return {
        "live": not states or bool(states & LIVE),
        "finished": not states or bool(states & FINISHED),
        "dead": not states or State.DEAD in states,
    }
