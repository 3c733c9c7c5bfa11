"""Last station: decide what outcomes mean, write them in batches, tell who listens.

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

from fairlead.core.errors import StoreError
from fairlead.core.events import Trouble
from fairlead.core.failure import describe
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, State
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
from fairlead.runtime.contact import Contact
from fairlead.runtime.narrate import narrate, narrate_late
from fairlead.runtime.points import point
from fairlead.runtime.run import Run
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
                await self._settle(batch)
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
            else:
                narrate_late(self._workshop.events, run.job, settlement.outcome)
            self._release(run)

    def _tell_trouble(self, run: Run, outcome: Outcome, ruled: Settlement) -> None:
        """Tell what went wrong in a handler after it had made its job done."""
        if isinstance(outcome, Committed) and outcome.trouble and ruled.state is State.DONE:
            told = f"job {run.job.id} is done, its transaction is committed; but {outcome.trouble}"
            self._workshop.events.emit(Trouble(self._worker, told))

    def _decide(self, run: Run, outcome: Outcome, now: int) -> Settlement:
        job, policy, random = run.job, run.task.options, self._workshop.random.random
        try:
            settlement = decide(job, outcome, policy, now, random)
        except Exception as problem:  # noqa: BLE001 (a curve or a predicate is user code)
            told = f"task {run.task.name!r} cannot say what happens next: {problem!r}"
            self._workshop.events.emit(Trouble(self._worker, told))
            settlement = decide(job, Failed(describe(problem), transient=False), policy, now)
        return replace(settlement, started_at=run.started_at, pool=run.pool)

    async def _write(self, settlements: list[Settlement]) -> Written:
        """Settle until the store answers; returns what was written by us."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                written = await self._workshop.store.settle(settlements)
            except StoreError as problem:
                await self._contact.lost(problem, began)
                continue
            except Exception as problem:  # noqa: BLE001 (one bad row must not fail the others)
                return await self._write_apart(settlements, problem)
            self._contact.found(began)
            return written | await self._written_before(settlements, written)

    async def _write_apart(self, settlements: list[Settlement], problem: Exception) -> Written:
        """Settle one by one; what cannot be written is left for its lease to pass."""
        if len(settlements) == 1:
            told = f"job {settlements[0].id} could not be settled: {problem!r}; it will run again"
            self._workshop.events.emit(Trouble(self._worker, told))
            return {}
        written: Written = {}
        for settlement in settlements:
            written |= await self._write([settlement])
        return written

    async def _written_before(self, settlements: list[Settlement], written: Written) -> Written:
        """Return what is written already, under the same fences: the attempt log tells.

        An earlier try of ours may have been, whose answer was lost; or the handler
        made its job done itself, and then that counts.
        """
        before: Written = {}
        for settlement in settlements:
            if settlement.id not in written:
                for line in await self._attempts(settlement.id):
                    if line.fence != settlement.fence:
                        continue
                    if line.outcome == settlement.outcome:
                        before[settlement.id] = settlement
                    elif line.outcome == "done":
                        before[line.job_id] = Settlement(
                            line.job_id, line.fence, State.DONE, line.outcome
                        )
        return before

    async def _attempts(self, job_id: JobId) -> list[Attempt]:
        """Ask the attempt log until the store answers."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                log = await self._workshop.store.attempts(job_id)
            except StoreError as problem:
                await self._contact.lost(problem, began)
                continue
            self._contact.found(began)
            return log

    async def _reconcile(self, run: Run, unclear: Ambiguous) -> None:
        """Ask the task whether its outside effect happened, then go on with the answer."""
        known: Knowledge = "unknown"
        try:
            async with asyncio.timeout(run.timeout):
                known = await _ask(run)
        except asyncio.CancelledError:
            return  # The worker stops; the lease passes, and another one asks.
        except Exception as problem:  # noqa: BLE001 (user code)
            told = f"reconcile of task {run.task.name!r} failed for job {run.job.id}: {problem!r}"
            self._workshop.events.emit(Trouble(self._worker, told))
        self.put(run, replace(unclear, known=known))

    def give_up_asking(self) -> None:
        """Leave what is still being asked about to whoever claims it next."""
        for asking in self._asking:
            asking.cancel()


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
