"""Threads and processes: what they run, in which order, and what their end costs."""

import asyncio
import contextvars
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.outcome import Cancelled, Crashed, Done, Failed, Outcome
from fairlead.core.task import Registry
from fairlead.runtime import process_runner
from fairlead.runtime.board import PROCESS, THREAD, Board
from fairlead.runtime.loop_runner import LoopRunner
from fairlead.runtime.process_runner import ProcessRunner
from fairlead.runtime.run import GIVEN_BACK, Run
from fairlead.runtime.sending import Home
from fairlead.runtime.thread_runner import ThreadRunner
from fairlead.stores import store_for
from tests.runtime import shop

TARGET = "tests.runtime.shop:app"
MEMORY = store_for("memory://")


class Book:
    """What runners told: starts and ends, which one can wait for."""

    def __init__(self, tasks: Registry) -> None:
        self.tasks = tasks
        self.begun: list[tuple[str, int, int]] = []
        self.ended: dict[str, Outcome] = {}
        self.order: list[str] = []
        self.hired: list[tuple[int, bool]] = []
        self.revoked: set[str] = set()
        self.board = Board.private(200)
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._number = 0

    def run(self, task: str, **arguments: Any) -> Run:
        self._number += 1
        job = Job(
            JobId(f"job-{self._number:04}"),
            task,
            1,
            "default",
            json.dumps(arguments),
            None,
            1,
            0,
            self._number,
            0,
            0,
            None,
            0,
            0,
            "w",
        )
        return Run(job, self.tasks[task], "p", self._number, MEMORY)

    def begin(self, run: Run, kind: int, thread: int) -> bool:
        if run.job.id in self.revoked:
            return False
        run.since, run.started_at = self._loop.time(), 1
        self.begun.append((run.job.id, kind, thread))
        self._loop.call_soon_threadsafe(self._bell.set)
        return True

    def end(self, run: Run, outcome: Outcome) -> None:
        assert run.job.id not in self.ended, "a run ends once"
        self.ended[run.job.id] = outcome
        self.order.append(run.job.id)
        self._bell.set()

    def hire(self, pid: int, begins: bool) -> None:
        self.hired.append((pid, begins))

    def home(self, target: str) -> Home:
        return Home(target, self.board, self.begin, self.end, self.hire, lambda: 1)

    async def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._bell.clear()
                await self._bell.wait()

    async def all(self, runs: list[Run]) -> list[Outcome]:
        await self.until(lambda: all(run.job.id in self.ended for run in runs))
        return [self.ended[run.job.id] for run in runs]


# Threads


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://")


async def test_a_revoked_run_starts_neither_in_a_thread_nor_on_the_loop(app: Fairlead) -> None:
    """F77: whoever marks its start reads the revocation then."""
    ran: list[int] = []
    app.task(name="plain")(lambda: ran.append(1))

    @app.task(name="coroutine")
    async def coroutine() -> None:
        ran.append(2)

    book = Book(app.tasks)
    runs = [book.run("plain"), book.run("coroutine")]
    book.revoked = {run.job.id for run in runs}
    ThreadRunner("p", 1, book.begin, book.end).start(runs[0])
    LoopRunner(book.begin, book.end).start(runs[1])
    assert await book.all(runs) == [GIVEN_BACK, GIVEN_BACK]
    assert (ran, book.begun) == ([], [])


async def test_one_thread_runs_one_after_the_other_in_order(app: Fairlead) -> None:
    seen: list[int] = []
    app.task(name="t")(lambda n: seen.append(n))
    book = Book(app.tasks)
    threads = ThreadRunner("p", 1, book.begin, book.end)
    runs = [book.run("t", n=n) for n in range(50)]
    for run in runs:
        threads.start(run)
    assert {type(outcome) for outcome in await book.all(runs)} == {Done}
    assert seen == list(range(50))
    assert book.order == [run.job.id for run in runs]
    assert len({thread for _, _, thread in book.begun}) == 1
    assert {kind for _, kind, _ in book.begun} == {THREAD}


