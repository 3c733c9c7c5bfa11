"""Last station: settle the outcomes of a process, in batches.

While one settlement is on its way to the store, outcomes gather; when it is
back, all that gathered go together. An outcome is never dropped because the
store is away: it waits, its lease is renewed meanwhile, and it is written when
the store is back, if the fence still holds.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import get_args

from msgspec.structs import replace

from fairlead.core.failure import describe
from fairlead.core.job import State
from fairlead.core.outcome import Ambiguous, Committed, Knowledge, Outcome, Settlement, ambiguous
from fairlead.runtime.contact import Contact, Troubles, is_outage, said
from fairlead.runtime.points import point
from fairlead.runtime.run import Run
from fairlead.runtime.settling import Ended, Settling, Write, Written
from fairlead.runtime.workshop import Workshop

MOST_AT_ONCE = 1_000

Batch = list[tuple[Run, Outcome]]


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
        self._contact = contact
        self._troubles = Troubles(worker, workshop.events)
        self._served = workshop.served
        self._settling = Settling(workshop, self._troubles)
        self._now = now
        self._release = release
        self._on_asking = asking
        self._ended: Batch = []
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

    async def _settle(self, batch: Batch) -> None:
        now = self._now()
        ended = [
            Ended(run.job, outcome, run.task.options, run.pool, run.started_at, now)
            for run, outcome in batch
        ]
        point("settle")
        ruled = await self._settling.settle(ended, self._patiently)
        for (run, outcome), settlement in zip(batch, ruled, strict=True):
            self._tell_trouble(run, outcome, settlement)
            self._release(run)

    def _tell_trouble(self, run: Run, outcome: Outcome, ruled: Settlement | None) -> None:
        """Tell what went wrong in a handler after it had made its job done."""
        is_done = ruled is not None and ruled.state is State.DONE
        if is_done and isinstance(outcome, Committed) and outcome.trouble:
            told = f"job {run.job.id} is done, its transaction is committed; but {outcome.trouble}"
            self._troubles.tell(told)

    def _leave(self, batch: Batch, problem: Exception) -> None:
        """Leave runs to their leases, because nothing can be done with them here."""
        told = ", ".join(run.job.id for run, _ in batch[:3])
        told = f"{told} and {len(batch) - 3} more" if len(batch) > 3 else told
        self._troubles.tell(f"jobs {told} were not settled: {said(problem)}; they will run again")
        for run, _ in batch:
            self._release(run)

    async def _patiently(self, write: Write) -> Written:
        """Write until the store answers."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                written = await write()
            except Exception as problem:
                if self._served.note(problem) or not is_outage(problem):
                    raise
                await self._contact.lost(problem, began)
                continue
            self._contact.found(began)
            point("settled")
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
