"""Sessions end, are few, and are nobody else's: not the handlers', not a fork's (F23, L7)."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from fairlead import Fairlead, Queue, State
from fairlead.core.errors import Unanswered
from fairlead.core.ids import JobId
from fairlead.runtime.embedded import EmbeddedWorker
from fairlead.runtime.workshop import Choice, Terms
from fairlead.stores.postgres.store import PostgresStore
from tests.system.faults import BACK_SECONDS, LISTENS, PostgresShop, Producer, transaction
from tests.system.test_fork import fork
from tests.system.tree import ALL_POOLS, alive, send, until

PER_WORKER, PER_PROCESS = 3, 4
"""A supervisor has connections for leases, looks and upkeep; a process for claims, settlements,
due times and news. What handlers put takes one more for each process, or up to eight for threads."""

PARENT = """
import os, signal, sys, time
from fairlead import Fairlead

app = Fairlead(sys.argv[1])
app.open()
app.bridge.run(app.store.admin.count())
if child := os.fork():
    os.write(1, b"%d\\n" % child)
    os.kill(os.getpid(), signal.SIGKILL)
os.close(1)
time.sleep(60)
"""


def test_every_part_comes_back_after_all_sessions_were_ended(pg_shop: PostgresShop) -> None:
    """F23: as an administrator would, several times, under load."""
    pg_shop.start("--lease", "2", "--processes", "2")
    with Producer(pg_shop) as producer:
        pg_shop.until_up(processes=2)
        for _ in range(3):
            running = pg_shop.put("wait", 0.5)
            pg_shop.until_started(running)
            assert pg_shop.terminate() >= PER_WORKER + 2 * PER_PROCESS
            pg_shop.check_back(processes=2)
            producer.until_more()
    pg_shop.until_final()
    for job in pg_shop.accepted:
        assert (pg_shop.record(job).state, len(pg_shop.starts(job))) == (State.DONE, 1)


async def test_a_listener_that_was_ended_listens_again(pg_shop: PostgresShop) -> None:
    """F23, L3: the worker would look by itself after a minute only, so it must have heard."""
    app = Fairlead(pg_shop.url, queues=[Queue("bell")])
    task = app.task(name="bell", queue="bell")(_answer)
    workshop = app.workshop(Terms(poll=60.0), Choice(queues={"bell": None}))
    async with EmbeddedWorker(workshop, None):
        assert await (await task.aenqueue()).aresult(timeout=20) == 1
        for _ in range(2):
            await asyncio.to_thread(pg_shop.until_up)
            ended = await asyncio.to_thread(pg_shop.listeners)
            assert await asyncio.to_thread(pg_shop.terminate, LISTENS) == 1
            # What is told while nobody listens is made up for; what is told later is heard.
            for _ in range(2):
                put = await asyncio.to_thread(_put_elsewhere, pg_shop.url)
                await asyncio.to_thread(
                    until, lambda: pg_shop.record(put).state.final, BACK_SECONDS, "the news"
                )
                await asyncio.to_thread(pg_shop.until_up)
            assert await asyncio.to_thread(pg_shop.listeners) != ended
    await app.aclose()


async def _answer() -> int:
    return 1


def _put_elsewhere(url: str) -> "object":
    """Put as another program would: only the server can tell of it."""
    app = Fairlead(url, queues=[Queue("bell")])
    job = app.task(name="bell", queue="bell")(_answer).enqueue()
    app.close()
    return job.id


def test_a_worker_has_few_connections(pg_shop: PostgresShop) -> None:
    """L7: counted while everything happens at once; the bound is documented above.

    A session counts if two looks see it: one that its client has closed lives on for a moment.
    """
    for processes in (1, 2):
        pg_shop.url = pg_shop.url_with(application_name=f"counted-{processes}")
        pg_shop.start(*ALL_POOLS, "--lease", "5", "--processes", str(processes))
    pg_shop.put_many("wait", 60, 0.1)
    pg_shop.put_many("plain", 200)
    pg_shop.put_many("second_time", 20)
    most = {1: 0, 2: 0}
    before: dict[int, set[int]] = {1: set(), 2: set()}

    def count() -> bool:
        for processes, seen in most.items():
            rows = pg_shop.server.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s",
                f"counted-{processes}",
            )
            now = {pid for (pid,) in rows}
            most[processes] = max(seen, len(now & before[processes]))
            before[processes] = now
        return not pg_shop.states()[State.WAITING] and not pg_shop.states()[State.RUNNING]

    until(count, 30, "the end of all jobs")
    for processes, seen in most.items():
        assert 0 < seen <= PER_WORKER + processes * PER_PROCESS


def test_handlers_that_hold_transactions_starve_nobody(pg_shop: PostgresShop) -> None:
    """Every slot of a pool is in a transaction of the user's; claims, leases and ends go on."""
    pg_shop.server.execute("CREATE TABLE IF NOT EXISTS stock (n int)")
    pg_shop.start("--lease", "1")
    holding = [pg_shop.put("shopkeeping", pg_shop.server.url(), 3.0) for _ in range(20)]
    for job in holding:
        pg_shop.until_started(job)
    others = pg_shop.put_many("plain", 50)
    pg_shop.until_final(*others, seconds=20)
    assert not any(pg_shop.lines(job, "end") for job in holding[:1]), "no transaction was open"
    pg_shop.until_final()
    for job in holding:
        assert (pg_shop.outcomes(job), len(pg_shop.starts(job))) == (["done"], 1)
    pg_shop.server.execute("DROP TABLE stock")


