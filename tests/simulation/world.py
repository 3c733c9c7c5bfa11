"""Machines, producers and a nemesis around the real runtime, all drawn from one seed.

A machine is a tree of processes: a supervisor with the real `Keeper` and the
real `take_over`, and one or two children with the real `Worker` over a real
board. What a supervisor does with real processes (spawn, signal, reap) is
written anew here, as small as possible.
"""

import asyncio
import math
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreError
from fairlead.core.events import Bus
from fairlead.core.ids import IdMaker, JobId
from fairlead.core.job import NewJob
from fairlead.core.queue import Queue
from fairlead.core.task import Registry
from fairlead.runtime import group_runner, keeper, points, revoke, worker
from fairlead.runtime.board import UNCLEAR, Board
from fairlead.runtime.group import Group
from fairlead.runtime.keeper import Keeper, News
from fairlead.runtime.service import Service
from fairlead.runtime.solo import Word
from fairlead.runtime.takeover import Death, Unclear, past_limit, take_over
from fairlead.runtime.upkeep import upkeep
from fairlead.runtime.worker import Worker
from fairlead.runtime.workshop import PoolPlan, Terms, Workshop
from fairlead.stores.memory.store import MemoryStore
from tests import deeds
from tests.simulation.faults import Connection, Network, Rates, at_once
from tests.simulation.loop import Deadlock, Killed, Process, VirtualClock, VirtualLoop, here
from tests.simulation.witness import Seen, Witness
from tests.simulation.work import CRASH_LIMIT, registry
from tests.words import by

WATCH = 0.5
TICK = 0.5
"""Virtual time is cheap, but not free: both sides look around less often than in earnest."""
KEEP = 365 * 24 * 3600 * SECOND
QUEUES = (Queue("letters", weight=3), Queue("papers"))
ALARMS = Queue("alarms", critical=True, tasks=["note"])
LONGEST_RECOVERY = 900.0
"""Seconds after the last fault within which every job must have come to an end."""
STEP_WITHIN = 120.0
"""Seconds after the last fault within which every service must have done a step."""


class Plan(PoolPlan, frozen=True):
    """A pool that claims only a little ahead, so that its board is small and often full."""

    @property
    def ahead(self) -> int:
        return 0 if any(queue.critical for queue in self.queues) else 6


class Options(msgspec.Struct, frozen=True):
    """What one world is like."""

    machines: int = 2
    children: int = 1
    slots: int = 3
    alarms: bool = False
    skew: float = 0.0
    stalls: float = 0.0
    rates: Rates = Rates()
    terms: Terms = Terms()


class Child(Process):
    """A worker process, and what its supervisor knows of it."""

    def __init__(self, name: str, tree: "Tree", board: Board) -> None:
        super().__init__(name)
        self.tree = tree
        self.board = board
        self.worker: Worker | None = None
        self.hired_ones: list[Process] = []
        self.on_purpose = False
        self.how = ""
        self.died_at = 0.0


