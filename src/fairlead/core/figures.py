"""Figures of each queue from the attempt log: how many ran, how long they waited and took."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.job import Attempt


class Figures(msgspec.Struct, frozen=True):
    """How a queue did: spans in microseconds, `per_second` counted over the whole of it.

    `runs` are all that ended, `done` those that succeeded, of so many `jobs`. Runs
    that were given back unstarted are none.
    """

    queue: str
    jobs: int
    runs: int
    done: int
    wait_p50: int
    wait_p99: int
    run_p50: int
    run_p99: int
    per_second: float


def figures_of(lines: Iterable[Attempt], until: int | None = None) -> dict[str, Figures]:
    """Return the figures of every queue in these lines, up to the last of them or `until`."""
    by_queue: dict[str, list[Attempt]] = defaultdict(list)
    for line in lines:
        if line.outcome != "returned":
            by_queue[line.queue].append(line)
    return {queue: _figures(queue, runs, until) for queue, runs in by_queue.items()}


def _figures(queue: str, runs: Sequence[Attempt], until: int | None) -> Figures:
    waits = sorted(wait_of(run) for run in runs)
    spans = sorted(run.finished_at - began_at(run) for run in runs)
    done = sum(run.outcome == "done" for run in runs)
    end = until or max(run.finished_at for run in runs)
    elapsed = end - min(began_at(run) for run in runs)
    return Figures(
        queue,
        jobs=len({run.job_id for run in runs}),
        runs=len(runs),
        done=done,
        wait_p50=quantile(waits, 0.5),
        wait_p99=quantile(waits, 0.99),
        run_p50=quantile(spans, 0.5),
        run_p99=quantile(spans, 0.99),
        per_second=done * SECOND / max(elapsed, 1_000),
    )


def began_at(run: Attempt) -> int:
    """Return when the handler began; of one that never did, when it was claimed."""
    return run.claimed_at if run.started_at is None else run.started_at


def wait_of(run: Attempt) -> int:
    """Return how long a job waited from the moment it could run to the moment it did."""
    return max(0, began_at(run) - run.ready_at)


def quantile(ordered: Sequence[int], part: float) -> int:
    """Return the smallest value that this part of all values does not exceed."""
    return ordered[max(0, ceil(part * len(ordered)) - 1)]