async def test_no_more_threads_run_than_there_are_slots(app: Fairlead) -> None:
    go_on = threading.Event()
    app.task(name="t")(lambda: go_on.wait(10))
    book = Book(app.tasks)
    threads = ThreadRunner("three", 3, book.begin, book.end)
    runs = [book.run("t") for _ in range(30)]
    for run in runs:
        threads.start(run)
    await book.until(lambda: len(book.begun) == 3)
    ours = [t for t in threading.enumerate() if t.name.startswith("fairlead-three-")]
    assert (len(ours), len(book.begun)) == (3, 3)
    go_on.set()
    await book.all(runs)
    assert len({thread for _, _, thread in book.begun}) <= 3


async def test_threads_are_made_as_they_are_needed(app: Fairlead) -> None:
    app.task(name="t")(lambda: None)
    book = Book(app.tasks)
    threads = ThreadRunner("few", 10, book.begin, book.end)
    for _ in range(20):
        run = book.run("t")
        threads.start(run)
        await book.all([run])
    ours = [t for t in threading.enumerate() if t.name.startswith("fairlead-few-")]
    assert len(ours) == 1


async def test_what_waits_for_a_thread_can_be_taken_back(app: Fairlead) -> None:
    go_on = threading.Event()
    app.task(name="t")(lambda: go_on.wait(10))
    book = Book(app.tasks)
    threads = ThreadRunner("p", 1, book.begin, book.end)
    runs = [book.run("t") for _ in range(4)]
    for run in runs:
        threads.start(run)
    await book.until(lambda: len(book.begun) == 1)
    assert threads.take_back(before=0.0) == []
    assert threads.take_back(before=float("inf")) == runs[1:]
    go_on.set()
    await book.all(runs[:1])
    again = book.run("t")
    threads.start(again)
    await book.all([again])
    assert len(book.ended) == 2


async def test_results_that_gather_are_collected_at_once(app: Fairlead) -> None:
    app.task(name="t")(lambda: None)
    book = Book(app.tasks)
    threads = ThreadRunner("p", 4, book.begin, book.end)
    collected = 0
    collect = threads._collect

    def counted() -> None:
        nonlocal collected
        collected += 1
        collect()

    threads._collect = counted  # type: ignore[method-assign]
    runs = [book.run("t") for _ in range(200)]
    for run in runs:
        threads.start(run)
    # The loop is busy here, so nothing is collected while all of them run.
    while len(threads._outbox) < 200:
        threading.Event().wait(0.001)
    await book.all(runs)
    assert collected == 1


async def test_what_a_job_puts_into_its_context_is_gone_for_the_next(app: Fairlead) -> None:
    variable = contextvars.ContextVar("variable", default="clean")
    seen: list[str] = []

    def leak() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    app.task(name="t")(leak)
    variable.set("the program's own")
    book = Book(app.tasks)
    threads = ThreadRunner("p", 1, book.begin, book.end)
    runs = [book.run("t") for _ in range(3)]
    for run in runs:
        threads.start(run)
    await book.all(runs)
    assert seen == ["clean"] * 3


async def test_a_run_called_off_while_it_waits_for_a_thread_never_starts(app: Fairlead) -> None:
    go_on = threading.Event()
    app.task(name="t")(lambda: go_on.wait(10))
    book = Book(app.tasks)
    threads = ThreadRunner("p", 1, book.begin, book.end)
    first, second = book.run("t"), book.run("t")
    threads.start(first)
    threads.start(second)
    await book.until(lambda: len(book.begun) == 1)
    second.called_off = Cancelled("enough")
    threads.call_off(second)
    go_on.set()
    assert await book.all([first, second]) == [Done("true"), Cancelled("enough")]
    assert len(book.begun) == 1


async def test_the_line_a_thread_is_at_is_the_handlers_own(app: Fairlead) -> None:
    go_on = threading.Event()

    def deep() -> None:
        go_on.wait(10)

    app.task(name="t")(deep)
    book = Book(app.tasks)
    threads = ThreadRunner("p", 1, book.begin, book.end)
    run = book.run("t")
    threads.start(run)
    await book.until(lambda: bool(book.begun))
    for _ in range(1_000):
        if "in test_the_line" in (where := threads.where(run) or ""):
            break
        threading.Event().wait(0.001)
    assert where.endswith(".deep")
    assert "test_runners.py" in where
    go_on.set()
    await book.all([run])