# Forks


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_app_works_on_both_sides_of_a_fork(pg_shop: PostgresShop) -> None:
    """The parent's sessions survive the child, which frees what it inherited and goes."""
    quick = pg_shop.module.quick
    ours = [pg_shop.put("quick")]
    assert pg_shop.record(ours[0]).state is State.WAITING
    before = set(pg_shop.sessions())

    def in_the_child() -> str:
        jobs = [quick.enqueue() for _ in range(10)]
        assert {job.status() for job in jobs} == {State.WAITING}
        pg_shop.app.close()
        gc.collect()
        return " ".join(job.id for job in jobs)

    answer = fork(in_the_child)
    ours += [pg_shop.put("quick") for _ in range(10)]
    theirs = answer().split()
    assert len({*ours, *theirs}) == 21
    pg_shop.accepted += theirs  # type: ignore[arg-type]
    assert {pg_shop.record(job).state for job in pg_shop.accepted} == {State.WAITING}
    assert before <= set(pg_shop.sessions()), "the child ended sessions of its parent"
    pg_shop.waiting |= set(pg_shop.accepted)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_waits_for_no_thread_that_it_does_not_have(pg_shop: PostgresShop) -> None:
    """Whoever held a lock when it was forked will never let go of it there."""
    store = pg_shop.app.store
    assert isinstance(store, PostgresStore)
    with store._bell._guard, store.news._guard, store.puts._shared._guard:
        job = fork(lambda: str(pg_shop.module.quick.enqueue().id))()
    pg_shop.accepted.append(JobId(job))
    pg_shop.waiting.add(JobId(job))


def test_a_child_does_not_keep_the_sessions_of_a_parent_that_was_killed(
    pg_shop: PostgresShop,
) -> None:
    """Else the server would keep them, and their locks, until the child ends."""
    url = pg_shop.url_with(application_name="parent")
    with subprocess.Popen([sys.executable, "-c", PARENT, url], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        own = "SELECT pid FROM pg_stat_activity WHERE application_name = 'parent'"
        try:
            assert parent.wait(10) == -signal.SIGKILL
            until(lambda: not pg_shop.sql(own), 10, "the end of the parent's sessions")
            assert alive(child)
        finally:
            send(child, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_puts_harms_nobody(pg_shop: PostgresShop) -> None:
    quick = pg_shop.module.quick
    with Producer(pg_shop, pause=0.0) as producer:
        producer.until_more()
        answers = [fork(lambda: str(quick.enqueue().id))() for _ in range(12)]
    assert not producer.repeated
    pg_shop.accepted += answers  # type: ignore[arg-type]
    pg_shop.waiting |= set(pg_shop.accepted)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_loses_no_file_that_has_the_number_of_a_broken_connection(
    pg_shop: PostgresShop, tmp_path: Path
) -> None:
    """The put itself is repeated, on another connection."""
    putting = threading.Thread(target=lambda: pg_shop.put("quick"))
    with transaction(pg_shop.server.url(), f"LOCK TABLE {pg_shop.schema}.job"):
        putting.start()
        until(lambda: pg_shop.terminate("wait_event_type = 'Lock'"), 10, "a put that waits")
    putting.join(10)
    pg_shop.waiting |= set(pg_shop.accepted)
    assert pg_shop.waiting
    paths = [tmp_path / f"file-{n}" for n in range(20)]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w", buffering=1)) for path in paths]

        def in_the_child() -> str:
            for file in files:
                file.write("kept\n")
            return "written"

        assert fork(in_the_child)() == "written"
    assert [path.read_text() for path in paths] == ["kept\n"] * 20


# Deadlines


@pytest.mark.parametrize("way", ["blocking", "on a loop"])
def test_a_put_to_a_server_that_stands_still_ends_in_time(pg_shop: PostgresShop, way: str) -> None:
    """L9: each call returns by its deadline, whether the server hears of it or not."""
    app = Fairlead(pg_shop.url_with(timeout=1))
    task = app.task(name="t")(_answer)

    def put() -> None:
        call = task.call()
        if way == "blocking":
            app.enqueue_many([call])
        else:
            app.bridge.run(app.store.put([call.job]))

    put()
    pg_shop.server.freeze()
    thaw = threading.Timer(8, pg_shop.server.thaw)
    thaw.start()
    with pytest.raises(Unanswered, match="no answer within 1 s|connection timeout expired"):
        put()
    assert thaw.is_alive(), "it took as long as the server did"
    thaw.cancel()
    pg_shop.server.thaw()
    put()
    app.close()


def test_a_put_that_waits_for_a_lock_in_vain_leaves_no_session_behind(
    pg_shop: PostgresShop,
) -> None:
    app = Fairlead(pg_shop.url_with(timeout=1))
    task = app.task(name="t")(_answer)
    with transaction(pg_shop.server.url(), f"LOCK TABLE {pg_shop.schema}.job"):
        for _ in range(3):
            with pytest.raises(Unanswered, match="lock timeout; a transaction that is still open"):
                task.enqueue()
        until(lambda: not pg_shop.sessions("wait_event_type = 'Lock'"), 5, "their end")
    task.enqueue()
    app.close()


def test_what_arrives_unasked_is_the_end_of_a_connection(pg_shop: PostgresShop) -> None:
    """After a restart no put fails because its connection lay idle meanwhile."""
    pg_shop.put("quick")
    pg_shop.app.bridge.run(pg_shop.app.store.admin.count())
    pg_shop.server.restart()
    with psycopg.connect(pg_shop.server.url()):
        pass
    pg_shop.put("quick")
    assert pg_shop.states()[State.WAITING] == 2
    pg_shop.waiting |= set(pg_shop.accepted)
