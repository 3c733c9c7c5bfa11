import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from fairlead import (
    ConfigError,
    Fairlead,
    JobFailed,
    JobNotFound,
    Permanent,
    Retry,
    State,
    producer,
)
from fairlead.core.clock import ManualClock
from fairlead.core.ids import IdMaker
from tests.words import claim, done, work_off


def run_jobs(app: Fairlead) -> None:
    app.bridge.run(work_off(app))


def test_result_is_what_the_task_returned_with_its_type(any_app: Fairlead) -> None:
    from datetime import date

    @any_app.task
    def next_day(day: date) -> date:
        return date.fromordinal(day.toordinal() + 1)

    job = next_day.enqueue(date(2026, 12, 31))
    run_jobs(any_app)
    assert job.result(timeout=5) == date(2027, 1, 1)
    assert any_app.job(job.id).result(timeout=5) == date(2027, 1, 1)


def test_a_failure_is_raised_with_the_jobs_error(any_app: Fairlead) -> None:
    @any_app.task(name="charge")
    def charge() -> None:
        raise Permanent("card was stolen")

    job = charge.enqueue()
    run_jobs(any_app)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=5)
    assert (caught.value.state, caught.value.reason) == ("dead", "permanent")
    assert str(caught.value) == (
        f"job {job.id} of task 'charge' is dead (permanent): "
        "fairlead.core.errors.Permanent: card was stolen"
    )


def test_a_cancelled_job_is_a_failure_for_whoever_waits(any_app: Fairlead) -> None:
    job = any_app.task(name="t")(lambda: None).enqueue()
    assert job.cancel("not today") is State.CANCELLED
    assert job.cancel() is State.CANCELLED
    with pytest.raises(JobFailed, match=r"is cancelled \(not today\)$"):
        job.result(timeout=5)


def test_cancelling_a_running_job_says_it_still_runs(any_app: Fairlead) -> None:
    job = any_app.task(name="t")(lambda: None).enqueue()
    [claimed] = any_app.bridge.run(claim(any_app.store, *any_app.queues.values()))
    assert job.cancel() is State.RUNNING
    any_app.bridge.run(any_app.store.settle([done(claimed, "1")]))
    assert job.status() is State.CANCELLED


def test_a_result_that_does_not_come_is_a_timeout_and_the_job_goes_on(any_app: Fairlead) -> None:
    job = any_app.task(name="t")(lambda: 7).enqueue()
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.05 s"):
        job.result(timeout=0.05)
    run_jobs(any_app)
    assert job.result(timeout=5) == 7


def test_an_unknown_job_is_not_found(any_app: Fairlead) -> None:
    job = any_app.job(IdMaker()())
    for look in (job.status, job.result, job.cancel, job.record):
        with pytest.raises(JobNotFound, match=f"no job has the id {job.id}"):
            look()


def result_awaited_while_it_runs(app: Fairlead) -> list[object]:
    """Run a job while a thread waits for its result; returns what the thread got."""
    job = app.task(name="t")(lambda: "x").enqueue()
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(job.result(timeout=30)))
    thread.start()
    run_jobs(app)
    thread.join(30)
    return got


def test_whoever_waits_is_woken_by_the_settlement(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "POLL_SECONDS", 600)
    assert result_awaited_while_it_runs(any_app) == ["x"]


