"""What people tell a worker: cancel, recycle, reload, and what are you doing (I17, F38)."""

import re
import signal

from fairlead import Retry, State
from fairlead.core.ids import JobId
from tests import deeds
from tests.system.tree import ALL_POOLS, Shop, Tree, on_every_store, until
from tests.words import by

LEASE = ("--lease", "2")


def cancel(shop: Shop, *jobs: JobId) -> None:
    shop.app.bridge.run(deeds.cancel(shop.app.store, jobs, "not wanted any more", by()))


def test_a_cancelled_job_never_starts_and_a_running_one_ends_soon(shop: Shop) -> None:
    """I17: and whatever a thread comes to that cannot be stopped, it is no success."""
    before = [shop.put("wait", 0.1), shop.put("nap", 0.1)]
    cancel(shop, *before)
    tree = shop.start(*ALL_POOLS, *LEASE)
    running = [shop.put("wait", 120.0), shop.put("nap", 120.0, queue="process")]
    thread = shop.put("nap", 3.0)
    for job in (*running, thread):
        shop.until_started(job)
    cancel(shop, *running, thread)
    shop.until_final(*running, thread)
    assert shop.record(thread).reason == "not wanted any more"
    for job in shop.accepted:
        record = shop.record(job)
        assert (record.state, record.result) == (State.CANCELLED, None)
    assert [len(shop.starts(job)) for job in before] == [0, 0]
    assert shop.lines(running[0], "cancelled")[0].detail == "Cancel"
    assert tree.log.count("cancelled: ") == 3


@on_every_store
def test_processes_are_replaced_after_so_many_jobs(shop: Shop) -> None:
    """F38: between jobs; none is lost, none burns an attempt."""
    slow = shop.put_many("wait", 4, 2.5)
    tree = shop.start("--max-jobs", "40", "--processes", "2")
    for job in slow:
        shop.until_started(job)

    def replaced_thrice() -> bool:
        shop.until_final(*shop.put_many("quick", 40), *shop.put_many("plain", 20))
        return tree.log.count("is being replaced: it has run") >= 3

    until(replaced_thrice, 30)
    shop.until_final(*shop.put_many("quick", 40))  # Those that came last have had none yet.
    shop.start("--pool", "process", "--max-jobs", "40")
    shop.until_final(*shop.put_many("plain", 100, queue="process"))
    shop.until_final()
    assert len({line.pid for line in shop.starts()}) >= 6
    check_all_done(shop)
    assert all(len(shop.starts(job)) == 1 for job in slow)


def test_processes_that_grow_too_large_are_replaced(shop: Shop) -> None:
    """F38: on the loop and in processes of their own."""
    slow = shop.put("wait", 3.0)
    tree = shop.start(*ALL_POOLS, "--max-memory", "200")
    first = shop.until_started(slow).pid
    shop.until_final(shop.put("hoard", 250))
    line = tree.until_log("MB of memory")
    assert f"process {first} is being replaced" in line
    in_process = [shop.put("hoard", 250, queue="process") for _ in range(4)]
    shop.until_final(*in_process)
    assert len({shop.starts(job)[0].pid for job in in_process}) == 4
    shop.until_final()
    check_all_done(shop)
    until(lambda: first not in tree.workers)


def check_all_done(shop: Shop) -> None:
    for job in shop.accepted:
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record


def change(shop: Shop, text: str) -> None:
    path = shop.folder / "shop.py"
    path.write_text(re.sub(r"^VERSION = .*$", text, path.read_text(), flags=re.MULTILINE))


def result_of_version(shop: Shop) -> str | None:
    job = shop.put("version")
    shop.until_final(job)
    return shop.record(job).result


def test_a_reload_takes_new_code_and_refuses_broken_code(shop: Shop) -> None:
    """SIGHUP: the same process id goes on, no attempt is burnt, and a mistake changes nothing."""
    tree: Tree = shop.start(*ALL_POOLS, "--grace", "5")
    assert result_of_version(shop) == "1"
    change(shop, "VERSION = 1 / 0")
    (before,) = tree.workers
    tree.signal(signal.SIGHUP)
    tree.until_log("not reloaded, the old code runs on")
    assert "ZeroDivisionError" in tree.log
    assert result_of_version(shop) == "1"
    assert tree.workers == [before]
    change(shop, "VERSION = 2")
    running = shop.put("wait", 2.0)
    shop.until_started(running)
    tree.signal(signal.SIGHUP)
    until(lambda: tree.log.count("fairlead worker") == 2, what="a second greeting")
    until(lambda: tree.workers not in ([], [before]))
    assert result_of_version(shop) == "2"
    assert tree.process.poll() is None
    shop.until_final()
    check_all_done(shop)
    assert len(shop.starts(running)) == 1


def test_a_worker_says_what_each_slot_does(shop: Shop) -> None:
    """SIGQUIT: process, job, task, since when, and the line where a thread tells it."""
    jobs = [shop.put("wait", 4.0), shop.put("nap", 4.0), shop.put("nap", 4.0, queue="process")]
    tree = shop.start(*ALL_POOLS, *LEASE, "--processes", "1")
    for job in jobs:
        shop.until_started(job)
    tree.signal(signal.SIGQUIT)
    tree.until_log(": 3 running, 0 claimed and about to start")
    for job in jobs:
        assert re.search(rf"\d\.\d s  {job}  shop\.(wait|nap)", tree.until_log(f"  {job}  "))
    assert re.search(rf"{jobs[1]}  shop.nap  \S*shop.py:\d+ in nap", tree.log)
    shop.until_final()
    check_all_done(shop)


def test_a_worker_whose_app_cannot_be_loaded_says_so_and_ends(shop: Shop) -> None:
    """Its processes die before they are ready: not started again for ever."""
    tree = shop.start(SHOP_URL="nonsense://")
    assert tree.ended() != 0
    change(shop, "VERSION = 1 if 'c' == __import__('sys').argv[0][-1] else 1 / 0")
    tree = shop.start()
    assert tree.ended(30) == 1
    assert "giving up" in tree.log


def test_a_stop_during_a_reload_stops(shop: Shop) -> None:
    """SIGTERM after SIGHUP: running jobs keep their grace time, and nothing starts anew."""
    job = shop.put("wait", 2.0)
    tree = shop.start("--grace", "10")
    shop.until_started(job)
    tree.signal(signal.SIGHUP)
    tree.until_log("reload")
    tree.signal(signal.SIGTERM)
    assert tree.ended(20) == 0
    assert tree.log.count("fairlead worker") == 1
    check_all_done(shop)
    assert len(shop.starts(job)) == 1


def test_who_blocks_a_loop_is_named(shop: Shop) -> None:
    """F36: the most common mistake of all, told while it happens."""
    job = shop.put("sleep_on_loop", 4)
    tree = shop.start()
    shop.until_final(job)
    assert re.search(r"has not turned for \d s, at \S*shop.py:\d+ in sleep_on_loop", tree.log)


def test_a_process_does_not_wait_for_threads_of_its_handlers(shop: Shop) -> None:
    """One that never returns from `asyncio.to_thread` must not keep it from leaving."""
    job = shop.put("hand_to_thread", 40, timeout=0.5, retry=Retry(attempts=1))
    tree = shop.start("--drain")
    shop.until_final(job)
    assert tree.ended(10) == 0
    assert shop.record(job).state is State.DEAD
