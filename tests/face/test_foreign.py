"""Enqueue and end jobs inside the caller's own transaction, whatever library it uses (P2, I2, I7)."""

import asyncio
import threading

import pytest

from fairlead import ConfigError, LeaseLost, State, current_job
from fairlead.core import events
from tests.conftest import WITH_TRANSACTIONS
from tests.face.desk import Desk, with_libraries
from tests.runtime.heard import Heard, ended
from tests.servers.libraries import ASYNC, FILE_LIBRARIES, LIBRARIES
from tests.words import take_over

EVERY = with_libraries(*WITH_TRANSACTIONS)
ALL_ASYNC = with_libraries(*WITH_TRANSACTIONS, only=ASYNC)
PLAIN = {*LIBRARIES, *FILE_LIBRARIES} - {*ASYNC, "django", "django with DEBUG"}
"""Those that may be used beside a running loop."""


@EVERY
def test_the_job_commits_with_the_callers_rows(desk: Desk) -> None:
    async def work() -> str:
        async with desk.connection() as mine:
            job_id = await desk.order(mine)
            assert desk.jobs() == desk.rows() == [], "nobody sees it before the commit"
            await mine.commit()
        return job_id

    job_id = desk.go(work())
    assert desk.jobs() == desk.rows() == [job_id]
    record = desk.app.job(job_id).record()
    assert (record.state, record.arguments, record.task) == (State.WAITING, {"n": 1}, "t")


@EVERY
def test_the_job_rolls_back_with_the_callers_rows(desk: Desk) -> None:
    async def work() -> None:
        async with desk.connection() as mine:
            await desk.order(mine)
            assert await desk.enqueue_many(mine, [desk.task.call(n) for n in range(300)]) == 300
            await mine.rollback()

    desk.go(work())
    assert desk.jobs() == desk.rows() == []


@EVERY
def test_a_transaction_that_is_left_open_comes_to_nothing(desk: Desk) -> None:
    """We never commit, whatever the library does when its connection is closed."""

    async def work() -> None:
        async with desk.connection() as mine:
            await desk.order(mine)

    desk.go(work())
    assert desk.jobs() == desk.rows() == []


@EVERY
def test_a_job_alone_is_committed_by_the_library_and_by_nobody_else(desk: Desk) -> None:
    """The library must know that a transaction has begun, though no row of its own is in it."""

    async def work(*, commit: bool) -> None:
        async with desk.connection() as mine:
            await desk.enqueue(mine)
            if commit:
                await mine.commit()

    desk.go(work(commit=False))
    assert desk.jobs() == []
    desk.go(work(commit=True))
    assert len(desk.jobs()) == 1


@EVERY
def test_a_repeated_call_does_not_break_the_transaction(desk: Desk) -> None:
    calls = [desk.task.call(n) for n in range(3)]
    desk.app.enqueue_many(calls[:1])

    async def work() -> str:
        async with desk.connection() as mine:
            assert await desk.enqueue_many(mine, calls[:2]) == 1, "one of them is known"
            assert await desk.enqueue_many(mine, calls) == 1
            job_id = await desk.order(mine)
            await mine.commit()
        return job_id

    job_id = desk.go(work())
    assert sorted(desk.jobs()) == sorted([*(call.id for call in calls), job_id])
    assert desk.rows() == [job_id]


@ALL_ASYNC
def test_an_async_connection_is_refused_to_plain_code(desk: Desk) -> None:
    async def work() -> None:
        async with desk.connection() as mine:
            for call in (
                lambda: desk.task.using(connection=mine.connection).enqueue(1),
                lambda: desk.app.enqueue_many([desk.task.call(1)], connection=mine.connection),
                lambda: desk.app.store.put_within(mine.connection, []).run(),
            ):
                with pytest.raises(ConfigError, match=r"is an async connection.*aenqueue"):
                    call()
            await desk.order(mine)
            await mine.commit()

    desk.go(work())
    assert len(desk.jobs()) == 1
    assert desk.jobs() == desk.rows()


@with_libraries(*WITH_TRANSACTIONS, only=PLAIN)
async def test_a_plain_connection_serves_coroutines_too(desk: Desk) -> None:
    async with desk.connection() as mine:
        job = await desk.task.using(connection=mine.connection).aenqueue(1)
        await desk.app.aenqueue_many([desk.task.call(2)], connection=mine.connection)
        await mine.commit()
    assert job.id in desk.jobs()
    assert len(desk.jobs()) == 2


# job.commit(conn)


@EVERY
async def test_the_callers_commit_ends_the_job_and_nothing_else_does(desk: Desk) -> None:
    seen: list[list[str]] = []

    async def work() -> None:
        attempt = current_job().attempt
        async with desk.connection() as mine:
            await desk.block(mine, f"attempt {attempt}")
            seen.append(desk.rows())
            await (mine.rollback() if attempt == 1 else mine.commit())

    task = desk.handler(work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert seen == [[], []], "we have never committed"
    assert (record.state, record.attempt) == (State.DONE, 2)
    assert [each.error for each in record.errors] == ["NotCommitted"]
    assert desk.rows() == ["attempt 2"]
    assert (await desk.app.store.admin.count())["default"] == {State.WAITING: 1, State.DONE: 1}


@EVERY
async def test_what_others_commit_after_the_block_began_does_not_refuse_its_rows(
    desk: Desk,
) -> None:
    async def work() -> None:
        async with desk.connection() as mine:
            await desk.block(mine, "mine", meanwhile=lambda: desk.execute(desk.insert("theirs")))
            await mine.commit()

    task = desk.handler(work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert (record.state, record.attempt) == (State.DONE, 1)
    assert desk.rows() == ["theirs", "mine"]


@EVERY
async def test_a_run_whose_lease_was_taken_over_leaves_no_row(desk: Desk) -> None:
    told: list[BaseException] = []

    async def work() -> None:
        # In a thread of its own, because this may run on a loop or without one.
        thief = threading.Thread(target=asyncio.run, args=[take_over(desk.app, desk.store)])
        thief.start()
        thief.join()
        async with desk.connection() as mine:
            try:
                await desk.block(mine, "late")
                await mine.commit()
            except LeaseLost as problem:
                told.append(problem)
                raise

    task = desk.handler(work)
    heard = Heard(desk.app)
    async with desk.app.worker():
        job = await task.aenqueue()
        await heard.until(events.SettlementRefused)
    assert [type(problem) for problem in told] == [LeaseLost]
    assert desk.rows() == []
    assert (await job.arecord()).state is State.RUNNING, "it is the other worker's"
    assert (await desk.app.store.admin.count())["default"] == {State.RUNNING: 1}
