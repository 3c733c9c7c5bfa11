"""Answers are lost: what was enqueued is one job, and nobody is left in the dark (L9, F13, F80)."""

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from fairlead import Fairlead, State, StoreUnavailable, Unanswered
from fairlead.core.events import Enqueued
from fairlead.producer import BoundTask, Call, JobHandle
from fairlead.stores.redis.functions import FUNCTIONS
from tests.conftest import STORES
from tests.servers.proxy import TO_CLIENT, Proxy

SERVERS = [name for name in ("postgres", "redis") if name in STORES]
SHORT = 0.4
"""How many seconds an answer may take, where none will come."""


class Way(NamedTuple):
    """A server, the way to it on which things go wrong, and how a put is known on it."""

    url: str
    proxy: Proxy
    put: bytes

    def app(self, timeout: float = 10) -> Fairlead:
        mark = "&" if "?" in self.url else "?"
        return Fairlead(f"{self.proxy.through(self.url)}{mark}timeout={timeout}")


@pytest.fixture(params=SERVERS)
def way(request: pytest.FixtureRequest) -> Way:
    if request.param == "postgres":
        url, proxy = request.getfixturevalue("crew_url"), request.getfixturevalue("proxy")
        return Way(url, proxy, b".put(")
    url, proxy = request.getfixturevalue("redis_crew_url"), request.getfixturevalue("redis_proxy")
    return Way(url, proxy, FUNCTIONS["put"].name.encode())


@pytest.fixture
def open_app(way: Way) -> Iterator[Fairlead]:
    app = way.app()
    app.open()
    yield app
    app.close()


def task_of(app: Fairlead) -> BoundTask[[int], int]:
    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    return double


def counted(app: Fairlead) -> int:
    counts = app.bridge.run(app.store.admin.count())
    return sum(number for states in counts.values() for number in states.values())


Enqueue = Callable[[Fairlead, BoundTask[[int], int], int], JobHandle[int]]


def one(app: Fairlead, task: BoundTask[[int], int], n: int) -> JobHandle[int]:
    return task.enqueue(n)


def one_on_a_loop(app: Fairlead, task: BoundTask[[int], int], n: int) -> JobHandle[int]:
    return app.bridge.run(task.aenqueue(n))


def many(app: Fairlead, task: BoundTask[[int], int], n: int) -> JobHandle[Any]:
    call = task.call(n)
    app.enqueue_many([call])
    return app.job(call.id)


def many_on_a_loop(app: Fairlead, task: BoundTask[[int], int], n: int) -> JobHandle[Any]:
    call = task.call(n)
    app.bridge.run(app.aenqueue_many([call]))
    return app.job(call.id)


ENQUEUES = [one, one_on_a_loop, many, many_on_a_loop]


@pytest.mark.parametrize("enqueue", ENQUEUES)
def test_a_put_whose_answer_is_lost_is_repeated(
    open_app: Fairlead, way: Way, enqueue: Enqueue
) -> None:
    """The caller does not notice, and there is one job."""
    task = task_of(open_app)
    task.enqueue(0)
    fault = way.proxy.lose_reply(way.put)
    job = enqueue(open_app, task, 1)

    assert fault.happened.wait(10)
    assert job.status() is State.WAITING
    assert counted(open_app) == 2


@pytest.mark.parametrize("enqueue", [one, one_on_a_loop])
def test_a_job_that_is_repeated_is_told_of_as_new(
    open_app: Fairlead, way: Way, enqueue: Enqueue
) -> None:
    """Its id was made just now: whoever put it, it was this call."""
    task = task_of(open_app)
    task.enqueue(0)
    told: list[str] = []
    open_app.events.subscribe(lambda event: told.append(event.job_id), Enqueued)
    way.proxy.lose_reply(way.put)
    job = enqueue(open_app, task, 1)
    assert told == [job.id]


