"""The supervisor: the process that watches over the ones which run jobs.

It renews their leases, ends those that hang, takes care of the jobs of those
that died, replaces them, and turns signals into what they mean. It runs no
handler, so nothing a handler does can stop it.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress

from fairlead.core.events import (
    LogStyle,
    LoopBlocked,
    Overdue,
    ProcessDied,
    ProcessRetired,
    ProcessStarted,
    Trouble,
    WorkerStopped,
    WorkerStopping,
)
from fairlead.core.outcome import Crashed
from fairlead.core.text import counted
from fairlead.runtime.board import ASYNC, PROCESS, Board, Mark
from fairlead.runtime.child import Child
from fairlead.runtime.contact import no_longer_served
from fairlead.runtime.guardian import Guardian
from fairlead.runtime.keeper import Keeper, News
from fairlead.runtime.memory import resident_bytes
from fairlead.runtime.messages import Begin, Cancel, Inherit, Lost, Stop
from fairlead.runtime.stacks import is_of_a_user
from fairlead.runtime.takeover import Death, Unclear, fates, idle_since, past_limit, take_over
from fairlead.runtime.workshop import Choice, Workshop

TICK = 0.1
_LONGEST_PAUSE = 30.0
_BLOCKED_SECONDS = 2.0
_TURN_SECONDS = 1.0
"""What a loop gets to turn again after the handler has ended that blocked it."""
_MOST_FAILED_STARTS = 5
_FOREVER = 30 * 24 * 3600.0


class Supervisor:
    """Runs a worker until it is told to stop, or has drained its queues."""

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        target: str,
        choice: Choice,
        log: LogStyle,
        report: Callable[[str], None],
    ) -> None:
        self._workshop = workshop
        self._events = workshop.events
        self._terms = workshop.terms
        self._worker = worker
        self._target = target
        self._choice = choice
        self._log = log
        self._report = report
        self._children: list[Child] = []
        self._burying: set[asyncio.Task[None]] = set()
        self._attending: set[asyncio.Task[None]] = set()
        self._unclear: list[Unclear] = []
        self._guardian = Guardian()
        self._keeper = Keeper(workshop, worker, self._boards, self._tell, self._tell_blocked)
        self._number = 0
        self._failed_starts = 0
        self._start_after = 0.0
        self._stop_by: float | None = None
        self._stop_now = False
        self._drained = False
        self._suspects = False
        self._bell = asyncio.Event()
        self._memory_at = 0.0
        self.reloading = False
        self.failed = False
        self.outdated = False
        """Whether it ended because the store's schema is too new for this program."""

    async def run(self) -> None:
        """Announce, start the processes, watch over them until none is left."""
        await self._keeper.begin()
        self._on_signals()
        keeping = asyncio.create_task(self._keeper.run())
        try:
            while not (self._ended and not self._children and not self._burying):
                # Nothing that runs can be settled any more, so nobody waits for it.
                self._workshop.store.check_there()
                if keeping.done():
                    keeping.result()  # It never ends by itself: this raises what ended it.
                self._tick()
                await self._next_tick()
        finally:
            keeping.cancel()
            # One that tells of a process while the loop closes would leave a traceback.
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
            for child in self._children:
                child.kill()
            self._guardian.close()
            # No service does anything after the worker has left.
            await asyncio.wait([keeping], timeout=self._terms.patience)
        await self._let_go()
        await self._keeper.leave()
        self._events.emit(WorkerStopped(self._worker))

    async def _next_tick(self) -> None:
        """Wait a moment, or until a process ends: its jobs shall not wait any longer."""
        self._bell.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK):
                await self._bell.wait()

    @property
    def _ended(self) -> bool:
        return self._stop_by is not None or self._drained

    def _boards(self) -> dict[str, Board]:
        return {child.worker: child.board for child in self._children}

    def _tell(self, worker: str, news: News) -> None:
        for child in self._children:
            if child.worker == worker:
                if news.lost:
                    child.tell(Lost(news.lost))
                if news.cancelled:
                    child.tell(Cancel(news.cancelled))

    def _tell_blocked(self, worker: str, returned: int) -> None:
        self._drained = False  # What was given back waits for somebody to claim it.
        for child in self._children:
            if child.worker == worker:
                child.told_blocked = True
                self._attend(self._look_at_blocked(child, returned))

    # Watching

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        for child in list(self._children):
            child.flush()
            was_ready = child.ready
            child.listen()
            self._check_served(child.outdated)
            if child.ready and not was_ready:
                self._failed_starts = 0
                self._events.emit(ProcessStarted(self._worker, child.pid))
            if child.spawned.process.poll() is not None:
                self._bury(child, now)
            else:
                self._check(child, now)
        self._check_served(self._workshop.served.problem)
        self._hand_on()
        self._recycle(now)
        self._replace(now)
        self._guardian.watch(group for child in self._children for group in child.groups)

    def _check_served(self, problem: object) -> None:
        """Drain the whole worker if the store told any part of it that this program is too old."""
        if problem is None or self.outdated:
            return
        self.outdated = True
        self._events.emit(Trouble(self._worker, no_longer_served(problem)))
        if self._stop_by is None:
            self.stop("no longer served", self._terms.grace)

    def _check(self, child: Child, now: float) -> None:
        """End a process that holds a run past its limit, or that does not stop when told to."""
        # After a second signal nobody waits for a process that cannot hear it.
        late_stop = self._stop_by is not None and (
            now >= self._stop_by or (self._stop_now and child.deaf)
        )
        if (child.kill_at is not None and now >= child.kill_at) or late_stop:
            self._condemn(child)
        elif child.kill_at is None:
            self._check_limits(child, now)

    def _check_limits(self, child: Child, now: float) -> None:
        marks = list(child.board.marks())
        overdue = past_limit(marks, now, self._terms.patience)
        stuck = child.still > self._terms.lease
        child.idle_since = idle_since(marks, now, child.idle_since) if stuck else None
        if overdue:
            grace = self._terms.grace
            child.kill_at = now if child.deaf else now + grace + self._terms.patience
            self._attend(self._look_at_overdue(child, overdue))
            self._retire(child, f"job {overdue[0].job_id} runs past its time limit", grace)
        elif child.idle_since is not None and now - child.idle_since >= _TURN_SECONDS:
            # Blocked, and by nothing that has a time limit of its own.
            child.kill_at = now
            self._retire(child, f"it has stood still for {child.still:.0f} s")
        elif child.still > _BLOCKED_SECONDS and not child.told_blocked:
            child.told_blocked = True
            self._attend(self._look_at_blocked(child, 0))
        elif not child.still:
            child.told_blocked = False

    async def _look_at_overdue(self, child: Child, overdue: list[Mark]) -> None:
        """Find out at which lines the process is, for the log and the jobs' history."""
        lines = await child.look()
        for mark in overdue:
            if mark.kind == PROCESS or (mark.kind == ASYNC and not child.deaf):
                continue  # It is on no thread's stack; its own process tells the line.
            where = lines.get(mark.thread) or _main_thread(lines)
            child.lines[mark.thread] = where or "a line nobody knows"
            if child.deaf:
                task, limit = self._task_of(mark), mark.deadline - mark.since
                told = Overdue(mark.job_id, task, "", None, limit_seconds=limit, where=where)
                self._events.emit(told)

    async def _look_at_blocked(self, child: Child, returned: int) -> None:
        """Tell who keeps an event loop from turning: others wait for it, and nobody knows why."""
        seconds = child.still
        marks = list(child.board.marks())
        lines = await child.look()
        where = _blocking(lines, marks) if child.still else None  # It may go on already.
        self._events.emit(LoopBlocked(self._worker, child.pid, seconds, where, returned))

    def _task_of(self, mark: Mark) -> str:
        names = self._workshop.task_names  # Those of newer code than ours are not among them.
        return names[mark.task] if mark.task < len(names) else "?"

    def _attend(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside the watching."""
        attending = asyncio.create_task(work)
        self._attending.add(attending)
        attending.add_done_callback(self._attending.discard)

    def _condemn(self, child: Child) -> None:
        """Kill a process, on purpose: none of its jobs is to blame but those past their limit."""
        if not child.looking:
            child.condemned = True
            child.kill()

    def _retire(self, child: Child, why: str, grace: float = _FOREVER) -> None:
        """Have a process finish what it has, while another takes its place."""
        child.tell(Stop(grace))
        if not child.retiring:
            child.retiring = True
            self._events.emit(ProcessRetired(self._worker, child.pid, why))

    def _recycle(self, now: float) -> None:
        """Retire processes that have done enough or grown too large."""
        most_jobs, most_memory = self._terms.max_jobs, self._terms.max_memory
        if now < self._memory_at or self._ended:
            return
        self._memory_at = now + 1.0
        for child in self._children:
            if child.retiring or not child.ready:
                continue
            if most_jobs is not None and child.board.ended >= most_jobs:
                self._retire(child, f"it has run {counted(child.board.ended, 'job')}")
            elif most_memory is not None and resident_bytes(child.pid) > most_memory:
                size = resident_bytes(child.pid) // 1_000_000
                self._retire(child, f"it takes {size:,} MB of memory")

    # Starting and burying

    def _replace(self, now: float) -> None:
        """Start processes until there are as many as wanted."""
        if self._ended or now < self._start_after:
            return
        active = sum(not child.retiring for child in self._children)
        for _ in range(self._terms.processes - active):
            self._number += 1
            begin = Begin(f"{self._worker}/{self._number}", self._terms, self._choice, self._log)
            # Another living process claims what a dead one left before a new one can.
            role = "heir" if self._suspects and not active else "worker"
            try:
                self._children.append(Child(begin, self._target, self._workshop.places, role))
                self._suspects = False
            except OSError as problem:  # The machine has no room for another process now.
                self._note_failed_start(str(problem), now)
                break
        self._keeper.spare()

    def _bury(self, child: Child, now: float) -> None:
        death = child.bury(now)
        self._children.remove(child)
        if any(isinstance(outcome, Crashed) for outcome in fates(death).values()):
            self._suspects = True
        if self._terms.drain and not child.retiring:
            self._drained = child.leaving  # One that crashed has left work behind.
        self._check_served(child.outdated)
        if not child.ready and child.outdated is None:
            self._note_failed_start(death.how, now)

        burying = asyncio.create_task(self._settle(child, death))
        self._burying.add(burying)
        burying.add_done_callback(self._burying.discard)

    async def _settle(self, child: Child, death: Death) -> None:
        """Take care of what a dead process left."""
        try:
            estate = await take_over(self._workshop, death, self._terms.lease)
        finally:
            child.close()
        self._unclear.extend(estate.unclear)
        if estate.crashed or estate.returned:
            self._drained = False  # It left work behind.
        if not death.on_purpose:
            told = (child.pid, death.how, estate.crashed, estate.returned)
            self._events.emit(ProcessDied(self._worker, *told))

    def _note_failed_start(self, how: str, now: float) -> None:
        """A process that dies before it is ready is not started again at once, nor for ever."""
        self._failed_starts = min(self._failed_starts + 1, 16)
        self._start_after = now + min(_LONGEST_PAUSE, TICK * 2**self._failed_starts)
        if self._failed_starts >= _MOST_FAILED_STARTS and not self._children:
            told = f"its processes end before they are ready ({how}); giving up"
            self._events.emit(Trouble(self._worker, told))
            self.failed = True
            self.stop("its processes do not start", 0)

    def _hand_on(self) -> None:
        """Let a living process ask about runs that ended unclearly in a dead one."""
        child = next((child for child in self._children if child.ready), None)
        while self._unclear and child is not None and not self._ended:
            child.tell(Inherit(self._unclear.pop()))

    async def _let_go(self) -> None:
        """At the end, leave what nobody could be asked about to whoever claims it next."""
        pairs = [(run.job.id, run.job.fence) for run in self._unclear]
        if pairs:
            with suppress(Exception):  # Their leases pass by themselves.
                await self._workshop.store.extend(pairs, 0)

    # Signals

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGCHLD, self._bell.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._attend(self._reload()))
        loop.add_signal_handler(signal.SIGQUIT, lambda: self._attend(self._answer()))

    def _on_stop(self, number: int) -> None:
        name = signal.Signals(number).name
        first = self._stop_by is None or self.reloading
        self.reloading = False
        self.stop(name if first else f"{name} again", self._terms.grace if first else 0)

    def stop(self, why: str, grace: float) -> None:
        """Have everything finish within the grace time and the rest given back."""
        by = asyncio.get_running_loop().time() + grace + 2 * self._terms.patience
        self._stop_by = by if self._stop_by is None else min(by, self._stop_by)
        self._stop_now = not grace
        self._keeper.serving = False
        self._events.emit(WorkerStopping(self._worker, why, grace))
        for child in self._children:
            child.tell(Stop(grace))

    async def _reload(self) -> None:
        """Start anew with new code, if that can be loaded."""
        check = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fairlead.cli.process", "check", self._target),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await check.communicate()
        if check.returncode:
            why = said.decode(errors="replace").strip().removeprefix("fairlead: ")
            told = f"not reloaded, the old code runs on: {why[-500:]}"
            self._events.emit(Trouble(self._worker, told))
        elif self._stop_by is None:
            self.reloading = True
            self.stop("SIGHUP: reload", self._terms.grace)

    async def _answer(self) -> None:
        """Print what each slot does, and since when."""
        now = asyncio.get_running_loop().time()
        for child in list(self._children):
            self._report(self._describe(child, await child.look(), now))

    def _describe(self, child: Child, lines: dict[int, str], now: float) -> str:
        marks = sorted(child.board.marks(), key=lambda mark: mark.since or now)
        running = [mark for mark in marks if mark.running]
        rest = len(marks) - len(running)
        told = [f"process {child.pid}: {len(running)} running, {rest} claimed and about to start"]
        for mark in running:
            blocking = _main_thread(lines) if mark.kind == ASYNC and child.deaf else None
            where = lines.get(mark.thread) or blocking
            at = f"  {where}" if where else ""
            since = f"{now - mark.since:,.1f} s"
            told.append(f"  {since:>12}  {mark.job_id}  {self._task_of(mark)}{at}")
        return "\n".join(told)


def _blocking(lines: dict[int, str], marks: list[Mark]) -> str | None:
    """Return the line that keeps a loop from turning.

    If its own thread is at no line of a handler, it waits for the interpreter lock, and one of
    the plain functions that run in threads holds that.
    """
    main = _main_thread(lines)
    in_threads = {lines[mark.thread] for mark in marks if mark.running and mark.thread in lines}
    return main if main is None or is_of_a_user(main) else (" or ".join(in_threads) or main)


def _main_thread(lines: dict[int, str]) -> str | None:
    return next(reversed(lines.values()), None)  # It is written last.
