"""Handlers that kill their process harm themselves only, and not for ever (F8, F9, F10, F39, P7)."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead import State
from fairlead.core.ids import JobId
from fairlead.core.job import ALONE
from tests.needs import without
from tests.system.tree import ALL_POOLS, Shop, Tree, children, in_short, on_every_store, send, until

CGROUPS = Path("/sys/fs/cgroup")


def check_poison(shop: Shop, job: JobId, how: str, crashes: int = 3) -> None:
    record = shop.record(job)
    assert (record.state, record.reason, record.crashes) == (State.DEAD, "poison", crashes)
    told = record.errors[-1].message or ""
    assert told.startswith(how), record.errors
    assert told.endswith(f", crash {crashes} of {crashes}"), record.errors
    assert record.errors[-1].error == "Crashed"
    assert len(shop.starts(job)) <= crashes + ALONE
    # On a busy machine it may wait for its process for so long that it is given back.
    assert set(shop.outcomes(job)) - {"returned"} == {"crashed"}


def check_healthy(shop: Shop, jobs: list[JobId]) -> None:
    for job in jobs:
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0), record


CRASHES = {
    "segfault": "SIGSEGV",
    "abort": "SIGABRT",
    "kill": "SIGKILL",
    "exit3": "exit code 3",
    "exit0": "exit code 0",
}
FAILURES = {"sys.exit": "SystemExit", "interrupt": "KeyboardInterrupt", "rude": "shop.Rude"}


@in_short("deaths", [{*CRASHES, *FAILURES}], {"segfault", "exit0", "rude"})
def test_a_handler_in_a_process_of_its_own_dies_alone(shop: Shop, deaths: set[str]) -> None:
    """F9, F10: three crashes and it is a dead letter that names the signal; neighbours run once."""
    crashes = {shop.put("die", how): told for how, told in CRASHES.items() if how in deaths}
    failures = {shop.put("die", how): error for how, error in FAILURES.items() if how in deaths}
    healthy = shop.put_many("nap", 10, 0.1, queue="process") + shop.put_many("wait", 5, 0.5)
    tree = shop.start("--pool", "process", "--pool", "loop")
    pids = until(lambda: tree.workers)
    shop.until_final(seconds=50)
    for job, told in crashes.items():
        check_poison(shop, job, told)
        assert len(shop.starts(job)) == 3
    for job, error in failures.items():
        record = shop.record(job)
        assert (record.state, record.reason) == (State.DEAD, "exhausted")
        assert (record.attempt, record.crashes) == (5, 0)
        assert {past.error for past in record.errors} == {error}
    check_healthy(shop, healthy)
    assert all(len(shop.starts(job)) == 1 for job in healthy)
    assert tree.workers == pids


def test_the_neighbours_of_a_poison_on_the_loop_and_in_threads_lose_nothing(shop: Shop) -> None:
    """F10, I22: nobody knows who did it, so all who ran run apart from others until it shows."""
    healthy = shop.put_many("wait", 4, 0.8) + shop.put_many("nap", 2, 0.8)
    on_loop = shop.put("adie", "abort", 0.3)
    in_thread = shop.put("die", "segfault", 0.4, queue="thread")
    healthy += shop.put_many("quick", 20) + shop.put_many("plain", 20)
    tree = shop.start("--lease", "5")
    shop.until_final(seconds=50)
    check_poison(shop, on_loop, "SIGABRT")
    check_poison(shop, in_thread, "SIGSEGV")
    check_healthy(shop, healthy)
    assert "died: SIGABRT" in tree.log
    assert "dead: poison" in tree.log


@in_short("death", ["sys.exit", "interrupt", "rude"], "rude")
def test_exceptions_that_end_programs_do_not_end_a_worker(shop: Shop, death: str) -> None:
    """F9: on the loop and in a thread they are failures like others."""
    jobs = [shop.put("adie", death), shop.put("die", death, queue="thread")]
    healthy = shop.put_many("wait", 3, 1.0) + shop.put_many("nap", 2, 1.0)
    tree = shop.start()
    pids = until(lambda: tree.workers)
    shop.until_final()
    for job in jobs:
        record = shop.record(job)
        assert (record.state, record.reason, record.attempt) == (State.DEAD, "exhausted", 5)
    check_healthy(shop, healthy)
    assert tree.workers == pids
    assert "died" not in tree.log


@on_every_store
def test_a_killed_process_of_a_pool_costs_one_job_one_crash(shop: Shop) -> None:
    """F8: only what ran in it is affected, and it runs again."""
    jobs = shop.put_many("nap", 6, 1.0, queue="process")
    tree = shop.start("--pool", "process")
    (worker,) = until(lambda: tree.workers)
    first = until(shop.starts)[0]
    assert first.pid in children(worker)
    send(first.pid, signal.SIGKILL)
    shop.until_final()
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert {shop.record(job).attempt for job in jobs} == {1}
    assert [job for job in jobs if shop.record(job).crashes] == [first.job]
    assert shop.outcomes(first.job) == ["crashed", "done"]
    assert tree.workers == [worker]


def test_jobs_sent_ahead_to_a_process_that_dies_go_to_another(shop: Shop) -> None:
    """F8: quick jobs are sent by the dozen; a death among them costs its own job only."""
    healthy = shop.put_many("plain", 150, queue="process")
    poison = [shop.put("die", "kill")]
    healthy += shop.put_many("plain", 150, queue="process")
    poison.append(shop.put("die", "abort"))
    healthy += shop.put_many("plain", 150, queue="process")
    shop.start("--pool", "process")
    shop.until_final()
    check_poison(shop, poison[0], "SIGKILL")
    check_poison(shop, poison[1], "SIGABRT")
    check_healthy(shop, healthy)
    assert all(len(shop.starts(job)) == 1 for job in healthy)


@contextmanager
def limited(controller: str, limit: str, value: str) -> Iterator[Path]:
    """Make a group of processes that may take only so much of something."""
    folder = CGROUPS / controller / f"fairlead-test-{os.getpid()}"
    if os.geteuid() != 0 or not folder.parent.is_dir():
        without(f"limits for a group of processes need root and cgroup v1 with {controller}")
    folder.mkdir()
    (folder / limit).write_text(value)
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text(), 5, "an empty group")
    folder.rmdir()


@pytest.fixture
def little_memory() -> Iterator[Path]:
    with limited("memory", "memory.limit_in_bytes", "120M") as folder:
        yield folder


@pytest.fixture
def few_processes() -> Iterator[Path]:
    with limited("pids", "pids.max", "20") as folder:
        yield folder


@on_every_store
def test_want_of_memory_counts_as_a_crash(shop: Shop, little_memory: Path) -> None:
    """F39: the kernel kills the process that takes too much; its neighbours do not notice."""
    greedy = shop.put("die", "memory")
    healthy = shop.put_many("nap", 8, 0.2, queue="process")
    tree: Tree = shop.start("--pool", "process", SHOP_CGROUP=str(little_memory))
    shop.until_final(seconds=40)
    check_poison(shop, greedy, "SIGKILL (killed, by hand or for want of memory)")
    check_healthy(shop, healthy)
    assert "dead: poison" in tree.log


def test_a_handler_that_forks_without_end_harms_only_itself(
    few_processes: Path, shop: Shop
) -> None:
    """F40: where the system bounds its processes, it fails; its neighbours do not notice."""
    bomb = shop.put("fork_without_end")
    healthy = shop.put_many("nap", 8, 0.2, queue="process") + shop.put_many("wait", 3, 0.5)
    shop.start(*ALL_POOLS, SHOP_CGROUP=str(few_processes))
    shop.until_final(seconds=40)
    record = shop.record(bomb)
    assert (record.state, record.reason, record.crashes) == (State.DEAD, "exhausted", 0)
    assert "BlockingIOError" in record.errors[-1].error
    check_healthy(shop, healthy)
