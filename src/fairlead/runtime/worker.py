"""One process's stations, wired: feeder → slots → runner → settler.

The worker does not renew leases and does not watch the clock of a process that
hangs: its supervisor does, from outside, by the board.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial

from fairlead.core.clock import SECOND
from fairlead.core.errors import SchemaOutdated
from fairlead.core.events import Overdue, ProcessDied, ProcessEnded, Started
from fairlead.core.job import LONGEST_ID, Job, Reason
from fairlead.core.outcome import Cancelled, Committed, Ending, Lost, Outcome
from fairlead.core.selection import Claim
from fairlead.runtime.board import Board
from fairlead.runtime.contact import Contact, Troubles
from fairlead.runtime.feeder import Feeder
from fairlead.runtime.group_runner import Care, GroupRunner
from fairlead.runtime.hand import Hire
from fairlead.runtime.loop_runner import LoopRunner
from fairlead.runtime.narrate import (
    correlation_id,
    narrate_late,
    narrate_parking,
    narrate_start,
)
from fairlead.runtime.points import point
from fairlead.runtime.pool import STRANDED_SECONDS, Slots, phase_of
from fairlead.runtime.process_runner import ProcessRunner
from fairlead.runtime.recruit import Recruit
from fairlead.runtime.run import CUT_OFF, GIVEN_BACK, Pair, Run
from fairlead.runtime.sending import Home
from fairlead.runtime.settler import Settler
from fairlead.runtime.takeover import Unclear
from fairlead.runtime.thread_runner import ThreadRunner
from fairlead.runtime.workshop import PoolPlan, Workshop

TICK = 0.2
_HEED_SECONDS = 0.5
"""What a thread that was called off gets to come to its next checkpoint, when all else is over."""

Runner = LoopRunner | ThreadRunner | ProcessRunner | GroupRunner


class Worker:
    """Claims and runs jobs in this process until it is stopped.

    `target` names the app for processes of its own; without one, `process` pools
    cannot be served, and suspects run beside the others. `hire` is told of each
    such process, `tell_outdated` of the store's word that this program is too old for it.
    `is_watched` says that a supervisor ends this process if it must.
    """

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        board: Board,
        target: str | None = None,
        hire: Hire = lambda _pid, _begins: None,
        recruit: Recruit | None = None,
        tell_outdated: Callable[[SchemaOutdated], None] = lambda _problem: None,
        *,
        is_watched: bool = False,
    ) -> None:
        terms = workshop.terms
        self.id = worker
        self._workshop = workshop
        self._board = board
        self._target = target
        self._hire = hire
        self._tell_outdated: Callable[[SchemaOutdated], None] | None = tell_outdated
        self._is_watched = is_watched
        self._loop = asyncio.get_running_loop()
        self._contact = Contact(
            worker,
            workshop.events,
            terms.lease,
            terms.heartbeat,
            workshop.random,
            workshop.served,
        )
        self._troubles = Troubles(worker, workshop.events)
        self._settler = Settler(
            workshop,
            worker,
            self._contact,
            self.now,
            self._release,
            lambda run: board.ask(run.place, self._loop.time() + run.timeout),
        )
        # By id and fence: a job whose lease passed may come back to us while its old run goes on.
        self._runs: dict[Pair, tuple[Run, Slots]] = {}
        self._running: dict[Pair, tuple[Run, Runner]] = {}
        self._loop_runner = LoopRunner(self._begin, self._end)
        self._dealers: list[ThreadRunner | ProcessRunner] = []
        self._groups = self._group_runner(recruit) if target is not None else None
        self._slots = [self._open_pool(plan) for plan in workshop.pools]
        self._feeders = [self._feeder(slots) for slots in self._slots]
        self._ended = 0
        self._store_time = (workshop.clock.now(), self._loop.time())
        self._stop_at: float | None = None
        self._stopping = asyncio.Event()

    # Wiring

    def _open_pool(self, plan: PoolPlan) -> Slots:
        phase = phase_of(self.id, self._workshop.terms.processes)
        if plan.runner == "process":
            processes = self._process_runner(plan.capacity)
            processes.open()
            self._dealers.append(processes)
            return Slots(plan, partial(self._start, processes), phase)
        threads = ThreadRunner(plan.name, plan.capacity, self._begin, self._end)
        self._dealers.append(threads)
        start_suspect = None if self._groups is None else partial(self._start, self._groups)
        return Slots(plan, partial(self._start_by_kind, threads), phase, start_suspect)

    def _group_runner(self, recruit: Recruit | None) -> GroupRunner:
        care = Care(
            self._workshop.terms.grace,
            lambda run, until: self._board.prolong(run.place, until),
            self._tell_overdue,
            lambda *told: self._workshop.events.emit(ProcessDied(self.id, *told)),
        )
        return GroupRunner(self._home(), care, recruit)

    def _process_runner(self, size: int) -> ProcessRunner:
        terms = self._workshop.terms
        return ProcessRunner(
            self._home(), size, max_jobs=terms.max_jobs, max_memory=terms.max_memory
        )

    def _home(self) -> Home:
        assert self._target is not None
        return Home(self._target, self._board, self._begin, self._end, self._hire, self.now)

    def _feeder(self, slots: Slots) -> Feeder:
        return Feeder(
            self._workshop,
            self.id,
            slots,
            self._contact,
            self._hear,
            self._take,
            self._spares,
            self._places,
            self.now,
            self._board,
        )

    def _places(self) -> int:
        """Return how many more jobs may be claimed, besides the claims on their way.

        A claim brings what there is room for, and what its reserves allow.
        """
        spoken_for = sum(feeder.claiming for feeder in self._feeders)
        reserves = sum(slots.plan.capacity - slots.plan.slots for slots in self._slots)
        return max(0, self._board.free - spoken_for - reserves)

    def _spares(self, now: float) -> bool:
        return self._contact.spares(now) or now < self._board.spare_until

    def now(self) -> int:
        """Return the time by the store's clock: what the last claim told, and since then.

        Whatever this machine's own clock says, retries and log agree with the store.
        """
        told, at = self._store_time
        return told + int((self._loop.time() - at) * SECOND)

    # The way of a job

    def _hear(self, claim: Claim, late: bool) -> None:  # noqa: FBT001 (a callback)
        """Take note of what a claim tells beside its jobs; not of its time, if that is long ago."""
        if not late:
            self._store_time = (claim.now, self._loop.time())
        for unknown in claim.parked:
            narrate_parking(self._workshop.events, unknown)

    def _take(self, slots: Slots, jobs: list[Job], asked_at: float, late: bool) -> None:  # noqa: FBT001 (a callback)
        """Take claimed jobs in: those of lost runs are decided on, the others are fed.

        Not if that comes too late, for their leases or for us: then they are given back.
        """
        now = self._loop.time()
        numbers, tasks, board = self._workshop.task_numbers, self._workshop.tasks, self._board
        store = self._workshop.store
        runs = []
        for job in jobs:
            number = numbers.get(job.task)
            fits = len(job.id) <= LONGEST_ID and job.id.isascii()
            if number is None or not fits or (job.id, job.fence) in self._runs:
                told = f"job {job.id:.80} cannot be taken in hand; its lease passes"
                self._troubles.tell(f"{told}, and `fairlead doctor` tells what is wrong")
                continue
            place = board.hold(job.id, job.fence, number, asked_at)
            run = Run(job, tasks[job.task], slots.plan.name, place, store)
            self._runs[run.pair] = (run, slots)
            runs.append(run)
        point("held")
        late = late or self._stopping.is_set()
        for run in runs:
            if run.job.lost:
                self.lost([pair for pair in self._runs if self._overtaken(pair, run)])
                self._settler.put(run, Lost())
            elif late:
                self._settler.put(run, GIVEN_BACK)
            else:
                slots.feed(run, now)

    @staticmethod
    def _overtaken(pair: Pair, by: Run) -> bool:
        return pair[0] == by.job.id and pair[1] < by.job.fence

    def _start_by_kind(self, threads: ThreadRunner, run: Run) -> None:
        self._start(self._loop_runner if run.task.is_async else threads, run)

    def _start(self, runner: Runner, run: Run) -> None:
        self._running[run.pair] = (run, runner)
        runner.start(run)

    def _begin(self, run: Run, kind: int, thread: int) -> bool:
        """Note the start of a handler, and say whether it may start: not if it was revoked.

        Called in the thread that is going to run it.
        """
        now = self._loop.time()
        run.since, run.deadline = now, now + run.timeout
        run.started_at = self.now()
        if not self._board.start(run.place, kind, run.started_at, run.deadline, now, thread):
            run.since, run.deadline, run.started_at = 0.0, float("inf"), None
            return False
        if run.timeout < TICK:
            self._loop.call_soon_threadsafe(self._loop.call_at, run.deadline, self._sweep)
        if self._workshop.events.wants(Started):
            narrate_start(self._workshop.events, run.job, run.started_at)
        return True

    def _end(self, run: Run, outcome: Outcome) -> None:
        self._board.end(run.place)
        del self._running[run.pair]
        self._ended += run.started_at is not None
        _, slots = self._runs[run.pair]
        if isinstance(run.called_off, Lost) and not isinstance(outcome, Committed):
            # It is another worker's now; nothing from here counts.
            narrate_late(self._workshop.events, run.job, type(outcome).__name__.lower())
            self._release(run)
        else:
            self._settler.put(run, outcome)
        slots.ended(run)

    def _release(self, run: Run) -> None:
        self._runs.pop(run.pair, None)
        if self._workshop.terms.drain:
            for feeder in self._feeders:
                feeder.dry = False  # Who claims after this may find the job again.
        was_full = not self._board.free
        self._board.clear(run.place)
        if was_full:
            for feeder in self._feeders:
                feeder.ring()

    # What the supervisor says

    def lost(self, pairs: Iterable[Pair]) -> None:
        """End runs whose lease is another worker's now."""
        for pair in pairs:
            if (run := self._unstarted(pair)) is not None:
                self._release(run)
            else:
                self._call_off(pair, Lost())

    def cancel(self, pairs: Iterable[Pair]) -> None:
        """End runs that a person cancelled."""
        for pair in pairs:
            called_off = Cancelled(Reason.CANCELLED)  # The store knows what the person said.
            if (run := self._unstarted(pair)) is not None:
                self._settler.put(run, called_off)
            else:
                self._call_off(pair, called_off)

    def _unstarted(self, pair: Pair) -> Run | None:
        """Take out a run that waits for a slot."""
        run, slots = self._runs.get(pair, (None, None))
        if run is None or slots is None or not slots.drop(run):
            return None
        return run

    def inherit(self, unclear: Unclear) -> None:
        """Settle a run that ended in a process which is no more, after asking `reconcile`."""
        if not self._places():
            return  # Its lease passes, and then it is asked about.
        job = unclear.job
        place = self._board.hold(
            job.id, job.fence, self._workshop.task_numbers[job.task], self._loop.time()
        )
        pools = {slots.plan.name: slots for slots in self._slots}
        slots = pools.get(unclear.pool or "", self._slots[0])
        task, pool = self._workshop.tasks[job.task], slots.plan.name
        run = Run(job, task, pool, place, self._workshop.store)
        run.started_at = unclear.started_at
        self._runs[run.pair] = (run, slots)
        self._settler.put(run, unclear.outcome)

    def stop(self, grace: float) -> None:
        """Claim no more; end when what runs has ended, or when the grace time is over."""
        at = self._loop.time() + grace
        self._stop_at = at if self._stop_at is None else min(at, self._stop_at)
        for feeder in self._feeders:
            feeder.stop()
        self._stopping.set()

    def _call_off(self, pair: Pair, outcome: Ending) -> None:
        run, runner = self._running.get(pair, (None, None))
        if run is None or runner is None or run.called_off is not None:
            return
        run.called_off = outcome
        runner.call_off(run)

    # Time

    async def run(self) -> None:
        """Work until stopped."""
        async with asyncio.TaskGroup() as stations:
            stations.create_task(self._settler.run())
            ticking = stations.create_task(self._tick())
            feeding = [stations.create_task(feeder.run()) for feeder in self._feeders]
            await self._stopping.wait()
            await self._finish(feeding)
            ticking.cancel()
        self._close()
        self._workshop.events.emit(ProcessEnded(self.id, os.getpid()))

    async def _tick(self) -> None:
        while True:
            now = self._loop.time()
            self._board.beat(now, self._ended)
            self._sweep()
            for processes in self._process_runners:
                processes.bury_the_dead()
            if self._groups is not None:
                self._groups.watch()
            self._give_back_unstarted(now - STRANDED_SECONDS)
            if self._workshop.terms.drain and self._dry:
                self.stop(0)
            self._check_served()
            await asyncio.sleep(TICK)

    def _check_served(self) -> None:
        """Stop once the store says that its schema is too new for this program."""
        problem = self._workshop.served.problem
        if problem is not None and self._tell_outdated is not None:
            self._tell_outdated(problem)
            self._tell_outdated = None  # Once is enough.
            self.stop(self._workshop.terms.grace)

    @property
    def _dry(self) -> bool:
        return not self._runs and all(feeder.dry for feeder in self._feeders)

    def _give_back_unstarted(self, before: float = float("inf")) -> None:
        """Give back what was claimed before a time and waits for a slot, a thread or a process."""
        for slots in self._slots:
            for run in slots.take_back(before):
                self._settler.put(run, GIVEN_BACK)
        for dealer in self._dealers:
            for run in dealer.take_back(before):
                self._end(run, GIVEN_BACK)
        if self._groups is not None:
            for run in self._groups.take_back(before):
                self._end(run, GIVEN_BACK)

    def _sweep(self) -> None:
        """Call off what is past its time limit, and tell of what does not heed it."""
        now = self._loop.time()
        for run, runner in list(self._running.values()):
            if now < run.deadline:
                continue
            if run.called_off is None or isinstance(runner, GroupRunner):
                self._time_out(run, runner)
            elif now >= run.deadline + self._workshop.terms.patience:
                run.deadline = float("inf")  # Once is enough.
                self._tell_overdue(
                    run, None if isinstance(runner, ProcessRunner) else runner.where(run)
                )

    def _time_out(self, run: Run, runner: Runner) -> None:
        if isinstance(runner, ProcessRunner | GroupRunner):
            run.deadline = float("inf")
            runner.time_out(run)
            return
        where = runner.where(run)
        run.called_off = run.timed_out(where)
        runner.call_off(run)
        if isinstance(runner, ThreadRunner):
            run.deadline = float("inf")
            self._tell_overdue(run, where)

    def _tell_overdue(self, run: Run, where: str | None) -> None:
        job, terms = run.job, self._workshop.terms
        ends = self._is_watched and isinstance(self._running[run.pair][1], ThreadRunner)
        self._workshop.events.emit(
            Overdue(
                job.id,
                job.task,
                job.queue,
                correlation_id(job),
                limit_seconds=run.timeout,
                where=where or run.task.place,
                ends_within=terms.grace + terms.patience if ends else None,
            )
        )

    # The end

    async def _finish(self, feeding: list[asyncio.Task[None]]) -> None:
        """Give back what has not started, let the rest finish, then call it off."""
        self._give_back_unstarted()
        if self._groups is not None:
            self._groups.recall()
        await self._until(self._only_stuck_threads_run, lambda: self._stop_at or 0.0)
        for pair, (run, _) in list(self._running.items()):
            self._call_off(pair, GIVEN_BACK if run.started_at is None else CUT_OFF)
        patience = self._loop.time() + self._workshop.terms.patience
        await self._until(self._only_threads_run, lambda: patience)
        heed = self._loop.time() + _HEED_SECONDS
        await self._until(lambda: not self._running, lambda: heed)
        self._settler.give_up_asking()
        await asyncio.wait(feeding)  # A claim that is still on its way brings jobs to give back.
        self._settler.stop()

    def _only_threads_run(self) -> bool:
        return all(isinstance(runner, ThreadRunner) for _, runner in self._running.values())

    def _only_stuck_threads_run(self) -> bool:
        """Say whether nothing runs but threads past their limit, which only our exit can end."""
        return self._only_threads_run() and all(
            run.called_off is not None for run, _ in self._running.values()
        )

    async def _until(self, done: Callable[[], bool], end: Callable[[], float]) -> None:
        while not done() and self._loop.time() < end():  # noqa: ASYNC110 (the end may move)
            await asyncio.sleep(TICK / 10)

    def _close(self) -> None:
        for processes in self._process_runners:
            processes.close()
        if self._groups is not None:
            self._groups.close()

    @property
    def _process_runners(self) -> list[ProcessRunner]:
        return [runner for runner in self._dealers if isinstance(runner, ProcessRunner)]