# Processes


@pytest.fixture
async def book() -> Book:
    return Book(shop.app.tasks)


@pytest.fixture
async def processes(book: Book) -> AsyncIterator[Callable[..., ProcessRunner]]:
    """Makes runners, and ends them."""
    made: list[ProcessRunner] = []

    def make(size: int = 1, **options: Any) -> ProcessRunner:
        runner = ProcessRunner(book.home(TARGET), size, **options)
        made.append(runner)
        return runner

    yield make
    for runner in made:
        runner.close()
    begun = [pid for pid, begins in book.hired if begins]
    ended = [pid for pid, begins in book.hired if not begins]
    assert sorted(begun) == sorted(ended), "every process that was hired is gone"


Make = Callable[..., ProcessRunner]


async def test_a_revoked_run_is_sent_to_no_process(book: Book, processes: Make) -> None:
    """F77: what was sent may start there without a word, and is left alone."""
    run, other = book.run("pid"), book.run("pid")
    for each, asked_at in ((run, 10.0), (other, 30.0)):
        each.place = book.board.hold(each.job.id, each.job.fence, 0, asked_at)
    book.board.revoke(20.0)
    runner = processes()
    runner.start(run)
    runner.start(other)
    assert {mark.job_id: mark.sent for mark in book.board.marks()} == {
        run.job.id: False,
        other.job.id: True,
    }
    ended = await book.all([run, other])
    assert ended[0] == GIVEN_BACK
    assert isinstance(ended[1], Done)


async def test_plain_and_async_handlers_run_in_another_process(book: Book, processes: Make) -> None:
    runner = processes()
    runs = [book.run("pid"), book.run("async-pid"), book.run("refuse")]
    for run in runs:
        runner.start(run)
    plain, coroutine, refused = await book.all(runs)
    assert isinstance(plain, Done)
    assert plain == coroutine
    assert int(plain.result or 0) == book.hired[0][0] != os.getpid()
    assert isinstance(refused, Failed)
    assert (refused.transient, refused.failure.message) == (False, "no")
    assert {kind for _, kind, _ in book.begun} == {PROCESS}


