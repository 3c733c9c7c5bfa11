"""Last station: decide what outcomes mean, write them in batches, tell who listens.

While one settlement is on its way to the store, outcomes gather; when it is
back, all that gathered go together. An outcome is never dropped because the
store is away: it waits, its lease is renewed meanwhile, and it is written when
the store is back, if the fence still holds.

A job whose end the store refuses is damaged. It becomes a dead letter, reason `unreadable`; if
the store refuses that too, the job is left in place, for `doctor` to name.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import get_args

from msgspec.structs import replace

from fairlead.core.failure import describe, described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, Reason, State
from fairlead.core.outcome import (
    Ambiguous,
    Committed,
    Failed,
    Knowledge,
    Outcome,
    Settlement,
    ambiguous,
    decide,
)
from fairlead.core.store import Store
from fairlead.core.task import Task
from fairlead.runtime.contact import Contact, Troubles, is_outage, said
from fairlead.runtime.narrate import narrate, narrate_late
from fairlead.runtime.points import point
from fairlead.runtime.run import Run
from fairlead.runtime.split import in_parts
from fairlead.runtime.workshop import Workshop

MOST_AT_ONCE = 1_000

Ended = tuple[Run, Outcome]
Written = dict[JobId, Settlement]


class Settler:
    """Settles the runs of one process.

    `release` is called for each run when that is over, and `asking` for those
    whose task must be asked first what happened.
    """

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        contact: Contact,
        now: Callable[[], int],
        release: Callable[[Run], None],
        asking: Callable[[Run], None],
    ) -> None:
        self._workshop = workshop
        self._worker = worker
        self._contact = contact
        self._troubles = Troubles(worker, workshop.events)
        self._now = now
        self._release = release
        self._on_asking = asking
        self._ended: list[Ended] = []
        self._bell = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        self._stopped = False

    def put(self, run: Run, outcome: Outcome) -> None:
        """Take an ended run in."""
        unclear = ambiguous(outcome, run.task.options)
        if unclear is not None and unclear.known is None and run.task.options.reconcile:
            self._on_asking(run)
            asking = asyncio.ensure_future(self._reconcile(run, unclear))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            return
        self._ended.append((run, outcome))
        self._bell.set()

    def stop(self) -> None:
        """End when everything is written."""
        self._stopped = True
        self._bell.set()

    async def run(self) -> None:
        """Write what gathers, until told to stop and everything is written."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._ended:
                batch, self._ended = self._ended[:MOST_AT_ONCE], self._ended[MOST_AT_ONCE:]
                try:
                    await self._settle(batch)
                except Exception as problem:  # noqa: BLE001 (around a service's step)
                    self._leave(batch, problem)
            if self._stopped:
                return

    async def _settle(self, batch: list[Ended]) -> None:
        now = self._now()
        settlements = [self._decide(run, outcome, now) for run, outcome in batch]
        point("settle")
        # What a handler is known to have committed itself is written already.
        written = {s.id: s for (_, o), s in zip(batch, settlements, strict=True) if _certain(o)}
        unwritten = [s for (_, o), s in zip(batch, settlements, strict=True) if not _certain(o)]
        if unwritten:
            written |= await self._write(unwritten)
        point("settled")
        for (run, outcome), settlement in zip(batch, settlements, strict=True):
            ruled = written.get(settlement.id)
            if ruled is not None and ruled.fence == settlement.fence:
                narrate(self._workshop.events, run.job, ruled, run.started_at, now)
                self._tell_trouble(run, outcome, ruled)
            elif not never_started(settlement):
                narrate_late(self._workshop.events, run.job, settlement.outcome)
            self._release(run)

    def _tell_trouble(self, run: Run, outcome: Outcome, ruled: Settlement) -> None:
        """Tell what went wrong in a handler after it had made its job done."""
        if isinstance(outcome, Committed) and outcome.trouble and ruled.state is State.DONE:
            told = f"job {run.job.id} is done, its transaction is committed; but {outcome.trouble}"
            self._troubles.tell(told)

    def _leave(self, batch: list[Ended], problem: Exception) -> None:
        """Leave runs to their leases, because nothing can be done with them here."""
        told = ", ".join(run.job.id for run, _ in batch[:3])
        told = f"{told} and {len(batch) - 3} more" if len(batch) > 3 else told
        self._troubles.tell(f"jobs {told} were not settled: {said(problem)}; they will run again")
        for run, _ in batch:
            self._release(run)

    def _decide(self, run: Run, outcome: Outcome, now: int) -> Settlement:
        settlement = decided(self._workshop, self._troubles, run.job, outcome, run.task, now)
        return replace(settlement, started_at=run.started_at, pool=run.pool)

    async def _write(self, settlements: list[Settlement]) -> Written:
        """Settle until the store answers; returns what was written by us."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                written = await settle_in_parts(self._workshop.store, self._troubles, settlements)
            except Exception as problem:
                if not is_outage(problem):
                    raise
                await self._contact.lost(problem, began)
                continue
            self._contact.found(began)
            return written

    async def _reconcile(self, run: Run, unclear: Ambiguous) -> None:
        """Ask the task whether its outside effect happened, then go on with the answer."""
        known: Knowledge = "unknown"
        evidence = unclear.evidence
        try:
            async with asyncio.timeout(run.timeout):
                known = await _ask(run)
        except asyncio.CancelledError:
            return  # The worker stops; the lease passes, and another one asks.
        except Exception as problem:  # noqa: BLE001 (user code)
            failure = describe(problem)
            told = f"reconcile of task {run.task.name!r} failed for job {run.job.id}"
            self._troubles.tell(f"{told}: {failure.in_brief}")
            evidence += f"; reconcile failed: {failure.error}: {failure.message}"
        self.put(run, replace(unclear, known=known, evidence=evidence))

    def give_up_asking(self) -> None:
        """Leave what is still being asked about to whoever claims it next."""
        for asking in self._asking:
            asking.cancel()


def decided(
    workshop: Workshop, troubles: Troubles, job: Job, outcome: Outcome, task: Task, now: int
) -> Settlement:
    """Decide what an outcome means, also where the task's own code for that fails."""
    try:
        return decide(job, outcome, task.options, now, workshop.random.random)
    except Exception as problem:  # noqa: BLE001 (a curve or a predicate is user code)
        failure = describe(problem)
        troubles.tell(f"task {task.name!r} cannot say what happens next: {failure.in_brief}")
        return decide(job, Failed(failure, transient=False), task.options, now)


