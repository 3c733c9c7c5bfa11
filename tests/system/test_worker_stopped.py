"""A worker that is told to stop loses nothing, burns no attempt, and leaves no lease (F3, P10, L5)."""

import os
import signal
import threading
import time

from fairlead import State
from fairlead.runtime.points import POINTS
from tests.system.tree import ALL_POOLS, Shop, Tree, alive, in_short, on_every_store, until

BOUND = 10.0
"""Seconds beyond the grace time that a stop may take on a busy machine."""


def check_left(shop: Shop) -> None:
    """Nothing runs in the store, and nothing that ended or was given back counts an attempt."""
    assert shop.states()[State.RUNNING] == 0
    for job in shop.accepted:
        record = shop.record(job)
        assert record.attempt == (1 if record.state is State.DONE else 0), record
        assert set(shop.outcomes(job)) <= {"done", "returned"}


def finish_elsewhere(shop: Shop) -> None:
    """Another worker ends what was given back, at once: it need not wait for leases."""
    tree = shop.start("--drain")
    assert tree.ended(15) == 0
    assert {shop.record(job).state for job in shop.accepted} == {State.DONE}
    assert {shop.record(job).attempt for job in shop.accepted} == {1}


@in_short("point", POINTS, "started")
def test_a_signal_at_any_point_leaves_no_lease(shop: Shop, point: str) -> None:
    """F3: quick jobs end, those longer than the grace time are given back when it is over."""
    shop.put_many("quick", 5)
    shop.put_many("wait", 3, 1.2)
    shop.put_many("nap", 2, 0.1)
    tree = shop.start("--grace", "0.5", POINT=f"{point}:term:2")
    fired = shop.until_fired()
    assert tree.ended() == 0
    assert time.monotonic() - fired < 0.5 + BOUND
    check_left(shop)
    finish_elsewhere(shop)


@in_short("point", POINTS, "claimed")
def test_a_second_signal_at_any_point_gives_back_at_once(shop: Shop, point: str) -> None:
    """F3: with half a minute of grace, a second signal ends it now all the same."""
    shop.put_many("quick", 5)
    shop.put_many("wait", 3, 1.2)
    shop.put_many("nap", 2, 0.1)
    tree = shop.start("--grace", "30", POINT=f"{point}:twice:2")
    fired = shop.until_fired()
    assert tree.ended() == 0
    assert time.monotonic() - fired < 0.3 + BOUND
    assert "again" in tree.log
    check_left(shop)
    finish_elsewhere(shop)


def test_processes_and_threads_give_back_at_the_end_of_grace(shop: Shop) -> None:
    """P10: handlers in processes are ended; a thread's job is given back when its process is gone."""
    slow = [
        shop.put("nap", 30.0),
        shop.put("nap", 30.0, queue="process"),
        shop.put("stubborn", 30.0),
        shop.put("wait", 30.0),
    ]
    quick = [shop.put("nap", 1.0), shop.put("nap", 1.0, queue="loop")]
    tree = shop.start(*ALL_POOLS, "--grace", "2")
    for job in (*slow, *quick):
        shop.until_started(job)
    began = time.monotonic()
    tree.signal(signal.SIGINT)
    assert tree.ended() == 0
    assert time.monotonic() - began < 2 + 5 + BOUND
    assert {shop.record(job).state for job in quick} == {State.DONE}
    assert {shop.record(job).state for job in slow} == {State.WAITING}
    check_left(shop)
    shop.waiting = set(slow)


@on_every_store
def test_handlers_that_do_not_listen_cannot_hold_a_stop(shop: Shop) -> None:
    """F37, L5: a blocked loop, a coroutine that goes on, a thread; all given back uncounted."""
    deaf, thread = shop.put("deaf", 60.0), shop.put("nap", 60.0)
    listening = shop.put("wait", 60.0)
    first = shop.start("--grace", "1", "--queue", "loop", "--queue", "thread")
    for job in (deaf, thread, listening):
        shop.until_started(job)
    blocking = shop.put("sleep_on_loop", 60.0, queue="default")
    second = shop.start("--grace", "1", "--queue", "default")
    busy = shop.until_started(blocking)
    began = time.monotonic()
    first.signal(signal.SIGTERM)
    second.signal(signal.SIGTERM)
    assert [first.ended(), second.ended()] == [0, 0]
    assert time.monotonic() - began < 1 + 2 * 5 + BOUND
    assert not alive(busy.pid)
    shop.waiting = set(shop.accepted)
    check_left(shop)
    assert {shop.record(job).crashes for job in shop.accepted} == {0}


@on_every_store
def test_a_rolling_restart_under_load_burns_no_attempt(shop: Shop) -> None:
    """F54: three workers are replaced in turn while a producer goes on."""
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            shop.put("quick")
            shop.put("wait", 0.3)
            shop.put("plain")
            shop.put("nap", 0.02, queue="process")
            time.sleep(0.02)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        crew = [shop.start(*ALL_POOLS, "--grace", "5") for _ in range(2)]
        for _ in range(3):
            crew.append(_ready(shop.start(*ALL_POOLS, "--grace", "5")))
            time.sleep(0.3)
            assert crew.pop(0).stop() == 0
    finally:
        over.set()
        producer.join()
    shop.until_final()
    assert len(shop.accepted) > 100
    assert {shop.record(job).attempt for job in shop.accepted} == {1}
    assert {shop.record(job).state for job in shop.accepted} == {State.DONE}


def _ready(tree: Tree) -> Tree:
    until(lambda: "stop" in tree.log, what="a worker that is ready")
    return tree


def test_leases_are_renewed_until_the_grace_time_is_over(shop: Shop) -> None:
    """P10: the grace time may outlast a lease, as it does by default; nobody else takes the job."""
    job = shop.put("wait", 5.0)
    first = shop.start("--lease", "2", "--grace", "20")
    shop.until_started(job)
    second = _ready(shop.start("--lease", "2"))
    first.signal(signal.SIGTERM)
    assert first.ended() == 0
    assert (shop.record(job).state, shop.record(job).attempt) == (State.DONE, 1)
    assert len(shop.starts(job)) == 1
    assert "lease passed" not in second.log


def test_a_signal_while_it_starts_ends_it_too(shop: Shop) -> None:
    """L5: whatever it is doing; before it listens, the signal itself ends it."""
    shop.put("wait", 0.1)
    for pause in (0.3, 0.4, 0.6, 0.8):
        tree = shop.start(*ALL_POOLS, "--grace", "1")
        time.sleep(pause)
        os.kill(tree.pid, signal.SIGTERM)
        assert tree.ended(10) in (0, -signal.SIGTERM)
    check_left(shop)
    shop.start()
    shop.until_final()
