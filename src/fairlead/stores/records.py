"""Rows of the SQL stores as the values people see; what somebody damaged is told, not hidden."""

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.core.admin import LIVE, Filter, PoolShare, Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import DecodeError
from fairlead.core.job import Gate, JobRecord, State, decode_errors

_PARKED = {0: None, 1: Gate.NOT_DUE, 2: Gate.NO_CAPABLE_WORKER, 3: None}
"""What the numbers in the `parked` column mean; 3 is in the order as well, but out of turn."""

_TIMES = (
    *("run_at", "order_at", "enqueued_at", "expires_at"),
    *("claimed_at", "lease_until", "finished_at"),
)

FINISHED = frozenset({State.DONE, State.CANCELLED})

_decode_pools = msgspec.json.Decoder(tuple[PoolShare, ...]).decode


def record_of(row: Mapping[str, Any]) -> JobRecord:
    """Return a row of the record views as the job it tells of."""
    values = dict(row)
    values["state"] = state_of(values["state"], f"job {values['id']}")
    parked = values.pop("parked")
    if parked not in _PARKED:
        raise DecodeError(f"job {values['id']}", f"it is parked for the unknown reason {parked!r}")
    values["gate"] = _PARKED[parked]
    for name in _TIMES:
        if not isinstance(values[name], int | None):
            raise DecodeError(f"job {values['id']}", f"its {name} is {values[name]!r}, not a time")
    values["priority"] = (values["run_at"] - values.pop("order_at")) // SECOND
    values["cancel_requested"] = bool(values["cancel_requested"])
    values["errors"] = decode_errors(values["errors"])
    return JobRecord(**values)


def state_of(name: str, whose: str) -> State:
    """Return a state by its name."""
    try:
        return State(name)
    except ValueError:
        raise DecodeError(whose, f"its state is {name!r}") from None


def counts_of(rows: list[tuple[str, str, int]]) -> dict[str, dict[State, int]]:
    """Return counts by queue and state."""
    counts: dict[str, dict[State, int]] = {}
    for queue, state, number in rows:
        counts.setdefault(queue, {})[state_of(state, f"a job of queue {queue!r}")] = number
    return counts


def running_of(rows: list[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Return counts by worker and queue."""
    counts: dict[str, dict[str, int]] = {}
    for worker, queue, number in rows:
        counts.setdefault(worker, {})[queue] = number
    return counts


def worker_of(name: str, capable: str, pools: str, *rest: int) -> Worker:
    """Return a worker as it announced itself."""
    try:
        return Worker(name, msgspec.json.decode(capable), _pools(pools), *rest)
    except msgspec.MsgspecError as problem:
        raise DecodeError(f"worker {name}", str(problem)) from None


def _pools(text: str) -> tuple[PoolShare, ...]:
    """Read what a worker announced; what one of another version wrote may be beyond us."""
    try:
        return _decode_pools(text)
    except msgspec.MsgspecError:
        return ()


def places_of(which: Filter) -> dict[str, bool]:
    """Say in which places there may be jobs that a filter means."""
    states = set(which.states)
    return {
        "live": not states or bool(states & LIVE),
        "finished": not states or bool(states & FINISHED),
        "dead": not states or State.DEAD in states,
    }