async def settle_in_parts(
    store: Store, troubles: Troubles, settlements: Sequence[Settlement]
) -> Written:
    """Settle, and make dead letters of the jobs whose end the store refuses to write.

    Returns what is written, also if it was before: see `_written_before`.
    """
    damaged: list[Settlement] = []

    def bury(settlement: Settlement, problem: Exception) -> None:
        told = f"the store refused to write that it is {settlement.state}: {said(problem)}"
        troubles.tell(f"job {settlement.id} is damaged: {told}")
        damaged.append(
            replace(
                settlement,
                state=State.DEAD,
                reason=Reason.UNREADABLE,
                failure=described("Unreadable", told),
                result=None,
                run_at=None,
            )
        )

    def leave(settlement: Settlement, problem: Exception) -> None:
        troubles.tell(
            f"job {settlement.id} cannot be moved and stays where it is: {said(problem)}; "
            "`fairlead doctor` names the damage, `fairlead doctor --repair` mends it"
        )

    parts = await in_parts(store.settle, settlements, bury)
    if damaged:
        parts += await in_parts(store.settle, damaged, leave)
    written: Written = {}
    for part in parts:
        written |= part
    unwritten = [each for each in settlements if each.id not in written]
    # What was sent in parts may have been written by the part that was refused.
    asked = unwritten if len(parts) > 1 else [each for each in unwritten if not never_started(each)]
    return written | await _written_before(store, troubles, asked)


async def _written_before(
    store: Store, troubles: Troubles, settlements: Sequence[Settlement]
) -> Written:
    """Return what of this is written already, under the same fences: the attempt log tells.

    An earlier try of ours may have been, whose answer was lost, or which the store refused for the
    sake of another job; or the handler made its job done itself, and then that counts.
    """
    before: Written = {}
    for settlement in settlements:
        log = store.admin.attempts(settlement.id)
        for line in await troubles.found(f"the log of job {settlement.id}", log):
            if line.fence != settlement.fence:
                continue
            if line.outcome == settlement.outcome:
                before[settlement.id] = settlement
            elif line.outcome == "done":
                before[line.job_id] = Settlement(line.job_id, line.fence, State.DONE, line.outcome)
    return before


def never_started(settlement: Settlement) -> bool:
    """Say whether a run is given back before it began.

    If the store refuses that, the job was given back before, or has passed on to somebody else;
    it is all the same to who never ran it.
    """
    return settlement.outcome == "returned" and settlement.started_at is None


def _certain(outcome: Outcome) -> bool:
    """Say whether a handler is known to have committed its job's end itself."""
    return isinstance(outcome, Committed) and outcome.unless is None


async def _ask(run: Run) -> Knowledge:
    reconcile = run.task.options.reconcile
    assert reconcile is not None
    if inspect.iscoroutinefunction(reconcile):
        answer = await reconcile(run.job)
    else:
        answer = await asyncio.to_thread(reconcile, run.job)
        if inspect.isawaitable(answer):
            answer = await answer
    if answer not in get_args(Knowledge):
        raise ValueError(f"it returned {answer!r}, not one of {', '.join(get_args(Knowledge))}")
    known: Knowledge = answer
    return known