def test_losing_every_wake_up_costs_a_poll_interval_at_most(
    any_app: Fairlead, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(timeout: float, since: int = 0) -> int:
        await asyncio.sleep(timeout)
        return since

    monkeypatch.setattr(any_app.store, "wait", deaf)
    monkeypatch.setattr(producer, "POLL_SECONDS", 0.01)
    assert result_awaited_while_it_runs(any_app) == ["x"]


def test_finished_jobs_are_kept_for_the_retention_time(tmp_path: Path) -> None:
    clock = ManualClock()
    app = Fairlead(f"sqlite:///{tmp_path}/jobs.db", keep=timedelta(days=2), clock=clock)
    job = app.task(name="t")(lambda: 7).enqueue()
    run_jobs(app)
    clock.advance(2 * 24 * 3600)
    assert app.upkeep().pruned_jobs == 0
    assert job.result(timeout=5) == 7
    clock.advance(1)
    assert app.upkeep().pruned_jobs == 1
    with pytest.raises(JobNotFound):
        job.status()
    app.close()


async def test_waiting_for_a_result_in_a_loops_own_thread_is_refused(any_app: Fairlead) -> None:
    job = await any_app.task(name="t")(lambda: None).aenqueue()
    with pytest.raises(ConfigError, match=r"would freeze the event loop.*await job\.aresult\(\)"):
        job.result(timeout=1)


async def test_the_sync_face_works_in_a_loops_thread_pool(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n + 1)
    job = await asyncio.to_thread(task.enqueue, 1)
    assert await work_off(any_app) == 1
    assert await asyncio.to_thread(job.result, 5) == 2
    assert task.enqueue(2).id, "a quick sync put is fine even in the loop's thread"


async def test_two_loops_in_two_threads_use_one_app(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(lambda n: n)

    def other() -> list[str]:
        async def some() -> list[str]:
            return [(await task.aenqueue(n)).id for n in range(20)]

        return asyncio.run(some())

    theirs, *ours = await asyncio.gather(
        asyncio.to_thread(other), *(task.aenqueue(n) for n in range(20))
    )
    assert len({*theirs, *(job.id for job in ours)}) == 40


def test_whoever_waits_when_the_app_is_closed_is_told_so(any_app: Fairlead) -> None:
    job = any_app.task(name="t")(lambda: None).enqueue()
    told: list[BaseException] = []
    ready = threading.Event()

    def wait() -> None:
        ready.set()
        try:
            job.result(timeout=60)
        except Exception as problem:
            told.append(problem)

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    while thread.is_alive():
        any_app.close()
        thread.join(0.05)
    assert [str(problem) for problem in told] == [
        "the app was closed while this call waited; open it again"
    ]


def test_a_finished_jobs_result_needs_no_time(any_app: Fairlead) -> None:
    job = any_app.task(name="t")(lambda: 7).enqueue()
    with pytest.raises(TimeoutError):
        job.result(timeout=0)
    run_jobs(any_app)
    assert job.result(timeout=0) == 7


def test_an_app_can_be_closed_and_used_again(app: Fairlead) -> None:
    task = app.task(name="t")(lambda: None)
    job = task.enqueue()
    app.close()
    assert job.status() is State.WAITING
    with app:
        task.enqueue()


async def test_async_with_opens_and_closes(tmp_path: Path) -> None:
    async with Fairlead(f"sqlite:///{tmp_path}/jobs.db") as app:
        job = await app.task(name="t")(lambda: None).aenqueue()
        assert await job.astatus() is State.WAITING
    assert not (tmp_path / "jobs.db-wal").exists(), "the last close takes the log along"


# Everything about a job


def test_a_record_has_aware_times_and_values(any_app: Fairlead) -> None:
    """Nobody has to know how a store keeps them: microseconds, and JSON."""
    app = any_app

    class Sum(msgspec.Struct):
        total: int

    @app.task(name="add")
    def add(a: int, b: int = 2) -> Sum:
        if a < 0:
            raise ValueError("too small")
        return Sum(a + b)

    good = add.using(tags=["x"], correlation_id="c").enqueue(1)
    bad = add.using(retry=Retry(attempts=1)).enqueue(-1, b=7)
    before = good.record()
    assert (before.state, before.arguments, before.result) == (State.WAITING, {"a": 1}, None)
    assert (before.tags, before.correlation_id, before.headers) == (("x",), "c", {})
    assert before.finished_at is None
    run_jobs(app)
    record = good.record()
    assert (record.state, record.result) == (State.DONE, Sum(3))
    assert record.finished_at is not None
    for at in (record.enqueued_at, record.run_at, record.finished_at):
        assert at.utcoffset() == timedelta(0)
    assert record.enqueued_at <= record.finished_at
    assert repr(record) == f"<job {good.id} of task 'add' on queue 'default', done>"
    [failed] = bad.record().errors
    assert (failed.error, failed.message, failed.outcome) == ("ValueError", "too small", "failed")
    assert failed.finished_at.utcoffset() == timedelta(0)
    assert (bad.record().arguments, bad.record().result) == ({"a": -1, "b": 7}, None)


def test_a_record_of_a_task_of_others_has_its_result_as_json_has_it(any_app: Fairlead) -> None:
    job = any_app.task(name="t")(lambda: {"a": [1]}).enqueue()
    run_jobs(any_app)
    del any_app.tasks._tasks["t"]
    assert job.record().result == {"a": [1]}
