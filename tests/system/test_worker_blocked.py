"""A handler that blocks its process strands nobody: others run what it has not started (F77)."""

import re
import signal
from collections.abc import Collection

from fairlead import State
from fairlead.core.ids import JobId
from tests.system.tree import Shop, in_short, on_every_store, send, until

NOISE = re.compile("too late|lease passed|lost by|Traceback")
"""What nobody shall read who has lost no lease."""


def put_behind(shop: Shop, first: str, *args: object, quick: int = 12) -> tuple[JobId, list[JobId]]:
    """Put a job and quick ones behind it, in one step: whoever claims one claims all."""
    call = getattr(shop.module, first).call(*args)
    calls = [shop.module.quick.call(number) for number in range(quick)]
    shop.app.enqueue_many([call, *calls])
    ids = [each.id for each in calls]
    shop.accepted += [call.id, *ids]
    return call.id, ids


def go_on(shop: Shop) -> None:
    """Let the handler go on that blocks its loop."""
    (shop.folder / "go-on").touch()


def check_ran_once(shop: Shop, jobs: Collection[JobId]) -> None:
    for job in jobs:
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record
        assert len(shop.starts(job)) == 1
        assert shop.outcomes(job)[-1] == "done"
        assert set(shop.outcomes(job)[:-1]) <= {"returned"}


@on_every_store
def test_quick_jobs_behind_a_blocked_loop_run_in_another_process(shop: Shop) -> None:
    blocker, jobs = put_behind(shop, "block")
    tree = shop.start("--processes", "2")
    shop.until_final(*jobs)
    tree.until_log("has not turned for")
    go_on(shop)
    shop.until_final(blocker)
    check_ran_once(shop, [blocker, *jobs])
    given_back = [job for job in jobs if "returned" in shop.outcomes(job)]
    told = re.findall(r"has not turned for \d s, at (.*); jobs given back .*: (\d+);", tree.log)
    assert len(told) == 1, tree.log
    where, number = told[0]
    assert re.search(r"shop\.py:\d+ in block$", where)
    assert int(number) == len(given_back) > 0
    assert not NOISE.search(tree.log)


@in_short("point", ["claimed", "held", "starting", "started"], "held", "started")
def test_wherever_a_process_stands_still_nothing_runs_twice(shop: Shop, point: str) -> None:
    """It stops between claim and start, others run what it had, and then it goes on."""
    jobs = shop.put_many("quick", 12)
    first = shop.start(HOLD=point)
    until(lambda: (shop.folder / f"at-{point}").exists(), what="the point")
    second = shop.start()
    left = [shop.until_started(job) for job in jobs[1:]]
    shop.until_final(*jobs[1:])
    assert {line.pid for line in left} <= set(second.workers)
    (shop.folder / f"go-{point}").touch()
    shop.until_final()
    check_ran_once(shop, jobs)
    # What had started when it stopped is its own; the rest it finds taken, and goes on to work.
    assert shop.starts(jobs[0])[0].pid in (first.workers if point == "started" else second.workers)
    assert second.stop() == 0
    last = shop.put("quick")
    shop.until_final(last)
    assert not NOISE.search(first.log + second.log)


@on_every_store
def test_a_frozen_process_loses_what_it_has_not_started_and_nothing_else(shop: Shop) -> None:
    """F4: what runs in it goes on when it wakes; nothing runs a second time."""
    running = shop.put("wait", 3.0)
    first = shop.start("--lease", "8")
    shop.until_started(running)
    [pid] = first.workers
    send(pid, signal.SIGSTOP)
    jobs = shop.put_many("quick", 6)
    second = shop.start("--lease", "8")
    shop.until_final(*jobs)
    send(pid, signal.SIGCONT)
    shop.until_final()
    check_ran_once(shop, [running, *jobs])
    assert not NOISE.search(first.log + second.log)


@on_every_store
def test_a_drain_does_not_end_while_something_that_was_given_back_waits(shop: Shop) -> None:
    """The other process finds nothing due and leaves; another one takes its place."""
    blocker, jobs = put_behind(shop, "block")
    tree = shop.start("--processes", "2", "--drain")
    shop.until_final(*jobs)
    go_on(shop)
    assert tree.ended(60) == 0
    check_ran_once(shop, [blocker, *jobs])


def test_a_stop_gives_back_what_a_blocked_process_has_not_started(shop: Shop) -> None:
    """L5, P10: it cannot hear that it is to stop, and what it holds waits for nobody."""
    blocker, jobs = put_behind(shop, "block")
    tree = shop.start()
    shop.until_started(blocker)
    tree.signal(signal.SIGTERM)
    until(lambda: all(shop.record(job).state is State.WAITING for job in jobs))
    go_on(shop)
    assert tree.ended(40) == 0
    assert {shop.record(job).attempt for job in jobs} == {0}
    shop.waiting = set(jobs)
    assert shop.record(blocker).state is State.DONE


def test_the_line_of_a_plain_function_that_blocks_the_loop_is_told(shop: Shop) -> None:
    """It holds the interpreter lock, and the loop's own thread is at no line of a handler."""
    job = shop.put("hug", 5)
    tree = shop.start()
    shop.until_final(job)
    assert re.search(r"has not turned for \d s, at .*shop\.py:\d+ in hug; what blocks", tree.log)