async def test_a_crash_costs_only_the_job_that_ran(
    book: Book, processes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = processes()
    runner._seconds = 0.0  # As after many quick jobs: several are sent at once.
    runs = [book.run("pid"), book.run("die"), *(book.run("pid") for _ in range(5))]
    for run in runs:
        runner._pending.append((run, 0.0))
    runner._deal()
    first, died, *others = await book.all(runs)
    assert died == Crashed("SIGSEGV")
    assert isinstance(first, Done)
    assert len({outcome for outcome in others}) == 1  # noqa: C416
    assert others[0] != first, "they ran in the next process"
    assert book.order == [run.job.id for run in runs]
    assert len([job for job, _, _ in book.begun]) == len(runs), "and none of them twice"


async def test_jobs_behind_a_slow_one_are_recalled_and_given_back(
    book: Book, processes: Make, tmp_path: Path
) -> None:
    runner = processes()
    runner._seconds = 0.0
    slow = book.run("wait-for", file=str(tmp_path / "go"))
    runs = [slow, *(book.run("pid") for _ in range(3))]
    for run in runs:
        runner._pending.append((run, 0.0))
    runner._deal()
    await book.until(lambda: bool(book.begun))
    taken: list[Run] = []
    async with asyncio.timeout(10):
        while len(taken) < 3:
            taken += runner.take_back(before=float("inf"))
            await asyncio.sleep(0.01)
    assert sorted(run.job.id for run in taken) == [run.job.id for run in runs[1:]]
    (tmp_path / "go").touch()
    assert isinstance((await book.all([slow]))[0], Done)
    assert len(book.begun) == 1
    after = book.run("pid")
    runner.start(after)
    assert isinstance((await book.all([after]))[0], Done), "the process is of use again"


async def test_a_run_past_its_limit_ends_with_its_line_and_the_next_runs(
    book: Book, processes: Make, tmp_path: Path
) -> None:
    runner = processes()
    run, after = book.run("wait-for", file=str(tmp_path / "go")), book.run("pid")
    runner.start(run)
    while not (tmp_path / "go.started").exists():
        await asyncio.sleep(0.01)
    runner.time_out(run)
    runner.start(after)
    outcome, done = await book.all([run, after])
    assert isinstance(outcome, Failed)
    assert outcome.timed_out
    assert "shop.py" in outcome.failure.message
    assert isinstance(done, Done)


async def test_a_handler_that_ignores_being_asked_is_killed(
    book: Book, processes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runner, "KILL_SECONDS", 0.1)
    runner = processes()
    run = book.run("block-hard")
    runner.start(run)
    await book.until(lambda: bool(book.begun))
    runner.time_out(run)
    [outcome] = await book.all([run])
    assert isinstance(outcome, Failed)
    assert outcome.timed_out


async def test_a_run_called_off_before_it_was_sent_never_starts(
    book: Book, processes: Make, tmp_path: Path
) -> None:
    runner = processes()
    slow, waiting = book.run("wait-for", file=str(tmp_path / "go")), book.run("pid")
    runner.start(slow)
    runner.start(waiting)
    waiting.called_off = Cancelled("enough")
    runner.call_off(waiting)
    assert book.ended == {waiting.job.id: Cancelled("enough")}
    (tmp_path / "go").touch()
    await book.all([slow])


async def test_a_process_is_replaced_after_so_many_jobs(book: Book, processes: Make) -> None:
    runner = processes(max_jobs=2)
    runs = [book.run("pid") for _ in range(6)]
    for run in runs:
        runner.start(run)
    outcomes = await book.all(runs)
    pids = [outcome.result for outcome in outcomes if isinstance(outcome, Done)]
    assert len(set(pids)) == 3
    assert max(map(pids.count, pids)) == 2


async def test_a_process_that_grew_too_large_is_replaced(book: Book, processes: Make) -> None:
    runner = processes(max_memory=1)
    runs = [book.run("pid") for _ in range(2)]
    for run in runs:
        runner.start(run)
    first, second = await book.all(runs)
    assert first != second


async def test_slow_jobs_go_one_to_each_process(
    book: Book, processes: Make, tmp_path: Path
) -> None:
    runner = processes(size=2)
    runs = [book.run("wait-for", file=str(tmp_path / "go")) for _ in range(4)]
    for run in runs:
        runner.start(run)
    await book.until(lambda: len(book.begun) == 2)
    assert len(runner._pending) == 2
    (tmp_path / "go").touch()
    outcomes = await book.all(runs)
    assert len({outcome.result for outcome in outcomes if isinstance(outcome, Done)}) == 2


async def test_an_app_that_cannot_be_loaded_is_tried_again_but_not_in_a_hot_loop(
    book: Book, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = ProcessRunner(book.home("no.such:app"), 1)
    run = book.run("pid")
    runner.start(run)
    async with asyncio.timeout(10):
        while not any(not begins for _, begins in book.hired):
            await asyncio.sleep(0.01)
    assert runner._resting
    assert len(book.hired) == 2
    runner.close()
    assert runner.take_back(float("inf")) == [run], "the job can be given back"
    assert "no module 'no'" in capfd.readouterr().err


async def test_a_death_is_seen_though_something_forked_lives_on(
    book: Book, processes: Make
) -> None:
    runner = processes()
    run = book.run("fork-and-die")
    runner.start(run)
    async with asyncio.timeout(10):
        while run.job.id not in book.ended:
            runner.bury_the_dead()  # As the worker does at every tick.
            await asyncio.to_thread(threading.Event().wait, 0.02)
    assert book.ended[run.job.id] == Crashed("SIGKILL (killed, by hand or for want of memory)")
