"""When a process has died: what becomes of the jobs it had, decided from outside.

The board tells which handlers had started. What had not is given back. What had
started and was past its time limit is timed out. What had started alone crashed
its process; of several nobody knows which did it, so none is blamed and all of
them run apart from others next time (`grouping.py`).
"""

import asyncio
from collections.abc import Iterable
from typing import TypeGuard

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.outcome import Crashed, Failed, Outcome, Returned, ambiguous
from fairlead.core.task import TaskOptions
from fairlead.runtime.board import NEVER, PROCESS, THREAD, UNCLEAR, Mark
from fairlead.runtime.contact import FIRST_PAUSE, Troubles, is_outage, said
from fairlead.runtime.settling import Ended, Settling
from fairlead.runtime.split import in_parts
from fairlead.runtime.workshop import Workshop

Cut = Crashed | Failed | Returned
"""How a run can end from outside."""


class Death(msgspec.Struct, frozen=True):
    """A process that is no more: who it was, how it ended, and what its board said.

    `on_purpose` says that it was asked to end, or that we ended it ourselves.
    `lines` are those at which handlers past their time limit were, by thread, as
    far as known.
    """

    worker: str
    how: str
    marks: tuple[Mark, ...]
    at: float
    on_purpose: bool
    lines: dict[int, str]


class Unclear(msgspec.Struct, frozen=True):
    """A run that ended with a process, and whose task must be asked what happened."""

    job: Job
    outcome: Cut
    pool: str | None
    started_at: int | None


class Estate(msgspec.Struct, frozen=True):
    """What was done with its jobs. `unclear` must be asked about by another process."""

    crashed: int
    returned: int
    unclear: tuple[Unclear, ...]


def fates(death: Death) -> dict[tuple[JobId, int], Outcome | None]:
    """Say for each started job how its run ended; None for what must be left to its lease.

    Jobs that are not named had not started.
    """
    # Handlers in processes of their own died with this one, but cannot have caused it.
    suspects = [mark for mark in death.marks if mark.running and mark.kind != PROCESS]
    found: dict[tuple[JobId, int], Outcome | None] = {}
    for mark in death.marks:
        pair = (mark.job_id, mark.fence)
        if mark.kind == UNCLEAR:
            found[pair] = None
        elif mark.running and mark.deadline <= death.at:
            found[pair] = _timed_out(mark, death)
        elif mark.running and (mark.kind == PROCESS or death.on_purpose):
            found[pair] = Returned(cut_off=True)
        elif mark.running:
            # One that had ended, and so has no deadline any more, was not alone: our code ran.
            alone = len(suspects) == 1 and mark.deadline != NEVER
            found[pair] = Crashed(death.how, company=not alone)
    return found


def _timed_out(mark: Mark, death: Death) -> Failed:
    line = death.lines.get(mark.thread)
    where = f", at {line}" if line else ""
    limit = mark.deadline - mark.since
    told = f"ran past its time limit of {limit:g} s{where}, and its process had to be ended"
    return Failed(described("TimedOut", told), timed_out=True)


async def take_over(workshop: Workshop, death: Death, patience: float) -> Estate:
    """Settle what a dead process had in hand; what the store does not take in time, leases do."""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    troubles = Troubles(death.worker, workshop.events)
    while True:
        try:
            return await _take_over(workshop, death, troubles)
        except Exception as problem:  # noqa: BLE001 (around a service's step)
            in_vain = workshop.served.note(problem) or not is_outage(problem)
            if in_vain:
                told = f"what {death.worker} left behind cannot be taken over: {said(problem)}"
                troubles.tell(f"{told}; its jobs run again when their leases pass")
            if loop.time() >= end or in_vain:
                return Estate(0, 0, ())
            await asyncio.sleep(FIRST_PAUSE)


async def _take_over(workshop: Workshop, death: Death, troubles: Troubles) -> Estate:
    store = workshop.store
    outcomes = fates(death)
    left = [pair for pair, outcome in outcomes.items() if outcome is None]
    marks = {mark.pair: mark for mark in death.marks}
    ended: list[Ended] = []
    unclear: list[Unclear] = []
    for job in await store.held(death.worker):
        pair = (job.id, job.fence)
        mark = marks.get(pair)
        if job.taken_over and not (mark is not None and mark.running):
            continue  # Here or by another worker, which decides on it.
        outcome = outcomes.get(pair, Returned())
        if outcome is None or job.task not in workshop.tasks:
            continue  # To be asked about; or of newer code than ours: its lease passes.
        started_at = mark.started_at if mark is not None and mark.running else None
        run = Ended.unseen(workshop, job, outcome, started_at, _store_time(workshop, mark))
        if _must_be_asked(outcome, workshop.tasks[job.task].options):
            unclear.append(Unclear(job, outcome, run.pool, started_at))
        else:
            ended.append(run)
    if left:
        # To be asked about, not to be given back: it is claimed as lost, at once.
        await in_parts(lambda pairs: store.extend(pairs, 0), left, lambda _pair, _problem: None)
    await Settling(workshop, troubles).settle(ended)
    returned = sum(isinstance(run.outcome, Returned) for run in ended)
    return Estate(len(ended) - returned + len(unclear), returned, tuple(unclear))


def _store_time(workshop: Workshop, mark: Mark | None) -> int:
    """Return the time by the store's clock, which the board tells for what had started."""
    if mark is None or not mark.running:
        return workshop.clock.now()
    return mark.started_at + round((asyncio.get_running_loop().time() - mark.since) * SECOND)


def _must_be_asked(outcome: Outcome, policy: TaskOptions) -> TypeGuard[Cut]:
    return policy.reconcile is not None and ambiguous(outcome, policy) is not None


def past_limit(marks: Iterable[Mark], now: float, patience: float) -> list[Mark]:
    """Return the runs that should have ended by now, and that only the end of their process ends.

    A cancellation may take a while to be heeded; a thread cannot be cancelled at all.
    """
    return [
        mark
        for mark in marks
        if mark.running and now >= mark.deadline + (0.0 if mark.kind == THREAD else patience)
    ]


def idle_since(marks: Iterable[Mark], now: float, since: float | None) -> float | None:
    """Return since when a process that stands still has run nothing that has a time limit.

    What is about to turn again, because the handler that blocked it has ended just now, is not
    to be killed: its job is done, and would run a second time.
    """
    if any(mark.running and mark.deadline < NEVER for mark in marks):
        return None
    return now if since is None else since
