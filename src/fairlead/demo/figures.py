"""Figures of each queue, from the lines of the attempt log. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, State


class Figures(msgspec.Struct, frozen=True):
    """What became of a queue's jobs, how long they waited, and how many ended a second.

    `retried` counts every run after a job's first, whatever made it necessary;
    runs that were given back unstarted are none.
    """

    queue: str
    done: int
    retried: int
    dead: int
    wait_p50: float
    wait_p99: float
    per_second: float


def figures_of(lines: Iterable[Attempt], states: Mapping[JobId, State]) -> list[Figures]:
    """Return the figures of every queue that ran something, in the order of their first line."""
    by_queue: dict[str, list[Attempt]] = defaultdict(list)
    for line in lines:
        if line.outcome != "returned":
            by_queue[line.queue].append(line)
    return [_figures(queue, runs, states) for queue, runs in by_queue.items()]


def _figures(queue: str, runs: Sequence[Attempt], states: Mapping[JobId, State]) -> Figures:
    jobs = {run.job_id for run in runs}
    ended = Counter(states[job] for job in jobs)
    waits = sorted(wait_of(run) for run in runs)
    first, last = min(began_at(run) for run in runs), max(run.finished_at for run in runs)
    return Figures(
        queue,
        done=ended[State.DONE],
        retried=len(runs) - len(jobs),
        dead=ended[State.DEAD],
        wait_p50=quantile(waits, 0.5),
        wait_p99=quantile(waits, 0.99),
        per_second=ended[State.DONE] / max((last - first) / SECOND, 0.001),
    )


def began_at(run: Attempt) -> int:
    """Return when the handler began, as far as known: at the latest known moment before it."""
    return run.claimed_at if run.started_at is None else run.started_at


def wait_of(run: Attempt) -> float:
    """Return the seconds from the moment a job could run to the moment it did."""
    return max(0, began_at(run) - run.ready_at) / SECOND


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that this part of all values does not exceed."""
    return ordered[max(0, ceil(part * len(ordered)) - 1)]
