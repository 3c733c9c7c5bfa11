"""Real workers and producers beside a newer program: served they go on, and else they drain and say so."""

import signal
from collections.abc import Iterator

import pytest

from fairlead import Fairlead, SchemaOutdated, State
from fairlead.cli.command import Exit
from tests.newer import newer_than_this_program
from tests.system.tree import ALL_POOLS, Shop, Tree, on_every_store, send, until
from tests.versions.conftest import TELLING_STORES
from tests.versions.future import Future
from tests.versions.future_postgres import PostgresFuture
from tests.versions.future_redis import EXTRAS, RedisFuture
from tests.versions.future_sqlite import SqliteFuture


def check_told(tree: Tree) -> None:
    """It says once what happened and what to do, and does not take it for an outage."""
    [line] = [line for line in tree.log.splitlines() if "no longer served: " in line]
    assert "upgrade this program" in line
    assert "Update the program, and start the worker again" in line
    assert "the store cannot be used" not in tree.log
    assert "Traceback" not in tree.log


@on_every_store
def test_a_worker_that_replaces_a_process_under_a_newer_schema_drains(shop: Shop) -> None:
    """What runs finishes, what waits stays for newer workers, and soon nothing is claimed any more."""
    slow = [shop.put("wait", 4.0) for _ in range(3)]
    tree = shop.start("--processes", "2", "--lease", "5")
    starts = [shop.until_started(job) for job in slow]
    until(lambda: tree.log.count("is ready") == 2)
    [idle, *_] = [pid for pid in tree.workers if pid != starts[0].pid]
    with newer_than_this_program(shop.owner_url):
        send(idle, signal.SIGKILL)
        tree.until_log("no longer served: ")
        later = shop.put("quick")
        assert tree.ended(30) == Exit.FAILED
        # On Redis a process goes on until its own heartbeat tells it, or the supervisor does.
        may_run = shop.owner_url.startswith("redis")
        assert may_run or shop.record(later).state is State.WAITING
    check_told(tree)
    assert tree.log.count("is ready") == 2, "the new one never was"
    finished = [job for job, start in zip(slow, starts, strict=True) if start.pid != idle]
    assert finished
    for job in finished:
        record = shop.record(job)
        assert (record.state, record.attempt, len(shop.starts(job))) == (State.DONE, 1, 1)
    shop.start("--lease", "5")
    shop.until_final()


def test_what_runs_longer_than_the_grace_time_is_given_back_to_newer_workers(shop: Shop) -> None:
    job = shop.put("wait", 60.0, timeout=90.0)
    tree = shop.start("--processes", "2", "--grace", "0.5")
    start = shop.until_started(job)
    until(lambda: tree.log.count("is ready") == 2)
    with newer_than_this_program(shop.owner_url):
        for pid in tree.workers:
            if pid != start.pid:
                send(pid, signal.SIGKILL)
        assert tree.ended(30) == Exit.FAILED
    check_told(tree)
    record = shop.record(job)
    assert (record.state, record.attempt) == (State.WAITING, 0)
    assert shop.outcomes(job) == ["returned"]
    shop.waiting.add(job)


@on_every_store
def test_a_worker_does_not_start_on_a_newer_schema(shop: Shop) -> None:
    with newer_than_this_program(shop.owner_url):
        tree = shop.start()
        assert tree.ended() == Exit.FAILED
    assert "upgrade this program" in tree.log
    assert "Traceback" not in tree.log


@on_every_store
def test_a_producer_cannot_enqueue_into_a_newer_schema(shop: Shop) -> None:
    app = Fairlead(shop.url)
    task = app.task(name="quick", queue="default")(lambda: None)
    before = sum(shop.states().values())
    with newer_than_this_program(shop.owner_url):
        with pytest.raises(SchemaOutdated, match="upgrade this program"):
            task.enqueue()
        with pytest.raises(SchemaOutdated, match="upgrade this program"):
            app.enqueue_many([task.call(), task.call()])
    assert sum(shop.states().values()) == before
    app.close()


def future_of(shop: Shop) -> Future:
    """A newer program at a shop's store."""
    if shop.url.startswith("sqlite"):
        return SqliteFuture(shop.folder / "jobs.db")
    if shop.url.startswith("postgresql"):
        return PostgresFuture(shop.owner_url)
    return RedisFuture(shop.owner_url, EXTRAS["one"], ("loop", "thread", "process"))


@pytest.fixture
def future(shop: Shop) -> Iterator[Future]:
    future = future_of(shop)
    yield future
    future.close()


@on_every_store
def test_a_worker_that_is_still_served_goes_on_and_replaces_its_processes(
    shop: Shop, future: Future
) -> None:
    """A process that starts beside the newer program opens the store like those before it."""
    tree = shop.start(*ALL_POOLS, "--lease", "2", "--processes", "2")
    jobs = [shop.put("wait", 1.5), shop.put("nap", 1.5)]
    for job in jobs:
        shop.until_started(job)
    until(lambda: tree.log.count("is ready") == 2)
    future.arrive()
    future.grow()
    victim = min(tree.workers)
    send(victim, signal.SIGKILL)
    until(lambda: len(tree.workers) == 2 and victim not in tree.workers, what="a new process")
    until(lambda: tree.log.count("is ready") == 3)
    jobs += [*shop.put_many("quick", 20), *shop.put_many("plain", 20)]
    jobs += [shop.put("nap", 0.1, queue="process"), shop.put("second_time"), shop.put("wait", 0.5)]
    future.grow()
    shop.until_final(*jobs)
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    future.grow()
    assert tree.stop() == 0
    assert future.lost() == []
    assert "the store's schema" not in tree.log
    assert "Traceback" not in tree.log


on_stores_that_tell = pytest.mark.parametrize("shop", TELLING_STORES, indirect=True)


@on_stores_that_tell
def test_a_worker_that_is_no_longer_served_drains_by_itself(shop: Shop, future: Future) -> None:
    """Its next verbs say so, or its next heartbeat; nothing has to end or begin for that."""
    job = shop.put("wait", 3.0)
    tree = shop.start("--processes", "2", "--lease", "5")
    shop.until_started(job)
    until(lambda: tree.log.count("is ready") == 2)
    future.step(serves=2)
    tree.until_log("no longer served: ")
    shop.app.store.level = 2
    later = shop.put("quick")
    assert tree.ended(30) == Exit.FAILED
    # On Redis a process goes on until its own heartbeat tells it, or the supervisor does.
    assert shop.url.startswith("redis") or shop.record(later).state is State.WAITING
    check_told(tree)
    record = shop.record(job)
    # The tables of a file may be others now: there it is left to its lease.
    state = State.RUNNING if shop.url.startswith("sqlite") else State.DONE
    assert (record.state, record.attempt) == (state, 1)
    assert len(shop.starts(job)) == 1
    future.take_back()
    shop.start("--lease", "5")
    shop.until_final()


@on_stores_that_tell
def test_a_producer_that_is_no_longer_served_is_told(shop: Shop, future: Future) -> None:
    """At once on SQLite; a server is asked every few seconds."""
    shop.waiting.add(shop.put("quick"))
    future.step(serves=2)
    until(lambda: refused(shop), 0 if shop.url.startswith("sqlite") else 20)
    assert refused(shop)
    shop.app.close()
    assert refused(shop)
    future.take_back()


def refused(shop: Shop) -> bool:
    try:
        shop.waiting.add(shop.put("quick"))
    except SchemaOutdated as problem:
        return "upgrade this program" in str(problem)
    return False
