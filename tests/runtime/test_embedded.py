"""A worker inside this program: handlers run, and the failure policy holds, on every store."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from fairlead import (
    Ambiguous,
    Cancel,
    ConfigError,
    Fairlead,
    Permanent,
    Pool,
    Queue,
    Retry,
    RetryAfter,
    Snooze,
    current_job,
)
from fairlead.core import events
from fairlead.core import outcome as outcome_module
from fairlead.core.errors import EnqueueError, LeaseLost
from fairlead.core.job import Gate, Job, NewJob, Reason, State
from fairlead.core.outcome import Snoozed
from fairlead.core.retry import exponential, fixed
from fairlead.runtime import settling
from fairlead.runtime.worker import Worker
from fairlead.stores import store_for
from tests.fuzz.victim import DEEP
from tests.runtime import shop
from tests.runtime.heard import Heard, ended
from tests.words import new_id

AT_ONCE = fixed(0, jitter=0)
THRICE = Retry(attempts=3, backoff=AT_ONCE)
ONCE = Retry(attempts=1)


@pytest.fixture
def shop_app(any_url: str, monkeypatch: pytest.MonkeyPatch) -> Fairlead:
    """The importable app, on every store in turn."""
    monkeypatch.setattr(shop.app, "store", store_for(any_url))
    return shop.app


# Handlers


async def test_an_async_handler_runs_and_its_result_comes(any_app: Fairlead) -> None:
    @any_app.task(name="add")
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async with any_app.worker():
        job = await add.aenqueue(1, b=2)
        assert await job.aresult(timeout=10) == 3


async def test_a_plain_handler_runs_in_a_thread(any_app: Fairlead) -> None:
    @any_app.task(name="name")
    def name() -> str:
        return threading.current_thread().name

    async with any_app.worker():
        assert (await (await name.aenqueue()).aresult(timeout=10)).startswith("fairlead-default-")


async def test_handlers_of_a_process_pool_run_in_other_processes(shop_app: Fairlead) -> None:
    async with shop_app.worker():
        jobs = [await task.aenqueue() for task in (shop.pid, shop.async_pid, shop.light_pid)]
        theirs, also_theirs, ours = [await job.aresult(timeout=20) for job in jobs]
    assert os.getpid() == ours
    assert os.getpid() not in (theirs, also_theirs)
    await shop_app.aclose()


async def test_a_job_that_kills_its_process_is_a_dead_letter_with_the_signals_name(
    shop_app: Fairlead,
) -> None:
    async with shop_app.worker(pools=["heavy"]):
        bad = await shop.die.aenqueue()
        good = await shop.pid.aenqueue()
        record = await ended(bad, 20)
        assert await good.aresult(timeout=20)
    assert (record.state, record.reason, record.crashes) == (State.DEAD, Reason.POISON, 1)
    assert record.errors[-1].message == "SIGSEGV, crash 1 of 1"
    await shop_app.aclose()


async def test_a_process_pool_needs_an_app_that_can_be_imported() -> None:
    app = Fairlead("memory://", pools=[Pool("p", runner="process")])
    app.task(name="t")(lambda: None)
    with pytest.raises(ConfigError, match="make it a global of a module"):
        app.worker()


async def test_jobs_enqueued_by_a_handler_run_too(any_app: Fairlead) -> None:
    seen: list[int] = []
    all_seen = asyncio.Event()

    @any_app.task(name="count")
    async def count(n: int) -> None:
        seen.append(n)
        if n:
            await count.aenqueue(n - 1)
        else:
            all_seen.set()

    async with any_app.worker():
        await count.aenqueue(5)
        await asyncio.wait_for(all_seen.wait(), 10)
    assert seen == [5, 4, 3, 2, 1, 0]


# The failure policy


async def test_a_failing_job_is_tried_along_its_curve_and_then_dead(any_app: Fairlead) -> None:
    attempts: list[int] = []
    retry = Retry(attempts=3, backoff=exponential(base=0.01, factor=2, jitter=0))

    @any_app.task(name="fail", retry=retry)
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError(f"try {len(attempts)}")

    heard = Heard(any_app)
    async with any_app.worker():
        record = await ended(await fail.aenqueue())
    assert attempts == [1, 2, 3]
    assert (record.state, record.reason, record.attempt) == (State.DEAD, Reason.EXHAUSTED, 3)
    assert [error.message for error in record.errors] == ["try 1", "try 2", "try 3"]
    retried = heard.of(events.Retried)
    assert [(e.attempt, round(e.delay_seconds, 3)) for e in retried] == [(1, 0.01), (2, 0.02)]
    assert heard.of(events.Died)[0].error == "ValueError"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_permanent_failure_is_dead_at_once(any_app: Fairlead, is_async: bool) -> None:
    def plain() -> None:
        raise Permanent("no such user")

    async def coroutine() -> None:
        plain()

    task = any_app.task(name="t", retry=THRICE)(coroutine if is_async else plain)
    async with any_app.worker():
        record = await ended(await task.aenqueue())
    assert (record.state, record.reason, record.attempt) == (State.DEAD, Reason.PERMANENT, 1)


async def test_retry_after_waits_at_least_so_long(any_app: Fairlead) -> None:
    @any_app.task(name="t")
    async def t() -> None:
        raise RetryAfter(30)

    heard = Heard(any_app)
    async with any_app.worker():
        job = await t.aenqueue()
        told = await heard.until(events.Retried)
        record = await job.arecord()
    assert 30 <= told.delay_seconds <= 39
    assert (record.state, record.attempt, record.gate) == (State.WAITING, 1, Gate.NOT_DUE)


async def test_a_snooze_does_not_count(any_app: Fairlead) -> None:
    runs: list[int] = []

    @any_app.task(name="t", retry=ONCE)
    async def t() -> str:
        runs.append(current_job().attempt)
        if len(runs) < 4:
            raise Snooze(0.01)
        return "awake"

    heard = Heard(any_app)
    async with any_app.worker():
        job = await t.aenqueue()
        assert await job.aresult(timeout=10) == "awake"
    assert runs == [1, 1, 1, 1]
    assert [round(e.delay_seconds, 3) for e in heard.of(events.Snoozed)] == [0.01] * 3


async def test_a_handler_may_call_its_job_off(any_app: Fairlead) -> None:
    @any_app.task(name="t")
    def t() -> None:
        raise Cancel("the order was withdrawn")

    heard = Heard(any_app)
    async with any_app.worker():
        record = await ended(await t.aenqueue())
    assert (record.state, record.reason) == (State.CANCELLED, "the order was withdrawn")
    assert heard.of(events.Cancelled)[0].reason == "the order was withdrawn"


async def test_a_result_that_cannot_be_stored_is_a_permanent_failure(any_app: Fairlead) -> None:
    @any_app.task(name="t")
    def t() -> Any:
        return object()

    async with any_app.worker():
        record = await ended(await t.aenqueue())
    assert (record.state, record.reason) == (State.DEAD, Reason.PERMANENT)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_a_handler_that_wants_to_exit_ends_only_its_own_run(
    any_app: Fairlead, error: type[BaseException]
) -> None:
    @any_app.task(name="leave", retry=ONCE)
    def leave() -> None:
        raise error

    @any_app.task(name="aleave", retry=ONCE)
    async def aleave() -> None:
        raise error

    stay = any_app.task(name="stay")(lambda: "here")
    async with any_app.worker():
        records = [await ended(await task.aenqueue()) for task in (leave, aleave)]
        assert await (await stay.aenqueue()).aresult(timeout=10) == "here"
    assert [record.reason for record in records] == [Reason.EXHAUSTED] * 2


Reconcile = Callable[[Job], Any]


def says(answer: Any) -> Reconcile:
    def reconcile(job: Job) -> Any:
        return answer

    return reconcile


def says_async(answer: Any) -> Callable[[Job], Awaitable[Any]]:
    async def reconcile(job: Job) -> Any:
        await asyncio.sleep(0)
        return answer

    return reconcile


def breaks(job: Job) -> Any:
    raise OSError("no line")


@pytest.mark.parametrize(
    ("reconcile", "state", "reason", "runs"),
    [
        (says("done"), State.DONE, None, 1),
        (says_async("done"), State.DONE, None, 1),
        (says("not_done"), State.DEAD, Reason.EXHAUSTED, 2),
        (says_async("not_done"), State.DEAD, Reason.EXHAUSTED, 2),
        (says("unknown"), State.DEAD, Reason.UNCERTAIN, 1),
        (says_async("unknown"), State.DEAD, Reason.UNCERTAIN, 1),
        (says("perhaps"), State.DEAD, Reason.UNCERTAIN, 1),
        (says(None), State.DEAD, Reason.UNCERTAIN, 1),
        (breaks, State.DEAD, Reason.UNCERTAIN, 1),
        (None, State.DEAD, Reason.UNCERTAIN, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_an_ambiguous_end_is_asked_about(
    any_app: Fairlead,
    reconcile: Reconcile | None,
    state: State,
    reason: Reason | None,
    runs: int,
) -> None:
    ran: list[int] = []
    retry = Retry(attempts=2, backoff=AT_ONCE)
    settings: dict[str, Any] = {} if reconcile is None else {"reconcile": reconcile}

    @any_app.task(name="pay", retry=retry, effects="external", **settings)
    async def pay() -> None:
        ran.append(1)
        raise Ambiguous("no answer from the bank")

    async with any_app.worker():
        record = await ended(await pay.aenqueue())
    assert (record.state, record.reason, len(ran)) == (state, reason, runs)


@pytest.mark.parametrize("reconcile", [breaks, says("perhaps")])
async def test_a_reconcile_that_fails_is_told_of(any_app: Fairlead, reconcile: Reconcile) -> None:
    @any_app.task(name="pay", effects="external", reconcile=reconcile)
    async def pay() -> None:
        raise Ambiguous("?")

    heard = Heard(any_app)
    async with any_app.worker():
        job = await pay.aenqueue()
        record = await ended(job)
    [trouble] = heard.of(events.Trouble)
    assert f"reconcile of task 'pay' failed for job {job.id}: " in trouble.problem
    # What it says may hold secrets, so it is kept with the job.
    said = str(record.errors[-1].message)
    assert said.startswith("?; reconcile failed: ")
    assert said.rpartition(": ")[2] not in trouble.problem


async def test_reconcile_gets_the_job_it_is_asked_about(any_app: Fairlead) -> None:
    asked: list[Job] = []

    def reconcile(job: Job) -> Any:
        asked.append(job)
        return "done"

    @any_app.task(name="pay", effects="external", reconcile=reconcile)
    async def pay(cents: int) -> None:
        raise Ambiguous("?")

    async with any_app.worker():
        job = await pay.aenqueue(7)
        await ended(job)
    assert [(each.id, each.attempt) for each in asked] == [(job.id, 1)]


DEEPER = "[" * 100_000 + "]" * 100_000
"""Python 3.13 reads what is a few thousand levels deep."""


async def test_an_unreadable_job_is_dead_and_the_worker_goes_on(any_app: Fairlead) -> None:
    @any_app.task(name="t")
    def t(n: int) -> int:
        return n

    bad = [
        NewJob(new_id(), "t", "default", payload)
        for payload in ("nonsense", "{}", '{"n":"x"}', "\x01", '{"n":1,"m":2}', DEEP)
    ]
    bad += [
        NewJob(new_id(), "t", "default", '{"n":1}', options=options)
        for options in (DEEP, f'{{"later":{DEEPER}}}', "nonsense", '{"timeout":"long"}')
    ]
    accepted = []
    for job in bad:
        with suppress(EnqueueError):  # A database may refuse what no producer of ours puts.
            await any_app.store.put([job])
            accepted.append(job)
    assert len(accepted) > 5
    async with any_app.worker():
        assert await (await t.aenqueue(7)).aresult(timeout=10) == 7
        records = [await ended(any_app.job(job.id)) for job in accepted]
    assert {(record.state, record.reason) for record in records} == {
        (State.DEAD, Reason.UNREADABLE)
    }


async def test_an_unknown_task_is_parked_until_somebody_knows_it(any_app: Fairlead) -> None:
    known = any_app.task(name="known")(lambda: 1)
    unknown = NewJob(new_id(), "other", "default", "{}")
    await any_app.store.put([unknown])
    async with any_app.worker():
        await (await known.aenqueue()).aresult(timeout=10)
        record = await any_app.job(unknown.id).arecord()
        assert (record.state, record.gate, record.attempt) == (
            State.WAITING,
            Gate.NO_CAPABLE_WORKER,
            0,
        )

        other = Fairlead("memory://")
        other.store = any_app.store
        other.task(name="other")(lambda: "known here")
        async with other.worker():
            assert await other.job(unknown.id).aresult(timeout=10) == "known here"


async def test_one_event_tells_of_all_jobs_of_a_kind_that_a_claim_parked(any_app: Fairlead) -> None:
    """The log has one line for them, not one for each."""
    any_app.task(name="known")(lambda: 1)
    options = '{"correlation_id":"order-7"}'
    strange = [NewJob(new_id(), "strange", "default", "{}", options=options) for _ in range(3)]
    await any_app.store.put(strange)
    heard = Heard(any_app)
    async with any_app.worker():
        told = await heard.until(events.Parked)
        await any_app.store.put([NewJob(new_id(), "other", "default", "{}", version=2)])
        last = await heard.until(events.Parked, 2)
    assert told == events.Parked(strange[0].id, "strange", "default", "order-7", version=1, jobs=3)
    assert (last.task, last.correlation_id, last.version, last.jobs) == ("other", None, 2, 1)


# Time limits


async def test_an_async_handler_is_cancelled_at_its_time_limit(any_app: Fairlead) -> None:
    told: list[Any] = []

    @any_app.task(name="slow", timeout=0.05, retry=ONCE)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as problem:
            told.extend(problem.args)
            raise

    async with any_app.worker():
        record = await ended(await slow.aenqueue())
    assert (record.state, record.reason) == (State.DEAD, Reason.EXHAUSTED)
    assert record.errors[0].error == "TimedOut"
    assert "ran past its time limit of 0.05 s, at " in (record.errors[0].message or "")
    assert "test_embedded.py" in (record.errors[0].message or "")
    assert [type(problem) for problem in told] == [TimeoutError]


async def test_a_time_limit_given_with_the_job_wins(any_app: Fairlead) -> None:
    @any_app.task(name="slow", retry=ONCE)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with any_app.worker():
        record = await ended(await slow.using(timeout=0.05).aenqueue())
    assert "time limit of 0.05 s" in (record.errors[0].message or "")


async def test_a_timed_out_task_with_outside_effects_is_asked_about(any_app: Fairlead) -> None:
    # The question has the same time limit: a busy machine must answer it in that.
    @any_app.task(name="pay", timeout=1.0, effects="external", reconcile=says("done"))
    async def pay() -> None:
        await asyncio.Event().wait()

    async with any_app.worker():
        record = await ended(await pay.aenqueue())
    assert record.state is State.DONE


async def test_a_handler_that_was_cancelled_and_returns_anyway_is_done(any_app: Fairlead) -> None:
    @any_app.task(name="late", timeout=0.05)
    async def late() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just made it"
        return ""

    async with any_app.worker():
        assert await (await late.aenqueue()).aresult(timeout=10) == "just made it"


async def test_a_handler_that_cancels_itself_has_failed(any_app: Fairlead) -> None:
    @any_app.task(name="odd", retry=ONCE)
    async def odd() -> None:
        raise asyncio.CancelledError

    async with any_app.worker():
        record = await ended(await odd.aenqueue())
    assert (record.state, record.reason) == (State.DEAD, Reason.EXHAUSTED)


async def test_a_thread_past_its_time_limit_learns_it_at_a_checkpoint(any_app: Fairlead) -> None:
    told: list[BaseException] = []

    @any_app.task(name="slow", timeout=0.05, retry=ONCE)
    def slow() -> None:
        try:
            checkpoints()
        except BaseException as problem:
            told.append(problem)
            raise

    heard = Heard(any_app)
    async with any_app.worker():
        record = await ended(await slow.aenqueue())
    assert isinstance(told[0], TimeoutError)
    assert record.errors[0].error == "TimedOut"
    assert heard.of(events.Overdue)[0].limit_seconds == 0.05


def checkpoints() -> None:
    """Wait for a checkpoint that raises."""
    job = current_job()
    for _ in range(2_000):
        job.checkpoint()
        threading.Event().wait(0.005)


# current_job()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_knows_its_job(any_app: Fairlead, is_async: bool) -> None:
    seen: list[Any] = []

    def look() -> None:
        job = current_job()
        seen.extend((job.id, job.task, job.queue, job.attempt, job.correlation_id, job.headers))
        seen.extend((job.fence, job.enqueued_at, repr(job)))
        job.checkpoint()

    async def alook(secret: str = "") -> None:
        look()

    task = any_app.task(name="look")(alook if is_async else look)
    async with any_app.worker():
        job = await task.using(correlation_id="order-7", headers={"h": "v"}).aenqueue()
        await job.aresult(timeout=10)
        record = await job.arecord()
    assert seen[:6] == [job.id, "look", "default", 1, "order-7", {"h": "v"}]
    assert seen[6] == record.fence
    assert seen[7].tzinfo is not None
    assert seen[8] == f"<running job {job.id} of task 'look', attempt 1>"


def test_outside_a_handler_there_is_no_current_job() -> None:
    with pytest.raises(ConfigError, match="works only inside a handler that a worker runs"):
        current_job()


async def test_a_handler_in_a_process_knows_its_job(shop_app: Fairlead) -> None:
    async with shop_app.worker(pools=["heavy"]):
        job = await shop.who.aenqueue()
        assert await job.aresult(timeout=20) == [job.id, "who", "heavy", "1"]
    await shop_app.aclose()


# Cancelling


async def test_a_job_cancelled_before_it_starts_never_runs(any_app: Fairlead) -> None:
    ran: list[int] = []
    task = any_app.task(name="t")(ran.append)
    job = await task.aenqueue(1)
    await job.acancel("not needed")
    async with any_app.worker():
        await (await task.aenqueue(2)).aresult(timeout=10)
    assert ran == [2]


async def test_a_running_async_handler_is_cancelled_and_told_why(any_app: Fairlead) -> None:
    told: list[Any] = []
    started = asyncio.Event()

    @any_app.task(name="t")
    async def t() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as problem:
            told.extend(problem.args)
            raise

    async with any_app.worker(lease=2):
        job = await t.aenqueue()
        await asyncio.wait_for(started.wait(), 10)
        assert await job.acancel("enough") is State.RUNNING
        record = await ended(job)
    assert (record.state, record.reason) == (State.CANCELLED, "enough")
    assert [type(problem) for problem in told] == [Cancel]


async def test_a_running_thread_learns_of_a_cancel_at_a_checkpoint(any_app: Fairlead) -> None:
    told: list[BaseException] = []
    started = threading.Event()

    @any_app.task(name="t")
    def t() -> None:
        started.set()
        try:
            checkpoints()
        except BaseException as problem:
            told.append(problem)
            raise

    async with any_app.worker(lease=2):
        job = await t.aenqueue()
        assert await asyncio.to_thread(started.wait, 10)
        await job.acancel("enough")
        record = await ended(job)
    assert (record.state, record.reason) == (State.CANCELLED, "enough")
    assert [type(problem) for problem in told] == [Cancel]


async def test_a_run_that_ends_before_it_hears_of_its_cancel_is_cancelled_all_the_same(
    any_app: Fairlead,
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @any_app.task(name="t")
    async def t() -> str:
        started.set()
        await go_on.wait()
        return "done"

    async with any_app.worker():
        job = await t.aenqueue()
        await asyncio.wait_for(started.wait(), 10)
        await job.acancel("enough")
        go_on.set()
        record = await ended(job)
    assert (record.state, record.reason, record.result) == (State.CANCELLED, "enough", None)


# Leases


async def forget(*_: object) -> list[Any]:
    """Renew nothing, as if every lease were another worker's now."""
    return []