@pytest.mark.parametrize("size", [1, 3, 9, 20])
@pytest.mark.parametrize("enqueue", [one, one_on_a_loop])
def test_a_put_whose_answer_is_cut_is_repeated(
    open_app: Fairlead, way: Way, enqueue: Enqueue, size: int
) -> None:
    task = task_of(open_app)
    task.enqueue(0)
    way.proxy.cut_within(way.put, size)
    assert enqueue(open_app, task, 1).status() is State.WAITING
    assert counted(open_app) == 2


async def test_all_whose_put_was_lost_together_are_answered(way: Way) -> None:
    """They shared a batch; each repeats its own job."""
    app = way.app()
    await app.aopen()
    task = task_of(app)
    await task.aenqueue(0)
    fault = way.proxy.lose_reply(way.put)
    waiting = [asyncio.create_task(task.aenqueue(n)) for n in range(50)]
    jobs = await asyncio.gather(*waiting)
    assert await asyncio.to_thread(fault.happened.wait, 10)
    assert len({job.id for job in jobs}) == 50
    assert await app.store.admin.count() == {"default": {State.WAITING: 51}}
    await app.aclose()


@pytest.mark.parametrize("enqueue", ENQUEUES)
def test_without_any_answer_the_error_has_all_it_takes_to_make_sure(
    way: Way, enqueue: Enqueue
) -> None:
    """F80: nobody knows whether there is a job; to enqueue its call again is safe."""
    app = way.app(SHORT)
    app.open()
    task = task_of(app)
    enqueue(app, task, 0)  # Who is not connected yet has asked nobody.
    way.proxy.drop(TO_CLIENT)
    with pytest.raises(Unanswered) as caught:
        enqueue(app, task, 1)
    way.proxy.heal(TO_CLIENT)

    error = caught.value
    assert isinstance(error, StoreUnavailable)
    assert isinstance(error.call, Call)
    assert error.calls == (error.call,)
    assert error.job.id == error.call.id
    assert f"Job {error.call.id} may exist all the same" in str(error)
    assert "app.enqueue_many([error.call])" in str(error)
    sure = way.app()
    task_of(sure)
    assert sure.enqueue_many([error.call]) in (0, 1)
    assert sure.enqueue_many([error.call]) == 0
    assert sure.job(error.call.id).status() is State.WAITING
    assert counted(sure) == 2
    sure.close()
    app.close()


def test_a_batch_without_an_answer_is_named_and_can_be_repeated(way: Way) -> None:
    app = way.app(SHORT)
    app.open()
    task = task_of(app)
    most = app.store.jobs_per_put
    calls = [task.call(n) for n in range(most + 3)]
    seen: list[int] = []

    def progress(accepted: int) -> None:
        seen.append(accepted)
        way.proxy.drop(TO_CLIENT)

    with pytest.raises(Unanswered, match="3 jobs may exist all the same") as caught:
        app.enqueue_many(calls, progress=progress)
    way.proxy.heal(TO_CLIENT)
    assert seen == [most]
    assert caught.value.calls == tuple(calls[most:])
    assert (caught.value.job, caught.value.call) == (None, None)
    assert caught.value.__notes__ == [f"{most:,} jobs were put before this"]
    app.close()
    sure = way.app()
    sure.enqueue_many(caught.value.calls)
    assert counted(sure) == most + 3
    sure.close()


@pytest.mark.parametrize("enqueue", ENQUEUES)
def test_what_was_never_sent_is_no_job(way: Way, enqueue: Enqueue) -> None:
    """Nobody can be asked: nothing was accepted, and the error does not say that it may have been."""
    app = way.app()
    app.open()
    task = task_of(app)
    task.enqueue(0)
    app.close()
    way.proxy.close()
    with pytest.raises(StoreUnavailable) as caught:
        enqueue(app, task, 1)
    assert type(caught.value) is StoreUnavailable
    assert "may exist" not in str(caught.value)


def test_an_error_with_a_handle_can_travel() -> None:
    """Out of a pool of processes, say; the handle stays behind."""
    app = Fairlead("memory://")
    call = task_of(app).call(1)
    error = Unanswered("redis://here", "no answer", app.job(call.id), (call,))
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.job, back.call) == (str(error), None, call)