class Tree:
    """A supervisor and its children, from their start to their end."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.supervisor = Process(name)
        self.children: list[Child] = []
        self.all_children: list[Child] = []
        self.interruptions: list[tuple[float, float]] = []
        self.stopping: float | None = None
        self.stop_by = float("inf")
        self._burying: set[asyncio.Task[None]] = set()
        self._unclear: list[Unclear] = []
        self._number = 0
        self._workshop = world.workshop(self.supervisor)
        world.loop.spawn(self.supervisor, self._guarded())

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Killed:
            raise
        except BaseException as problem:
            self.world.witness.complain(f"a supervisor goes on: {problem!r}")
            raise

    async def _run(self) -> None:
        self._keeper = Keeper(
            self._workshop, self.name, self._boards, self._tell, self._tell_blocked
        )
        while True:
            try:
                await self._keeper.begin()
                break
            except StoreError:
                await asyncio.sleep(1.0)
        keeping = asyncio.create_task(self._keeper.run())
        while self.stopping is None or self.children or self._burying:
            self._watch()
            await asyncio.sleep(WATCH)
            if keeping.done():
                keeping.result()
        keeping.cancel()
        await asyncio.wait([keeping])
        pairs = [(run.job.id, run.job.fence) for run in self._unclear]
        try:
            if pairs:
                await self._workshop.store.extend(pairs, 0)
        except StoreError:
            pass
        await self._keeper.leave()
        self.world.loop.kill(self.supervisor)

    def _boards(self) -> dict[str, Board]:
        return {child.name: child.board for child in self.children}

    def _tell(self, name: str, news: News) -> None:
        for child in self.children:
            if child.name == name and child.worker is not None:
                self.world.loop.tell(child, child.worker.lost, news.lost)
                self.world.loop.tell(child, child.worker.cancel, news.cancelled)

    def _tell_blocked(self, name: str, returned: int) -> None:
        self.world.witness.note("revoked", None, name, returned)

    def _watch(self) -> None:
        world = self.world
        now = world.loop.time()
        for child in list(self.children):
            if not child.alive:
                self._bury(child, now)
            elif past_limit(child.board.marks(), now, world.terms.patience) or now >= self.stop_by:
                world.end_child(child, "SIGKILL", on_purpose=True)
        ready = next((c for c in self.children if c.alive and c.worker is not None), None)
        while self._unclear and ready is not None and self.stopping is None:
            assert ready.worker is not None
            world.loop.tell(ready, ready.worker.inherit, self._unclear.pop())
        while self.stopping is None and len(self.children) < world.options.children:
            self._start()

    def _start(self) -> None:
        self._number += 1
        board = Board.private(self._workshop.places)
        child = Child(f"{self.name}/{self._number}", self, board)
        self.children.append(child)
        self.all_children.append(child)
        self._keeper.spare()
        self.world.loop.spawn(child, self.world.child_main(child))

    def _bury(self, child: Child, now: float) -> None:
        marks = tuple(child.board.marks())
        death = Death(child.name, child.how, marks, now, child.on_purpose, {})
        self.children.remove(child)

        async def settle() -> None:
            estate = await take_over(self._workshop, death, self.world.terms.lease)
            self._unclear.extend(estate.unclear)

        burying = asyncio.create_task(settle())
        self._burying.add(burying)
        burying.add_done_callback(self._burying.discard)

    def stop(self, grace: float) -> None:
        """Have everything finish within the grace time, as a supervisor told to stop does."""
        now = self.world.loop.time()
        self.stopping = now
        self.stop_by = now + grace + 2 * self.world.terms.patience
        for child in self.children:
            if child.worker is not None:
                self.world.loop.tell(child, child.worker.stop, grace)
            else:
                self.stop_by = now

    def processes(self) -> list[Process]:
        return [self.supervisor, *self.children]


class World:
    """Everything that exists, under one seed."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.options = options or drawn(self.random)
        self.terms = self.options.terms
        self.loop = VirtualLoop(Random(seed + 1), self.options.stalls)
        self.loop.set_exception_handler(self._on_problem)
        self.clock = VirtualClock(self.loop)
        self.store = MemoryStore(self.clock)
        self.tasks: Registry = registry(self)
        self.witness = Witness(
            self.clock.now,
            lambda job_id: at_once(self.store.admin.find(job_id)),
            self.may_be_lost,
            lambda task: self.tasks[task].options.reconcile is not None,
        )
        rates = self.options.rates
        self.network = Network(self.loop, Random(seed + 2), self.store, self.witness, rates)
        self.outages: list[tuple[float, float]] = []
        self.trees: list[Tree] = []
        self.ids = IdMaker(lambda: self.clock.now() * 1_000, self._random_end)
        self.faults_end = float("inf")
        self.points_passed = 0
        self.on_point: Callable[[Child, str], bool] = lambda _child, _name: False
        self._boots = 0
        self.tell_all = False
        self._moods = Random(seed + 3)
        self._stepped: dict[Process, float] = {}

    # Parts

    def workshop(self, process: Process) -> Workshop:
        options = self.options
        queues = (ALARMS, *QUEUES) if options.alarms else QUEUES
        pools = (Plan("main", queues, options.slots, "async", self_serving=False),)
        wrong_by = options.skew * self.random.choice((-1, 0, 1))
        return Workshop(
            Connection(self.network, process),
            self.tasks,
            Bus(self._on_subscriber_error),
            pools,
            KEEP,
            VirtualClock(self.loop, wrong_by),
            self.terms,
            Random(self.random.getrandbits(32)),
        )

    def boot(self, number: int) -> Tree:
        """Start a machine, or start it again if it is down."""
        if number < len(self.trees) and self.trees[number].supervisor.alive:
            return self.trees[number]
        self._boots += 1
        tree = Tree(self, f"m{number}.{self._boots}")
        self.trees[number : number + 1] = [tree]
        return tree

    async def child_main(self, child: Child) -> None:
        await asyncio.sleep(self.random.uniform(0.05, 0.4))
        try:
            child.worker = Worker(self.workshop(child), child.name, child.board, "simulated")
            await child.worker.run()
        except Killed:
            raise
        except BaseException as problem:
            self.witness.complain(f"a worker goes on: {problem!r}")
            raise
        self._check_exit(child)
        self.end_child(child, "exit", on_purpose=True)

    def _check_exit(self, child: Child) -> None:
        """A worker that stops leaves nothing to others but what did not heed it."""
        for mark in child.board.marks():
            seen = self.witness.current(mark.job_id, mark.fence)
            if seen is not None and not seen.told and mark.kind != UNCLEAR:
                self.witness.complain("L5: who stops settles or gives back what it has", seen.id)

    # Ends of processes

    def end_child(self, child: Child, how: str, *, on_purpose: bool = False, at: str = "") -> None:
        """Let a child die, with the processes it has hired."""
        if not child.alive:
            return
        child.on_purpose, child.how = on_purpose, how
        child.died_at = self.loop.time()
        hired = [process for process in child.hired_ones if process.alive]
        for process in (child, *hired):
            self.loop.kill(process)
        self.witness.died(child, crashed=not on_purpose, at=at, kin=hired)

    def end_tree(self, tree: Tree) -> None:
        """Let a whole machine die."""
        self.loop.kill(tree.supervisor)
        for child in tree.children:
            self.end_child(child, "power", at="tree")

    def end_here(self) -> None:
        """Let the process die whose code runs now."""
        process = here()
        if isinstance(process, Child):
            self.end_child(process, "SIGSEGV")
        else:
            self.loop.kill(process)
            self.witness.died(process, crashed=True)
            hired: Callable[[], None] = process.on_death  # type: ignore[attr-defined]
            hired()

    def pass_point(self, name: str) -> None:
        """Take note of a crash point that some process passes, which may be its last."""
        process = here()
        if not isinstance(process, Child):
            return
        self.points_passed += 1
        if self.on_point(process, name):
            raise Killed

    # What the nemesis does

    def pause(self, tree: Tree, processes: list[Process], seconds: float) -> None:
        self._interrupt(tree, processes, seconds)
        for process in processes:
            self.loop.freeze(process, seconds)
            for hired in getattr(process, "hired_ones", ()):
                self.loop.freeze(hired, seconds)

    def cut(self, tree: Tree, processes: list[Process], seconds: float) -> None:
        self._interrupt(tree, processes, seconds)
        for process in processes:
            self.network.cut_until[process] = self.loop.time() + seconds

    def _interrupt(self, tree: Tree, processes: list[Process], seconds: float) -> None:
        if tree.supervisor in processes:
            now = self.loop.time()
            tree.interruptions.append((now, now + seconds))

    def outage(self, seconds: float) -> None:
        now = self.loop.time()
        self.network.outage_until = now + seconds
        self.outages.append((now, now + seconds))

    def may_be_lost(self, held: Seen, claimer: Process) -> bool:
        """Say whether something happened to the holder of a lease that lets it pass."""
        if not held.delivered or held.given_up or not isinstance(held.process, Child):
            return True
        tree = held.process.tree
        since = (held.claimed_at - self.clock.now()) / SECOND + self.loop.time()
        if not tree.supervisor.alive or any(end > since for _, end in tree.interruptions):
            return True
        if held.process.alive:
            return False
        asked = self.tasks[held.task].options.reconcile is not None
        died_at = held.process.died_at
        return held.lost or asked or any(end > died_at - 1 for _, end in self.outages)

    # Running

    def run(self, scenario: Any) -> None:
        """Run a scenario, then wait for all jobs to end; checks everything on the way."""
        with self._in_place():
            try:
                self.loop.run_until_complete(
                    self.loop.spawn(self.loop.outside, self._live(scenario))
                )
            except Deadlock as problem:
                self.witness.complain(f"something goes on: {problem}")
            finally:
                self._look_at_tasks()
                self.witness.closed = True
                self.loop.dispose()
                self.witness.closed = False
        if self.witness.broken:
            return  # The rest would only follow from it.
        records = {
            record.id: record
            for job_id in self.witness.facts
            if (record := at_once(self.store.admin.find(job_id))) is not None
        }
        attempts = {task.name: task.options.retry.attempts for task in self.tasks}
        log = self.store.log
        self.witness.check_end(records, log, attempts.__getitem__, CRASH_LIMIT)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        real, group_runner.Hand = group_runner.Hand, SimulatedHand  # type: ignore[assignment,misc]
        ticks = worker.TICK, revoke.TICK
        worker.TICK = revoke.TICK = TICK
        services, keeper.SERVICES = keeper.SERVICES, (upkeep, self._moody)
        points.listen(self.pass_point)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Coroutines of dead processes are never awaited.
                yield
        finally:
            points.listen(None)
            worker.TICK, revoke.TICK = ticks
            keeper.SERVICES = services
            group_runner.Hand = real  # type: ignore[misc]

    async def _live(self, scenario: Any) -> None:
        for number in range(self.options.machines):
            self.boot(number)
        auditing = asyncio.create_task(self._audit_forever())
        await scenario(self)
        self.faults_end = self.loop.time()
        self.network.rates = Rates()
        await self._until_all_ended()
        await self._until_services_step()
        auditing.cancel()
        self._audit()

    async def _until_all_ended(self) -> None:
        end = self.loop.time() + LONGEST_RECOVERY
        while self.loop.time() < end and not self.witness.broken:
            if all(fact.state is not None for fact in self.witness.facts.values()):
                return
            await asyncio.sleep(2.0)
            self._note_expired()
            for queue in QUEUES:  # A repeated pause may have come after its resume.
                at_once(deeds.resume(self.store, queue.name, by()))

    async def _until_services_step(self) -> None:
        """Whatever a service did while there were faults, it goes on afterwards."""
        while any(map(self._stands, self.trees)) and not self.witness.broken:
            await asyncio.sleep(2.0)
            if self.loop.time() > self.faults_end + STEP_WITHIN:
                self.witness.complain("a service goes on")

    def _stands(self, tree: Tree) -> bool:
        stepped = self._stepped.get(tree.supervisor, 0.0)
        return tree.supervisor.alive and tree.stopping is None and stepped < self.faults_end

    def _moody(self, _workshop: Workshop) -> Service:
        """Return a service that fails, hangs and talks nonsense, as long as there are faults."""

        async def step() -> float:
            self._stepped[here()] = self.loop.time()
            mood = self._moods.random() if self.faults_end == math.inf else 1.0
            if mood < 0.1:
                raise RecursionError("a bad mood")
            if mood < 0.2:
                await asyncio.Event().wait()
            return math.nan if mood < 0.3 else 4.0

        return Service("be in a mood", step, limit=6.0)

    def _note_expired(self) -> None:
        for job_id, fact in self.witness.facts.items():
            if fact.state is None and fact.new.expires_in is not None:
                record = at_once(self.store.admin.find(job_id))
                if record is not None and record.state.final:
                    fact.state = record.state

    async def _audit_forever(self) -> None:
        while True:
            await asyncio.sleep(7.0)
            self._audit()

    def _audit(self) -> None:
        for finding in at_once(self.store.admin.audit()):
            self.witness.complain(f"I3: the store is in order: {finding.problem}")
        if not self.witness.dead <= set(self.store.dead):
            self.witness.complain("I10: a dead letter stays")

    def _look_at_tasks(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            if task.done() and not task.cancelled() and task.exception() is not None:
                self._on_problem(self.loop, {"exception": task.exception()})

    def _on_problem(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if not self.loop._disposing and not isinstance(problem, Killed):
            if self.tell_all and problem is not None:
                traceback.print_exception(problem)
            self.witness.complain(f"no task ends with an error: {problem or context!r}")

    def _on_subscriber_error(self, event: object, problem: Exception) -> None:
        self.witness.complain(f"no subscriber fails: {problem!r}")

    # For scenarios

    def _random_end(self) -> str:
        return f"8{self.random.getrandbits(12):03x}-{self.random.getrandbits(32):08x}"

    def new_job(self, task: str, **more: Any) -> NewJob:
        found = self.tasks[task]
        payload = found.signature.encode((), {})
        more.setdefault("queue", self.random.choice(QUEUES).name)
        return NewJob(self.ids(more["queue"]), task, payload=payload, **more)

    async def put(self, connection: Connection, jobs: list[NewJob]) -> None:
        """Put until the store answers, as a producer with a steady hand does."""
        while True:
            try:
                await connection.put(jobs)
                break
            except StoreError:
                await asyncio.sleep(self.random.uniform(0.1, 3.0))
        self.witness.acked(jobs)


def drawn(random: Random) -> Options:
    """Draw what a world is like. Each leaves most faults out, so that the others show."""

    def some(most: float) -> float:
        return random.choice((0.0, 0.0, most / 4, most))

    rates = Rates(some(0.1), some(0.08), some(0.08), some(0.05), random.choice((0.0, 0.5, 1.0)))
    return Options(
        machines=random.choice((1, 2, 2, 3)),
        children=random.choice((1, 1, 2)),
        slots=random.choice((1, 2, 4)),
        alarms=random.random() < 0.3,
        skew=random.choice((0.0, 0.0, 3600.0)),
        stalls=random.choice((0.0, 0.02, 0.1)),
        rates=rates,
    )


class SimulatedHand:
    """Stands for `Hand`: a simulated process in which the real `Group` runs."""

    def __init__(
        self, role: str, target: str, hire: Any, on_news: Any, handles: Any, recruit: None
    ) -> None:
        child = here()
        assert isinstance(child, Child)
        self._child = child
        self._world = world = child.tree.world
        self._on_news = on_news
        self._to_it: deque[Any] = deque()
        self._words: deque[Word] = deque()
        self._group: Group | None = None
        self._how = "SIGSEGV"
        self._process = Process(f"{child.name}+{len(child.hired_ones)}")
        self._process.hired = True
        self._process.on_death = self._ring  # type: ignore[attr-defined]
        child.hired_ones.append(self._process)
        self.pid = len(child.hired_ones)
        delay = world.random.uniform(0.05, 0.4)
        world.loop.call_later(delay, self._begin, context=self._process.context)

    def _begin(self) -> None:
        store = Connection(self._world.network, self._process)
        self._group = Group(self._world.tasks, store, self._say, self._child.board)
        while self._to_it:
            self._group.heed(self._to_it.popleft())

    def _say(self, word: Word) -> None:
        self._words.append(word)
        self._ring()

    def _ring(self) -> None:
        if self._child.alive:
            self._world.loop.tell(self._child, self._on_news)

    def tell(self, message: object) -> None:
        self._to_it.append(message)
        self._world.loop.tell(self._process, self._hear)

    def _hear(self) -> None:
        if self._group is not None and self._to_it:
            self._group.heed(self._to_it.popleft())

    @property
    def dead(self) -> bool:
        return not self._process.alive

    def receive(self) -> tuple[list[Word], bool]:
        words = list(self._words)
        self._words.clear()
        return words, self.dead

    async def lines(self) -> dict[int, str]:
        return {}

    def signal(self, number: int) -> None:
        if self._process.alive:
            self._how = "SIGTERM"
            self._world.loop.kill(self._process)
            self._world.witness.died(self._process, crashed=False)
            self._ring()

    def leave(self) -> None:
        self.signal(0)

    def bury(self) -> tuple[str, list[Word]]:
        self.signal(0)
        words, _ = self.receive()
        return self._how, words


def find_job(world: World, random: Random) -> JobId | None:
    """Pick some job that the store has accepted."""
    known = list(world.witness.facts)
    return random.choice(known) if known else None
