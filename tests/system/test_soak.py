"""Many jobs and many troubles leave nothing behind in a worker (L6, L7, F67): `make chaos`."""

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlead import State
from tests.system.faults import PostgresShop
from tests.system.redis_faults import RedisShop
from tests.system.tree import ALL_POOLS, Shop, Tree, descendants, on_every_store, until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


class Size(NamedTuple):
    """What a tree of processes takes: resident memory in MB, open files, threads."""

    memory: float
    files: int
    threads: int


def size_of(tree: Tree) -> Size:
    memory = files = threads = 0
    for pid in (tree.pid, *descendants(tree.pid)):
        folder = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        memory += int(status["VmRSS"].split()[0])
        threads += int(status["Threads"])
        files += len(os.listdir(folder / "fd"))
    return Size(memory / 1000, files, threads)


def settled_size(tree: Tree) -> Size:
    time.sleep(3.0)
    return size_of(tree)


def work_off(shop: Shop, jobs: int) -> None:
    """Put so many jobs, a part at a time, and wait for their end."""
    for _ in range(jobs // 5_000):
        calls = [shop.module.quick.call() for _ in range(4_000)]
        calls += [shop.module.plain.call() for _ in range(1_000)]
        shop.app.enqueue_many(calls)
        until(lambda: not shop.states()[State.WAITING], 120, "the end of a part")
    shop.until_final(seconds=60)


def check_bounded(before: Size, after: Size) -> None:
    assert after.files <= before.files + 5, (before, after)
    assert after.threads <= before.threads + 2, (before, after)
    assert after.memory <= before.memory * 1.1 + 5, (before, after)


@on_every_store
def test_a_worker_is_as_large_after_many_jobs_as_after_few(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """L7, F67: memory, files and threads, after 20,000 jobs and after 200,000."""
    tree = shop.start(*ALL_POOLS, "--log-level", "error")
    work_off(shop, 20_000)
    before = settled_size(tree)
    work_off(shop, 180_000)
    after = settled_size(tree)
    with capsys.disabled():
        print(f"\n{before} -> {after}")
    check_bounded(before, after)


@pytest.mark.parametrize("shop", ["postgres", "redis"], indirect=True)
def test_a_hundred_reconnects_leave_nothing_behind(shop: PostgresShop | RedisShop) -> None:
    """L7, F17: connections, files and threads are those of the beginning."""
    tree = shop.start(*ALL_POOLS, "--lease", "4")
    shop.until_up()
    work_off(shop, 5_000)
    before = settled_size(tree)
    for _ in range(100):
        if isinstance(shop, RedisShop):
            shop.kick("normal")
            shop.kick("pubsub")
        else:
            shop.terminate()
        shop.put("quick")
        time.sleep(0.05)
    shop.check_back()
    shop.until_final()
    check_bounded(before, settled_size(tree))


@on_every_store
def test_poison_jobs_do_not_slow_the_others_down_for_long(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """L6: once three jobs have killed their processes for the last time, others run as before."""

    def seconds_for(jobs: int) -> float:
        began = time.monotonic()
        ids = shop.put_many("quick", jobs)
        shop.until_final(*ids, seconds=120)
        return time.monotonic() - began

    shop.start(*ALL_POOLS, "--log-level", "error")
    seconds_for(500)
    alone = min(seconds_for(3_000) for _ in range(3))
    poison = [shop.put("adie", how, 0.2) for how in ("abort", "kill", "exit3")]
    beside = seconds_for(3_000)
    shop.until_final(*poison, seconds=60)
    after = min(seconds_for(3_000) for _ in range(3))
    with capsys.disabled():
        print(
            f"\n3,000 jobs in {alone:.2f} s, beside poison {beside:.2f} s, after it {after:.2f} s"
        )
    assert {shop.record(job).reason for job in poison} == {"poison"}
    assert after <= alone / 0.8