async def test_a_handler_whose_lease_is_lost_is_cancelled_with_the_reason(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    runs: list[int] = []

    @any_app.task(name="t", retry=THRICE)
    async def t() -> str:
        runs.append(current_job().attempt)
        if len(runs) > 1:
            return "the second time"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as problem:
            told.extend(problem.args)
            raise
        return "never"

    monkeypatch.setattr(any_app.store, "extend", forget)
    heard = Heard(any_app)
    async with any_app.worker(lease=1):
        job = await t.aenqueue()
        assert await job.aresult(timeout=10) == "the second time"
    assert [type(problem) for problem in told] == [LeaseLost]
    assert told[0].job_id == job.id
    assert runs == [1, 2]
    story = heard.story(job)
    # A claim may find the job again before its settlement is answered, and start it first.
    story.remove("LeaseExpired")
    assert story == ["Enqueued", "Started", "SettlementRefused", "Started", "Finished"]


async def test_a_thread_whose_lease_is_lost_learns_it_at_a_checkpoint(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[BaseException] = []

    @any_app.task(name="t", retry=THRICE)
    def t() -> str:
        if told:
            return "the second time"
        try:
            checkpoints()
        except BaseException as problem:
            told.append(problem)
            raise
        return "never"

    monkeypatch.setattr(any_app.store, "extend", forget)
    async with any_app.worker(lease=1):
        job = await t.aenqueue()
        assert await job.aresult(timeout=10) == "the second time"
    assert [type(problem) for problem in told] == [LeaseLost]


async def test_leases_are_renewed_while_a_handler_blocks_the_loop(any_app: Fairlead) -> None:
    """The keeper has a thread of its own."""
    runs: list[int] = []

    @any_app.task(name="t", retry=THRICE)
    async def t() -> None:
        runs.append(1)
        threading.Event().wait(2.2)

    async with any_app.worker(lease=1):
        job = await t.aenqueue()
        await job.aresult(timeout=10)
        record = await job.arecord()
    assert (len(runs), record.attempt) == (1, 1)


# Pools and queues


async def test_a_critical_job_runs_while_every_slot_is_taken(any_app: Fairlead) -> None:
    app = Fairlead(
        "memory://",
        queues=[Queue("mail"), Queue("alarms", critical=True, tasks=["alarm"])],
        pools=[Pool("all", slots=1)],
    )
    app.store = any_app.store
    go_on = asyncio.Event()

    @app.task(name="mail", queue="mail")
    async def mail() -> None:
        await go_on.wait()

    @app.task(name="alarm", queue="alarms")
    async def alarm() -> str:
        return "rung"

    async with app.worker():
        blocked = [await mail.aenqueue() for _ in range(3)]
        for _ in range(3):
            assert await (await alarm.aenqueue()).aresult(timeout=10) == "rung"
        assert [await job.astatus() for job in blocked[1:]] == [State.WAITING] * 2
        go_on.set()
        for job in blocked:
            await job.aresult(timeout=10)


async def test_each_pool_has_slots_of_its_own(any_app: Fairlead) -> None:
    app = Fairlead(
        "memory://",
        queues=[Queue("slow"), Queue("quick")],
        pools=[Pool("slow", queues=["slow"], slots=1), Pool("quick", queues=["quick"], slots=1)],
    )
    app.store = any_app.store
    go_on = asyncio.Event()

    @app.task(name="slow", queue="slow")
    async def slow() -> None:
        await go_on.wait()

    quick = app.task(name="quick", queue="quick")(lambda: "quick")
    async with app.worker():
        held = await slow.aenqueue()
        assert await (await quick.aenqueue()).aresult(timeout=10) == "quick"
        assert await held.astatus() is State.RUNNING
        go_on.set()
        await held.aresult(timeout=10)


async def test_queues_share_the_slots_by_weight(any_app: Fairlead) -> None:
    app = Fairlead("memory://", queues=[Queue("a", weight=3), Queue("b", weight=1)])
    app.store = any_app.store
    order: list[str] = []

    @app.task(name="note", queue="a")
    async def note(queue: str) -> None:
        order.append(queue)

    jobs = [await note.using(queue=queue).aenqueue(queue) for queue in "ab" for _ in range(20)]
    async with app.worker(slots=1):
        for job in jobs:
            await job.aresult(timeout=10)
    assert order[:16].count("a") == 12


async def test_a_worker_may_serve_some_queues_only(any_app: Fairlead) -> None:
    app = Fairlead("memory://", queues=[Queue("a"), Queue("b")])
    app.store = any_app.store
    task = app.task(name="t", queue="a")(lambda: 1)
    left = await task.using(queue="b").aenqueue()
    async with app.worker(queues={"a": None}):
        await (await task.aenqueue()).aresult(timeout=10)
    assert await left.astatus() is State.WAITING


async def test_no_more_handlers_run_at_once_than_there_are_slots(any_app: Fairlead) -> None:
    running = most = 0

    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    task = any_app.task(name="busy")(busy)
    lock = threading.Lock()

    def plain() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    other = any_app.task(name="plain")(plain)
    jobs = [await each.aenqueue() for _ in range(40) for each in (task, other)]
    async with any_app.worker(slots=3):
        for job in jobs:
            await job.aresult(timeout=10)
    assert most <= 3


# What a stop cuts off


@pytest.mark.parametrize(
    ("settings", "state", "reason"),
    [
        ({}, State.DEAD, Reason.UNCERTAIN),
        ({"idempotent": True}, State.WAITING, None),
        ({"reconcile": lambda _: "done"}, State.DONE, None),
        ({"reconcile": lambda _: "not_done"}, State.WAITING, None),
    ],
    ids=["unmarked", "idempotent", "done", "not done"],
)
async def test_an_outside_effect_that_a_stop_cuts_off_is_unclear(
    any_app: Fairlead, settings: dict[str, Any], state: State, reason: Reason | None
) -> None:
    """It is not simply run again: the money may have been sent."""
    begun = asyncio.Event()

    @any_app.task(name="pay", effects="external", **settings)
    async def pay() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with any_app.worker(grace=0):
        job = await pay.aenqueue()
        await begun.wait()
    record = await job.arecord()
    assert (record.state, record.reason) == (state, reason)
    if state is State.WAITING:
        assert record.attempt == 0


async def test_a_header_s_text_will_do_as_seconds(any_app: Fairlead) -> None:
    @any_app.task(name="busy", retry=THRICE)
    async def busy() -> None:
        raise RetryAfter("30")  # type: ignore[arg-type]

    @any_app.task(name="odd", retry=THRICE)
    async def odd() -> None:
        raise Snooze("soon")  # type: ignore[arg-type]

    fine = any_app.task(name="fine")(lambda: "fine")
    heard = Heard(any_app)
    async with any_app.worker():
        await busy.aenqueue()
        await odd.aenqueue()
        await asyncio.wait_for(heard.until(events.Retried), 10)
        await asyncio.wait_for(heard.until(events.Snoozed), 10)
        assert await (await fine.aenqueue()).aresult(timeout=10) == "fine"
    assert 29 < heard.of(events.Retried)[0].delay_seconds < 40


async def test_an_outcome_nobody_can_decide_on_is_a_dead_letter_and_the_worker_goes_on(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(job: Job, outcome: Any, *more: Any) -> Any:
        if outcome == Snoozed(7.0):
            raise ZeroDivisionError
        return outcome_module.decide(job, outcome, *more)

    monkeypatch.setattr(settling, "decide", decide)

    @any_app.task(name="t")
    async def t() -> None:
        raise Snooze(7.0)

    fine = any_app.task(name="fine")(lambda: "fine")
    async with any_app.worker():
        record = await ended(await t.aenqueue())
        assert await (await fine.aenqueue()).aresult(timeout=10) == "fine"
    assert (record.state, record.reason) == (State.DEAD, Reason.PERMANENT)


async def test_a_worker_that_ends_by_a_fault_says_so_and_renews_no_lease(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(any_app)
    begun = asyncio.Event()

    @any_app.task(name="t")
    async def t() -> None:
        begun.set()
        await asyncio.Event().wait()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        async with any_app.worker(lease=2) as worker:
            job = await t.aenqueue()
            await begun.wait()
            monkeypatch.setattr(Worker, "_sweep", broken)
            await asyncio.wait_for(heard.until(events.Trouble), 10)
            await asyncio.to_thread(worker._thread.join, 10)  # type: ignore[union-attr]
            assert not worker._thread.is_alive()  # type: ignore[union-attr]
    assert (await job.arecord()).state is State.RUNNING


@pytest.mark.parametrize("messages", [True, False])
def test_what_an_embedded_worker_does_is_logged(
    caplog: pytest.LogCaptureFixture, messages: bool
) -> None:
    app = Fairlead("memory://")

    @app.task(name="t", retry=ONCE)
    async def t() -> None:
        raise ValueError("secret")

    async def main() -> None:
        async with app.worker(log_messages=messages):
            await ended(await t.aenqueue())

    asyncio.run(main())
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("dead: exhausted, ValueError")
    assert "test_embedded.py:" in line
    assert ("secret" in line) is messages