# A transaction of the caller's own


@pytest.mark.parametrize("way", ["postgres"] if "postgres" in SERVERS else [], indirect=True)
def test_in_the_callers_own_transaction_nothing_is_repeated(way: Way) -> None:
    """P2: what it did is his to know; a second put would not be part of it."""
    app = way.app()
    app.open()
    task = task_of(app)
    puts: list[bytes] = []

    def is_put(asked: bytes) -> bool:
        if way.put in asked:
            puts.append(asked)
        return way.put in asked

    way.proxy.lose_reply(is_put)
    with psycopg.connect(way.proxy.through(way.url).partition("?")[0]) as connection:
        with pytest.raises(psycopg.OperationalError):
            task.using(connection=connection).enqueue(1)
        assert len(puts) == 1
        assert connection.closed
    assert counted(app) == 0
    app.close()


@pytest.mark.parametrize("way", ["postgres"] if "postgres" in SERVERS else [], indirect=True)
async def test_who_waits_for_a_transaction_holds_up_nobody_else(way: Way) -> None:
    """While somebody's open transaction holds an id, only a put of that id waits."""
    app = way.app()
    await app.aopen()
    task = task_of(app)
    call = task.call(1)
    async with await psycopg.AsyncConnection.connect(way.url.partition("?")[0]) as connection:
        await app.aenqueue_many([call], connection=connection)
        held = [asyncio.create_task(app.aenqueue_many([call])) for _ in range(3)]
        await waiting_for(way, 3)
        for n in range(20):
            await task.aenqueue(n)
        others = await asyncio.gather(*(task.aenqueue(n) for n in range(20)))
        await app.aenqueue_many([task.call(n) for n in range(5)])
        assert len(others) == 20
        assert not any(each.done() for each in held)
        await connection.commit()
    assert await asyncio.gather(*held) == [0, 0, 0]
    await app.aclose()


@pytest.mark.parametrize("way", ["postgres"] if "postgres" in SERVERS else [], indirect=True)
def test_threads_that_wait_for_a_transaction_hold_up_no_other(way: Way) -> None:
    """The same from synchronous code, with as many threads as there are connections."""
    app = way.app()
    app.open()
    task = task_of(app)
    call = task.call(1)
    answers: list[int] = []
    with psycopg.connect(way.url.partition("?")[0]) as connection:
        app.enqueue_many([call], connection=connection)
        held = [
            threading.Thread(target=lambda: answers.append(app.enqueue_many([call])))
            for _ in range(8)
        ]
        for each in held:
            each.start()
        app.bridge.run(waiting_for(way, 8))
        task.enqueue(2)
        assert answers == []
        connection.commit()
    for each in held:
        each.join()
    assert answers == [0] * 8
    assert counted(app) == 2
    app.close()


@pytest.mark.parametrize("way", ["postgres"] if "postgres" in SERVERS else [], indirect=True)
@pytest.mark.parametrize("enqueue", ["blocking", "on a loop"])
def test_a_wait_for_a_transaction_ends_by_the_servers_word(way: Way, enqueue: str) -> None:
    """The lock time-out comes before the caller's: the server undid it, and nothing lingers there."""
    app = way.app(2)
    app.open()
    task = task_of(app)
    call = task.call(1)
    with psycopg.connect(way.url.partition("?")[0]) as connection:
        app.enqueue_many([call], connection=connection)
        with pytest.raises(StoreUnavailable, match="has put the same job") as caught:
            if enqueue == "blocking":
                app.enqueue_many([call])
            else:
                app.bridge.run(app.aenqueue_many([call]))
        assert type(caught.value) is StoreUnavailable
    assert app.enqueue_many([call]) == 0
    app.close()


async def waiting_for(way: Way, number: int) -> None:
    """Return when so many puts wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND query LIKE '%put(%' AND datname = current_database()"
    )
    url = way.url.partition("?")[0]
    async with (
        asyncio.timeout(30),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        while True:
            row = await (await connection.execute(query)).fetchone()
            if row is not None and row[0] >= number:
                return
